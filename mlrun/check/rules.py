"""The rules: what is looked for in a script, why it matters on Macs, and what to write instead."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property


class Script:
    """A parsed script, with what several rules ask of it."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call, outermost first."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]

    @cached_property
    def imports(self) -> dict[str, ast.stmt]:
        """Dotted names that the script imports, each with its statement."""
        found: dict[str, ast.stmt] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name: node for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module: node, **{f"{node.module}.{alias.name}": node for alias in node.names}}
        return found

    def called(self, *names: str) -> list[ast.Call]:
        """Calls of a function or method whose last name is one of ``names``."""
        return [call for call in self.calls if last_name(call.func) in names]

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """What encloses ``node``, the nearest first."""
        while node in self._parents:
            node = self._parents[node]
            yield node

    def chooses(self, node: ast.AST) -> bool:
        """Whether ``node`` is one of several that the script chooses between by itself."""
        return any(
            isinstance(each, ast.IfExp | ast.If | ast.BoolOp) and _asks(each) for each in self.above(node)
        )

    @property
    def is_distributed(self) -> bool:
        return bool(self.called("init_process_group", "DistributedDataParallel", "DDP"))


@dataclass(frozen=True, slots=True)
class Rule:
    """``find`` gives the nodes at fault."""

    name: str
    problem: str
    fix: str
    find: Callable[[Script], Iterable[ast.expr | ast.stmt]]


def last_name(node: ast.expr) -> str | None:
    """``c`` of ``a.b.c``."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _asks(node: ast.IfExp | ast.If | ast.BoolOp) -> bool:
    """Whether a condition is about what the machine has."""
    test = node if isinstance(node, ast.BoolOp) else node.test
    names = {last_name(each) for each in ast.walk(test) if isinstance(each, ast.Attribute | ast.Name)}
    return any("available" in name or name in ("device", "cuda", "mps") for name in names if name)


def _is_true(call: ast.Call, keyword: str) -> bool:
    return any(
        each.arg == keyword and isinstance(each.value, ast.Constant) and each.value.value is True
        for each in call.keywords
    )


def _texts(call: ast.Call) -> Iterator[tuple[ast.Constant, str]]:
    """Constant texts among a call's arguments, those within a choice included."""
    for argument in [*call.args, *(each.value for each in call.keywords)]:
        for node in ast.walk(argument):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node, node.value


def _cuda(script: Script) -> Iterator[ast.expr]:
    for call in script.called("cuda"):
        if isinstance(call.func, ast.Attribute) and not script.chooses(call):
            yield call
    for call in script.called(
        "to", "device", "tensor", "zeros", "ones", "randn", "rand", "autocast", "GradScaler"
    ):
        for node, text in _texts(call):
            if text.split(":")[0] == "cuda" and not script.chooses(node):
                yield node


def _no_mps(script: Script) -> Iterator[ast.expr]:
    def is_text(node: ast.expr, text: str) -> bool:
        return any(isinstance(each, ast.Constant) and each.value == text for each in ast.walk(node))

    if any(isinstance(node, ast.Constant) and node.value == "mps" for node in ast.walk(script.tree)):
        return
    for node in ast.walk(script.tree):
        if isinstance(node, ast.IfExp) and is_text(node.body, "cuda") and is_text(node.orelse, "cpu"):
            yield node


def _nccl(script: Script) -> Iterator[ast.expr]:
    for call in script.called("init_process_group", "new_group"):
        yield from (node for node, text in _texts(call) if text == "nccl" and not script.chooses(node))


def _item_in_each_step(script: Script) -> Iterator[ast.expr]:
    for call in script.called("item"):
        for node in script.above(call):
            if isinstance(node, ast.If | ast.FunctionDef | ast.AsyncFunctionDef):
                break
            if isinstance(node, ast.For | ast.While):
                if any(last_name(each.func) == "backward" for each in _calls_in(node)):
                    yield call
                break


def _calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _no_sampler(script: Script) -> Iterator[ast.expr]:
    if not script.is_distributed or any("IterableDataset" in name for name in script.imports):
        return
    loaders = [(call, {each.arg for each in call.keywords}) for call in script.called("DataLoader")]
    chosen = {"sampler", "batch_sampler", None}
    if any(given & chosen or len(call.args) > 3 for call, given in loaders):
        yield from (call for call, given in loaders if "shuffle" in given and not given & chosen)
        return
    shuffled = [call for call, given in loaders if "shuffle" in given]
    yield from shuffled or (call for call, _ in loaders)


def _no_set_epoch(script: Script) -> Iterator[ast.expr]:
    if not script.called("set_epoch"):
        yield from (call for call in script.called("DistributedSampler") if not _keeps_order(call))


def _keeps_order(call: ast.Call) -> bool:
    return any(
        each.arg == "shuffle" and isinstance(each.value, ast.Constant) and each.value.value is False
        for each in call.keywords
    )


