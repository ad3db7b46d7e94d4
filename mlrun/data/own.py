"""This process's way to the data of its run: told by its agent, used by whatever backend opens them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from mlrun.data.cache import CachedFolder
from mlrun.data.folder import DataError, Folder
from mlrun.data.store import StoreFolder
from mlrun.data.traffic import Counts, Traffic
from mlrun.errors import RequestError
from mlrun.protocol import StoreWay
from mlrun.spec import JobSpec


class OwnData:
    """At most one folder that isn't this host's own, with its cache and what came over the wire."""

    def __init__(self) -> None:
        self._ways: Sequence[StoreWay] = ()
        self._secret = ""
        self._folder: CachedFolder | None = None
        self._traffic: Traffic | None = None
        self._ended = threading.Event()

    def introduce(self, ways: Sequence[StoreWay], secret: str) -> None:
        """Where the launching machine serves its data, and the secret that admits this run's hosts."""
        self._ways, self._secret = ways, secret

    def open_remote(self, spec: JobSpec) -> Folder:
        """The launching machine's folder, or the one of a URL, through this host's cache.

        Raises:
            RequestError: the URL can't be opened or listed.
        DataError: the launching machine can't be reached.
        """
        self._traffic = Traffic()
        if spec.data.location == "launcher":
            store = StoreFolder(self._ways, self._secret)
            origin: Folder = store
            identity = store.identity
        else:
            from mlrun.data.url import UrlFolder  # noqa: PLC0415 - fsspec is needed for URLs alone

            try:
                origin = UrlFolder(spec.data.location, spec.data.path, spec.data.source)
            except DataError as error:
                raise RequestError(f"data.location: {error.message}", fix=error.fix) from error
            identity = origin.place
        limit = int(spec.data.cache_gb * 1e9)
        self._folder = CachedFolder(origin, identity, limit, self._traffic)
        return self._folder

    def fill(self, seed: int) -> str | None:
        """Get in the background what this host hasn't; a warning where it hasn't the room."""
        if self._folder is None:
            return None
        if not self._folder.fits():
            return (
                f"the data take {self._folder.size() / 1e9:,.1f} GB, more than data.cache_gb: "
                "what this host doesn't keep comes again in each epoch"
            )
        threading.Thread(
            target=self._folder.fill, args=(seed, self._ended), name="mlrun-data-fill", daemon=True
        ).start()
        return None

    def counts(self) -> Counts | None:
        """What came so far; None where all the data are this host's own."""
        return self._traffic.counts() if self._traffic is not None else None

    def close(self) -> None:
        """Stop filling the cache."""
        self._ended.set()


own_data = OwnData()
"""Of this process."""
