"""The Keras models a spec can name. All give plain outputs: logits for classes, values for regression."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import keras

from mlrun.backends.resolve import resolve
from mlrun.errors import RequestError
from mlrun.spec import JobSpec

_KERAS = "keras:"


@dataclass(frozen=True)
class Sizes:
    """What a model must fit: the shape of one sample's inputs (channels last) and the number of outputs."""

    sample_shape: tuple[int, ...]
    outputs: int


def make_model(spec: JobSpec, sizes: Sizes) -> Any:
    """The spec's model, a ``keras.Model``, its parameters a function of ``seed``.

    Raises:
        RequestError: no such model, or arguments it doesn't take.
    """
    keras.utils.clear_session()  # names of layers begin anew, so that checkpoints find them again
    keras.utils.set_random_seed(spec.seed)
    name, args = spec.model.name, spec.model.args
    try:
        if name.startswith(_KERAS):
            model = _application(name.removeprefix(_KERAS), sizes, args)
        elif ":" in name:
            model = resolve(name, spec.workdir, "model.name")(**args)
        elif name in REGISTRY:
            model = REGISTRY[name](sizes, **args)
        else:
            known = {each.lower(): _KERAS + each for each in _applications()} | {n: n for n in REGISTRY}
            near = [known[each] for each in get_close_matches(name.lower(), known, n=1)]
            raise RequestError(
                f"model.name: TensorFlow has no model {name!r}",
                fix=f"did you mean {near[0]}?"
                if near
                else f"take one of {', '.join(REGISTRY)}, keras:NAME, or package.module:callable",
            )
    except (TypeError, ValueError) as error:
        raise RequestError(f"model.args: {name} can't be made: {str(error).splitlines()[0]}") from error
    if not isinstance(model, keras.Model):
        raise RequestError(f"model.name: {name} gave a {type(model).__name__}, not a keras.Model")
    return model


def _applications() -> list[str]:
    found = vars(keras.applications).items()
    return [name for name, each in found if callable(each) and name[0].isupper()]


def _application(name: str, sizes: Sizes, args: dict[str, Any]) -> Any:
    """A network of ``keras.applications`` with new weights; nothing is downloaded."""
    if name not in _applications():
        near = get_close_matches(name, _applications(), n=1, cutoff=0)
        raise RequestError(
            f"model.name: keras.applications has no model {name!r}", fix=f"did you mean {_KERAS}{near[0]}?"
        )
    given = {
        "weights": None,
        "input_shape": sizes.sample_shape,
        "classes": sizes.outputs,
        "classifier_activation": None,
    }
    return getattr(keras.applications, name)(**{**given, **args})


def _mlp(sizes: Sizes, hidden: tuple[int, ...] | list[int] = (128, 128), dropout: float = 0.0) -> Any:
    inputs = keras.Input(sizes.sample_shape)
    x = keras.layers.Flatten()(inputs)
    for width in hidden:
        x = keras.layers.Dropout(dropout)(keras.layers.Dense(width, activation="relu")(x))
    return keras.Model(inputs, _outputs(x, sizes))


def _resnet8(sizes: Sizes, width: int = 16, norm: str = "batch") -> Any:
    """Eight layers for images of 8 to 32 pixels: the CIFAR ResNet of one block per stage."""
    inputs = keras.Input(sizes.sample_shape)
    x = keras.layers.ReLU()(_norm(norm)(_conv(width, 1, norm)(inputs)))
    x = _block(x, width, 1, norm)
    x = _block(x, 2 * width, 2, norm)
    x = _block(x, 4 * width, 2, norm)
    return keras.Model(inputs, _outputs(keras.layers.GlobalAveragePooling2D()(x), sizes))


def _outputs(x: Any, sizes: Sizes) -> Any:
    return keras.layers.Dense(sizes.outputs, dtype="float32")(x)


def _block(x: Any, filters: int, stride: int, norm: str) -> Any:
    """Two 3x3 convolutions and a shortcut. Source: https://arxiv.org/abs/1512.03385, figure 2."""
    y = keras.layers.ReLU()(_norm(norm)(_conv(filters, stride, norm)(x)))
    y = _norm(norm)(_conv(filters, 1, norm)(y))
    same = stride == 1 and x.shape[-1] == filters
    shortcut = x if same else keras.layers.Conv2D(filters, 1, stride)(x)
    return keras.layers.ReLU()(keras.layers.Add()([y, shortcut]))


def _conv(filters: int, stride: int, norm: str) -> Any:
    draw = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    return keras.layers.Conv2D(
        filters, 3, stride, padding="same", use_bias=norm == "none", kernel_initializer=draw
    )


def _norm(kind: str) -> Any:
    kinds: dict[str, Callable[[], Any]] = {
        # PyTorch's, so that both frameworks forget at one rate: Keras' own is 0.99, too slow for short runs.
        "batch": lambda: keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5),
        "group": lambda: keras.layers.GroupNormalization(8),
        "none": keras.layers.Identity,
    }
    if kind not in kinds:
        raise RequestError(f"model.args.norm: {kind!r} isn't one of batch, group, none")
    return kinds[kind]()


REGISTRY: dict[str, Callable[..., Any]] = {"mlp": _mlp, "resnet8": _resnet8}
"""Name in a spec -> maker(sizes, **model.args)."""
