"""What the command line does to a hub can be done in the console, with the command beside it; or it is said why not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.cli.main import COMMANDS, available, load_command
from headrace.console.server import load_files

SCRIPTS = {path: contents.decode() for path, (contents, _) in load_files().items() if path.endswith(".js")}

# Command → the verb that the console calls for the same. A dialog of the console offers the command to copy.
DONE = {
    "append": "stream.append",
    "backup": "hub.backup",
    "cursor delete": "cursor.delete",
    "cursor reset": "cursor.reset",
    "immortal call": "immortal.call",
    "immortal cancel": "immortal.cancel",
    "immortal checkpoint": "immortal.checkpoint",
    "immortal forget": "immortal.forget",
    "immortal fulfil": "immortal.fulfil",
    "immortal hand-over": "immortal.hand-over",
    "immortal register": "immortal.register",
    "immortal replay": "immortal.replay",
    "pipeline create": "pipeline.create",
    "pipeline delete": "pipeline.delete",
    "pipeline redrive": "dead.redrive",
    "pipeline reset": "pipeline.reset",
    "pipeline start": "pipeline.start",
    "pipeline stop": "pipeline.stop",
    "sql": "sql.query",
    "stream create": "stream.create",
    "stream delete": "stream.delete",
    "stream grow": "stream.grow",
    "stream rewind": "stream.rewind",
    "stream set": "stream.set-options",
    "stream trim": "stream.trim",
    "table accept-damage": "table.accept-damage",
    "table clear": "table.clear",
    "user add": "user.add",
    "user rm": "user.remove",
    "user token": "user.token",
}
# Command → the verb by which a page shows the same. Nothing happens, so there is nothing to preview.
SHOWN = {
    "agents caches": "agents.caches",
    "agents executions": "agents.executions",
    "agents ls": "agents.list",
    "cluster status": "cluster.status",
    "config show": "config.show",
    "cursor ls": "console.cursors",
    "immortal instances": "immortal.instances",
    "immortal log": "immortal.log",
    "immortal ls": "immortal.list",
    "pipeline ls": "console.pipelines",
    "pipeline status": "console.pipelines",
    "read": "stream.read",
    "session ls": "console.sessions",
    "stream describe": "console.stream",
    "stream ls": "console.streams",
    "table get": "console.entries",
    "table items": "console.entries",
    "table ls": "console.streams",
    "tail": "stream.read",
    "user ls": "user.list",
}
HERE = "it works on the machine where it is typed"
SPARK = "it starts Spark on the machine where it is typed; one that the hub runs is created and started in the console"
# Command → why a page of the hub cannot do it.
REASONS = {
    "up": "it starts the hub that serves the console",
    "demo": "it starts a hub of its own",
    "use": "it says which hub the commands speak to; the page speaks to the one that it came from",
    "connect file": HERE,
    "connect generate": HERE,
    "connect lines": HERE,
    "connect trace": HERE,
    "immortal check": "it runs new code, which is on the machine where it is typed",
    "immortal decode": HERE,
    "immortal import": "it is done once, from a directory that another coordinator left on the hub's machine",
    "immortal proxy": HERE,
    "agents run": "it starts agents on the machine where it is typed",
    "pipeline run": SPARK,
    "pipelines init": "it writes a project to the machine where it is typed",
    "pipelines run": SPARK,
    "pipeline explain": SPARK,
    "pipeline replay": SPARK,
    "pipeline warm": HERE,
    "pipeline archive": SPARK,
    "pipeline dead-letter": SPARK,
    "pipeline merge": SPARK,
    "pipeline route": SPARK,
    "pipeline window-counts": SPARK,
    "spark jar": HERE,
    "spark conf": HERE,
    "user open": "it is for whoever owns the data directory: with no user left nobody could be asked who they are",
    "user hash": "it writes no user; it makes a line for a settings file",
    "tls self-signed": HERE,
    "cluster init": "it makes the topics before there is a hub on them",
    "doctor": "it looks into a data directory that no hub has open",
    "restore": "the hub is stopped meanwhile",
    "migrate": "the hub is stopped meanwhile",
    "bench": HERE,
}


def commands() -> Iterator[str]:
    """All of the command line: `stream create`, `append`, …"""
    for noun, (module, _) in COMMANDS.items():
        if available(noun):
            yield from _within(noun, load_command(noun, module))


def _within(name: str, command: Any) -> Iterator[str]:
    inside = getattr(command, "commands", None)
    if inside is None:
        yield name
    for word, each in (inside or {}).items():
        yield from _within(f"{name} {word}", each)


ALL = sorted(commands())


@pytest.mark.parametrize("command", ALL)
def test_every_command_is_in_the_console_or_it_is_said_why_not(command: str) -> None:
    found = [each for each in (DONE, SHOWN, REASONS) if command in each]
    assert len(found) == 1, f"{command!r} is neither in the console nor is there a reason, or there is more than one"


def test_nothing_is_listed_that_the_command_line_does_not_have() -> None:
    assert {*DONE, *SHOWN, *REASONS} - set(ALL) == set()


@pytest.mark.parametrize("command", DONE)
def test_what_is_done_calls_the_verb_and_offers_the_command(command: str) -> None:
    verb = DONE[command]
    words = ", ".join(f'"{word}"' for word in command.split())
    scripts = [path for path, text in SCRIPTS.items() if f'("{verb}"' in text and f"line([{words}" in text]
    assert scripts, f"no script calls {verb} and offers `headrace {command}`"


@pytest.mark.parametrize("command", SHOWN)
def test_what_is_shown_asks_the_verb(command: str) -> None:
    assert any(f'("{SHOWN[command]}"' in text for text in SCRIPTS.values())


def test_every_verb_that_changes_something_has_a_command_beside_it() -> None:
    """A dialog that calls a verb offers the command, or the request, that does the same."""
    words = "add|append|clear|create|delete|drop|forget|grow|mute|put|redrive|register|remove|reset|rewind"
    changes = re.compile(rf'call\(\s*"([a-z]+\.(?:{words}|set-options|start|stop|token|trim))"')
    for path, text in SCRIPTS.items():
        for verb in changes.findall(text):
            command = next((each for each, called in DONE.items() if called == verb), None)
            said = f'curl("{verb}"' in text or (command is not None and "line([" in text)
            assert said, f"{path} calls {verb} and offers no command"
