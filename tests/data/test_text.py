"""Labelled text in files: what is read of it, and what is said of a file that isn't right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mlrun.backends.torch.data.sources import Source, make_source
from mlrun.data.tokens import make_tokenizer
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

GOOD = 'text,label\n"good, very good",pos\nbad,neg\n"fine\nbook",pos\nawful,neg\n'


def opened(path: Path, model: dict[str, Any] | None = None, **data: Any) -> Source:
    source = "jsonl" if path.suffix == ".jsonl" else "csv"
    spec = JobSpec.model_validate(
        {
            "name": "test",
            "task": "text-classification",
            "model": {"name": "distilbert", "args": model or {}},
            "data": {"source": source, "path": str(path), "sequence_length": 8, **data},
            "batch_size": 2,
            "steps": 1,
        }
    )
    return make_source(spec, torch.device("cpu"))


def written(tmp_path: Path, content: str | bytes, name: str = "reviews.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_csv_becomes_tokens_masks_and_classes(tmp_path: Path) -> None:
    source = opened(written(tmp_path, GOOD))

    batch = source.train.fetch(torch.arange(4).numpy(), epoch=0)
    assert source.classes == 2
    assert batch.targets.tolist() == [1, 0, 1, 0]
    assert batch.inputs["input_ids"].shape == (4, 8)
    # [CLS] good , very good [SEP]; [CLS] bad [SEP]; ...
    assert batch.inputs["attention_mask"].sum(dim=1).tolist() == [6, 3, 4, 3]
    assert batch.inputs["input_ids"][0, 1] == batch.inputs["input_ids"][0, 4]


def test_jsonl_and_csv_of_the_same_rows_are_the_same_data(tmp_path: Path) -> None:
    rows = [("good, very good", "pos"), ("bad", "neg"), ("fine\nbook", "pos"), ("awful", "neg")]
    lines = "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)
    jsonl, table = written(tmp_path, lines, "reviews.jsonl"), written(tmp_path, GOOD)

    one, other = (opened(p).train.fetch(torch.arange(4).numpy(), 0) for p in (jsonl, table))
    assert one.targets.tolist() == other.targets.tolist()
    assert one.inputs["input_ids"].tolist() == other.inputs["input_ids"].tolist()


def test_a_folder_has_train_and_val(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "train.csv")
    written(tmp_path, "text,label\nnever seen,pos\n", "val.csv")

    source = opened(tmp_path)
    assert source.validation is not None
    assert len(source.validation) == 1
    assert source.validation.fetch(torch.arange(1).numpy(), 0).targets.tolist() == [1]


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-8-sig"])
def test_other_encodings_are_read_where_the_spec_names_them(tmp_path: Path, encoding: str) -> None:
    plain = opened(written(tmp_path, "text,label\ncafé,a\nthé,b\n"))
    path = written(tmp_path, "text,label\ncafé,a\nthé,b\n".encode(encoding), "other.csv")
    assert opened(path, encoding=encoding).fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("content", "line", "said"),
    [
        pytest.param("text,label\na,b\nc\n", 3, "1 fields, but the header has 2", id="short row"),
        pytest.param('text,label\n"a\nb",x\nc,d,e\n', 4, "3 fields", id="after a row of two lines"),
        pytest.param('text,label\na,b\n"open,c\n', 3, "unexpected end of data", id="open quote"),
        pytest.param("text,label\na,b\nc, \n", 3, "not a label", id="empty label"),
        pytest.param("review,label\na,b\n", 2, "no column 'text'", id="another column"),
        pytest.param(b"text,label\na,b\ncaf\xe9,c\n", 3, "byte 0xe9 isn't utf-8", id="latin-1"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(
    tmp_path: Path, content: str | bytes, line: int, said: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(RequestError) as failure:
        opened(path)
    assert failure.value.message.startswith(f"{path}:{line}: ")
    assert said in failure.value.message


def test_lines_that_are_not_objects_are_named(tmp_path: Path) -> None:
    good = '{"text": "a", "label": 0}\n'
    for bad in ("[1]", "{", '{"text": 5, "label": 0}', '{"text": "a", "label": null}'):
        path = written(tmp_path, good + "\n" + bad + "\n", "rows.jsonl")
        with pytest.raises(RequestError) as failure:
            opened(path)
        assert failure.value.message.startswith(f"{path}:3: ")


def test_a_label_out_of_range_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path, "text,label\na,0\nb,1\nc,7\n")
    with pytest.raises(RequestError, match=r"reviews\.csv:4: label '7' isn't one of the 2 classes \(0, 1\)"):
        opened(path, classes=2)


def test_a_label_of_validation_alone_is_named(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "train.csv")
    written(tmp_path, "text,label\nso so,neutral\n", "val.csv")
    with pytest.raises(RequestError, match=r"val\.csv:2: label 'neutral'"):
        opened(tmp_path)


def test_bad_rows_are_left_out_where_the_spec_says_so(tmp_path: Path) -> None:
    bad = b"a,b,pos\ncaf\xe9,neg\nempty,\n"
    path = written(tmp_path, GOOD.encode() + bad)
    source = opened(path, on_bad_file="skip")
    assert source.train.fetch(torch.arange(4).numpy(), 0).targets.tolist() == [1, 0, 1, 0]
    assert [str(path) in said for said in source.left_out] == [True] * 3
    assert [said.removeprefix(f"{path}:").partition(":")[0] for said in source.left_out] == ["7", "8", "9"]

    numbers = written(tmp_path, "text,label\na,0\nb,1\nc,7\n", "numbers.csv")
    assert len(opened(numbers, on_bad_file="skip", classes=2).train) == 2

    with pytest.raises(RequestError, match="not a label"):
        opened(written(tmp_path, "text,label\na,\n", "all.csv"), on_bad_file="skip")


def test_the_tokenizer_of_a_run_reads_text_as_the_run_did(tmp_path: Path) -> None:
    source = opened(written(tmp_path, GOOD))
    assert source.tokenizer is not None
    (tmp_path / "tokenizer.json").write_text(source.tokenizer)

    again = opened(tmp_path / "reviews.csv", tokenizer=str(tmp_path))
    assert again.fingerprint == source.fingerprint
    with pytest.raises(RequestError, match="but the model 6"):
        opened(tmp_path / "reviews.csv", model={"vocab_size": 6}, tokenizer=str(tmp_path))


def test_a_tokenizer_made_here_is_bounded_and_the_same_whatever_the_order() -> None:
    texts = ["b a", "c a", "d e"]
    assert make_tokenizer(texts, 7).get_vocab() == make_tokenizer(texts[::-1], 7).get_vocab()
    assert make_tokenizer(texts, 7).get_vocab_size() == 7
    assert "a" in make_tokenizer(texts, 6).get_vocab()
