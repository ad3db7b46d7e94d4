"""What every mapping of a spec is: closed, frozen, with rules across its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, model_validator


class Conflict(NamedTuple):
    """Keys that don't go together. ``key`` is the one at fault, None where a key is missing."""

    key: str | None
    problem: str
    fix: str


class Block(BaseModel):
    """A mapping in the spec: unknown keys are errors, values don't change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @classmethod
    def conflicts(cls, given: Mapping[str, Any]) -> Iterator[Conflict]:
        """The rules across keys, on the keys as given (their values may still be of a wrong type)."""
        return iter(())

    @classmethod
    def differs(cls, given: Mapping[str, Any], key: str) -> bool:
        """Whether ``key`` is given and isn't its default: a resolved spec names every default."""
        default = cls.model_fields[key].get_default(call_default_factory=True)
        value = given.get(key, default)
        return bool(
            (tuple(value) if isinstance(value, list) and isinstance(default, tuple) else value) != default
        )

    @model_validator(mode="after")
    def _no_conflicts(self) -> Block:
        for conflict in self.conflicts(self.__dict__):
            raise ValueError(f"{conflict.problem}; {conflict.fix}")
        return self
