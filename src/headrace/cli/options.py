"""Options that several commands share: written once, and handed to each command as what they stand for."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import msgspec
import typer
from rich.text import Text

from headrace.cli.completion import profiles
from headrace.cli.output import JsonFlag, notes, people, print_json, print_list, print_table
from headrace.config.profiles import Target, resolve
from headrace.errors import BadRequest, HeadraceError

if TYPE_CHECKING:
    from headrace.client import Client

Command = Callable[..., None]
Result = TypeVar("Result")
TokenOption = Annotated[
    str | None,
    typer.Option("--token", metavar="TOKEN", help="A token from `headrace user token` (HEADRACE_TOKEN)."),
]
PartitionOption = Annotated[int, typer.Option("--partition", min=0, help="The partition.")]
YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AllFlag = Annotated[bool, typer.Option("--all", help="Include the hub's internal streams and tables.")]


def sharing(**factories: Callable[..., Any]) -> Callable[[Command], Command]:
    """`@sharing(hub=connect)` gives a command all options of the function `connect`, and its result as `hub`."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command).parameters.values()
        parameters = {parameter.name: parameter for parameter in own if parameter.name not in factories}
        options = {name: inspect.signature(factory).parameters for name, factory in factories.items()}
        for each in options.values():
            parameters.update(each)

        @functools.wraps(command)
        def run(**given: Any) -> None:
            results = {
                name: factory(**{option: given[option] for option in options[name]})
                for name, factory in factories.items()
            }
            kept = {parameter.name: given[parameter.name] for parameter in own if parameter.name not in factories}
            command(**kept, **results)

        known = [get_type_hints(function, include_extras=True) for function in (command, *factories.values())]
        hints = {name: hint for each in known for name, hint in each.items() if name in parameters}
        run.__annotations__ = hints
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [each.replace(kind=each.KEYWORD_ONLY, annotation=hints[name]) for name, each in parameters.items()]
        )
        return run

    return decorate


def with_password(target: Target) -> Target:
    """The same, with the password that is missing, from the terminal."""
    if target.user is None or target.password is not None:
        return target
    if not sys.stdin.isatty():
        problem = f"there is no terminal to ask for the password of {target.user!r} on"
        raise BadRequest(f"{problem}: set HEADRACE_PASSWORD, or use a token")
    password = typer.prompt(f"Password of {target.user}", hide_input=True, err=True)
    return msgspec.structs.replace(target, password=password)


@contextlib.contextmanager
def connected(to: Target, **more: Any) -> Iterator[Client]:
    """A client of a hub. A name that the hub does not know is answered with the nearest that it does."""
    import headrace
    from headrace.cli.suggestions import with_suggestion

    secrets = {"token": to.token, "user": to.user, "password": to.password}
    with headrace.connect(to.address, tls=to.tls, **secrets, **more) as client:  # type: ignore[arg-type]
        try:
            yield client
        except HeadraceError as error:
            raise with_suggestion(error, client) from None


@dataclass(frozen=True)
class HubOptions:
    """Options of every command that speaks to a hub. What is left out comes from the environment or from the profile
    that `headrace use` chose."""

    hub: Annotated[
        str | None, typer.Option("--hub", metavar="HOST:PORT", help="The hub's Flight address (HEADRACE_HUB).")
    ] = None
    token: TokenOption = None
    user: Annotated[
        str | None,
        typer.Option("--user", help="Sign in with a password, which is asked for (HEADRACE_USER, HEADRACE_PASSWORD)."),
    ] = None
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS (HEADRACE_TLS=1).")] = False
    ca: Annotated[
        Path | None,
        typer.Option("--ca", metavar="FILE", help="Connect with TLS and trust these certificates (HEADRACE_CA)."),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option("--profile", autocompletion=profiles, help="A profile from `headrace use` (HEADRACE_PROFILE)."),
    ] = None

    @functools.cached_property
    def target(self) -> Target:
        """The hub that is meant, and how to get in."""
        return self.at(self.hub)

    def at(self, address: str | None) -> Target:
        """A hub at this address, and how these options get in."""
        tls = self.ca or self.tls
        return with_password(resolve(address, token=self.token, user=self.user, tls=tls, profile=self.profile))

    def connect(self, **more: Any) -> contextlib.AbstractContextManager[Client]:
        """A client of the hub, for a `with` block."""
        return connected(self.target, **more)

    def call(self, verb: str, request: dict[str, Any] | None = None) -> Any:
        """Run a verb; its result as plain values."""
        with self.connect() as client:
            return client.call(verb, request or {})

    def request(self, verb: str, request: dict[str, Any], kind: type[Result]) -> Result:
        """Run a verb; its result as `kind`."""
        return msgspec.convert(self.call(verb, request), kind)


@dataclass(frozen=True)
class Output:
    """The option of every command that prints a result: for people, or with `--json` for programs."""

    as_json: JsonFlag = False

    def table(
        self, value: Any, columns: Sequence[str], rows: Iterable[Sequence[object]], *, empty: str = "nothing to show"
    ) -> None:
        """`value` as JSON, or the rows as a table."""
        if self.as_json:
            print_json(value)
        else:
            print_table(columns, rows, empty=empty)

    def listing(
        self,
        items: Iterable[Any],
        columns: Sequence[str],
        row: Callable[[Any], Sequence[object]],
        *,
        empty: str = "nothing to show",
    ) -> None:
        """Items as a JSON array, or a row for each; printed as they come."""
        print_list(items, columns, row, as_json=self.as_json, empty=empty)

    def line(self, value: Any, text: str) -> None:
        """`value` as JSON, or some text in its place."""
        if self.as_json:
            print_json(value)
        else:
            people().print(Text(text), soft_wrap=True)

    def note(self, value: Any, text: str) -> None:
        """`value` as JSON, or a word on standard error that it is done."""
        if self.as_json:
            print_json(value)
        else:
            notes().print(Text(text))

    def confirm(self, question: str, yes: bool) -> None:
        """Ask before something that cannot be undone; programs must say `--yes`."""
        if yes:
            return
        if self.as_json:
            raise BadRequest(f"{question} add --yes to confirm")
        notes().print(Text(question + " [y/N] "), end="")
        if input().strip().lower() not in ("y", "yes"):
            raise typer.Abort


@dataclass(frozen=True)
class Answer(Output, HubOptions):
    """Options of every command that asks a hub and prints what it says."""
