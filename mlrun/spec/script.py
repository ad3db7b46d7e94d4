"""The block that says which script a run is of, instead of a model and its data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field

from mlrun.spec.block import Block, Conflict


class Script(Block):
    """``run``: people's own training script, one process per worker."""

    script: str | None = Field(default=None, description="A Python file, from workdir")
    module: str | None = Field(default=None, description="A module, run as by python -m")
    args: list[str] = Field(default_factory=list, description="Its arguments, text as written")
    horovod: bool = Field(
        default=False, description="import horovod finds a stand-in over the ring, Horovod installed or not"
    )
    independent: bool = Field(
        default=False, description="The workers may end without having averaged anything: separate models"
    )

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        if (given.get("script") is None) == (given.get("module") is None):
            yield Conflict(None, "one of script and module is needed", "give script: train.py")

    @property
    def what(self) -> str:
        """As a person would say it."""
        return self.script or f"-m {self.module}"
