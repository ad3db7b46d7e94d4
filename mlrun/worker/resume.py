"""May this training go on from that checkpoint?"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mlrun.backends.base import Shape
from mlrun.errors import RequestError
from mlrun.spec import JobSpec
from mlrun.worker.checkpoint import State


def model_fingerprint(spec: JobSpec, shape: Shape) -> str:
    """Hash over what makes the model: framework, task, name, arguments and number of parameters."""
    parts = spec.model_dump(mode="json", include={"framework": True, "task": True, "model": {"name", "args"}})
    text = json.dumps({**parts, "parameters": shape.parameters}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def check(folder: Path, state: State, spec: JobSpec, shape: Shape, world_size: int) -> list[str]:
    """Sentences that the user should read before the training goes on.

    Raises:
        RequestError: the checkpoint is of another model or of other data.
    """
    for what, saved, now in (
        ("model", state.model, model_fingerprint(spec, shape)),
        ("data", state.data, shape.data_fingerprint),
    ):
        if saved != now:
            raise RequestError(
                f"the {what} changed since {folder} was saved",
                fix=f"undo the change of {what}, or start a new run with mlrun launch",
            )
    notes = [f"resuming from {folder.name}: epoch {state.epoch + 1}, {state.position} steps into it"]
    if state.world_size != world_size:
        notes.append(f"world size {state.world_size} → {world_size}")
    if state.global_batch_size != shape.global_batch_size:
        notes.append(
            f"global batch {state.global_batch_size} → {shape.global_batch_size}: "
            f"an epoch has {shape.steps_per_epoch} steps now, so this one may repeat or miss some samples"
        )
    if state.seed != spec.seed:
        notes.append(f"seed {state.seed} → {spec.seed}: the order of the samples changes")
    return notes


def check_hash(folder: Path, state: State, loaded: str) -> None:
    """Compare the hash of what was loaded with what was saved.

    Raises:
        RequestError: the files were damaged or changed.
    """
    if loaded != state.hash:
        raise RequestError(
            f"{folder} doesn't hold what was saved: "
            f"its parameters hash to {loaded[:12]}, not {state.hash[:12]}",
            fix=f"resume from another checkpoint in {folder.parent}",
        )
