"""What a host is doing, once a second: no root, no framework, and unknown is None.

Each source has a thread of its own. One that is broken, slow or missing costs its own figures and no more.
"""

from mlrun.agent.telemetry.sampler import Telemetry

__all__ = ["Telemetry"]
