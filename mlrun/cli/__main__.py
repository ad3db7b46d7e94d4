"""``python -m mlrun.cli``: the command where no script of ours is on PATH."""

from mlrun.cli import main

if __name__ == "__main__":
    main()
