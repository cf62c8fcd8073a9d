"""What the shell offers when Tab is pressed: names that a hub knows, settings, profiles.

A hub that does not answer at once offers nothing, and no error ever reaches the line that is being typed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import typer

from headrace.config.profiles import LOCAL, load_profiles, resolve
from headrace.errors import HeadraceError

ANSWER_S = 2.0
OFFERED_MAX = 100


def profiles(incomplete: str) -> list[str]:
    """The profiles of this user."""
    with contextlib.suppress(HeadraceError):
        return [name for name in sorted({LOCAL, *load_profiles().profiles}) if name.startswith(incomplete)]
    return []


def streams(ctx: typer.Context, incomplete: str) -> list[str]:
    """Streams of the hub that the line so far means."""
    return _names(ctx, "stream.list", {"pattern": f"{literal(incomplete)}*"}, "name")


def tables(ctx: typer.Context, incomplete: str) -> list[str]:
    """Tables."""
    return _names(ctx, "table.list", {"pattern": f"{literal(incomplete)}*"}, "name")


def cursors(ctx: typer.Context, incomplete: str) -> list[str]:
    """Cursors, of all streams or of the one that the line names."""
    named = ctx.params.get("stream")
    return _names(ctx, "cursor.list", {"pattern": f"{literal(incomplete)}*", "stream": named}, "name")


def settings(incomplete: str) -> list[str]:
    """Settings as `--set` takes them."""
    from headrace.config.load import load

    keys = (setting.key for setting in load(environment={}).settings())
    return [f"{key}=" for key in keys if key.startswith(incomplete)]


def literal(text: str) -> str:
    """A name as a pattern that fits nothing else."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _names(ctx: typer.Context, verb: str, request: dict[str, Any], field: str) -> list[str]:
    with contextlib.suppress(HeadraceError, OSError):
        return sorted(set(_asked(ctx.params, verb, request, field)))
    return []


def _asked(line: dict[str, Any], verb: str, request: dict[str, Any], field: str) -> Iterator[str]:
    import headrace

    to = resolve(
        line.get("hub"),
        token=line.get("token"),
        user=line.get("user"),
        tls=line.get("ca") or line.get("tls") or False,
        profile=line.get("profile"),
    )
    if to.user is not None and to.password is None:
        return  # nobody can be asked for a password here
    with headrace.connect(
        to.address, token=to.token, user=to.user, password=to.password, tls=to.tls, timeout_s=ANSWER_S
    ) as hub:
        for entry in hub.call(verb, {**request, "limit": OFFERED_MAX})["items"]:
            yield entry[field]
