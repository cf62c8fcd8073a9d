"""`headrace user`: users, passwords and tokens, kept in the users file beside the data.

The commands write that file directly, so that the first user can be made before any hub runs; a running hub notices.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.admin.hub_verbs import UserInfo
from headrace.cli.options import Output, sharing
from headrace.cli.output import fail, notes, print_json
from headrace.cli.up import ConfigOption, DataOption, SetOption, load_for
from headrace.security import SECRET_LENGTH_MIN, Security, hash_secret, new_token

app = typer.Typer(no_args_is_help=True)
UserArgument = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]
StdinFlag = Annotated[bool, typer.Option("--password-stdin", help="Read the password from standard input.")]


@app.callback()
def user() -> None:
    """Users, passwords and tokens."""


def open_security(data: DataOption = None, config: ConfigOption = None, settings: SetOption = None) -> Security:
    """The users of the hub that the shared options name."""
    return Security(load_for(data, config, settings).config)


def _asked_secret(from_stdin: bool) -> str:
    if from_stdin:
        secret = sys.stdin.readline().rstrip("\n")
    elif not sys.stdin.isatty():
        fail("there is no terminal to ask for the password on: use --password-stdin, or --token", code="bad-request")
    else:
        secret = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    if len(secret) < SECRET_LENGTH_MIN:
        fail(f"the password has {len(secret)} characters; at least {SECRET_LENGTH_MIN} are needed", code="bad-request")
    return secret


@app.command()
@sharing(output=Output, security=open_security)
def add(
    security: Security,
    name: UserArgument,
    role: Annotated[list[str] | None, typer.Option("--role", help="admin, writer, reader or your own.")] = None,
    token: Annotated[bool, typer.Option("--token", help="Create a token instead of asking for a password.")] = False,
    password_stdin: StdinFlag = False,
    *,
    output: Output,
) -> None:
    """Add a user, or change a user's roles and password."""
    security.check_user(name, role or ["reader"])  # before a password is asked for in vain
    secret = None if token else hash_secret(_asked_secret(password_stdin))
    user = security.add_user(name, secret, role or ["reader"])
    plain = None
    if token:
        plain, digest = new_token()
        security.add_token(name, digest)
    text = f"saved user {name} with {', '.join(user.roles)} in {security.users_file.path}"
    output.note({"user": name, "roles": user.roles, "token": plain}, text)
    if plain is not None and not output.as_json:
        _print_token(plain)


@app.command()
@sharing(output=Output, security=open_security)
def token(security: Security, name: UserArgument, output: Output) -> None:
    """Create another token for a user."""
    _check_user(security, name, "; add it first")
    plain, digest = new_token()
    security.add_token(name, digest)
    if output.as_json:
        print_json({"user": name, "token": plain})
    else:
        _print_token(plain)


def _check_user(security: Security, name: str, advice: str = "") -> None:
    if name not in security.users_file.users():
        fail(f"there is no user {name!r} in {security.users_file.path}{advice}", code="unknown-user")


def _print_token(plain: str) -> None:
    notes().print("the token, shown this once:")
    typer.echo(plain)


@app.command("ls")
@sharing(output=Output, security=open_security)
def list_users(security: Security, output: Output) -> None:
    """List users, without their secrets."""
    kept = security.users_file.users()
    listed = [
        UserInfo(name, user.roles, user.secret is not None, len(user.tokens), name in kept)
        for name, user in sorted(security.users().items())
    ]
    columns = ["user", "roles", "password", "#tokens", "kept in"]
    empty = security.trouble() or "no users: everyone who can reach a listener may do everything"
    output.table(listed, columns, [_row(info) for info in listed], empty=empty)


def _row(info: UserInfo) -> list[object]:
    place = "users file" if info.editable else "settings"
    return [info.user, ", ".join(info.roles), "yes" if info.password else "no", info.tokens, place]


@app.command("rm")
@sharing(output=Output, security=open_security)
def remove(security: Security, name: UserArgument, output: Output) -> None:
    """Remove a user and all its tokens."""
    _check_user(security, name)
    security.remove_user(name)
    trouble = security.trouble()
    output.note({"user": name, "removed": True}, f"user {name} is gone" + (f": {trouble}" if trouble else ""))


@app.command("open")
@sharing(output=Output, security=open_security)
def open_to_all(security: Security, output: Output) -> None:
    """Open the hub to everybody again after its last user was removed. Takes effect when the hub restarts."""
    security.open_to_all()
    text = "from its next start on, everyone who can reach a listener of this hub may do everything"
    output.note({"open": True}, text)


@app.command("hash")
@sharing(output=Output)
def hash_password(output: Output, password_stdin: StdinFlag = False) -> None:
    """Print the hash of a password, for use in a settings file."""
    hashed = hash_secret(_asked_secret(password_stdin))
    output.line({"secret": hashed}, hashed)
