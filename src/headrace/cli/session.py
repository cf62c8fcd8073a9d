"""`headrace session`: who is connected."""

from __future__ import annotations

import datetime
from typing import Annotated, Any

import typer

from headrace.cli.options import Answer, sharing
from headrace.hub.sessions import SessionInfo

app = typer.Typer(no_args_is_help=True)


@app.callback()
def session() -> None:
    """Show who is connected."""


@app.command("ls")
@sharing(answer=Answer)
def list_sessions(
    answer: Answer,
    protocol: Annotated[str | None, typer.Option("--protocol", help="Only sessions of this protocol.")] = None,
    ended: Annotated[bool, typer.Option("--ended", help="The last sessions that ended, with the reason.")] = False,
) -> None:
    """List sessions with their state, credits and last error, as each protocol reports them."""
    columns = ["#id", "protocol", "peer", "since", "details", *(["reason"] if ended else [])]
    with answer.connect() as client:
        sessions = client.entries("session.list", {"protocol": protocol, "ended": ended}, SessionInfo)
        answer.listing(sessions, columns, lambda info: _row(info, ended), empty="no sessions")


def _row(info: SessionInfo, ended: bool) -> list[Any]:
    since = datetime.datetime.fromtimestamp(info.opened_us / 1e6, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    used = [f"{word} {', '.join(names)}" for word, names in (("writes", info.writes), ("reads", info.reads)) if names]
    told = [f"{name.replace('_', ' ')} {text}" for name, value in info.details.items() if (text := _told(value))]
    details = "; ".join([*used, *told])
    return [info.id, info.protocol, info.peer, since, details, *([info.reason or "closed"] if ended else [])]


def _told(value: Any) -> str:
    """A detail in words: nested ones as `name value`, lists by commas, and nothing for what is empty."""
    if isinstance(value, dict):
        inner = [f"{name} {text}" for name, each in value.items() if (text := _told(each))]
        return f"({', '.join(inner)})" if inner else ""
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_told, value)))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else str(value)
