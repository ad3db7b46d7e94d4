"""Who is in a generation: what each rank has reached, and the plan they get once all listen."""

from __future__ import annotations

from mlrun.protocol import Assignment, LinkPath, Plan
from mlrun.spec import JobSpec


class Membership:
    """The ranks of one generation on their way from started to ended."""

    def __init__(
        self,
        spec: JobSpec,
        assignments: list[Assignment],
        generation: int,
        paths: list[list[LinkPath]] | None = None,
    ) -> None:
        self._spec = spec
        self._paths = paths or []
        self._generation = generation
        self.hosts = [assignment.host for assignment in assignments]
        self._said_hello: set[int] = set()
        self._endpoints: dict[int, list[str]] = {}
        self._done: set[int] = set()
        self._exited: set[int] = set()

    @property
    def size(self) -> int:
        return len(self.hosts)

    def hello(self, rank: int) -> None:
        self._said_hello.add(rank)

    def listening(self, rank: int, endpoints: list[str]) -> Plan | None:
        """Note where ``rank`` listens; the plan for everyone once the last one does."""
        self._endpoints[rank] = endpoints
        if len(self._endpoints) < self.size:
            return None
        return Plan(
            self._generation,
            self._spec.allreduce.engine,
            [self._endpoints[rank] for rank in range(self.size)],
            self.hosts,
            self._spec.allreduce.model_dump(mode="json"),
            self._paths,
        )

    def done(self, rank: int) -> None:
        """``rank`` said that its training ended well."""
        self._done.add(rank)

    def exited(self, rank: int) -> None:
        self._exited.add(rank)

    def is_done(self, rank: int) -> bool:
        return rank in self._done

    @property
    def all_exited(self) -> bool:
        return len(self._exited) == self.size

    @property
    def any_exited(self) -> bool:
        return bool(self._exited)

    def awaited(self) -> str | None:
        """Whom a start that takes too long waits for, and for what; None once everyone is in."""
        silent = self._missing(self._said_hello)
        if silent:
            return f"{silent} to start"
        unbound = self._missing(set(self._endpoints)) if self.size > 1 else None
        return f"{unbound} to get ready to connect" if unbound else None

    def running(self) -> str:
        """The ranks that haven't ended, in words."""
        return self._missing(self._exited) or "no rank"

    def _missing(self, there: set[int]) -> str | None:
        ranks = [rank for rank in range(self.size) if rank not in there]
        names = ", ".join(f"rank {rank} ({self.hosts[rank]})" for rank in ranks[:4])
        return f"{names} and {len(ranks) - 4} more" if len(ranks) > 4 else names or None
