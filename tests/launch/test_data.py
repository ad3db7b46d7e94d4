"""The store as a child of the launcher: where hosts are told to find it, and when nothing is started."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mlrun.data.store import StoreFolder
from mlrun.errors import RefusedError
from mlrun.launch.data import StoreProcess, not_shipped
from mlrun.probe.addresses import Address, addresses
from mlrun.protocol import LinkEnd, LinkPath
from mlrun.spec import JobSpec

SECRET = secrets.token_hex(32)
MINE = next((a for a in addresses() if a.up and a.kind != "loopback" and ":" not in a.address), None)
networked = pytest.mark.skipif(MINE is None, reason="this machine has loopback alone")


def spec(workdir: Path, **data: Any) -> JobSpec:
    described = {"source": "imagefolder", "path": "images", "location": "launcher", **data}
    job = {"name": "store", "model": {"name": "mlp"}, "batch_size": 1, "steps": 1}
    return JobSpec.model_validate({**job, "data": described, "workdir": str(workdir)})


@contextlib.asynccontextmanager
async def served(job: JobSpec) -> AsyncIterator[StoreProcess]:
    store = StoreProcess()
    try:
        await store.start(job, SECRET)
        yield store
    finally:
        await store.close()


@networked
def test_a_host_dials_the_chosen_cable_first_and_then_what_else_leads_here(tmp_path: Path) -> None:
    (tmp_path / "images" / "cat").mkdir(parents=True)
    (tmp_path / "images" / "cat" / "1.jpg").write_bytes(b"a cat")
    assert MINE is not None
    elsewhere = dataclasses.asdict(Address("wg0", "vpn", "203.0.113.7", 24, True))
    cable = LinkPath([LinkEnd("192.0.2.2", "en5"), LinkEnd(MINE.address, MINE.interface)])

    async def see() -> None:
        async with served(spec(tmp_path)) as store:
            (way, *_) = store.ways({"addresses": [elsewhere]}, [])
            assert way.interface is None
            assert way.endpoint.startswith(f"{MINE.address}:")
            (first, *others) = store.ways({"addresses": [elsewhere]}, [cable])
            assert (first.endpoint, first.interface) == (way.endpoint, "en5")
            assert way in others
            folder = await asyncio.to_thread(StoreFolder, [way], SECRET)
            assert folder.read("cat/1.jpg") == b"a cat"

    asyncio.run(see())


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    async def see() -> None:
        with pytest.raises(RefusedError, match=r"this machine can't serve .*images: .*No such file"):
            async with served(spec(tmp_path)):
                pass
        (tmp_path / "images").mkdir()
        with pytest.raises(RefusedError, match="it has no files of source imagefolder"):
            async with served(spec(tmp_path)):
                pass

    asyncio.run(see())


def test_data_in_the_work_folder_stay_here_when_the_code_is_sent(tmp_path: Path) -> None:
    assert not_shipped(spec(tmp_path)) == ["/images"]
    assert not_shipped(spec(tmp_path, location="each-host")) == []
    assert not_shipped(spec(tmp_path, path="/elsewhere")) == []
