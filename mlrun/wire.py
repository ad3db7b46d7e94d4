"""Message: what travels between launcher, agent and worker, and how it is written on a line.

One message is one JSON object on one line, with its class name under ``type``. The same encoding serves
the ssh pipe (launcher - agent), the Unix socket (agent - worker) and ``events.jsonl``.

Only the standard library is imported here: agents load this module and nothing heavier.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar


class ProtocolError(ValueError):
    """A line that isn't a message of this protocol version."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base of everything that travels. Subclasses register themselves by class name."""

    _by_name: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message._by_name[cls.__name__] = cls


M = TypeVar("M", bound=Message)


class Unreceived:
    """Lines that were sent and that the other end may not have: numbered by their place in the stream."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._received = 0
        self.bytes = 0

    def add(self, line: bytes) -> None:
        self._lines.append(line)
        self.bytes += len(line)

    def received(self, count: int) -> None:
        """The other end has the first ``count`` lines."""
        while self._received < count and self._lines:
            self.bytes -= len(self._lines.popleft())
            self._received += 1

    def lines(self) -> list[bytes]:
        """What is to be sent again."""
        return list(self._lines)


def encode(message: Message) -> bytes:
    """One line of UTF-8 JSON, newline included."""
    fields: dict[str, Any] = {"type": type(message).__name__, **dataclasses.asdict(message)}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | str) -> Message:
    """The message on a line.

    Raises:
        ProtocolError: not JSON, an unknown type, or fields that don't fit the type.
    """
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"not a JSON line: {str(line)[:80]!r}") from error
    if not isinstance(fields, dict):
        raise ProtocolError(f"not a JSON object: {str(line)[:80]!r}")
    name = fields.pop("type", None)
    kind = Message._by_name.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError(f"unknown message type {name!r}")
    return _build(kind, fields)


def _build(kind: type[M], fields: dict[str, Any]) -> M:
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    unknown = fields.keys() - known
    if unknown:
        raise ProtocolError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")
    restored = {
        name: _restore(hints[name], value, f"{kind.__name__}.{name}") for name, value in fields.items()
    }
    try:
        return kind(**restored)
    except TypeError as error:
        raise ProtocolError(f"{kind.__name__}: {error}") from error


def _restore(hint: Any, value: Any, where: str) -> Any:  # noqa: PLR0911 - one for each kind of hint
    """``value`` as the annotated type, checked: what arrives may come from another version or a stranger."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in typing.get_args(hint):
            return None
        return _restore(next(a for a in typing.get_args(hint) if a is not type(None)), value, where)
    if origin is list and isinstance(value, list):
        (item,) = typing.get_args(hint)
        return [_restore(item, v, where) for v in value]
    if origin is dict and isinstance(value, dict):
        _, item = typing.get_args(hint)
        return {k: _restore(item, v, where) for k, v in value.items()}
    if isinstance(hint, type):
        if issubclass(hint, Message) and isinstance(value, dict):
            return _build(hint, {k: v for k, v in value.items() if k != "type"})
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
            return value
    raise ProtocolError(f"{where}: {value!r} is not {hint}")
