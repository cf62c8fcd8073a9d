"""What a hub will bind, and who may come in."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from headrace.config import Config
from headrace.config.address import split_address
from headrace.doctor.finding import Finding, fail, ok, warn
from headrace.errors import HeadraceError
from headrace.log.disk import LOCK
from headrace.security import Security

_LISTENING = "0A"
ADVICE = {
    errno.EACCES: "ports below 1024 need a right (AmbientCapabilities=CAP_NET_BIND_SERVICE); take a higher one",
    errno.EADDRNOTAVAIL: "no network device of this machine has that address; `ip address` lists those it has",
}


def check_ports(config: Config, owner: int | None = None) -> Iterator[Finding]:
    """Whether each configured address can be listened on now. `owner` is the hub that runs on this data directory."""
    names: dict[tuple[str, int], str] = {}
    for name, address in config.listen.addresses().items():
        if address == "off":
            continue
        try:
            host, port = split_address(address)
        except HeadraceError as error:
            yield fail("ports", f"{name}: {error}", f"set listen.{name} to host:port, or to off")
            continue
        twin = names.setdefault((host, port), name)
        if port and twin != name:
            text = f"{name} and {twin} are both to listen on {address}"
            yield fail("ports", text, f"set listen.{name} or listen.{twin} to another port")
            continue
        yield _port(name, host, port, owner)


def _port(name: str, host: str, port: int, owner: int | None) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind((host, port))
        return ok("ports", f"{name}: {host}:{port} is free")
    except socket.gaierror as error:
        advice = f"name an address of this machine in listen.{name}"
        return fail("ports", f"{name}: {host!r} is not an address: {error.strerror}", advice)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            advice = ADVICE.get(error.errno or 0, f"set listen.{name} to another")
            return fail("ports", f"{name}: {host}:{port}: {error.strerror}", advice)
    holders = processes_listening(port)
    if owner in holders:
        return ok(
            "ports", f"{name}: {host}:{port} is held by the hub that runs on this data directory (process {owner})"
        )
    whose = f"process {holders[0]} ({_program(holders[0])})" if holders else "another user's process"
    advice = f"stop it, or set listen.{name} to another port"
    directory = next(filter(None, map(_data_directory, holders)), None)
    if directory is not None:
        advice = f"it is a hub with its log in {directory}, which `headrace doctor --data {directory}` checks; {advice}"
    return fail("ports", f"{name}: {host}:{port} is in use by {whose}", advice)


def processes_listening(port: int) -> list[int]:
    """The processes that listen on a port, where we may see them: the children of one have its sockets, until they run
    another program."""
    inodes = set(_listening_inodes(port))
    found = (int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _holds(each, inodes))
    return sorted(found) if inodes else []


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                yield f"socket:[{columns[9]}]"


def _holds(process: Path, inodes: set[str]) -> bool:
    return any(target in inodes for target in _open_files(process))


def _open_files(process: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):  # it ended, or is not ours to look at
        for link in (process / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                yield os.readlink(link)


def _data_directory(process: int) -> Path | None:
    """Where a hub has its log, if this process is one."""
    locks = (Path(target) for target in _open_files(Path(f"/proc/{process}")))
    return next((lock.parent for lock in locks if lock.name == LOCK), None)


def _program(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "?"


def check_security(config: Config) -> Iterator[Finding]:
    """Users, certificates, and listeners that are open to other machines."""
    try:
        security = Security(config)
        for listener in config.listen.__struct_fields__:
            security.tls(listener)
    except HeadraceError as error:
        yield fail("security", str(error), "correct the setting or the file it names")
        return
    warnings = security.warnings()
    for warning in warnings:
        text, _, advice = warning.rpartition("; ")
        yield warn("security", text, advice)
    yield from _readable_keys(config, security)
    if not warnings:
        users = len(security.users())
        yield ok("security", f"{users} users; no listener is open to other machines unguarded")


def _readable_keys(config: Config, security: Security) -> Iterator[Finding]:
    files = [security.tls_files(listener) for listener in config.listen.__struct_fields__]
    for key in sorted({pair.key for pair in files if pair is not None and pair.key}):
        if Path(key).stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
            yield warn("security", f"others than its owner may read the private key {key}", f"chmod 600 {key}")
