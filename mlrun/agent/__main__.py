"""``python -m mlrun.agent``: messages on stdin and stdout, text for people on stderr."""

from __future__ import annotations

import asyncio
import os
import sys

from mlrun.agent.agent import Agent


def main() -> int:
    # Stray prints must never land between messages: the real stdout is kept, descriptor 1 becomes stderr.
    messages = os.dup(1)
    os.dup2(2, 1)
    return asyncio.run(Agent(stdin=0, stdout=messages).run())


if __name__ == "__main__":
    sys.exit(main())
