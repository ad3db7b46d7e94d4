"""The ring measured on real hosts: started by the ordinary launcher, over the links that it chooses."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from mlrun.bench.allreduce import Row, row_of
from mlrun.bench.group import Round
from mlrun.errors import ExitCode, RequestError, RunFailedError
from mlrun.hosts import Host, spec_entry
from mlrun.launch.launcher import launch
from mlrun.specfile import of_script

DTYPES = ("float32", "float64", "float16", "int8", "uint8", "int32", "int64")
"""Those that numpy can say."""


def measure(
    hosts: Sequence[Host],
    np: int | None,
    sizes: Sequence[int],
    *,
    dtype: str,
    links: int,
    rounds: int,
    console: str,
) -> list[Row]:
    """Times of the ring over ``hosts``, a row for each payload in ``sizes`` (bytes).

    Raises:
        RequestError, RefusedError: nothing was started.
        RunFailedError: the run failed; its console has said why.
    """
    if dtype not in DTYPES:
        raise RequestError(f"{dtype!r} can't be measured over hosts", fix=f"choose from {', '.join(DTYPES)}")
    arguments = [dtype, str(rounds), *map(str, sizes)]
    run = {"module": "mlrun.bench.on_hosts", "args": arguments}
    spec = of_script({"name": "bench", "run": run, "allreduce": {"links": links}})
    with tempfile.TemporaryDirectory(prefix="mlrun-bench-") as folder:
        work = Path(folder, "work")
        work.mkdir()
        update = {"hosts": [spec_entry(host) for host in hosts], "workdir": str(work)}
        result = launch(spec.model_copy(update=update), np=np, console=console, runs_dir=Path(folder, "runs"))
        if result.exit_code is not ExitCode.DONE:
            cause = (result.summary["failure"] or {}).get("message", "it was stopped")
            raise RunFailedError(f"the ring wasn't measured: {cause}")
        said = (result.run_dir / "rank-0.log").read_text().splitlines()
        size = result.summary["world_size"]
    found = [json.loads(line) for line in said if line.startswith('{"bytes"')]
    return [
        row_of("ring", {"ring": [Round(*each) for each in of_size["rounds"]]}, of_size["bytes"], dtype, size)
        for of_size in found
    ]
