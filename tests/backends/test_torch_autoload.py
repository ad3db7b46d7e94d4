"""What every ``import torch`` gets, and torch.distributed without our launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(code: str, **env: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if k != "MLRUN_RUN"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_register_is_cheap_and_changes_no_default_but_that_of_mps() -> None:
    """CPU time, and the best of several: what another process on the machine costs isn't ours."""
    out = python(
        "import sys, time, torch, torch.distributed as dist\n"
        "def once():\n"
        "    for name in [m for m in sys.modules if m.startswith('mlrun')]: del sys.modules[name]\n"
        "    dist.Backend.backend_list[:] = [b for b in dist.Backend.backend_list if b != 'mlrun']\n"
        "    before, loaded = dict(dist.Backend.default_device_backend_map), set(sys.modules)\n"
        "    start = time.process_time()\n"
        "    from mlrun.backends.torch.autoload import register\n"
        "    register()\n"
        "    spent = time.process_time() - start\n"
        "    new = {m for m in set(sys.modules) - loaded if not m.startswith('mlrun')}\n"
        "    assert 'mlrun' in dist.Backend.backend_list and not new, new\n"
        "    assert dist.Backend.default_device_backend_map == {**before, 'mps': 'mlrun'}\n"
        "    return spent\n"
        "print(min(once() for _ in range(5)))"
    )
    assert float(out) < 0.005


def test_under_the_launcher_mlrun_is_the_default() -> None:
    out = python(
        "import torch.distributed as dist\n"
        "from mlrun.backends.torch.autoload import register\n"
        "register(); register()\n"
        "print(*(dist.Backend.default_device_backend_map[d] for d in ('cpu', 'mps', 'cuda')))",
        MLRUN_RUN="test",
    )
    assert out == "mlrun mlrun mlrun"


def test_a_torch_without_distributed_is_left_alone() -> None:
    python(
        "import torch.distributed as dist\n"
        "dist.is_available = lambda: False\n"
        "from mlrun.backends.torch.autoload import register\n"
        "register()"
    )


SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group(backend="mlrun")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.full((1, 4), rank + 1.0)).sum().backward()
assert torch.allclose(model.module.weight.grad, torch.full((2, 4), 1.5)), model.module.weight.grad
half = dist.new_group([1])
if rank == 1:
    alone = torch.ones(1)
    dist.all_reduce(alone, group=half)
    assert alone.item() == 1
dist.barrier()
dist.destroy_process_group()
sys.stdout.write(f"rank {rank} fine\\n")
"""


@pytest.mark.timeout(180)
def test_plain_torchrun_with_an_unchanged_ddp_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rank 0 fine" in done.stdout
    assert "rank 1 fine" in done.stdout
