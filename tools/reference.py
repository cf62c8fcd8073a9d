"""Writes the reference pages from the code: settings, command line, admin API, metrics, errors.

python tools/reference.py docs/reference
"""

import asyncio
import importlib
import json
import pkgutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

import headrace
from headrace.admin.openapi import document
from headrace.cli.main import COMMANDS, available, load_command
from headrace.config import Config
from headrace.config.load import load
from headrace.errors import error_classes
from headrace.protocols.descriptor import protocols
from headrace.serving.runtime import LISTENERS, Runtime
from headrace.telemetry.metrics import Metrics
from headrace.units import format_bytes

CONFIG_INTRO = """
One TOML file (`headrace up --config FILE`), then the environment (`HEADRACE_LOG__SEGMENT_BYTES=64MiB`), then flags
(`--set log.segment_bytes=64MiB`): the later wins. `headrace config show --origin` prints every value and where it came
from. Sizes may be written `32MiB`, durations `30s`.
"""
CLI_INTRO = """
Every command takes `--help`. Tables are for people; `--json` is for programs. Errors are one line on standard error.
"""
API_INTRO = """
`POST /api/v1/<verb>` with a JSON body and `Content-Type: application/json`; the same verbs are Arrow Flight actions.
A running hub serves its document at `/api/openapi.json`; here is [the one of this version](openapi.json).
"""


def main(folder: Path) -> None:
    """Write every page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (
        ("config", config_page()),
        ("cli", cli_page()),
        ("metrics", metrics_page()),
        ("errors", errors_page()),
        ("api", api_page(folder)),
    ):
        (folder / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def cell(value: object) -> str:
    """Text that is safe in a table cell."""
    return str(value).replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def table(columns: list[str], rows: list[list[object]]) -> Iterator[str]:
    """A Markdown table."""
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for row in rows:
        yield "| " + " | ".join(cell(value) for value in row) + " |"
    yield ""


def config_page() -> Iterator[str]:
    """One section per struct."""
    yield "# Settings\n"
    yield CONFIG_INTRO
    by_section: dict[str, list[list[object]]] = {}
    for setting in load(environment={}).settings():
        section, _, key = setting.key.partition(".")
        value = format_bytes(setting.value) if setting.unit == "bytes" else json.dumps(setting.value)
        by_section.setdefault(section, []).append([f"`{key}`" if key else "", f"`{value}`", setting.description])
    for section, kind in get_type_hints(Config, include_extras=True).items():
        yield f"## {section}\n"
        if _list_of_structs(kind) is not None:
            yield from entries_table(section, kind)
        else:
            yield f"{kind.__doc__}\n"
            yield from (
                f"Peers say who they are by: {each.authentication}.\n" for each in protocols() if each.name == section
            )
            yield from table(["key", "default", "meaning"], by_section[section])
            for field, below in get_type_hints(kind, include_extras=True).items():
                yield from named_table(f"{section}.{field}", below)


def _list_of_structs(kind: Any) -> Any:
    """The struct of which there may be many, or None."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    entry = get_args(kind)[0] if get_origin(kind) is list else None
    return entry if isinstance(entry, type) and issubclass(entry, msgspec.Struct) else None


def entries_table(path: str, kind: Any) -> Iterator[str]:
    """What may stand in a file any number of times: `[[pipeline]]`."""
    entry = _list_of_structs(kind)
    yield f"`[[{path}]]`, once for each: {entry.__doc__}\n"
    yield from fields_table(entry)


def named_table(path: str, kind: Any) -> Iterator[str]:
    """What may stand under names that the user chooses: `[security.users.NAME]`."""
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    if get_origin(kind) is not dict:
        return
    entry = get_args(kind)[1]
    form = f"`[{path}.NAME]`"
    if get_origin(entry) is list:
        entry, form = get_args(entry)[0], f"`[[{path}.NAME]]`, once or more"
    if not (isinstance(entry, type) and issubclass(entry, msgspec.Struct)):
        return
    yield f"{form}: {entry.__doc__}\n"
    yield from fields_table(entry)


def fields_table(entry: type[msgspec.Struct]) -> Iterator[str]:
    """The fields of a struct."""
    rows: list[list[object]] = []
    for field in msgspec.structs.fields(entry):
        notes = [note for note in get_args(field.type) if isinstance(note, msgspec.Meta)]
        meaning = next((note.description for note in notes if note.description), "")
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        shown = "required" if field.required else f"`{json.dumps(msgspec.to_builtins(default))}`"
        rows.append([f"`{field.name}`", shown, meaning])
    yield from table(["key", "default", "meaning"], rows)


def cli_page() -> Iterator[str]:
    """One section per command, with its options."""
    yield "# Command line\n"
    yield CLI_INTRO
    for name in filter(available, COMMANDS):
        module, summary = COMMANDS[name]
        yield f"## headrace {name}\n\n{summary}\n"
        yield from command_lines(f"headrace {name}", load_command(name, module), top=True)


def command_lines(path: str, command: Any, top: bool = False) -> Iterator[str]:
    """A command and those below it."""
    children = getattr(command, "commands", None)
    if children:
        for child in children.values():
            yield from command_lines(f"{path} {child.name}", child)
        return
    if not top:
        yield f"### {path}\n\n{(command.help or '').strip()}\n"
    rows: list[list[object]] = []
    for parameter in command.params:
        if "--help" in parameter.opts:
            continue
        is_argument = parameter.param_type_name == "argument"
        shown = parameter.metavar or parameter.name.upper() if is_argument else ", ".join(parameter.opts)
        rows.append([f"`{shown}`", getattr(parameter, "help", "") or ""])
    if rows:
        yield from table(["option", "meaning"], rows)


def metrics_page() -> Iterator[str]:
    """One section per section of metrics."""
    yield "# Metrics\n\nPrometheus text at `/metrics` on the HTTP port.\n"
    metrics = Metrics()
    for section in vars(metrics).values():
        if not type(section).__name__.endswith("Metrics"):
            continue
        yield f"## {type(section).__doc__}\n"
        rows: list[list[object]] = []
        for metric in (value for name, value in vars(section).items() if not name.startswith("_")):
            name = metric._name + ("_total" if metric._type == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in metric._labelnames)
            rows.append([f"`{name}`", metric._type, labels, metric._documentation])
        yield from table(["metric", "type", "labels", "meaning"], rows)


def errors_page() -> Iterator[str]:
    """Every error with a code of its own."""
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    yield "# Errors\n"
    yield "The code is stable: the command line prints it with `--json`, the API and Flight send it.\n"
    rows: list[list[object]] = [
        [f"`{code}`", error.status, (error.__doc__ or "").strip().split("\n\n")[0]]
        for code, error in sorted(error_classes().items())
    ]
    yield from table(["code", "HTTP status", "meaning"], rows)


def api_page(folder: Path) -> Iterator[str]:
    """Every verb of a hub with all its parts, and the OpenAPI document itself."""
    verbs, whole = asyncio.run(started_verbs())
    (folder / "openapi.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    yield "# Admin API\n"
    yield API_INTRO
    yield from table(["verb", "right", "meaning"], verbs)


async def started_verbs() -> tuple[list[list[object]], dict[str, Any]]:
    """Start everything once on free ports and look."""
    with tempfile.TemporaryDirectory() as data:
        anywhere = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
        runtime = await Runtime.start(load(environment={}, flags=[f"log.data={data}", *anywhere]))
        try:
            rows: list[list[object]] = [[f"`{verb.name}`", verb.right, verb.summary] for verb in runtime.hub.verbs]
            return rows, document(runtime.hub.verbs)
        finally:
            await runtime.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