def _compiled_ddp(script: Script) -> Iterator[ast.expr]:
    wrapped = {
        target.id
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_ddp(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in script.called("compile"):
        if not call.args or not (
            isinstance(call.func, ast.Attribute) and last_name(call.func.value) == "torch"
        ):
            continue
        first = call.args[0]
        if (isinstance(first, ast.Call) and _is_ddp(first)) or (
            isinstance(first, ast.Name) and first.id in wrapped
        ):
            yield call


def _is_ddp(call: ast.Call) -> bool:
    return last_name(call.func) in ("DistributedDataParallel", "DDP")


def _no_main_guard(script: Script) -> Iterator[ast.expr]:
    guarded = any(
        isinstance(node, ast.If)
        and any(last_name(n) == "__name__" for n in ast.walk(node.test) if isinstance(n, ast.Name))
        for node in script.tree.body
    )
    for call in script.called("DataLoader"):
        workers = next((each.value for each in call.keywords if each.arg == "num_workers"), None)
        if (
            not guarded
            and workers is not None
            and not (isinstance(workers, ast.Constant) and not workers.value)
        ):
            yield call


def _trainers(script: Script) -> Iterator[ast.stmt]:
    if any(name.startswith("mlrun.accelerate") for name in script.imports):
        return
    names = ("accelerate.Accelerator", "transformers.Trainer", "transformers.Seq2SeqTrainer")
    yield from (script.imports[name] for name in names if name in script.imports)


def _lightning(script: Script) -> Iterator[ast.expr]:
    whole = ("lightning", "pytorch_lightning", "lightning.pytorch")
    if any(name in script.imports for name in whole) and not any(
        name.startswith("mlrun.lightning") for name in script.imports
    ):
        yield from script.called("Trainer")


RULES = (
    Rule(
        "cuda", "a Mac has no CUDA, so this raises", "take the device that is there: model.to(device)", _cuda
    ),
    Rule(
        "no-mps",
        "a Mac trains on its CPU then, and its GPU is idle",
        '"cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"',
        _no_mps,
    ),
    Rule(
        "nccl",
        "NCCL is for NVIDIA alone",
        "leave the backend out: under mlrun launch it is mlrun, for cpu, mps and cuda",
        _nccl,
    ),
    Rule(
        "set-device",
        "torch.cuda.set_device raises where there is no CUDA",
        "leave it out: a Mac has one GPU",
        lambda script: [call for call in script.called("set_device") if not script.chooses(call)],
    ),
    Rule(
        "pin-memory",
        "pinned memory is CUDA's; on MPS it is only copied once more",
        "pin_memory=torch.cuda.is_available()",
        lambda script: [call for call in script.called("DataLoader") if _is_true(call, "pin_memory")],
    ),
    Rule(
        "non-blocking",
        "a copy to MPS that isn't waited for may read memory that has changed meanwhile",
        "leave non_blocking out",
        lambda script: [call for call in script.called("to") if _is_true(call, "non_blocking")],
    ),
    Rule(
        "channels-last",
        "channels_last has given wrong gradients on MPS and is slower there",
        "leave memory_format out",
        lambda script: [
            node
            for node in ast.walk(script.tree)
            if isinstance(node, ast.Attribute) and node.attr == "channels_last" and not script.chooses(node)
        ],
    ),
    Rule(
        "item-each-step",
        "reading a number off the GPU in each step makes it wait for the step's end",
        "read it every 50 steps, say, or add up on the device and read once per epoch",
        _item_in_each_step,
    ),
    Rule(
        "no-sampler",
        "every rank reads all of the data, so more ranks only repeat it",
        "DataLoader(data, batch, sampler=DistributedSampler(data))",
        _no_sampler,
    ),
    Rule(
        "no-set-epoch",
        "without set_epoch each epoch has the same order",
        "call sampler.set_epoch(epoch) at the start of each epoch",
        _no_set_epoch,
    ),
    Rule(
        "compiled-ddp",
        "torch.compile around DistributedDataParallel keeps gradients back until backward's end",
        "DistributedDataParallel(torch.compile(model))",
        _compiled_ddp,
    ),
    Rule(
        "no-main-guard",
        "macOS starts loader workers afresh, and each would run this script again",
        "put the script's body under if __name__ == '__main__':",
        _no_main_guard,
    ),
    Rule(
        "trainer-ignores-mps",
        "accelerate and Hugging Face's Trainer train a model per Mac on MPS, and average nothing",
        "call mlrun.accelerate.join() before anything of theirs (docs/pytorch.md)",
        _trainers,
    ),
    Rule(
        "lightning-refuses-mps",
        "Lightning refuses several MPS devices",
        "Trainer(**mlrun.lightning.trainer_options(), ...) (docs/pytorch.md)",
        _lightning,
    ),
)
