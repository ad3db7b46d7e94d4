"""YAML text to a tree whose every value knows where it stands, with scalars as in YAML 1.2's core schema.

PyYAML reads YAML 1.1, in which ``off`` is false, ``22:30`` is 1350 and ``1e-3`` is text. Only its parser is
used here; what a scalar means is decided below (https://yaml.org/spec/1.2.2/#103-core-schema).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_DEPTH = 32
_NULL = re.compile(r"(null|Null|NULL|~|)\Z")
_BOOL = re.compile(r"(?:(true|True|TRUE)|false|False|FALSE)\Z")
_INT = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INFINITE = re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z")

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Place:
    """Where a value stands. ``line`` and ``column`` count from 1; None in text that has no lines (a flag)."""

    source: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong, where, and the one fix."""

    place: Place
    path: Path
    problem: str
    fix: str

    def __str__(self) -> str:
        key = f"{dotted(self.path)}: " if self.path else ""
        return f"{self.place}: {key}{self.problem}. Fix: {self.fix}"


class _Unreadable(enum.Enum):
    """The value of a node whose mistake is already told."""

    UNREADABLE = enum.auto()


UNREADABLE = _Unreadable.UNREADABLE


@dataclass
class Node:
    """A scalar, ``list[Node]`` or ``dict[str, Node]``; ``text`` is a scalar as written."""

    value: Any
    place: Place
    path: Path
    text: str = ""
    key_place: Place | None = None
    mistakes: list[Mistake] = field(default_factory=list, repr=False)
    """What the parser found, on the root only."""


def dotted(path: Path) -> str:
    """``optimizer.betas[0]``"""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in path).lstrip(
        "."
    )


def printable(text: str) -> str:
    """Text that stays on its line and leaves the terminal alone."""
    return text if text.isprintable() else repr(text)


def scalar(text: str) -> Any:
    """A plain scalar's value in the core schema: None, bool, int, float or str."""
    if _NULL.match(text):
        return None
    if found := _BOOL.match(text):
        return found.group(1) is not None
    # Beyond 300 digits neither int() (above 4300) nor float() says anything useful.
    if len(text) <= 300:
        if _INT.match(text):
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
        if _FLOAT.match(text):
            return float(text)
    if _INFINITE.match(text):
        return float(text.replace(".", "", 1))
    return text


def parse(text: str, source: str, *, lines: bool = True, path: Path = ()) -> Node:
    """The one document in ``text``. Mistakes are collected in ``mistakes`` of the node that comes back.

    A part that can't be read has the value UNREADABLE; after a syntax error that is the whole document.
    ``lines=False`` is for text that stands on one line of its own, such as a flag's value.
    """
    return _Reader(text, source, lines, path).document()


class _UnreadableError(Exception):
    """The mistake is noted and nothing after it can be read."""


