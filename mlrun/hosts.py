"""Hosts: who takes part in a run, from ``--hosts``, a hostfile or the spec's ``hosts:``.

Hostfiles come in three shapes, told apart by their content: ours in YAML (a list, or a mapping with
``hosts:``, of names and mappings like the spec's), lines as Horovod, Open MPI and DeepSpeed write them
(``mac1 slots=2``), and MLX's JSON (``[{"ssh": "mac1", "ips": ["192.168.0.1"]}]``).

Groups of hosts are kept in ``~/.config/mlrun/hosts.yaml``, a mapping of names to such lists; ``@studios`` in
``--hosts`` stands for all of one. ``MLRUN_HOSTS`` is a ``--hosts`` for who gives none.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mlrun.errors import RequestError
from mlrun.spec.cluster import HostBlock

HOSTS_VARIABLE = "MLRUN_HOSTS"
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_ENTRY = re.compile(
    r"""(?:(?P<user>[^@\s]+)@)?
        (?:\[(?P<literal>[^\]\s]+)\]|(?P<name>[^:\[\]@\s]+))
        (?::(?P<slots>\d+))?""",
    re.VERBOSE,
)
# What would end a line of ours, or be read as an option or as another argument by ssh.
_UNSAFE = re.compile(r"^-|[\x00-\x20\x7f]")


@dataclass(frozen=True)
class Host:
    """One machine of a run. ``name`` is what people call it; ``address`` is where ssh finds it.

    ``interfaces`` (names or literal addresses) restrict the links of this host; empty means any.
    An ``env`` value of None passes on the launcher's own value.
    """

    name: str
    address: str | None = None
    user: str | None = None
    python: str | None = None
    workdir: str | None = None
    data: str | None = None
    env: dict[str, str | None] = field(default_factory=dict)
    slots: int = 1
    batch_size: int | None = None
    interfaces: tuple[str, ...] = ()

    @property
    def destination(self) -> str:
        """What ssh is told to connect to, without the user: an IPv6 literal has no brackets here."""
        return self.address or self.name

    @property
    def is_local(self) -> bool:
        """Whether the name itself says that this is the launching machine."""
        return self.destination in LOCAL_NAMES


def parse_hosts(text: str) -> list[Host]:
    """The hosts of a list such as ``mac1,mac2:2,anna@mac3,[fe80::1%en0]:2,@studios``; ``:N`` is slots.

    Raises:
        RequestError: an empty list, a malformed entry, an unknown group or a host named twice.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if not any(entries):
        raise RequestError("The list of hosts is empty.", fix="Name hosts like this: --hosts mac1,mac2:2")
    return _distinct(named for entry in entries if entry for named in _hosts_of(entry, "--hosts"))


def hosts_of_spec(hosts: Iterable[str | HostBlock]) -> list[Host]:
    """The hosts of a spec's ``hosts:`` list.

    Raises:
        RequestError: a malformed entry, an unknown group or a host named twice.
    """
    return _distinct(
        named
        for host in hosts
        for named in (
            _hosts_of(host, "hosts:") if isinstance(host, str) else [("hosts:", _from_block(host, "hosts:"))]
        )
    )


def read_hostfile(path: str | Path) -> list[Host]:
    """The hosts of a hostfile in YAML, in lines of ``host slots=N``, or in MLX's JSON.

    Raises:
        RequestError: an unreadable file, a malformed entry (with file and line), an unknown group or a host
            named twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"Cannot read the hostfile {path}: {error}") from error
    hosts = _distinct(_entries_of_file(text, str(path)))
    if not hosts:
        raise RequestError(f"The hostfile {path} names no host.", fix="Write one host a line: mac1 slots=1")
    return hosts


def chosen_hosts(listed: str | None, hostfile: str | Path | None) -> list[Host]:
    """The hosts of ``--hosts`` or ``--hostfile``, else those of MLRUN_HOSTS; empty when none is given.

    Raises:
        RequestError: both are given, or as ``parse_hosts`` and ``read_hostfile`` do.
    """
    if listed is not None and hostfile is not None:
        raise RequestError("--hosts and --hostfile exclude each other.", fix="Keep one of them")
    if hostfile is not None:
        return read_hostfile(hostfile)
    if listed is not None:  # an empty list is a script's unset variable, and no wish to train here alone
        return parse_hosts(listed)
    named = os.environ.get(HOSTS_VARIABLE)
    return parse_hosts(named) if named else []


def groups_file() -> Path:
    """Where the groups are kept."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "mlrun" / "hosts.yaml"


