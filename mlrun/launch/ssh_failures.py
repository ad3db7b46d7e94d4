"""What ssh's own words mean to the people in the room."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mlrun.errors import RefusedError
from mlrun.hosts import Host


@dataclass(frozen=True)
class _Failure:
    words: str
    """A regular expression found in what ssh said."""
    reason: str
    fix: str
    """May hold ``{login}`` (user@address) and ``{address}``."""


# In order: the first whose words are found is the one told.
_FAILURES = (
    _Failure(
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key has changed: it was set up anew, or another machine answers at its address",
        "If that is expected, run `ssh-keygen -R {address}`, then `ssh {login}` once",
    ),
    _Failure(
        r"Host key verification failed",
        "this machine has never connected to it, and mlrun doesn't accept host keys on its own",
        "Run `ssh {login}` once and compare the key it shows",
    ),
    _Failure(
        r"Too many authentication failures",
        "ssh offered too many keys before the right one",
        "Name the key in ~/.ssh/config for this host: IdentityFile and IdentitiesOnly yes",
    ),
    _Failure(
        r"Permission denied \(|Permission denied, please try again|No supported authentication methods",
        "it doesn't admit this machine's key for that user (mlrun never asks for a password)",
        "Run `ssh-copy-id {login}`, or set the right user for this host",
    ),
    _Failure(
        r"Could not resolve hostname|[Nn]ame or service not known|nodename nor servname",
        "no machine of this name is known on this network",
        "Check the name (a Mac's own name ends in .local), or give its address",
    ),
    _Failure(
        r"Connection refused",
        "it is there, but Remote Login is off",
        "On that Mac: System Settings, General, Sharing, turn Remote Login on",
    ),
    _Failure(
        r"timed out|No route to host|Host is down|Network is unreachable|not responding",
        "it is asleep, switched off, or not on this network",
        "Wake it and keep it awake, then try `ping {address}`",
    ),
    _Failure(
        r"Bad configuration option|Bad owner or permissions|line \d+: |terminating, \d+ bad configuration",
        "this machine's ssh configuration has a mistake",
        "Correct the line that ssh names; `ssh {login} true` shows it again",
    ),
    _Failure(
        r"kex_exchange_identification|Connection (closed|reset) by|Broken pipe|closed by remote host",
        "its ssh server ended the connection: too many at once, a firewall, or it is shutting down",
        "Try `ssh {login} true`; if that works, try again",
    ),
    _Failure(
        r"This account is|not available|Access denied|not allowed",
        "that user may not log in there over ssh",
        "On that Mac: System Settings, General, Sharing, Remote Login, allow access for this user",
    ),
)


def explain(stderr: str, returncode: int | None, host: Host) -> RefusedError:
    """Why ssh to ``host`` ended with ``returncode`` (255: ssh itself; None: unknown) before an agent ran."""
    login = f"{host.user}@{host.destination}" if host.user else host.destination
    said = _own_words(stderr)
    for failure in _FAILURES:
        if re.search(failure.words, stderr):
            fix = failure.fix.format(login=login, address=host.destination)
            return RefusedError(f"{host.name}: {failure.reason}.\n  ssh: {said}", fix=fix)
    what = "ssh failed" if returncode in (255, None) else f"its login shell ended with code {returncode}"
    return RefusedError(
        f"{host.name}: {what} before the agent started.\n  ssh: {said}",
        fix=f"Try `ssh {login} true` and see what it says",
    )


def _own_words(stderr: str) -> str:
    """The last line of ssh's that isn't decoration; it gives the reason last."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip(" @\r\n")]
    return lines[-1] if lines else "(nothing)"
