"""Labelled text in CSV and JSON-lines files. No framework is imported here."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlrun.data.folder import DataError, Folder
from mlrun.errors import RequestError
from mlrun.spec.training import Data


@dataclass(frozen=True)
class Row:
    """``place`` is ``file:line``, for messages."""

    text: str
    label: str
    place: str


def split_files(folder: Folder, source: str) -> tuple[str, str | None]:
    """(training file, validation file): the only file, or those called ``train`` and ``val``.

    Raises:
        RequestError: none of these.
    """
    names = folder.listing.names
    training, validation = f"train.{source}", f"val.{source}"
    if training in names:
        return training, validation if validation in names else None
    if len(names) != 1:
        raise RequestError(
            f"data.path: {folder.place} has no {training}",
            fix=f"name the {source} file itself, or put {training} there",
        )
    return names[0], None


def read_rows(folder: Folder, name: str, data: Data, left_out: list[RequestError] | None = None) -> list[Row]:
    """Every row of a file of ``folder``. Bad rows go into ``left_out``, where that is given.

    Raises:
        RequestError: unreadable, another encoding, a bad row, a missing column: with file and line.
    """
    file = folder.where(name)
    content = _decoded(folder, name, data.encoding, "strict" if left_out is None else "surrogateescape")
    records = _csv(file, content) if data.source == "csv" else _jsonl(file, content)
    rows = []
    for place, record in records:
        try:
            rows.append(_row(place, record, data))
        except RequestError as error:
            if left_out is None:
                raise
            left_out.append(error)
    if not rows and left_out:
        raise left_out[0]
    if not rows:
        raise RequestError(f"data.path: {file} has no rows")
    return rows


def _row(place: str, record: Mapping[str, Any] | RequestError, data: Data) -> Row:
    if isinstance(record, RequestError):
        raise record
    row = Row(
        text=_field(record, data.text_column, "text", place),
        label=_field(record, data.label_column, "label", place),
        place=place,
    )
    if any("\ud800" <= character <= "\udfff" for character in row.text + row.label):
        raise RequestError(f"{place}: some bytes aren't {data.encoding} text", fix=_ENCODING)
    return row


_ENCODING = "save the file as UTF-8, or set data.encoding (latin-1, cp1252, utf-16, ...)"


def _decoded(folder: Folder, name: str, encoding: str, errors: str) -> str:
    try:
        content = folder.read(name)
        # A byte order mark would become part of the first column's name.
        return content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding, errors)
    except DataError:
        raise
    except OSError as error:
        raise RequestError(f"data.path: {folder.where(name)} can't be read: {error.strerror}") from error
    except LookupError as error:
        raise RequestError(f"data.encoding: there is no encoding {encoding!r}", fix="utf-8, say") from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RequestError(
            f"{folder.where(name)}:{line}: byte 0x{content[error.start]:02x} isn't {encoding} text",
            fix=_ENCODING,
        ) from error


def _csv(file: str, content: str) -> Iterator[tuple[str, Mapping[str, Any] | RequestError]]:
    """(place, record, or what is wrong with it). A file with open quotes has no rows to tell apart."""
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    header: list[str] | None = None
    line = 1
    try:
        for fields in reader:
            place, line = f"{file}:{line}", reader.line_num + 1
            if header is None:
                header = fields
            elif fields and len(fields) != len(header):
                problem = f"{place}: {len(fields)} fields, but the header has {len(header)}"
                yield place, RequestError(problem, fix="put fields that hold commas or line breaks in quotes")
            elif fields:
                yield place, dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise RequestError(f"{file}:{line}: {error}", fix="close the quotes of that row") from error


def _jsonl(file: str, content: str) -> Iterator[tuple[str, Mapping[str, Any] | RequestError]]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{file}:{number}"
        try:
            record = json.loads(line)
        except ValueError as error:
            yield place, RequestError(f"{place}: not JSON: {error}", fix="write one JSON object per line")
            continue
        if not isinstance(record, dict):
            yield place, RequestError(f"{place}: {type(record).__name__}, not a JSON object")
            continue
        yield place, record


def _field(record: Mapping[str, Any], column: str, what: str, place: str) -> str:
    if column not in record:
        raise RequestError(
            f"{place}: no column {column!r}, but {', '.join(map(repr, record))}",
            fix=f"set data.{what}_column to the one with the {what}",
        )
    value = record[column]
    if what == "label" and isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or (what == "label" and not value.strip()):
        raise RequestError(f"{place}: {column} is {value!r}, not a {what}", fix="correct or remove the row")
    return value.strip() if what == "label" else value


def class_names(rows: Sequence[Row], classes: int | None) -> list[str]:
    """The labels that become classes 0, 1, ...: whole numbers in their order, else by the alphabet.

    With ``classes`` given, numbers are taken as they are, from 0 to ``classes - 1``.

    Raises:
        RequestError: not as many labels as ``classes`` says.
    """
    found = {row.label for row in rows}
    if all(label.isascii() and label.isdigit() for label in found):
        return [str(n) for n in range(classes)] if classes else sorted(found, key=lambda n: (int(n), n))
    if classes is not None and len(found) != classes:
        raise RequestError(f"data.classes: {classes}, but the data has {len(found)} labels")
    return sorted(found)


def of_classes(
    rows: Sequence[Row], names: Sequence[str], left_out: list[RequestError] | None = None
) -> list[Row]:
    """The rows with a label of ``names``. Others go into ``left_out``, where that is given.

    Raises:
        RequestError: a label that isn't one of ``names``, with file and line.
    """
    classes = set(names)
    known = ", ".join(names) if len(names) <= 10 else f"{names[0]} to {names[-1]}"
    for row in rows:
        if row.label not in classes:
            error = RequestError(
                f"{row.place}: label {row.label!r} isn't one of the {len(names)} classes ({known})",
                fix="correct the row, or data.classes",
            )
            if left_out is None:
                raise error
            left_out.append(error)
    return [row for row in rows if row.label in classes]
