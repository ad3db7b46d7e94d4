"""A checkpoint's model in a form that others read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from mlrun.backends.torch import checkpoint
from mlrun.backends.torch.models import Logits, Sizes, make_model
from mlrun.data.tokens import SPECIAL, TOKENIZER
from mlrun.errors import RequestError
from mlrun.spec import JobSpec


def export_safetensors(folder: Path, out: Path) -> None:
    """Copy the tensors of the checkpoint ``folder`` into ``out``, by their names in the model.

    Raises:
        RequestError: there are none, or ``out`` can't be written.
    """
    try:
        shutil.copy(folder / checkpoint.MODEL, out / checkpoint.MODEL)
    except OSError as error:
        raise RequestError(f"{folder} can't be exported to {out}: {error.strerror}") from error


def export_hf(spec: JobSpec, folder: Path, out: Path) -> None:
    """Write the model of the checkpoint ``folder`` into ``out`` so that ``from_pretrained`` reads it.

    The tokenizer goes along where the run had one.

    Raises:
        RequestError: the model isn't one of transformers, or the checkpoint doesn't fit the spec.
    """
    outputs = checkpoint.read_numbers(folder).get("outputs")
    if outputs is None:
        raise RequestError(f"{folder} doesn't say how many outputs its model has", fix="resume the run once")
    model = make_model(spec, Sizes((3,), outputs))
    if not isinstance(model, Logits):
        raise RequestError(
            f"model.name: {spec.model.name} isn't a model of transformers", fix="use --format safetensors"
        )
    checkpoint.load_model(folder, model)
    model.model.save_pretrained(out)  # type: ignore[operator]
    if (folder / TOKENIZER).is_file():
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - slow

        pad, unknown, first, last, mask = SPECIAL
        PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_file=str(folder / TOKENIZER),
            model_max_length=spec.data.sequence_length or 128,
            pad_token=pad,
            unk_token=unknown,
            cls_token=first,
            sep_token=last,
            mask_token=mask,
        ).save_pretrained(out)


WRITERS: dict[str, Callable[[JobSpec, Path, Path], None]] = {
    "safetensors": lambda _, folder, out: export_safetensors(folder, out),
    "hf": export_hf,
}
"""Format -> writer(spec, checkpoint's folder, where to)."""


def loading_lines(out: Path, kind: str) -> tuple[str, str]:
    """The two lines of Python that load what was exported."""
    if kind == "hf":
        (type_name,) = json.loads((out / "config.json").read_text(encoding="utf-8"))["architectures"]
        return (
            f"from transformers import {type_name}",
            f"model = {type_name}.from_pretrained({json.dumps(str(out))})",
        )
    return (
        "from safetensors.torch import load_file",
        f"tensors = load_file({json.dumps(str(out / checkpoint.MODEL))})",
    )
