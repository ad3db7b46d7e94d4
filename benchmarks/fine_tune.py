"""Fine-tuning against training from scratch, with DistilBERT in its own size, and what the export gives.

Texts come from a generator with a fixed seed; the tokenizer is made of the former run's words. All three runs
are ``mlrun launch`` with the same number of workers. From the top of the checkout:
``python -m benchmarks.fine_tune``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from transformers import AutoModelForSequenceClassification

from mlrun import runs, specfile
from mlrun.backends.torch.checkpoint import load_weights
from mlrun.backends.torch.data.sources import make_source
from mlrun.backends.torch.models import Sizes, make_model
from tests.data.test_weights import reviews

SIZES = {
    "distilbert": {"vocab_size": 600},
    "small": {"vocab_size": 600, "n_layers": 2, "dim": 128, "n_heads": 4, "hidden_dim": 512},
}
"""DistilBERT's own layers and widths (43 M parameters with this vocabulary), or ones for a quick look."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="distilbert")
    parser.add_argument("--former-steps", type=int, default=80)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("-np", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reviews(folder / "many.csv", 4000, seed=1)
        reviews(folder / "few.csv", 400, seed=2)
        spec = _spec(options.size)
        former = _trained(folder, spec, options, "many.csv", options.former_steps, name="former")
        checkpoint = runs.latest_checkpoint(former)
        spec["data"]["tokenizer"] = str(checkpoint)
        _trained(folder, spec, options, "few.csv", options.steps, name="scratch")
        spec["model"] |= {"weights": str(former), "fresh": ["classifier.*"]}
        tuned = _trained(folder, spec, options, "few.csv", options.steps, name="fine-tuned")
        _export(folder, tuned)


def _spec(size: str) -> dict[str, Any]:
    return {
        "task": "text-classification",
        "model": {"name": "distilbert", "args": SIZES[size]},
        "data": {"source": "csv", "sequence_length": 12, "val_split": 0.5},
        "global_batch_size": 32,
        "optimizer": {"name": "adamw", "lr": 1e-4 if size == "distilbert" else 1e-3},
        "lr_schedule": {"warmup_steps": 2},
        "device": "cpu",
        "threads": 1,
    }


def _trained(
    folder: Path,
    spec: dict[str, Any],
    options: argparse.Namespace,
    data: str,
    steps: int,
    *,
    name: str,
) -> Path:
    """The folder of a run that ended well; prints how well."""
    own = {**spec, "name": name, "steps": steps, "evaluate": {"every_steps": steps}}
    own["data"] = {**spec["data"], "path": data}
    (folder / "spec.yaml").write_text(yaml.safe_dump(own))
    _mlrun(folder, "launch", "spec.yaml", "-np", str(options.np), "--console=off", "--runs-dir=runs")
    run = runs.all_runs(folder / "runs")[0]
    summary = runs.read_summary(run)
    print(
        f"{name}: accuracy {summary['metrics']['accuracy']:.3f} after {summary['step']} steps, "
        f"{summary['parameters'] / 1e6:.1f} M parameters, {summary['world_size']} ranks",
        flush=True,
    )
    return run


def _export(folder: Path, run: Path) -> None:
    """The largest difference between the logits of what ``from_pretrained`` reads and those of the run."""
    out = folder / "exported"
    _mlrun(folder, "export", str(run), "--format=hf", f"--out={out}")
    exported = AutoModelForSequenceClassification.from_pretrained(out).eval()
    spec = specfile.load(run / runs.SPEC_FILE).model_copy(update={"workdir": str(folder)})
    source = make_source(spec, torch.device("cpu"))
    inputs = source.train.fetch(np.arange(100), 0).inputs
    model = make_model(spec, Sizes(source.sample_shape, source.classes or 1)).eval()
    load_weights(run, model, [])
    with torch.no_grad():
        difference = (exported(**inputs).logits - model(**inputs)).abs().max().item()
    print(f"exported: largest difference of logits over 100 texts {difference:.1e}")


def _mlrun(folder: Path, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "mlrun.cli", *words], cwd=folder, check=True)


if __name__ == "__main__":
    main()
