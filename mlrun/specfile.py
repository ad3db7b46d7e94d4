"""Job specs from YAML files: read, overridden, checked, with every mistake told at once and in its place."""

from __future__ import annotations

import copy
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mlrun import yaml12
from mlrun.errors import RequestError
from mlrun.mistakes import explain
from mlrun.spec import ALTERNATIVES, JobSpec
from mlrun.yaml12 import UNREADABLE, Mistake, Node, Place, dotted, printable

MAX_BYTES = 1 << 20
_START = "write one to start from with 'mlrun init digits'"
_SMOKE = re.compile(r"\s*smoke\s*[.=]")
SMOKE_DEFAULT = """\
steps: 4
batch_size: 4
data: {samples: 64}
log_every: 1
checkpoint: {every_steps: 2, every_epochs: null}
"""
"""The smoke block of a spec that has none: enough for a loss, a checkpoint and a step after it."""


class SpecError(RequestError):
    """One or more mistakes in a spec or its overrides."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(map(str, mistakes)))
        self.mistakes = list(mistakes)


def load(path: str | Path, overrides: Sequence[str] = (), smoke: bool = False) -> JobSpec:
    """The spec in a YAML file, under ``overrides`` (``key.path=value``, as given to ``--set``).

    The file's ``smoke`` block, or SMOKE_DEFAULT where it has none, is checked in any case, and laid over
    the spec where ``smoke`` is set; overrides come last. An override of ``steps`` replaces ``epochs`` and
    the other way round; so with ``batch_size`` and ``global_batch_size``.

    Raises:
        SpecError: everything that is wrong, each as ``file:line:column: key.path: problem. Fix: ...``.
    """
    return _load(_read(Path(path)), overrides, smoke)


def of_script(keys: Mapping[str, Any], overrides: Sequence[str] = ()) -> JobSpec:
    """The spec of a script that has no file of its own: ``keys`` as a file would say them.

    Raises:
        SpecError: what is wrong with the overrides.
    """
    return _load(yaml12.parse(json.dumps(keys), str(keys["run"].get("script", "-m"))), overrides, smoke=False)


def _load(root: Node, overrides: Sequence[str], smoke: bool) -> JobSpec:
    if root.value is UNREADABLE or not isinstance(root.value, dict):
        raise SpecError(root.mistakes or [_no_mapping(root)])
    mistakes = list(root.mistakes)
    of_block = [override for override in overrides if _SMOKE.match(override)]
    for override in of_block:
        _apply(root, override, mistakes)
    plain, smoked = root, _with_smoke(root, mistakes)
    for tree in (plain, smoked):
        for override in overrides:
            if override not in of_block:
                _apply(tree, override, mistakes)
        mistakes += _check(tree)
    if mistakes:
        raise SpecError(sorted(dict.fromkeys(mistakes), key=_order))
    return JobSpec.model_validate_json(_json(smoked if smoke else plain), strict=True)


def _order(mistake: Mistake) -> tuple[bool, int, int]:
    place = mistake.place
    return place.line is None, place.line or 0, place.column or 0


def _read(path: Path) -> Node:
    shown = str(path)

    def refuse(problem: str, fix: str) -> SpecError:
        return SpecError([Mistake(Place(shown), (), problem, fix)])

    if path.exists() and not (path.is_file() or path.is_dir()):
        raise refuse("neither a file nor a folder", "name the YAML file of the job")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise refuse("no such file", _nearest_file(path)) from None
    except IsADirectoryError:
        raise refuse("this is a folder, not a job spec", _spec_inside(path)) from None
    except OSError as error:
        raise refuse(f"can't be read: {error.strerror}", "name a file that you may read") from None
    if len(content) > MAX_BYTES:
        raise refuse("larger than 1 MiB, so not a job spec", "name the YAML file of the job")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise refuse("binary content, or text that isn't UTF-8", "name a YAML file, saved as UTF-8 text")
    return yaml12.parse(text, shown)


def _spec_inside(folder: Path) -> str:
    inside = sorted(folder.glob("*.y*ml"))
    return f"name a file in it, such as {inside[0]}" if inside else "name a YAML file"


def _nearest_file(path: Path) -> str:
    try:
        names = [p.name for p in path.parent.iterdir() if p.is_file()]
    except OSError:
        return f"the folder {path.parent} can't be listed; check the path"
    specs = [name for name in names if name.endswith((".yaml", ".yml"))]
    near = difflib.get_close_matches(path.name, names, n=1) or difflib.get_close_matches(
        path.name, specs, n=1, cutoff=0.3
    )
    return f"did you mean {path.parent / near[0]}?" if near else _START


def _no_mapping(root: Node) -> Mistake:
    if root.value is None:
        return Mistake(root.place, (), "the file is empty", _START)
    return Mistake(root.place, (), "a spec is a mapping of keys to values", "begin with 'name: my-job'")


# Overrides ----------------------------------------------------------------------------------------


def _with_smoke(root: Node, mistakes: list[Mistake]) -> Node:
    """The tree with its smoke block (or the one for specs without) laid over it, and without it."""
    tree = copy.deepcopy(root)
    block = tree.value.pop("smoke", None)
    if block is None or block.value == {}:
        block = yaml12.parse(SMOKE_DEFAULT, "the smoke block for specs without one")
    if not isinstance(block.value, dict):
        return tree
    if nested := block.value.pop("smoke", None):
        place = nested.key_place or nested.place
        mistakes.append(Mistake(place, nested.path, "a smoke block inside smoke", "remove the inner one"))
    _drop_alternatives(tree, block.value)
    _lay_over(tree, block)
    return tree


def _lay_over(tree: Node, block: Node) -> None:
    for key, node in block.value.items():
        under = tree.value.get(key)
        if under is not None and isinstance(under.value, dict) and isinstance(node.value, dict):
            _lay_over(under, node)
        else:
            tree.value[key] = node


def _drop_alternatives(tree: Node, given: dict[str, Node]) -> None:
    """What is laid over the tree and excludes a key of it takes that key's place."""
    for pair in ALTERNATIVES:
        for key, other in (pair, pair[::-1]):
            if key in given and given[key].value is not None and other not in given:
                tree.value.pop(other, None)


