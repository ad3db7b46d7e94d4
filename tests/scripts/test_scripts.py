"""People's own scripts: what they find, how they end, and that they never train separate models unsaid."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mlrun.cli.scripts import of_command
from mlrun.errors import RequestError
from tests.scripts.conftest import Launch

CHECKOUT = Path(__file__).parents[2]
PRINT_ENVIRONMENT = """\
    import json, os, sys
    import helper
    if __name__ == "__main__":
        print(json.dumps({"argv": sys.argv, "helper": helper.__file__, **os.environ}))
"""


def test_a_script_finds_its_arguments_and_every_launchers_variables(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    run = launch(PRINT_ENVIRONMENT, "-np", "2", "--independent", args=("--epochs", "3", "-v"))
    assert run.code == 0, run.output
    for rank in range(2):
        found = json.loads(next(line for line in run.log(rank).splitlines() if line.startswith("{")))
        assert found["argv"] == ["train.py", "--epochs", "3", "-v"]
        assert Path(found["helper"]).name == "helper.py"
        for name in ("RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "MLX_RANK"):
            assert found[name] == str(rank)
        for name in ("WORLD_SIZE", "HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            assert found[name] == "2"
        assert (found["LOCAL_RANK"], found["GROUP_RANK"]) == (str(rank), "0")
        assert found["MASTER_ADDR"] == "127.0.0.1"
        assert 0 < int(found["MASTER_PORT"]) < 65536
        assert len(json.loads(Path(found["MLX_HOSTFILE"]).read_text())) == 2


@pytest.mark.parametrize("workers", [2, 4])
def test_a_script_for_torchrun_runs_unmodified_and_learns_the_same(workers: int, tmp_path: Path) -> None:
    script = CHECKOUT / "examples" / "ddp_digits.py"
    (tmp_path / "ddp_digits.py").write_text(script.read_text())
    asked = ["ddp_digits.py", "--epochs", "1"]
    outputs = []
    for command in (
        ["mlrun.cli", "launch", asked[0], "-np", str(workers), "--console", "plain", "--", *asked[1:]],
        ["torch.distributed.run", "--standalone", "--nproc-per-node", str(workers), *asked],
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        said = re.findall(r"rank (\d): loss ([\d.]+), accuracy ([\d.]+), weights (\S+)", done.stdout)
        assert len(said) == workers
        assert len({weights for *_, weights in said}) == 1
        outputs.append({rank: (float(loss), float(weights)) for rank, loss, _, weights in said})
    ours, theirs = outputs
    for rank, figures in ours.items():
        assert figures == pytest.approx(theirs[rank], rel=1e-3, abs=1e-3)


def test_reported_steps_are_shown_and_summed_up(launch: Launch) -> None:
    run = launch(
        """\
        import mlrun
        import torch
        import torch.distributed as dist
        if __name__ == "__main__":
            dist.init_process_group()
            for step in range(5):
                dist.all_reduce(torch.ones(3))
                mlrun.report(samples=4, loss=1.0)
        """,
        "-np",
        "2",
    )
    assert run.code == 0, run.output
    assert (run.summary["status"], run.summary["step"]) == ("done", 5)
    assert [rank["samples"] for rank in run.summary["ranks"]] == [20, 20]
    assert run.summary["samples_per_second"] > 0


@pytest.mark.parametrize(
    "body",
    ["pass", "import torch.distributed as dist; dist.init_process_group()"],
    ids=["no group", "an unused group"],
)
def test_separate_models_are_refused(launch: Launch, body: str) -> None:
    code = f"if __name__ == '__main__':\n    {body}\n"
    run = launch(code, "-np", "2")
    assert run.code == 1
    assert "2 ranks ran and none averaged anything: these are 2 separate models" in run.output
    assert "--independent" in run.output


def test_a_group_by_other_means_is_no_separate_model(launch: Launch) -> None:
    run = launch(
        """\
        import torch
        import torch.distributed as dist
        if __name__ == "__main__":
            dist.init_process_group("gloo")
            dist.all_reduce(torch.ones(3))
            dist.destroy_process_group()
        """,
        "-np",
        "2",
    )
    assert run.code == 0, run.output


def test_a_scripts_own_exit_code_is_kept(launch: Launch) -> None:
    code = """\
        import os, sys, time
        if __name__ == "__main__":
            if os.environ["RANK"] == "1":
                sys.exit(3)
            time.sleep(60)
    """
    run = launch(code, "-np", "2")
    assert run.code == 1
    assert "rank 1 on localhost: ended with exit code 3" in run.output
    assert run.summary["ranks"][1]["exit_code"] == 3
    assert launch("import sys\nif __name__ == '__main__': sys.exit(0)\n").code == 0


def test_the_words_of_an_exit_are_kept(launch: Launch) -> None:
    run = launch("import sys\nif __name__ == '__main__': sys.exit('no such data')\n")
    assert run.code == 1
    assert "no such data" in run.output
    assert "no such data" in run.log(0)


def test_a_script_is_through_when_its_threads_are(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        """\
        import threading, time
        def work():
            time.sleep(1)
            open("finished", "w").close()
        if __name__ == "__main__":
            threading.Thread(target=work).start()
        """
    )
    assert run.code == 0, run.output
    assert run.folder is not None
    events = [json.loads(line) for line in (run.folder / "events.jsonl").read_text().splitlines()]
    (done,) = [event for event in events if event.get("state") == "done"]
    assert (tmp_path / "finished").stat().st_mtime < done["time"]


def test_a_failed_script_starts_again_where_that_is_asked_for(launch: Launch) -> None:
    run = launch(
        """\
        import os, sys
        if __name__ == "__main__":
            if not os.path.exists("before"):
                open("before", "w").close()
                sys.exit(3)
            print("the second time")
        """,
        "--max-restarts",
        "1",
    )
    assert run.code == 0, run.output
    assert run.summary["restarts"] == 1
    assert "the second time" in run.output


def test_an_exception_is_the_first_cause_with_its_line(launch: Launch) -> None:
    run = launch("if __name__ == '__main__':\n    1 / 0\n")
    assert run.code == 1
    assert "ZeroDivisionError: division by zero" in run.output
    assert 'File "train.py", line 2' in run.output


def test_what_a_script_forks_ends_with_it(launch: Launch, tmp_path: Path) -> None:
    run = launch(
        """\
        import subprocess
        if __name__ == "__main__":
            child = subprocess.Popen(["sleep", "600"], start_new_session=True)
            open("child.pid", "w").write(str(child.pid))
        """
    )
    assert run.code == 0, run.output
    assert not psutil.pid_exists(int((tmp_path / "child.pid").read_text()))


def test_ctrl_c_reaches_the_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import time\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        print('waiting', flush=True)\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        print('saving', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "mlrun.cli", "launch", "train.py", "--console", "plain"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    deadline = time.monotonic() + 60
    for line in process.stdout:
        assert time.monotonic() < deadline
        if line.rstrip().endswith("waiting"):
            process.send_signal(signal.SIGINT)
            break
    output = process.stdout.read()
    process.stdout.close()
    assert process.wait(60) in (0, 130)
    assert "passed on to the script" in output
    assert "saving" in output


def test_a_module_runs_as_python_m_does(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys\nprint('as', __name__, sys.argv[1:])\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mlrun.cli",
            "launch",
            "-m",
            "package.train",
            "--console",
            "plain",
            "--",
            "--lr",
            "1",
        ],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "as __main__ ['--lr', '1']" in done.stdout


def test_scripts_are_named_from_the_folder_that_travels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere.py").write_text("")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(RequestError, match="isn't below this folder"):
        of_command("../elsewhere.py", None, [], horovod=False, independent=False)
    with pytest.raises(RequestError, match="there is no script nosuch"):
        of_command("nosuch.py", None, [], horovod=False, independent=False)
    with pytest.raises(RequestError, match=r"arguments are for scripts, and job.yaml is a spec"):
        of_command("job.yaml", None, ["--lr", "1"], horovod=False, independent=False)
