"""`headrace cluster`: hubs on Kafka."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from headrace.cli.output import EXIT_FAILED, JsonFlag, people, print_json
from headrace.cli.up import ConfigOption, LogOption, SetOption, flags_of
from headrace.config.load import load

app = typer.Typer(no_args_is_help=True)


@app.callback()
def cluster() -> None:
    """Hubs on Kafka: make the topics, and check them."""


@app.command()
def init(
    log: LogOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    flush: Annotated[
        bool, typer.Option("--flush", help="Have brokers sync each message of a new journal to their disks.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make the topics that are missing, and check those that exist.

    A topic that could lose what was acknowledged is refused, with the command that mends it. Nothing that exists is
    changed.
    """
    from headrace.log.kafka import client, topics

    kafka_settings = load(config, flags=flags_of(None, settings, log)).config.log.kafka
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
            people().print(Text.assemble(("✗ ", "bold red"), problem.text))
            people().print(Text(f"    → {problem.command}", style="bold red"), soft_wrap=True)
    if wrong:
        raise typer.Exit(EXIT_FAILED)
