"""The models a spec can name. All give plain outputs: logits for classes, values for regression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlrun.backends.resolve import resolve
from mlrun.errors import RequestError
from mlrun.spec import JobSpec


@dataclass(frozen=True)
class Sizes:
    """What a model must fit: the shape of one sample's inputs and the number of outputs."""

    sample_shape: tuple[int, ...]
    outputs: int


def make_model(spec: JobSpec, sizes: Sizes) -> nn.Module:
    """The spec's model, its parameters a function of ``seed``.

    Raises:
        RequestError: no such model, or arguments it doesn't take.
    """
    torch.manual_seed(spec.seed)
    name, args = spec.model.name, spec.model.args
    try:
        if name.startswith("torchvision:"):
            return _torchvision(name.removeprefix("torchvision:"), sizes, args)
        if ":" in name:
            model = resolve(name, spec.workdir, "model.name")(**args)
        elif name in REGISTRY:
            model = REGISTRY[name](sizes, **args)
        else:
            near = get_close_matches(name, REGISTRY, n=1)
            raise RequestError(
                f"model.name: there is no model {name!r}",
                fix=f"did you mean {near[0]}?"
                if near
                else f"take one of {', '.join(REGISTRY)}, or package.module:callable",
            )
    except TypeError as error:
        raise RequestError(f"model.args: {name} doesn't take them: {error}") from error
    if not isinstance(model, nn.Module):
        raise RequestError(f"model.name: {name} gave a {type(model).__name__}, not a torch.nn.Module")
    return model


def _torchvision(name: str, sizes: Sizes, args: dict[str, Any]) -> nn.Module:
    try:
        from torchvision.models import get_model, list_models  # noqa: PLC0415 - optional
    except ImportError as error:
        raise RequestError(
            f"model.name: torchvision:{name} needs torchvision, which isn't installed",
            fix="install the torchvision that fits this torch, or take a model of the registry",
        ) from error
    if name not in list_models():
        raise RequestError(f"model.name: torchvision has no model {name!r}")
    model: nn.Module = get_model(name, **{"num_classes": sizes.outputs, **args})
    return model


class Logits(nn.Module):
    """A transformers model reduced to the tensor that the loss needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        logits: Tensor = self.model(*inputs, **named).logits
        return logits


def _transformers_resnet(depths: list[int], hidden: list[int], layer: str) -> Callable[..., nn.Module]:
    def make(sizes: Sizes, **args: Any) -> nn.Module:
        from transformers.models.resnet.configuration_resnet import ResNetConfig  # noqa: PLC0415 - slow
        from transformers.models.resnet.modeling_resnet import (  # noqa: PLC0415 - slow
            ResNetForImageClassification,
        )

        config = ResNetConfig(
            depths=depths,
            hidden_sizes=hidden,
            layer_type=layer,
            num_channels=sizes.sample_shape[0],
            **{"num_labels": sizes.outputs, **args},
        )
        return Logits(ResNetForImageClassification(config))

    return make


def _distilbert(sizes: Sizes, **args: Any) -> nn.Module:
    from transformers.models.distilbert.configuration_distilbert import (  # noqa: PLC0415 - slow
        DistilBertConfig,
    )
    from transformers.models.distilbert.modeling_distilbert import (  # noqa: PLC0415 - slow
        DistilBertForSequenceClassification,
    )

    return Logits(
        DistilBertForSequenceClassification(DistilBertConfig(**{"num_labels": sizes.outputs, **args}))
    )


def _mlp(sizes: Sizes, hidden: tuple[int, ...] | list[int] = (128, 128), dropout: float = 0.0) -> nn.Module:
    widths = [math.prod(sizes.sample_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(widths[-1], sizes.outputs))


def _norm(kind: str, channels: int) -> nn.Module:
    kinds: dict[str, Callable[[], nn.Module]] = {
        "batch": lambda: nn.BatchNorm2d(channels),
        "group": lambda: nn.GroupNorm(8, channels),
        "none": nn.Identity,
    }
    if kind not in kinds:
        raise RequestError(f"model.args.norm: {kind!r} isn't one of batch, group, none")
    return kinds[kind]()


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut. Source: https://arxiv.org/abs/1512.03385, figure 2."""

    def __init__(self, channels: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, outputs, 3, stride, padding=1, bias=norm == "none")
        self.norm1 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=norm == "none")
        self.norm2 = _norm(norm, outputs)
        self.shortcut = (
            nn.Identity() if stride == 1 and channels == outputs else nn.Conv2d(channels, outputs, 1, stride)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


def _resnet8(sizes: Sizes, width: int = 16, norm: str = "batch") -> nn.Module:
    """Eight layers for images of 8 to 32 pixels: the CIFAR ResNet of one block per stage."""
    channels = sizes.sample_shape[0]
    model = nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=norm == "none"),
        _norm(norm, width),
        nn.ReLU(),
        _Block(width, width, 1, norm),
        _Block(width, 2 * width, 2, norm),
        _Block(2 * width, 4 * width, 2, norm),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, sizes.outputs),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


REGISTRY: dict[str, Callable[..., nn.Module]] = {
    "resnet18": _transformers_resnet([2, 2, 2, 2], [64, 128, 256, 512], "basic"),
    "resnet34": _transformers_resnet([3, 4, 6, 3], [64, 128, 256, 512], "basic"),
    "resnet50": _transformers_resnet([3, 4, 6, 3], [256, 512, 1024, 2048], "bottleneck"),
    "distilbert": _distilbert,
    "mlp": _mlp,
    "resnet8": _resnet8,
}
"""Name in a spec -> maker(sizes, **model.args)."""
