"""The benchmark of engines: small, but with real ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from mlrun.bench.allreduce import compare, median_ratio, parse_size
from mlrun.errors import RequestError

KB = 1024
MLRUN = [sys.executable, "-c", "from mlrun.cli import main; main()", "bench", "allreduce"]
INSTALLED = {"gloo": "torch", "mpi": "mpi4py", "horovod": "horovod"}
ENGINES = ["ring", *(engine for engine, module in INSTALLED.items() if importlib.util.find_spec(module))]


@pytest.mark.parametrize(("size", "engines", "payload"), [(2, ENGINES, 4 * KB), (3, ["ring"], 4096 * KB)])
def test_engines_are_compared(size: int, engines: list[str], payload: int) -> None:
    shown: list[str] = []
    rows = compare(
        size, engines, [payload], rounds=6, on_rows=lambda rows: shown.extend(r.engine for r in rows)
    )
    names = [*engines, *(["mpi-shm"] if "mpi" in engines else [])]
    assert [row.engine for row in rows] == names == shown
    for row in rows:
        assert row.wrong == 0
        assert row.count * 4 == row.bytes == payload
        assert row.algorithm_rate == pytest.approx(row.bytes / row.seconds)
        assert row.bus_rate == pytest.approx(row.algorithm_rate * 2 * (size - 1) / size)
        assert (row.ring_time is None) == (row.engine == "ring")
        assert (row.of_limit is None) == (payload == 4 * KB)
        for ratio in (row.ring_time, row.of_limit):
            if ratio is not None:
                assert ratio.low is not None
                assert ratio.high is not None
                assert 0 < ratio.low <= ratio.median <= ratio.high


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int64", "bool"])
def test_other_types_are_right_too(dtype: str) -> None:
    (row,) = compare(2, ["ring"], [64 * KB], dtype=dtype, rounds=1)
    assert (row.wrong, row.dtype, row.of_limit) == (0, dtype, None)


def descendants(pid: int) -> Iterator[psutil.Process]:
    yield from psutil.Process(pid).children(recursive=True)


def test_ranks_end_however_the_benchmark_dies() -> None:
    sizes = ",".join(["4KB"] * 1000)
    bench = subprocess.Popen(
        [*MLRUN, "--engines", ",".join(ENGINES), "--sizes", sizes, "--rounds", "1", "--json"],
        stdout=subprocess.PIPE,
    )
    assert bench.stdout is not None
    assert json.loads(bench.stdout.readline())["engine"] == "ring"
    ranks = list(descendants(bench.pid))
    assert len(ranks) >= 2 * len(ENGINES)
    os.kill(bench.pid, signal.SIGKILL)
    bench.wait()
    bench.stdout.close()
    assert psutil.wait_procs(ranks, timeout=20)[1] == []


def test_the_command_prints_rows_as_json() -> None:
    command = [*MLRUN, "--sizes", "4KB,64KB", "--rounds", "2", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [json.loads(line)["bytes"] for line in ended.stdout.splitlines()] == [4 * KB, 64 * KB]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engines", "carrier-pigeon"], "carrier-pigeon"),
        (["--sizes", "4 apples"], "4 apples"),
        (["--dtype", "complex64"], "complex64"),
        (["-np", "1"], "1 ranks"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_wrong_requests(arguments: list[str], said: str) -> None:
    ended = subprocess.run(
        [*MLRUN, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sizes() -> None:
    assert [parse_size(s) for s in ("7", "4KB", "64kb", "1MiB", "100 MB", "2G")] == [
        7, 4 * KB, 64 * KB, KB**2, 100 * KB**2, 2 * KB**3,
    ]  # fmt: skip
    with pytest.raises(RequestError):
        parse_size("0KB")


def test_the_interval_is_the_sign_tests() -> None:
    assert median_ratio([1.0, 2.0, 3.0]).low is None
    fifteen = median_ratio([float(i) for i in range(1, 16)])
    assert (fifteen.low, fifteen.median, fifteen.high) == (4.0, 8.0, 12.0)
    six = median_ratio([6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert (six.low, six.median, six.high) == (1.0, 3.5, 6.0)


def test_the_ring_is_measured_over_hosts() -> None:
    done = subprocess.run(
        [*MLRUN, "--hosts", "localhost:2", "--sizes", "4KB,1MB", "--rounds", "1", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["engine"], row["bytes"], row["wrong"]) for row in rows] == [
        ("ring", 4 * KB, 0),
        ("ring", 1024 * KB, 0),
    ]
