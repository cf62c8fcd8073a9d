"""The settings as a whole: the sections of the hub, and one of each protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from headrace.config.sections import (
    Address,
    Cluster,
    Http,
    Limits,
    Log,
    LoggingSection,
    PipelineEntry,
    Section,
    SecuritySection,
    Spark,
    Sql,
    Tls,
    Tracing,
)
from headrace.protocols.descriptor import protocols

S = TypeVar("S", bound=Section)


class Listen(Section, frozen=True):
    """Where each listener listens: `host:port`, port 0 for any free port, or `off`."""

    http: Annotated[
        Address, Meta(description="HTTP: admin API, metrics, health, console, and what is mounted there")
    ] = "127.0.0.1:8080"

    def addresses(self) -> dict[str, str]:
        """Every listener's address, by its name."""
        return msgspec.structs.asdict(self)


class Config(Section, frozen=True):
    """All sections."""

    log: Log = Log()
    limits: Limits = Limits()
    listen: Listen = Listen()
    cluster: Cluster = Cluster()
    http: Http = Http()
    sql: Sql = Sql()
    security: SecuritySection = SecuritySection()
    tls: Tls = Tls()
    logging: LoggingSection = LoggingSection()
    tracing: Tracing = Tracing()
    spark: Spark = Spark()
    pipeline: Annotated[list[PipelineEntry], Meta(description="Pipelines that start with the hub")] = []

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.pipeline]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two pipelines are named {', '.join(twice)}")

    def section(self, kind: type[S]) -> S:
        """The section of a protocol, by its class."""
        return next(value for name in self.__struct_fields__ if isinstance(value := getattr(self, name), kind))


def _extended(base: type[Section], fields: list[tuple[str, Any, Any]]) -> Any:
    """A section with these fields (name, type, default) besides its own, under the same name."""
    about = {"__doc__": base.__doc__, "__module__": __name__}
    return msgspec.defstruct(base.__name__, fields, bases=(base,), namespace=about, frozen=True, kw_only=True)


if not TYPE_CHECKING:  # type checkers know the sections that are no protocol's; a protocol asks for its own by class
    Listen = _extended(
        Listen,
        [
            (each.name, Annotated[Address, Meta(description=each.title)], each.address)
            for protocol in protocols()
            for each in protocol.listeners
            if each.serve
        ],
    )
    sections = [(protocol.name, protocol.settings, protocol.settings()) for protocol in protocols()]
    Config = _extended(Config, [("listen", Listen, Listen()), *sections])
