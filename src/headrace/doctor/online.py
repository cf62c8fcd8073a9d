"""A hub that runs: asked for its version, health, warnings and clock, and tried at every listener."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from headrace import __version__
from headrace.config import Config
from headrace.config.address import split_address
from headrace.config.profiles import Target
from headrace.doctor.finding import Finding, fail, ok, warn
from headrace.errors import Forbidden, HeadraceError, TlsTrouble, Unauthenticated
from headrace.units import format_seconds

CLOCK_APART_S = 1.0
CONNECT_S = 5.0
ASK_S = 10.0


def check_hub(to: Target, config: Config | None = None) -> Iterator[Finding]:
    """`config` is what the hub was started with, as far as we know: a listener that it names must be there."""
    import headrace

    address = to.address.rpartition("://")[2]
    secrets = {"token": to.token, "user": to.user, "password": to.password}
    began = time.time()
    try:
        with headrace.connect(to.address, tls=to.tls, timeout_s=ASK_S, **secrets) as hub:
            info = hub.call("hub.info", {})
    except (Unauthenticated, Forbidden) as error:
        yield warn("hub", f"the hub at {address} answers, and tells us nothing: {error}", "give --token or --user")
        return
    except TlsTrouble as error:
        text, _, advice = str(error).partition("; ")
        yield fail("hub", text, advice)
        return
    except HeadraceError as error:
        yield fail("hub", str(error), "start it, or name the right address with --hub")
        return
    yield ok(
        "hub",
        f"version {info['version']} at {address}, process {info['process_id']}, up for "
        f"{format_seconds(info['uptime_s'])}, {sum(info['sessions'].values())} sessions",
    )
    if info["version"] != __version__:
        advice = "restart the hub if it was upgraded, or use the command of its version"
        yield warn("hub", f"the hub is version {info['version']}, and this command is {__version__}", advice)
    yield from _clock(info, began, time.time())
    yield from _alarms(info)
    yield from _listeners(info, address, config)


def _clock(info: dict[str, Any], began: float, ended: float) -> Iterator[Finding]:
    theirs = info.get("time_us")
    if theirs is None:
        return
    apart_s = max(began - theirs / 1e6, theirs / 1e6 - ended, 0.0)
    if apart_s > CLOCK_APART_S:
        text = f"the hub's clock and ours are {format_seconds(apart_s)} apart"
        yield warn("clock", text, "let the same service keep both: times in records are the hub's")
    else:
        yield ok("clock", "the hub's clock and ours agree within a second")


def _alarms(info: dict[str, Any]) -> Iterator[Finding]:
    health = info["health"]
    for part, reason in health["reasons"].items():
        yield fail("hub", f"not ready: {part}: {reason}", "the hub's log tells more")
    for part, note in health.get("notes", {}).items():
        yield warn("hub", f"{part}: {note}", "`table.drop-row` removes one")
    if health["ready"]:
        yield ok("hub", "ready: it takes records")
    for warning in info["warnings"]:
        text, _, advice = warning.rpartition("; ")
        yield warn("hub", text, advice)
    if info["missing"]:
        missing = ", ".join(info["missing"])
        yield warn("hub", f"its installation does not hold: {missing}", "install Headrace again if you need them")


def _listeners(info: dict[str, Any], asked: str, config: Config | None) -> Iterator[Finding]:
    listeners: dict[str, str] = info["listeners"]
    for name, address in listeners.items():
        reach = _reachable(address, asked)
        if reach is None:
            yield ok("listeners", f"{name}: {address} accepts connections")
        else:
            yield fail("listeners", f"{name}: {address}: {reach}", "look for a firewall between here and the hub")
    configured = {} if config is None else config.listen.addresses()
    for name, setting in configured.items():
        if setting != "off" and name not in listeners:
            text = f"{name} is configured, and the running hub does not have it"
            yield warn("listeners", text, "restart the hub if the settings are newer than it")


def _reachable(address: str, asked: str) -> str | None:
    """Why a listener cannot be reached; None if it can. One bound to all addresses is tried where we asked the hub."""
    host, port = split_address(address)
    if host in ("0.0.0.0", "::", ""):
        host = split_address(asked.rpartition("://")[2])[0]
    try:
        with contextlib.closing(socket.create_connection((host, port), CONNECT_S)):
            return None
    except OSError as error:
        return error.strerror or str(error)
