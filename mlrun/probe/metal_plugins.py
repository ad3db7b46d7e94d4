"""The plug-ins that bring a Mac's GPU to TensorFlow: which of them work with what, as far as it is known.

Nothing is imported here: a plug-in that doesn't fit breaks ``import tensorflow`` itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import Version

APPLES, COMMUNITYS = "tensorflow-metal", "tensorflow-metal-plugin"
PLUGINS = (APPLES, COMMUNITYS)

_ASYNCHRONOUS_SINCE = Version("2.22")
"""Before, TensorFlow's own kernels for variables read the GPU's buffers while they are written."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known to work: versions of a plug-in with those of TensorFlow, Python and macOS."""

    plugin: str
    versions: str
    tensorflow: str
    python: str
    macos: str
    source: str

    def has(self, version: str) -> bool:
        return SpecifierSet(self.versions).contains(version, prereleases=True)


KNOWN = (
    Known(
        APPLES,
        "==1.1.*",
        ">=2.14,<2.18",
        ">=3.9,<3.12",
        ">=12.1",
        "https://github.com/tensorflow/tensorflow/issues/84167",
    ),
    Known(
        APPLES,
        "==1.2.*",
        ">=2.18.1,<2.20",
        ">=3.9,<3.13",
        ">=12.1",
        "https://github.com/tensorflow/tensorflow/pull/126360",
    ),
    Known(
        COMMUNITYS,
        "<0.5",
        "==2.21.*",
        ">=3.10",
        ">=15",
        "https://github.com/IPNP-BIPN/tensorflow-metal-plugin",
    ),
)
"""No row: nothing is known of that version, and it is tried."""


def installed(versions: Mapping[str, str | None]) -> list[str]:
    """``tensorflow-metal 1.2.0``: the plug-ins among ``probe.versions.versions``."""
    return [f"{name} {versions[name]}" for name in PLUGINS if versions.get(name)]


def refusal(
    versions: Mapping[str, str | None], python: str, macos: str, environment: Mapping[str, str]
) -> tuple[str, str] | None:
    """Why TensorFlow can't train with the plug-ins that are installed, and the fix; None where it might.

    Args:
        versions: of distributions, as ``probe.versions.versions`` tells them.
        python, macos: versions, as ``3.12.1`` and ``15.2``.
    """
    here = [name for name in PLUGINS if versions.get(name)]
    if len(here) > 1:
        return (
            f"{' and '.join(installed(versions))} are both installed, and TensorFlow loads both: it aborts",
            f"pip uninstall {COMMUNITYS}, or {APPLES}",
        )
    tensorflow = versions.get("tensorflow")
    if not here or tensorflow is None:
        return None
    too_early = Version(tensorflow) < _ASYNCHRONOUS_SINCE
    if environment.get("TF_METAL_SYNCHRONOUS") == "0" and too_early:
        return (
            f"TF_METAL_SYNCHRONOUS=0 with TensorFlow {tensorflow} can turn weights into nan without a word",
            f"remove it from the environment, or update TensorFlow to {_ASYNCHRONOUS_SINCE}",
        )
    return _mismatch(here[0], versions, {"tensorflow": tensorflow, "python": python, "macos": macos})


def _mismatch(
    plugin: str, versions: Mapping[str, str | None], have: Mapping[str, str]
) -> tuple[str, str] | None:
    version = str(versions[plugin])
    rows = [row for row in KNOWN if row.plugin == plugin and row.has(version)]
    for row in rows:
        for part, name in (("tensorflow", "TensorFlow"), ("python", "Python"), ("macos", "macOS")):
            allowed = SpecifierSet(getattr(row, part))
            if not allowed.contains(have[part], prereleases=True):
                return (
                    f"{plugin} {version} works with {name} {allowed}, and this is {have[part]} "
                    f"({row.source})",
                    f"pip uninstall {plugin}, to train on the CPU; docs/tensorflow-metal.md has what works",
                )
    return None