class _Reader:
    def __init__(self, text: str, source: str, lines: bool, path: Path) -> None:
        self.text = text
        self.source = source
        self.lines = lines
        self.path = path
        self.mistakes: list[Mistake] = []
        self.events: Iterator[Any] = iter(())

    def document(self) -> Node:
        try:
            self.events = yaml.parse(self.text, Loader=yaml.SafeLoader)
            root = self._document()
        except yaml.YAMLError as error:
            self.mistakes.append(_syntax_mistake(error, self))
            root = Node(UNREADABLE, self.at(0, 0), self.path)
        except _UnreadableError:
            root = Node(UNREADABLE, self.at(0, 0), self.path)
        root.mistakes = self.mistakes
        return root

    def at(self, line: int, column: int) -> Place:
        return Place(self.source, line + 1, column + 1) if self.lines else Place(self.source)

    def _document(self) -> Node:
        next(self.events)
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            return Node(None, self.at(0, 0), self.path)
        root = self._node(next(self.events), self.path)
        next(self.events)
        after = next(self.events)
        if isinstance(after, yaml.DocumentStartEvent):
            self._mistake(
                after, (), "a second document begins here", "keep one document in the file, without '---'"
            )
        return root

    def _node(self, event: Any, path: Path) -> Node:
        if isinstance(event, yaml.AliasEvent):
            self._mistake(
                event,
                path,
                f"found the alias *{event.anchor}; a spec has no anchors or aliases",
                "write the value out",
            )
            return Node(UNREADABLE, self._place(event), path)
        if event.anchor is not None:
            fix = f"remove &{event.anchor}, and write the value out where it is used"
            self._mistake(
                event, path, f"found the anchor &{event.anchor}; a spec has no anchors or aliases", fix
            )
        if event.tag is not None:
            self._mistake(
                event,
                path,
                f"found the tag {_short(event.tag.replace('tag:yaml.org,2002:', '!!'))}; a spec has no tags",
                "remove the tag; quote the value for text",
            )
        if isinstance(event, yaml.ScalarEvent):
            plain = event.style is None
            return Node(scalar(event.value) if plain else event.value, self._place(event), path, event.value)
        if len(path) - len(self.path) >= MAX_DEPTH:
            self._mistake(
                event,
                path[:2],
                f"nested more than {MAX_DEPTH} deep",
                "keep the spec as flat as 'mlrun schema' has it",
            )
            raise _UnreadableError
        return (
            self._sequence(event, path)
            if isinstance(event, yaml.SequenceStartEvent)
            else self._mapping(event, path)
        )

    def _sequence(self, start: Any, path: Path) -> Node:
        items: list[Node] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._node(event, (*path, len(items))))
        return Node(items, self._place(start), path)

    def _mapping(self, start: Any, path: Path) -> Node:
        items: dict[str, Node] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._key(event, path)
            value = self._node(next(self.events), (*path, key or "?"))
            value.key_place = self._place(event)
            if key is None:
                continue
            if key in items:
                first = items[key].key_place
                line = f" on line {first.line}" if first and first.line else ""
                self._mistake(event, (*path, key), f"given twice; first{line}", "keep one of the two")
            else:
                items[key] = value
        return Node(items, self._place(start), path)

    def _key(self, event: Any, path: Path) -> str | None:
        if isinstance(event, yaml.ScalarEvent) and event.value != "<<":
            self._node(event, (*path, event.value))
            return str(event.value)
        if isinstance(event, yaml.ScalarEvent):
            self._mistake(event, path, "found the merge key '<<'; a spec has no merges", "write the keys out")
            return None
        self._node(event, path)
        if not isinstance(event, yaml.AliasEvent):
            self._mistake(
                event, path, "found a list or mapping as a key, expected text", "write 'key: value'"
            )
        return None

    def _place(self, event: Any) -> Place:
        return self.at(event.start_mark.line, event.start_mark.column)

    def _mistake(self, event: Any, path: Path, problem: str, fix: str) -> None:
        self.mistakes.append(Mistake(self._place(event), path, problem, fix))


def _short(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


_SYNTAX = [
    (r"'\\t'", "found a tab, and YAML indents with spaces", "replace the tab by spaces"),
    (
        r"mapping values are not allowed",
        "found a second ':' on this line",
        "put the text in quotes, or the key on a line of its own",
    ),
    (
        r"expected <block end>, but found",
        "this line is indented unlike the lines it belongs to",
        "indent keys of one block alike",
    ),
    (r"could not find expected ':'", "found a line without ':'", "write 'key: value'"),
    (r"unexpected end of stream|quoted scalar", "a quote is opened and never closed", "close the quote"),
    (r"expected ',' or '\]'", "a '[' list isn't closed", "close it with ']', items separated by ','"),
    (r"expected ',' or '\}'", "a '{' mapping isn't closed", "close it with '}', items separated by ','"),
    (r"cannot start any token", "found a character that can't begin a value", "put the value in quotes"),
    (
        r"expected the node content",
        "a value is missing here",
        "write the value, or remove the mark before it",
    ),
    (
        r"unknown escape character",
        "found an unknown escape in double quotes",
        "use single quotes, or double the backslash",
    ),
    (r"unhashable|found undefined alias", "an alias stands for nothing", "write the value out"),
    (
        r"expected a block scalar|expected chomping|block scalar",
        "the '|' or '>' text block isn't well formed",
        "put the text in quotes",
    ),
    (
        r"special characters",
        "found a character that YAML text can't hold",
        "remove it; save the file as UTF-8 text",
    ),
]


def _syntax_mistake(error: yaml.YAMLError, reader: _Reader) -> Mistake:
    """PyYAML's complaint in the words of somebody who writes a spec."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line, column = error.problem_mark.line, error.problem_mark.column
        opened = re.search(r"quoted scalar|simple key|flow (sequence|mapping)", str(error.context))
        if error.context_mark is not None and opened:
            line, column = error.context_mark.line, error.context_mark.column
    else:
        before = reader.text[: max(getattr(error, "position", 0), 0)]
        line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
    told = f"{getattr(error, 'context', '')} {getattr(error, 'problem', '')} {getattr(error, 'reason', '')}"
    current = (reader.text.splitlines() or [""])[line : line + 1]
    if current and current[0][: len(current[0]) - len(current[0].lstrip())].find("\t") >= 0:
        told = "'\\t'"
    for pattern, problem, fix in _SYNTAX:
        if re.search(pattern, told):
            return Mistake(reader.at(line, column), reader.path, problem, fix)
    problem = "this isn't YAML" + (
        f" ({getattr(error, 'problem', None)})" if getattr(error, "problem", None) else ""
    )
    return Mistake(
        reader.at(line, column), reader.path, problem, "put text with special characters in quotes"
    )
