"""`headrace cluster`: hubs on Kafka."""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import replace
from rich.text import Text

from headrace.cli.options import Answer, sharing
from headrace.cli.output import EXIT_FAILED, JsonFlag, people, print_json
from headrace.cli.up import ConfigOption, LogOption, SetOption, flags_of
from headrace.config.load import load
from headrace.units import format_bytes

BROKERS_S = 20.0
"""How long somebody who waits at a terminal is kept without a word from the brokers."""

app = typer.Typer(no_args_is_help=True)


@app.callback()
def cluster() -> None:
    """Hubs on Kafka: create and check the topics, and see which hub owns the log."""


@app.command()
def init(
    log: LogOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    flush: Annotated[
        bool, typer.Option("--flush", help="Create the journal so that brokers sync every message to disk.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Create the topics that are missing, and check those that exist.

    A topic that could lose what was acknowledged is refused, with the command that fixes it. Nothing that exists is
    changed.
    """
    from headrace.log.kafka import client, topics

    kafka_settings = load(config, flags=flags_of(None, settings, log)).config.log.kafka
    kafka_settings = replace(kafka_settings, timeout_s=min(kafka_settings.timeout_s, BROKERS_S))
    kafka = client.connect(kafka_settings)
    made = topics.create_missing(kafka, kafka_settings, flush=flush)
    plans = topics.plans(kafka_settings)
    wrong = [problem for plan in plans for problem in topics.problems(kafka, kafka_settings, plan)]
    if as_json:
        print_json({"made": made, "problems": [problem._asdict() for problem in wrong]})
    else:
        for plan in plans:
            people().print(Text(f"{plan.name}: {'made' if plan.name in made else 'exists'}"))
        for problem in wrong:
            _print_problem(problem.text, problem.command)
    if wrong:
        raise typer.Exit(EXIT_FAILED)


def _print_problem(text: str, command: str) -> None:
    people().print(Text.assemble(("✗ ", "bold red"), text))
    people().print(Text(f"    → {command}", style="bold red"), soft_wrap=True)


@app.command()
@sharing(answer=Answer)
def status(answer: Answer) -> None:
    """Who owns the log, who follows, and how far behind. Any hub can be asked."""
    from headrace.cluster.status import ClusterStatus

    found = answer.request("cluster.status", {}, ClusterStatus)
    rows = [
        [
            hub.hub,
            hub.role,
            format_bytes(hub.lag_bytes) if hub.role == "follower" else None,
            ", ".join(f"{name} {address}" for name, address in hub.addresses.items()),
        ]
        for hub in found.hubs
    ]
    answer.table(found, ["hub", "role", "#behind", "addresses"], rows, empty="no hubs")
    if not answer.as_json:
        for cell in found.cells:
            owner = f"owner {cell.owner}" if cell.owner else "nobody owns it"
            took = f", took over in {cell.takeover_s:.1f} s" if cell.takeover_s else ""
            journal = f"{cell.next_offset - cell.first_offset} messages in the journal"
            people().print(Text(f"\ncell {cell.cell}: {owner}, epoch {cell.epoch}{took}; {journal}"))
        for problem in found.problems:
            _print_problem(problem.text, problem.command)
