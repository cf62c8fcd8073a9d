"""What the commands that start Spark have in common: their options, and how they reach the hub and Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import HubOptions
from headrace.cli.output import JsonFlag, fail, spinner
from headrace.errors import BadRequest

if TYPE_CHECKING:
    from headrace.spark.hub_client import Access, HubPort


def port_of(hub: HubOptions) -> HubPort:
    """The hub, as Spark's own code speaks to it."""
    from headrace.spark.hub_client import access_to, open_port

    return open_port(access_to(**_access(hub)))


def _access(hub: HubOptions) -> dict[str, Any]:
    """How Spark reaches the hub: by token, since what it is told travels to every worker."""
    to = hub.target
    if to.user is not None:
        raise BadRequest("Spark signs in with a token, not with a password: `headrace user token USER` creates one")
    authority = to.tls.decode() if isinstance(to.tls, bytes) else None if isinstance(to.tls, bool) else str(to.tls)
    return {"address": to.address, "token": to.token, "ca": authority}


@dataclass(frozen=True)
class SparkOptions(HubOptions):
    """Options of every command that starts Spark."""

    master: Annotated[
        str | None, typer.Option("--master", envvar="SPARK_MASTER", help="Spark master; local[*] by default.")
    ] = None
    conf: Annotated[list[str] | None, typer.Option("--conf", help="A Spark setting, NAME=VALUE. Repeatable.")] = None

    def port(self) -> HubPort:
        """The hub."""
        return port_of(self)

    def access(self) -> Access:
        """Where the hub is, and what it asks of those who come."""
        from headrace.spark.hub_client import access_to

        return access_to(**_access(self))

    def settings(self) -> dict[str, str]:
        """The settings of Spark that are given."""
        return _settings(self.conf)

    def session(self, *, move_cursors: bool = True) -> Any:
        """A Spark session for this hub."""
        from headrace.spark.spark_session import session

        access, conf = _access(self), self.settings()
        with spinner("starting Spark"):
            return session(
                master=self.master,
                hub=access["address"],
                token=access["token"],
                ca=access["ca"],
                config=conf,
                move_cursors=move_cursors,
            )


@dataclass(frozen=True)
class RunOptions(SparkOptions):
    """Options of every command that runs pipelines."""

    home: Annotated[
        Path | None,
        typer.Option("--home", help="Where checkpoints live; ~/.local/state/headrace/pipelines unless given."),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Process what is there now, then stop.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors.")] = False
    jvm_stack: Annotated[bool, typer.Option("--jvm-stack", help="On failure, also show the JVM's stack trace.")] = False
    as_json: JsonFlag = False


def _settings(conf: list[str] | None) -> dict[str, str]:
    settings = {}
    for setting in conf or []:
        name, separator, value = setting.partition("=")
        if not separator:
            fail(f"--conf {setting!r} is not NAME=VALUE")
        settings[name] = value
    return settings
