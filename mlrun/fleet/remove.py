"""``mlrun hosts clean`` and ``uninstall``: what mlrun left on hosts, taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mlrun.errors import ExitCode
from mlrun.fleet.shell import Say, on_each, run_script
from mlrun.hosts import Host

TIMEOUT_S = 300.0

_LEFT_BY_RUNS = ("code", "runs", "arriving")
_SCRIPT = """\
if ps -A -o args= | grep -q '[-]m mlrun[.]\\(agent\\|worker\\|launch\\|cli\\)'; then
  fail "something of mlrun runs there: stop it first"
fi
found=
for part in {parts}; do
  [ -e "$part" ] || continue
  found=yes
  size=$(du -sk "$part" | cut -f1)
  {action}
done
[ -n "$found" ] || say "nothing of mlrun is there"
{then}
"""
_TELL = 'say "would remove $part ($((size / 1024)) MB)"'
_REMOVE = (
    'if rm -rf "$part"; then say "removed $part ($((size / 1024)) MB)"; else fail "can\'t remove $part"; fi'
)
# Folders that other programs use too go only where nothing is left in them.
_PARENTS = 'cd /; rmdir "$HOME/.local/share" "$HOME/.local" 2>/dev/null || :'


def clean(hosts: Sequence[Host], *, dry_run: bool, say: Say) -> ExitCode:
    """Remove the code that was sent and folders of runs that never came home; the environment stays."""
    return _remove(hosts, " ".join(f'"$root/{part}"' for part in _LEFT_BY_RUNS), ":", dry_run, say)


def uninstall(hosts: Sequence[Host], *, dry_run: bool, say: Say) -> ExitCode:
    """Remove all of mlrun from ``hosts``."""
    return _remove(hosts, '"$root"', _PARENTS, dry_run, say)


def _remove(hosts: Sequence[Host], parts: str, then: str, dry_run: bool, say: Say) -> ExitCode:
    action, then = (_TELL, ":") if dry_run else (_REMOVE, then)
    script = _SCRIPT.format(parts=parts, action=action, then=then)

    async def one(host: Host, tell: Say) -> None:
        await run_script(host, script, timeout_s=TIMEOUT_S, say=tell)

    return asyncio.run(on_each(hosts, one, say))