def _apply(tree: Node, override: str, mistakes: list[Mistake]) -> None:
    place = Place(f"--set {printable(override)}")
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        mistakes.append(Mistake(place, (), "not a key and a value", "write --set key.path=value"))
        return
    path = tuple(int(part) if part.isascii() and part.isdigit() else part for part in parts)
    value = yaml12.parse(text, place.source, lines=False, path=path)
    mistakes += value.mistakes
    value.key_place = place
    owner = tree
    for depth, part in enumerate(path[:-1]):
        below = _child(owner, part)
        if below is None or below.value is None:
            below = Node({}, place, path[: depth + 1], key_place=place)
            if not _put(owner, part, below):
                mistakes.append(_no_such_place(owner, part, place))
                return
        owner = below
    if len(path) == 1:
        _drop_alternatives(tree, {str(path[0]): value})
    if not _put(owner, path[-1], value):
        mistakes.append(_no_such_place(owner, path[-1], place))


def _child(owner: Node, part: str | int) -> Node | None:
    if isinstance(owner.value, dict):
        return owner.value.get(str(part))
    if isinstance(owner.value, list) and isinstance(part, int) and part < len(owner.value):
        item: Node = owner.value[part]
        return item
    return None


def _put(owner: Node, part: str | int, node: Node) -> bool:
    if isinstance(owner.value, dict):
        owner.value[str(part)] = node
    elif isinstance(owner.value, list) and isinstance(part, int) and part < len(owner.value):
        owner.value[part] = node
    else:
        return owner.value is UNREADABLE
    return True


def _no_such_place(owner: Node, part: str | int, place: Place) -> Mistake:
    if isinstance(owner.value, list):
        found = f"a list of {len(owner.value)}, so {part!r} isn't in it"
        return Mistake(
            place,
            owner.path,
            found,
            f"write an index from 0 to {len(owner.value) - 1}, or set the whole list",
        )
    return Mistake(
        place, owner.path, f"a single value, so it has no key {part!r}", f"set {dotted(owner.path)} itself"
    )


# Checking -----------------------------------------------------------------------------------------


def _check(tree: Node) -> Iterator[Mistake]:
    try:
        JobSpec.model_validate_json(_json(tree), strict=True)
    except ValidationError as error:
        yield from explain(error.errors(include_url=False, include_input=False), tree)


def _json(tree: Node) -> str:
    return json.dumps(_plain(tree, ()))


def _plain(node: Node, path: tuple[str | int, ...]) -> Any:
    if isinstance(node.value, dict):
        return {key: _plain(child, (*path, key)) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child, (*path, i)) for i, child in enumerate(node.value)]
    if node.value is UNREADABLE:
        return None
    if node.value is not None and _is_environment(path):
        return node.text
    return node.value


def _is_environment(path: tuple[str | int, ...]) -> bool:
    """Environment values are text as written: ``0123`` stays ``0123``."""
    inner = path[1:] if path[:1] == ("smoke",) else path
    return inner[:1] == ("env",) or (inner[:1] == ("hosts",) and inner[2:3] == ("env",))


def schema_text() -> str:
    """The JSON schema of a spec file, as shipped beside the specs."""
    schema = JobSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return json.dumps(schema, indent=2) + "\n"
