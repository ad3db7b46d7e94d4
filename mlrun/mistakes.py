"""What is wrong with a spec, in sentences: from pydantic's errors, the spec's schema and the YAML tree."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from mlrun.spec import JobSpec
from mlrun.spec.block import Block
from mlrun.yaml12 import UNREADABLE, Mistake, Node, Path, dotted, scalar

Schema = Mapping[str, Any]


def explain(errors: list[Any], tree: Node) -> Iterator[Mistake]:
    """Each of pydantic's ``errors`` on ``tree`` as a Mistake, and the conflicts between keys.

    pydantic tells conflicts only where every key is right by itself; here they are found in any case.
    """
    seen: set[tuple[Any, ...]] = set()
    for error in errors:
        if error["type"] == "value_error":
            continue
        node, schema, key = _locate(tree, error["loc"])
        if node is None or (id(node), key) in seen:
            continue
        seen.add((id(node), key))
        if error["type"] == "missing" and "properties" in schema:
            yield _missing(node, schema, str(error["loc"][-1]))
        elif error["type"] == "extra_forbidden":
            yield _unknown_key(node, schema, str(error["loc"][-1]))
        else:
            yield _wrong_value(node, schema)
    yield from _conflicts(tree, JobSpec)


def _locate(tree: Node, loc: tuple[str | int, ...]) -> tuple[Node | None, Schema, str | None]:
    """The node an error is about, its schema, and the key in it that is missing or unknown.

    The node is None where the error speaks of a branch of a union that wasn't meant, or of what is told
    already.
    """
    node, rest = tree, list(loc)
    schema: Schema = _schema()
    while True:
        if node.value is UNREADABLE:
            return None, schema, None
        branches = _branches(schema)
        if len(branches) > 1:
            is_block = isinstance(node.value, dict)
            branch = next((b for b in branches if ("properties" in b) == is_block), None)
            if branch is None or not is_block:
                return node, schema, None
            if not rest or branch["title"] not in str(rest[0]):
                return None, schema, None
            rest.pop(0)
            schema = branch
        else:
            schema = branches[0]
        if not rest:
            return node, schema, None
        below = _below(node, rest[0])
        if below is None or ("properties" in schema and rest[0] not in schema["properties"]):
            return node, schema, str(rest[0])
        schema = _schema_below(schema, rest[0])
        node = below
        rest.pop(0)


def _below(node: Node, part: str | int) -> Node | None:
    if isinstance(node.value, dict):
        return node.value.get(str(part))
    if isinstance(node.value, list) and isinstance(part, int) and part < len(node.value):
        item: Node = node.value[part]
        return item
    return None


# The schema ---------------------------------------------------------------------------------------


@cache
def _schema() -> dict[str, Any]:
    return JobSpec.model_json_schema()


def _branches(schema: Schema) -> list[Schema]:
    """The kinds of value a schema allows, null (which is the same as leaving the key out) aside."""
    if "$ref" in schema:
        target: Schema = _schema()["$defs"][schema["$ref"].rpartition("/")[2]]
        return [target]
    if "anyOf" in schema:
        return [b for option in schema["anyOf"] for b in _branches(option) if b.get("type") != "null"]
    return [schema]


def _schema_below(schema: Schema, part: str | int) -> Schema:
    if isinstance(part, int):
        prefix = schema.get("prefixItems", [])
        found = prefix[part] if part < len(prefix) else schema.get("items", {})
    else:
        found = schema.get("properties", {}).get(part, schema.get("additionalProperties", {}))
    return found if isinstance(found, dict) else {}


def _expected(schema: Schema) -> str:
    return " or ".join(map(_expected_of_one, _branches(schema)))


def _expected_of_one(schema: Schema) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(str, schema["enum"]))
    if "prefixItems" in schema:
        return f"a list of {len(schema['prefixItems'])}, each {_expected(schema['prefixItems'][0])}"
    if "items" in schema:
        return f"a list, each item {_expected(schema['items'])}"
    if "properties" in schema:
        return "a mapping with keys of " + ", ".join(schema["properties"])
    if "pattern" in schema:
        return "text of letters, digits, '.', '_' and '-' that begins with a letter or digit"
    words = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "text"}
    return words.get(schema.get("type", ""), "a mapping") + _range(schema)


def _range(schema: Schema) -> str:
    words = {
        "exclusiveMinimum": "above",
        "minimum": "of at least",
        "exclusiveMaximum": "below",
        "maximum": "of at most",
    }
    limits = [f"{word} {schema[key]:g}" for key, word in words.items() if key in schema]
    return " " + " and ".join(limits) if limits else ""


# Sentences ----------------------------------------------------------------------------------------


def _found(node: Node) -> str:
    value = node.value
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return "a mapping" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, str):
        return f"the text {_short(value)!r}"
    return str(value).lower() if isinstance(value, bool) else f"the number {_short(node.text)}"


def _short(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _wrong_value(node: Node, schema: Schema) -> Mistake:
    problem = f"found {_found(node)}, expected {_expected(schema)}"
    return Mistake(node.place, node.path, problem, _fix(node, schema))


def _fix(node: Node, schema: Schema) -> str:
    branches = _branches(schema)
    if isinstance(node.value, str) and (fix := _fix_text(node, branches)):
        return fix
    if isinstance(node.value, (int, float)) and (fix := _fix_number(node, branches)):
        return fix
    if node.value is None:
        return "write a value, or remove the key"
    return f"write {_example(schema)}, say"


def _example(schema: Schema) -> str:
    """A value that the schema allows: its default, or the simplest one."""
    default, branch = schema.get("default"), _branches(schema)[0]
    if default:
        return default if isinstance(default, str) else json.dumps(default)
    if "items" in branch:
        return f"[{_example(branch['items'])}]"
    if "properties" in branch:
        return "{" + ", ".join(f"{key}: ..." for key in branch.get("required", ())) + "}"
    if branch.get("type") == "number":
        return "0.5" if "maximum" in branch or "exclusiveMaximum" in branch else "1.0"
    examples = {"integer": "10", "boolean": "true", "string": "my-job" if "pattern" in branch else "text"}
    return str(branch.get("enum", [examples.get(str(branch.get("type")), "{key: value}")])[0])


def _fix_text(node: Node, branches: list[Schema]) -> str | None:
    text, kinds = node.value, {branch.get("type") for branch in branches}
    choices = [choice for branch in branches for choice in branch.get("enum", [])]
    if near := difflib.get_close_matches(text.lower(), choices, n=1):
        return f"did you mean {near[0]}?"
    if kinds & {"integer", "number"} and isinstance(scalar(text), (int, float)):
        return f"remove the quotes: {text}"
    if "pattern" in branches[0] and (usable := re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")):
        return f"write {usable}"
    if kinds == {"boolean"}:
        return f"write {'true' if text.lower() in ('yes', 'on', 'y', 'true', '1') else 'false'}"
    if kinds == {"array"}:
        return f"write [{_short(text)}]"
    inner = next((key for key in branches[0].get("required", []) if _is_text(branches[0], key)), None)
    return f"write {inner}: {_short(text)} under {node.path[-1]}:" if inner else None


def _fix_number(node: Node, branches: list[Schema]) -> str | None:
    kinds = {branch.get("type") for branch in branches}
    if isinstance(node.value, float) and kinds == {"integer"} and node.value.is_integer():
        return f"write {int(node.value)}"
    if kinds == {"string"} and not any("enum" in branch for branch in branches):
        return f"put it in quotes: '{node.text}'"
    return f"write [{node.text}]" if kinds == {"array"} else None


def _is_text(schema: Schema, key: str) -> bool:
    return bool(schema["properties"][key].get("type") == "string")


def _missing(node: Node, schema: Schema, key: str) -> Mistake:
    wanted = schema["properties"][key]
    place = node.key_place or node.place
    fix = f"add {key}: {_example(wanted)}" + (f" to {dotted(node.path)}" if node.path else "")
    return Mistake(place, (*node.path, key), f"missing, expected {_expected(wanted)}", fix)


def _unknown_key(node: Node, schema: Schema, key: str) -> Mistake:
    child = node.value[key]
    near = nearest(key, list(schema["properties"]))
    elsewhere = [path for path in _homes(key) if path not in schema["properties"]]
    if near:
        fix = f"did you mean {near}?"
    elif elsewhere:
        fix = f"did you mean {elsewhere[0]}?"
    else:
        fix = "remove it"
    allowed = ", ".join(schema["properties"])
    problem = f"no such key, allowed: {allowed}"
    return Mistake(child.key_place or child.place, child.path, problem, fix)


def nearest(word: str, words: list[str]) -> str | None:
    """The one of ``words`` that ``word`` was most likely meant to be."""
    near = difflib.get_close_matches(word.lower().replace("-", "_"), words, n=1, cutoff=0.65)
    return near[0] if near else None


_ALSO_CALLED = {"learning_rate": "lr", "num_workers": "workers", "dtype": "precision", "dataset": "source"}


def _homes(key: str) -> list[str]:
    """Every ``block.key`` of the spec whose last part is ``key`` or almost is, the best first."""
    key = _ALSO_CALLED.get(key.lower(), key.lower())
    known: dict[str, str] = {}
    for block, schema in {
        "": _schema(),
        **{k: _branches(s)[-1] for k, s in _schema()["properties"].items()},
    }.items():
        for name in schema.get("properties", {}):
            known.setdefault(name, f"{block}.{name}" if block else name)
    return [known[name] for name in difflib.get_close_matches(key, list(known), n=1, cutoff=0.7)]


# Conflicts ----------------------------------------------------------------------------------------


def _conflicts(node: Node, model: type[Block]) -> Iterator[Mistake]:
    if not isinstance(node.value, dict) or any(child.value is UNREADABLE for child in node.value.values()):
        return
    given = {key: _shallow(child) for key, child in node.value.items()}
    for conflict in model.conflicts(given):
        at = node.value.get(conflict.key, node)
        place = (at.key_place or at.place) if at is not node else node.key_place or node.place
        path: Path = at.path
        yield Mistake(place, path, conflict.problem, conflict.fix)
    for key, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):  # a block, or a block and something else
            if key in given and isinstance(kind, type) and issubclass(kind, Block):
                yield from _conflicts(node.value[key], kind)


def _shallow(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: child.value for key, child in node.value.items()}
    return [item.value for item in node.value] if isinstance(node.value, list) else node.value
