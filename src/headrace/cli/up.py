"""`headrace up`: start a hub and everything configured."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from headrace.cli.completion import settings as setting_names
from headrace.cli.output import fail, notes
from headrace.config.load import Loaded, load
from headrace.errors import BadConfig
from headrace.log.place import check_place
from headrace.protocols.flight import unfolding
from headrace.protocols.flight.settings import Flight
from headrace.telemetry import log_lines

if TYPE_CHECKING:
    from headrace.config import Log
    from headrace.serving.runtime import Announced

app = typer.Typer()

DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="Directory of the log; the same as --set log.data=DIR.")
]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings file (TOML).")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting; may be repeated.",
        autocompletion=setting_names,
    ),
]
LogOption = Annotated[
    str | None,
    typer.Option(
        "--log", metavar="kafka://HOST:PORT,…/PREFIX", help="The log on Kafka, as log.kafka.servers, .prefix."
    ),
]
KAFKA = "kafka://"


def flags_of(data: Path | None, settings: list[str] | None, log: str | None = None) -> list[str]:
    """`--set`, `--data` and `--log` as settings; `--set` gives way."""
    place = [] if data is None else [f"log.data={data}"]
    return [*(settings or []), *place, *([] if log is None else _log_flags(log))]


def _log_flags(log: str) -> list[str]:
    if not log.startswith(KAFKA):
        raise BadConfig(f"--log {log}: expected kafka://HOST:PORT,HOST:PORT/PREFIX")
    servers, _, prefix = log.removeprefix(KAFKA).partition("/")
    named = [f"log.kafka.prefix={prefix}"] if prefix else []
    return ["log.backend=kafka", f"log.kafka.servers={servers}", *named]


def load_for(data: Path | None, config: Path | None, settings: list[str] | None, log: str | None = None) -> Loaded:
    """The settings of a hub, for those who are about to use its data directory."""
    loaded = load(config, flags=flags_of(data, settings, log))
    if loaded.config.log.backend == "embedded":
        warning = check_place(Path(loaded.config.log.data))
        if warning is not None:
            notes().print(Text.assemble(("WARNING ", "bold white on red"), f" {warning}"))
    return loaded


@app.command()
def up(
    data: DataOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    log: LogOption = None,
    ready_file: Annotated[
        Path | None,
        typer.Option("--ready-file", metavar="FILE", help="Written once everything listens: name → address."),
    ] = None,
) -> None:
    """Start a hub. It runs until stopped (Ctrl-C, SIGTERM)."""
    loaded = load_for(data, config, settings, log)
    log_lines.set_up(loaded.config.logging)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    unfolding.bound(loaded.config.section(Flight).unfolded_bytes_max)
    from headrace.serving.memory import keep_large_apart
    from headrace.serving.runtime import run

    keep_large_apart()
    with asyncio.Runner(loop_factory=_loop_factory(loaded.config.limits.event_loop)) as runner:
        raise typer.Exit(runner.run(run(loaded, ready_file=ready_file, on_ready=_announce)))


SWITCH_INTERVAL_S = 0.001
"""How long one thread may keep another waiting: the log's writer has little to do, often, and the rest waits for it."""


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        fail("limits.event_loop is uvloop, which is not installed: install headrace[speed]", code="bad-config")
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _where(log: Log) -> str:
    if log.backend == "kafka":
        return f"log in Kafka at {log.kafka.servers}, topics {log.kafka.prefix}.*"
    return f"data in {log.data}"


def _shown(ready: Announced, name: str, address: str) -> str:
    """An address as a client would write it."""
    has_tls = ready.security.tls_files(name) is not None
    if name == "http":
        return f"{'https' if has_tls else 'http'}://{address}/"
    if name == "flight":
        return f"grpc+tls://{address}" if has_tls else address
    return f"{address} (TLS)" if has_tls else address


def _announce(ready: Announced) -> None:
    console = notes()
    what = f"  follows the log at {ready.config.log.kafka.servers} as {ready.hub}" if ready.hub else ""
    console.print(Text.assemble(("headrace is up", "bold green"), what or f"  {_where(ready.config.log)}"))
    for name, address in ready.addresses.items():
        console.print(Text(f"  {name:<10} {_shown(ready, name, address)}"))
    for warning in ready.security.warnings():
        console.print(Text.assemble(("  WARNING ", "bold white on red"), f" {warning}"))
    if ready.missing:
        console.print(Text(f"  not in this installation: {', '.join(ready.missing)}", style="dim"))
