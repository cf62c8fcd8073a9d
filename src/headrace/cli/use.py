"""`headrace use`: which hub the other commands speak to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from headrace.admin.hub_verbs import UserInfo
from headrace.cli.completion import profiles as profile_names
from headrace.cli.options import Output, connected, sharing, with_password
from headrace.cli.output import notes
from headrace.config.profiles import LOCAL, TLS_SCHEME, Profile, Profiles, load_profiles, resolve, save_profiles
from headrace.errors import BadRequest

app = typer.Typer()


@app.command()
@sharing(output=Output)
def use(
    output: Output,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A profile.", autocompletion=profile_names)
    ] = None,
    hub: Annotated[str | None, typer.Option("--hub", metavar="HOST:PORT", help="The hub's Flight address.")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS.")] = False,
    ca: Annotated[
        Path | None, typer.Option("--ca", metavar="FILE", help="Connect with TLS and trust these certificates (PEM).")
    ] = None,
    user: Annotated[str | None, typer.Option("--user", help="Sign in with a password, asked for each time.")] = None,
    token: Annotated[str | None, typer.Option("--token", help="A token; `-` reads it from standard input.")] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the profile.")] = False,
    check: Annotated[bool, typer.Option(help="Try to reach the hub.")] = True,
) -> None:
    """Choose the hub that commands and `headrace.connect()` use. Without a name, list the profiles.

    With options, the profile is created or replaced:

    headrace use work --hub hub.example:7070 --ca certificate.pem --token -
    """
    known = load_profiles()
    given = any((hub, tls, ca, user, token))
    if name is None:
        if given or forget:
            raise typer.BadParameter("which profile? headrace use NAME …")
        _list(known, output)
    elif forget:
        _forget(known, name, output)
    else:
        profile = _made(hub, tls, ca, user, token) if given else known.named(name)
        if check:
            _try(profile, output)
        if given:
            known.profiles[name] = profile
        known.current = name
        file = save_profiles(known)
        output.note(_shown(name, profile, True), f"profile {name}: {profile.hub} (kept in {file})")


def _made(hub: str | None, tls: bool, ca: Path | None, user: str | None, token: str | None) -> Profile:
    if user is not None and token is not None:
        raise BadRequest("give --user or --token, not both: a token says whose it is")
    if token == "-":
        token = typer.get_text_stream("stdin").readline().strip()
    text = None
    if ca is not None:
        try:
            text = ca.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"--ca {ca}: {getattr(error, 'strerror', None) or 'not a PEM file'}") from None
    address = hub or Profile().hub
    return Profile(address, tls or text is not None or address.startswith(TLS_SCHEME), text, user, token or None)


def _try(profile: Profile, output: Output) -> None:
    """Say at once what is wrong with it, and as whom it gets in."""
    tls = profile.ca.encode() if profile.ca else profile.tls
    to = resolve(profile.hub, token=profile.token, user=profile.user, tls=tls, environment={})
    with connected(with_password(to)) as client:
        who = client.request("user.whoami", {}, UserInfo)
    if not output.as_json:
        rights = f", {' and '.join(who.roles)}" if who.roles else ""
        notes().print(Text(f"{to.address} answers; you are {who.user}{rights}"))


def _shown(name: str, profile: Profile, current: bool) -> dict[str, object]:
    """A profile without its secrets."""
    signs_in = "token" if profile.token else f"password of {profile.user}" if profile.user else None
    trusts = "its own certificates" if profile.ca else "public authorities" if profile.tls else None
    return {"current": current, "profile": name, "hub": profile.hub, "trusts": trusts, "signs_in": signs_in}


def _list(known: Profiles, output: Output) -> None:
    names = sorted({LOCAL, *known.profiles})
    shown = [_shown(name, known.named(name), name == known.current) for name in names]
    rows = [["*" if each["current"] else "", *list(each.values())[1:]] for each in shown]
    output.table(shown, ["", "profile", "hub", "TLS, trusting", "signs in by"], rows)


def _forget(known: Profiles, name: str, output: Output) -> None:
    if name not in known.profiles:
        known.named(name)  # the error lists the others
        raise BadRequest(f"the profile {name!r} is always there")
    del known.profiles[name]
    if known.current == name:
        known.current = LOCAL
    save_profiles(known)
    output.note({"forgotten": name, "current": known.current}, f"forgot profile {name}; {known.current} is in use")