def read_groups() -> dict[str, list[Host]]:
    """Name -> hosts of every saved group.

    Raises:
        RequestError: a file that can't be read or holds something else (with file and line).
    """
    path = groups_file()
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RequestError(f"Cannot read the groups in {path}: {error}") from error
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise RequestError(f"{path}: expected groups of hosts.", fix="Write studios: and below it - mac1")
    data = yaml.safe_load(text)
    return {
        name: _distinct((where, _located(item, where)) for where, item in _items(node, data[name], str(path)))
        for name, node in ((str(key.value), value) for key, value in root.value)
    }


def save_group(name: str, hosts: Iterable[Host]) -> Path:
    """Add ``hosts`` to the group ``name``, made if there is none; a host that is in it is replaced.

    Raises:
        RequestError: a name that couldn't stand in ``--hosts``, or a file that can't be read or written.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise RequestError(f"{name!r} can't be the name of a group.", fix="Use letters, digits, - and _")
    groups = read_groups()
    members = {host.name: host for host in groups.get(name, [])}
    groups[name] = list((members | {host.name: host for host in hosts}).values())
    content = {group: [_short(host) for host in members] for group, members in groups.items()}
    path = groups_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = path.with_name(path.name + ".arriving")
        arriving.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        arriving.replace(path)
    except OSError as error:
        raise RequestError(f"Cannot write the groups to {path}: {error}") from error
    return path


def _short(host: Host) -> str | dict[str, Any]:
    entry = spec_entry(host)
    return entry.removesuffix(":1") if isinstance(entry, str) else entry.model_dump(exclude_defaults=True)


def _hosts_of(entry: str, where: str) -> Iterator[tuple[str, Host]]:
    """The host that ``entry`` names, or those of its ``@group``."""
    if not entry.startswith("@"):
        yield where, _parse_entry(entry, where)
        return
    groups = read_groups()
    if entry[1:] not in groups:
        known = ", ".join(f"@{name}" for name in groups) or "none yet"
        raise RequestError(
            f"{where}: there is no group {entry} (groups: {known}).",
            fix=f"Make it: mlrun hosts add mac1 mac2 --group {entry[1:] or 'studios'}",
        )
    yield from ((entry, host) for host in groups[entry[1:]])


def spec_entry(host: Host) -> str | HostBlock:
    """``host`` as an entry of a spec's ``hosts:``, which ``hosts_of_spec`` reads back."""
    name = f"[{host.name}]" if ":" in host.name and host.address is None else host.name
    if host == Host(name=host.name, user=host.user, slots=host.slots):
        return f"{host.user}@{name}:{host.slots}" if host.user else f"{name}:{host.slots}"
    fields = dataclasses.asdict(host) | {"name": name, "interfaces": list(host.interfaces)}
    return HostBlock(**fields)


def _entries_of_file(text: str, path: str) -> Iterator[tuple[str, Host]]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, (list, dict)):
        return _read_mlx(document, path)
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    if path.endswith((".yaml", ".yml")) or re.match(r"---|hosts\s*:|\s*-(\s|$)", first):
        return _read_yaml(text, path)
    return _read_lines(text, path)


