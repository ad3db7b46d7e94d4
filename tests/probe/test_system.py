"""The facts that an agent tells of its host."""

from __future__ import annotations

import json
import platform

import psutil

from mlrun.probe.system import facts
from mlrun.probe.versions import versions


def test_facts_are_this_machines_and_travel_as_json() -> None:
    found = facts()
    assert json.loads(json.dumps(found)) == found
    assert found["machine"] == platform.machine()
    assert found["memory_bytes"] == psutil.virtual_memory().total
    assert found["cores"] >= 1
    assert found["versions"] == versions()
    assert found["chip"] is None or found["chip"].strip()
