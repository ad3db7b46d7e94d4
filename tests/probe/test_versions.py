"""Versions without imports."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import version

from mlrun.probe.versions import build, versions


def test_installed_and_absent_distributions() -> None:
    found = versions()
    assert found["numpy"] == version("numpy")
    assert found["horovod"] is None or re.match(r"\d", found["horovod"])
    assert re.fullmatch(r"[0-9a-f]{12}", build())


def test_no_framework_is_imported() -> None:
    code = (
        "import sys; from mlrun.probe import addresses, macos, versions;"
        "versions.versions(); versions.build(); addresses.addresses();"
        "print(*sorted({'torch', 'numpy', 'tensorflow', 'pydantic', 'yaml'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
