"""`headrace session`: who is connected."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import msgspec
import typer

from headrace.cli.output import DEFAULT_HUB, HubOption, JsonFlag, TokenOption, call, print_json, print_table
from headrace.hub.sessions import SessionInfo

app = typer.Typer(no_args_is_help=True)


@app.callback()
def session() -> None:
    """Show who is connected."""


@app.command("ls")
def list_sessions(
    protocol: Annotated[str | None, typer.Option("--protocol", help="Only sessions of this protocol.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="The last sessions that ended, with the reason.")] = False,
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Sessions with their state, credits and last error, as each protocol tells it."""
    found = msgspec.convert(call(hub, token, "session.list", {"protocol": protocol, "ended": ended}), list[SessionInfo])
    if as_json:
        print_json(found)
        return
    columns = ["#id", "protocol", "peer", "since", "details", *(["reason"] if ended else [])]
    print_table(columns, [_row(info, ended) for info in found], empty="no sessions")


def _row(info: SessionInfo, ended: bool) -> list[Any]:
    since = datetime.datetime.fromtimestamp(info.opened_us / 1e6, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    details = " ".join(f"{name}={value}" for name, value in info.details.items())
    return [info.id, info.protocol, info.peer, since, details, *([info.reason or "closed"] if ended else [])]
