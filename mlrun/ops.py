"""Custom operations of a spec, for model code.

``custom_ops: [zero_out.cc]`` in a spec builds and loads that file before the model is made; model code then
calls ``ops.library("zero_out")``.
"""

from __future__ import annotations

from typing import Any

from mlrun.errors import RequestError

_libraries: dict[str, Any] = {}


def offer(name: str, library: Any) -> None:
    """Make ``library`` known to model code."""
    _libraries[name] = library


def library(name: str) -> Any:
    """What was loaded from the file ``name``, without its suffix.

    TensorFlow: a module with a function for each operation. torch: None, since its operations are in
    ``torch.ops``. Of a .py file the module.

    Raises:
        RequestError: the spec loads no such file.
    """
    if name not in _libraries:
        known = ", ".join(_libraries) or "none"
        raise RequestError(
            f"no custom operations named {name!r} are loaded (loaded: {known})",
            fix=f"add its file to custom_ops in the spec, such as {name}.cc",
        )
    return _libraries[name]