def _read_lines(text: str, path: str) -> Iterator[tuple[str, Host]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        where = f"{path}:{number}"
        if words[0].startswith("@") and len(words) == 1:
            yield from _hosts_of(words[0], where)
            continue
        host = _parse_entry(words[0], where)
        slots = host.slots
        for word in words[1:]:
            key, _, value = word.partition("=")
            if key not in ("slots", "max_slots", "max-slots") or not value.isdigit() or int(value) < 1:
                raise RequestError(
                    f"{where}: {word!r} isn't a setting of a host.", fix=f"Write: {words[0]} slots=N"
                )
            if key == "slots":
                slots = int(value)
        yield where, Host(name=host.name, user=host.user, slots=slots)


def _read_yaml(text: str, path: str) -> Iterator[tuple[str, Host]]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise RequestError(f"{path}{line}: not YAML: {getattr(error, 'problem', error)}") from error
    if isinstance(root, yaml.MappingNode):
        keys = {key.value: value for key, value in root.value}
        if set(keys) != {"hosts"}:
            raise RequestError(f"{path}: expected the one key hosts:, found {', '.join(map(str, keys))}.")
        root = keys["hosts"]
    data = yaml.safe_load(text)
    for where, item in _items(root, data["hosts"] if isinstance(data, dict) else data, path):
        yield from _hosts_of(item, where) if isinstance(item, str) else [(where, _located(item, where))]


def _items(root: yaml.Node | None, items: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Where the entries of a list in YAML are, and their values; ``root`` knows their lines."""
    if not isinstance(root, yaml.SequenceNode):
        line = f":{root.start_mark.line + 1}" if root is not None else ""
        raise RequestError(f"{path}{line}: expected a list of hosts.", fix="Write hosts: and below it - mac1")
    for node, item in zip(root.value, items, strict=True):
        yield f"{path}:{node.start_mark.line + 1}", item


def _located(item: Any, where: str) -> Host:
    if isinstance(item, str):
        return _parse_entry(item, where)
    try:
        return _from_block(HostBlock.model_validate(item), where)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise RequestError(f"{where}: {f'{key}: ' if key else ''}{first['msg']}.") from error


def _read_mlx(document: list[Any] | dict[str, Any], path: str) -> Iterator[tuple[str, Host]]:
    items = document.get("hosts") if isinstance(document, dict) else document
    for number, item in enumerate(items if isinstance(items, list) else [document], 1):
        where = f"{path}: entry {number}"
        if not isinstance(item, dict) or not isinstance(item.get("ssh"), str):
            raise RequestError(
                f'{where}: no "ssh" name in it.', fix='Write {"ssh": "mac1", "ips": ["192.168.0.1"]}'
            )
        host = _parse_entry(item["ssh"], where)
        addresses = item.get("ips") or []
        try:
            interfaces = tuple(str(ipaddress.ip_address(address)) for address in addresses)
        except ValueError as error:
            raise RequestError(f"{where}: ips: {error}.") from error
        yield where, Host(name=host.name, user=host.user, slots=host.slots, interfaces=interfaces)


def _from_block(block: HostBlock, where: str) -> Host:
    # With an address beside it the name is only a label, and may be any text that fits a line.
    if block.address is None:
        named = _parse_entry(block.name, where)
        block = block.model_copy(
            update={
                "name": named.name,
                "user": block.user or named.user,
                "slots": block.slots if "slots" in block.model_fields_set else named.slots,
            }
        )
    address = block.address.strip("[]") if block.address else None
    for value in (address, block.user):
        if value is not None and _UNSAFE.search(value):
            raise RequestError(f"{where}: {value!r} can't be given to ssh as an address or a user.")
    for text in (block.name, block.python, block.workdir, block.data):
        if text is not None and not (text.strip() and text.isprintable()):
            raise RequestError(f"{where}: {text!r} isn't a name or a path that fits on a line.")
    fields = block.model_dump() | {"address": address, "interfaces": tuple(block.interfaces)}
    return Host(**fields)


def _parse_entry(entry: str, where: str) -> Host:
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise RequestError(f"{where}: {entry!r} isn't a host.", fix=_advice(entry))
    user, name, slots = match["user"], match["literal"] or match["name"], int(match["slots"] or 1)
    if match["literal"]:
        try:
            ipaddress.IPv6Address(name)
        except ValueError as error:
            raise RequestError(f"{where}: {entry!r}: {name!r} isn't an IPv6 address.") from error
    if _UNSAFE.search(name) or (user and _UNSAFE.search(user)):
        raise RequestError(
            f"{where}: {entry!r} would be read as an option by ssh.", fix="Names don't start with -."
        )
    if slots < 1:
        raise RequestError(
            f"{where}: {entry!r} has no slots.", fix="Give at least one, or leave the host out."
        )
    return Host(name=name, user=user, slots=slots)


def _advice(entry: str) -> str:
    if entry.count(":") > 1 and "[" not in entry:
        return f"Put an IPv6 address in brackets: [{entry}] or [{entry}]:2"
    if ":" in entry:
        return "After the colon comes the number of workers on that host: mac1:2"
    return "Write mac1, mac1:2, anna@mac1 or [fe80::1%en0]:2"


def _distinct(entries: Iterable[tuple[str, Host]]) -> list[Host]:
    """The hosts in order; a host named twice is more likely a slip than a wish for two workers."""
    seen: dict[str, str] = {}
    hosts = []
    for where, host in entries:
        if host.name in seen:
            first = "" if seen[host.name] == where else f" (first: {seen[host.name]})"
            raise RequestError(
                f"{where}: {host.name} is named twice{first}.", fix=f"Ask for two workers with {host.name}:2"
            )
        seen[host.name] = where
        hosts.append(host)
    return hosts
