"""`headrace`: the command. Each noun lives in its own module, imported only when it is used."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from headrace import __version__
from headrace.cli.output import EXIT_INTERRUPTED, report
from headrace.errors import BadRequest, HeadraceError

# Name → (module with a Typer `app`, one line of help). The help is here so that `headrace --help` imports nothing.
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("headrace.cli.up", "Start a hub."),
    "demo": ("headrace.cli.demo", "Start a hub with live producers, consumers and a pipeline, to see it work."),
    "use": ("headrace.cli.use", "Choose the hub that the other commands talk to."),
    "stream": ("headrace.cli.stream", "List, create, describe, change, trim and delete streams."),
    "append": ("headrace.cli.append", "Append records to a stream."),
    "read": ("headrace.cli.read", "Read records of a stream."),
    "tail": ("headrace.cli.tail", "Follow a stream live."),
    "connect": ("headrace.cli.connect", "Feed a stream from a file, lines or a generator, as a TCP connector."),
    "cursor": ("headrace.cli.cursor", "List and reset cursors."),
    "table": ("headrace.cli.table", "List, read and clear tables."),
    "session": ("headrace.cli.session", "Show who is connected."),
    "immortal": ("headrace.cli.immortal", "AMBROSIA immortals."),
    "agents": ("headrace.cli.agents", "Run and inspect Perper agents."),
    "pipeline": ("headrace.cli.pipeline", "Run and watch Spark pipelines."),
    "pipelines": ("headrace.cli.pipelines", "Run Spark Declarative Pipelines projects."),
    "spark": ("headrace.cli.spark", "Show the engine that Spark uses: its jar, and the settings that load it."),
    "sql": ("headrace.cli.sql", "Query streams and tables with SQL."),
    "config": ("headrace.cli.config", "Show the settings and where each came from."),
    "user": ("headrace.cli.user", "Users, passwords and tokens."),
    "tls": ("headrace.cli.tls", "Create certificates to try out TLS."),
    "cluster": ("headrace.cli.cluster", "Hubs on Kafka: create and check the topics, see who owns the log."),
    "doctor": ("headrace.cli.doctor", "Check a data directory and this machine."),
    "backup": ("headrace.cli.backup", "Copy a data directory while the hub runs."),
    "restore": ("headrace.cli.restore", "Put a backup back."),
    "migrate": ("headrace.cli.migrate", "Move a log from a data directory to Kafka, or back."),
    "bench": ("headrace.cli.bench", "Measure this machine, next to what its bare disk can do."),
}


def available(name: str) -> bool:
    """Whether this installation holds the module of a command."""
    return importlib.util.find_spec(COMMANDS[name][0]) is not None


class PipeEnded(Exception):
    """Whoever read our output has enough."""


class LazyGroup(typer.core.TyperGroup):
    """A group whose commands are modules."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order of `COMMANDS`."""
        return [name for name in COMMANDS if available(name)]

    wanted: str | None = None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Note which command the line names, so that only this one is imported; one that does not exist is answered
        with the nearest that does."""
        self.wanted = args[0] if args else None
        near = difflib.get_close_matches(str(self.wanted), self.list_commands(ctx), 1)
        if self.wanted is not None and near and self.get_command(ctx, self.wanted) is None:
            ctx.fail(f"No such command {self.wanted!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command. The end of a pipe (`headrace read … | head`) is no failure, of whatever command."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except BrokenPipeError:
            raise PipeEnded from None

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of the command that is run. In a list of commands a stand-in with its one line will do."""
        if cmd_name not in COMMANDS or not available(cmd_name):
            return None
        module, summary = COMMANDS[cmd_name]
        if cmd_name != self.wanted:
            return _stand_in(cmd_name, summary)
        return load_command(cmd_name, module)


def load_command(name: str, module: str) -> Any:
    """The command of one module."""
    noun: typer.Typer = importlib.import_module(module).app
    noun._add_completion = False  # only the whole offers shell completion, not each noun again
    command = typer.main.get_command(noun)
    command.name = name
    return command


def _stand_in(name: str, summary: str) -> Any:
    app = typer.Typer()
    app.command(name, help=summary)(lambda: None)
    return typer.main.get_command(app)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Headrace: one durable log, five published stream protocols, Spark built in.",
)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Headrace: one durable log, five published stream protocols, Spark built in."""


class FileTrouble(HeadraceError):
    """A file or directory that the line names cannot be used: it is not there, not allowed, or the disk is full."""

    code = "file"

    def __init__(self, error: OSError) -> None:
        what = error.strerror or str(error)
        super().__init__(what if error.filename is None else f"{os.fsdecode(error.filename)}: {what}")


def run() -> None:
    """The entry point: errors become one line and an exit code; a bug keeps its traceback."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC tells standard error of handshakes; our errors say it once
    try:
        try:
            app(prog_name="headrace")
        finally:
            sys.stdout.flush()
    except HeadraceError as error:
        sys.exit(report(error, "--json" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except (PipeEnded, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still in its buffer has nowhere to go
        sys.exit(0)
    except UnicodeEncodeError:  # bytes of the command line that are no text: Python keeps them as surrogates
        problem = BadRequest("an argument is not UTF-8 text")  # which one is not shown: it may be a token
        sys.exit(report(problem, "--json" in sys.argv))
    except OSError as error:
        sys.exit(report(FileTrouble(error), "--json" in sys.argv))
