"""The launching machine's store, a host's cache, and what either does when something breaks."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import random
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlrun.data.admission import MAGIC, NotAdmittedError, enter
from mlrun.data.cache import CachedFolder
from mlrun.data.folder import DataError, LocalFolder
from mlrun.data.serve import Request
from mlrun.data.store import StoreFolder
from mlrun.data.traffic import Counts, Traffic
from mlrun.protocol import StoreWay

SECRET = secrets.token_hex(32)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Small files of two classes, and one of several frames."""
    draw = random.Random(0)
    for name in ("cat/a.jpg", "cat/b.jpg", "dog/ü.jpg", "dog/deep/c.jpg"):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(1000))
    (tmp_path / "images" / "dog" / "big.jpg").write_bytes(draw.randbytes(5_000_000))
    (tmp_path / "images" / "notes.txt").write_text("not an image")
    (tmp_path / "images" / "dog" / "._ü.jpg").write_text("what a Mac leaves beside it")
    (tmp_path / "images" / "empty").mkdir()
    return tmp_path / "images"


@contextlib.contextmanager
def served(data: Path) -> Iterator[str]:
    """The store of ``data`` on loopback; its endpoint."""
    request = Request(str(data), "imagefolder", SECRET, ["127.0.0.1"], None)
    command = [sys.executable, "-m", "mlrun.data.serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(dataclasses.asdict(request)) + "\n")
        child.stdin.flush()
        endpoint: str = json.loads(child.stdout.readline())["endpoints"]["127.0.0.1"]
        yield endpoint
        child.stdin.close()  # It ends with its stdin, as it does with a launcher that is gone.
        assert child.wait(10) == 0


def folder_at(*endpoints: str) -> StoreFolder:
    return StoreFolder([StoreWay(endpoint) for endpoint in endpoints], SECRET)


def connected(endpoint: str) -> socket.socket:
    return socket.create_connection(endpoint.rsplit(":", 1), timeout=10)  # type: ignore[arg-type]


class Cutter:
    """Stands between a reader and the store, and cuts each of the first connections after so many bytes."""

    def __init__(self, behind: str, cuts: list[int]) -> None:
        self._behind, self._cuts = behind, list(cuts)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                reader, _ = self._door.accept()
                self.connections += 1
                left = self._cuts.pop(0) if self._cuts else None
                store = connected(self._behind)
                threading.Thread(target=self._pass, args=(reader, store, None), daemon=True).start()
                threading.Thread(target=self._pass, args=(store, reader, left), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while (left is None or left > 0) and (piece := source.recv(1 << 16)):
                target.sendall(piece[:left])
                left = None if left is None else left - len(piece)
        for sock in (source, target):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._door.close()


def test_a_reader_sees_the_folder_and_gets_each_file(data: Path) -> None:
    with served(data) as endpoint:
        folder = folder_at("127.0.0.1:1", endpoint)  # Nothing is behind the first way.
        here = LocalFolder(data, "imagefolder")
        assert folder.listing.names == here.listing.names
        assert folder.listing.classes() == here.listing.classes()
        assert folder.listing.classes()["empty"] == []
        travelled = pickle.loads(pickle.dumps(folder))
        for name in here.listing.names:
            assert travelled.read(name) == here.read(name)


def test_a_stranger_learns_nothing(data: Path) -> None:
    with served(data) as endpoint:
        with connected(endpoint) as sock, pytest.raises(NotAdmittedError):
            enter(sock, secrets.token_bytes(32))
        with connected(endpoint) as sock:
            sock.sendall(MAGIC + bytes(32))
            assert len(sock.recv(64, socket.MSG_WAITALL)) == 64
            sock.sendall(bytes(32) + b'{"list": true, "offset": 0}\n')
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""


def test_only_files_of_the_listing_are_given(data: Path) -> None:
    with served(data) as endpoint, connected(endpoint) as sock:
        enter(sock, bytes.fromhex(SECRET))
        sock.sendall(b'{"read": "../../../../../../etc/hostname", "offset": 0}\n')
        assert sock.recv(1) == b""


def test_a_connection_cut_midway_is_taken_up_where_it_broke(data: Path) -> None:
    with served(data) as endpoint:
        cutter = Cutter(endpoint, [3000, 2_000_000, 2_500_000])
        folder = folder_at(cutter.endpoint)
        assert folder.read("dog/big.jpg") == (data / "dog/big.jpg").read_bytes()
        assert cutter.connections == 4
        cutter.close()


def test_a_file_that_changes_during_the_run_is_named(data: Path) -> None:
    with served(data) as endpoint:
        folder = folder_at(endpoint)
        (data / "cat/a.jpg").write_bytes(b"another picture")
        with pytest.raises(DataError, match=r"cat/a\.jpg .*has changed since the run began"):
            folder.read("cat/a.jpg")
        (data / "cat/b.jpg").unlink()
        with pytest.raises(DataError, match=r"cat/b\.jpg .*no such file"):
            folder.read("cat/b.jpg")


def cached(data: Path, root: Path, limit: int = 10_000_000, identity: str = "pictures") -> CachedFolder:
    folder = LocalFolder(data, "imagefolder")
    return CachedFolder(folder, identity, limit, Traffic(), root)


def counts(folder: CachedFolder) -> Counts:
    return folder._traffic.counts()


def test_the_second_epoch_comes_from_the_cache_and_damage_is_noticed(data: Path, tmp_path: Path) -> None:
    first = cached(data, tmp_path / "cache")
    names = first.listing.names
    contents = [first.read(name) for name in names]
    size = sum(map(len, contents))
    assert counts(first) == Counts(size, 5, 0)
    assert [first.read(name) for name in names] == contents
    assert counts(first) == Counts(size, 5, 5)

    victim = next(path for path in (tmp_path / "cache").glob("*/*/*") if path.stat().st_size > 1_000_000)
    damaged = bytearray(victim.read_bytes())
    damaged[1000] ^= 1
    victim.write_bytes(damaged)
    again = cached(data, tmp_path / "cache")
    assert [again.read(name) for name in names] == contents
    assert counts(again) == Counts(5_000_000, 1, 4)


def test_the_cache_is_bounded_and_older_sources_make_room(data: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"

    def kept() -> int:
        return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

    former = cached(data, root, identity="former")
    former.fill(0, threading.Event())
    assert kept() > 5_000_000
    with served(data) as endpoint:
        small = CachedFolder(folder_at(endpoint), "small", 3000, Traffic(), root)
        assert kept() == 0
        assert not small.fits()
        for name in small.listing.names:
            assert small.read(name) == (data / name).read_bytes()
    assert 1000 < kept() <= 3000


def test_two_processes_that_want_one_file_get_it_once(data: Path, tmp_path: Path) -> None:
    one, other = cached(data, tmp_path / "cache"), cached(data, tmp_path / "cache")
    threads = [threading.Thread(target=folder.read, args=("dog/big.jpg",)) for folder in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counts(one).files_fetched + counts(other).files_fetched == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_cannot_be_written_costs_no_run(data: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    folder = cached(data, tmp_path / "cache")
    assert folder.read("cat/a.jpg") == (data / "cat/a.jpg").read_bytes()
