"""`headrace immortal`: services that survive any crash."""

from __future__ import annotations

import asyncio
import datetime
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from headrace.cli.options import Answer, HubOptions, sharing
from headrace.cli.output import JsonFlag, fail, print_json, print_table
from headrace.log.ops import CheckpointInfo
from headrace.protocols.ambrosia.binding.immortal import Immortal
from headrace.protocols.ambrosia.import_verbs import CallsTo, ImportInfo
from headrace.protocols.ambrosia.lineage import Place
from headrace.protocols.ambrosia.settings import ImmortalSection
from headrace.protocols.ambrosia.verbs import DebugPorts, ImmortalInfo, LoggedMessage
from headrace.units import parse_bytes

if TYPE_CHECKING:
    from headrace.immortals.comparing import Compared, Did

app = typer.Typer(no_args_is_help=True)
Name = Annotated[str, typer.Argument(help="Name of the immortal.", show_default=False)]


@app.callback()
def immortal() -> None:
    """AMBROSIA immortals: services that survive any crash without losing or repeating a call."""


@app.command()
@sharing(answer=Answer)
def register(
    answer: Answer,
    name: Name,
    receive_port: Annotated[int, typer.Option(help="Port on which the hub receives; 0 for any.")] = 0,
    send_port: Annotated[int, typer.Option(help="Port on which the hub sends; 0 for any.")] = 0,
    host: Annotated[str, typer.Option(help="Address of both ports.")] = "127.0.0.1",
    sockets: Annotated[
        str, typer.Option(help="listen, or connect (C binding, coordinators before mid-2020).")
    ] = "listen",
    delivery: Annotated[str, typer.Option(help="bare, batch (type 5) or counted (types 5 and 13).")] = "bare",
    standby: Annotated[bool, typer.Option(help="Allow a standby binding that follows and can take over.")] = False,
    checkpoint_log: Annotated[str, typer.Option(help="Request a checkpoint after this much log.")] = "128MiB",
    checkpoints_kept: Annotated[int, typer.Option(help="Checkpoints to keep with their log; 0 keeps all.")] = 2,
    inbox_method: Annotated[
        int | None,
        typer.Option(help="Method for inbox records whose type is not a number; by default, the type is its name."),
    ] = None,
    clock: Annotated[bool, typer.Option(help="Send it the time; programs of headrace.immortals need it.")] = False,
    upgrade_version: Annotated[
        int | None, typer.Option(help="Version to run; higher than now makes the next recovery an upgrade.")
    ] = None,
) -> None:
    """Register an immortal, or change its options. Prints its ports."""
    options = {
        "receive": f"{host}:{receive_port}",
        "send": f"{host}:{send_port}",
        "sockets": sockets,
        "delivery": delivery,
        "standby": standby,
        "checkpoint_log_bytes": parse_bytes(checkpoint_log),
        "checkpoints_kept": checkpoints_kept,
        "inbox_method": inbox_method,
        "clock": clock,
        "upgrade_version": upgrade_version,
    }
    try:
        msgspec.convert(options, ImmortalSection)
    except msgspec.ValidationError as error:
        fail(str(error), code="bad-request", exit_code=2)
    info = answer.request("immortal.register", {"name": name, "options": options}, ImmortalInfo)
    answer.table(info, ["name", "receive", "send"], [[info.name, info.receive, info.send]])


@app.command("ls")
@sharing(answer=Answer)
def list_immortals(answer: Answer) -> None:
    """List immortals: state, ports, log, pending calls, and last error."""
    columns = [
        "name", "state", "receive", "send", "#records", "#messages", "#undelivered", "#pending", "checkpoint", "error",
    ]  # fmt: skip
    with answer.connect() as client:
        immortals = client.entries("immortal.list", {}, ImmortalInfo)
        answer.listing(immortals, columns, _row, empty="no immortals; `headrace immortal register NAME`")


def _row(info: ImmortalInfo) -> list[Any]:
    newest = info.checkpoints[-1] if info.checkpoints else None
    shown = None if newest is None else f"{newest.id} at {newest.position}, {newest.size} B"
    return [
        info.name, info.state, info.receive, info.send, info.sequence, info.log_next - info.log_first,
        info.undelivered, info.pending, shown, info.last_error,
    ]  # fmt: skip


@app.command()
@sharing(answer=Answer)
def log(
    answer: Answer,
    name: Name,
    start: Annotated[
        int | None, typer.Option("--from", help="First index; by default, the last messages are shown.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="Number of messages.")] = 50,
) -> None:
    """Show logged messages, decoded."""
    request = {"name": name, "start": start, "limit": limit}
    messages = answer.request("immortal.log", request, list[LoggedMessage])
    rows = [
        [m.index, m.sequence, _time(m.time_us), m.sender, m.kind, m.name or m.method, m.call_number, m.text or m.base64,
         None if m.cause is None else _place(m.cause), ", ".join(map(_place, m.led_to))]
        for m in messages
    ]  # fmt: skip
    columns = ["#index", "#record", "time", "sender", "kind", "method", "#call", "arguments", "cause", "led to"]
    answer.table(messages, columns, rows, empty="nothing logged")


def _place(place: Place) -> str:
    return f"{place.name} {place.index}"


def _time(time_us: int) -> str:
    return datetime.datetime.fromtimestamp(time_us / 1e6, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


@app.command()
@sharing(answer=Answer)
def call(
    answer: Answer,
    name: Name,
    method: Annotated[str, typer.Argument(help="Method, or query.", show_default=False)],
    arguments: Annotated[str, typer.Argument(help="Arguments, a JSON object.")] = "{}",
    key: Annotated[str | None, typer.Option(help="Which instance of a keyed immortal.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Calls with the same key run once.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait for the result; otherwise only until the call is on disk.")] = True,
    max_age_s: Annotated[
        float | None, typer.Option(help="Let a standby answer a query if it is at most this far behind.")
    ] = None,
) -> None:
    """Call a method of an immortal, and print what it returns as JSON."""
    request = {
        "name": name,
        "method": method,
        "arguments": _json(arguments, "arguments", dict[str, Any]),
        "key": key,
        "idempotency_key": idempotency_key,
        "max_age_s": max_age_s,
    }
    if wait:
        said = answer.request("immortal.call", request, dict[str, Any])
        print_json(said.get("value"))
        if said.get("age_s") is not None:
            typer.echo(f"a standby answered, {said['age_s']:.3f} s behind at most", err=True)
    else:
        answer.request("immortal.call", {**request, "wait_s": 0}, dict[str, Any])


@app.command()
@sharing(answer=Answer)
def fulfil(
    answer: Answer,
    name: Name,
    token_id: Annotated[str, typer.Argument(help="What the method handed out.", show_default=False)],
    value: Annotated[str, typer.Argument(help="The value, as JSON.")] = "null",
    error: Annotated[str | None, typer.Option(help="Instead of a value: raise an error with this reason.")] = None,
) -> None:
    """Give a method that waits for a token its value."""
    params = {"name": name, "token": token_id, "value": _json(value, "value", Any), "error": error}
    answer.request("immortal.fulfil", params, dict[str, Any])


@app.command()
@sharing(answer=Answer)
def cancel(
    answer: Answer,
    name: Name,
    idempotency_key: Annotated[str, typer.Argument(help="The key that it was called with.", show_default=False)],
    reason: Annotated[str, typer.Option(help="The value that the method gets.")] = "cancelled",
) -> None:
    """Cancel a call that is under way: `Cancelled` is raised where it waits."""
    params = {"name": name, "idempotency_key": idempotency_key, "reason": reason}
    answer.request("immortal.cancel", params, dict[str, Any])


def _json(text: str, what: str, kind: Any) -> Any:
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        wanted = "a JSON object" if kind is not Any else "JSON"
        fail(f"{what} must be {wanted}: {error}", code="bad-request", exit_code=2)


@app.command()
@sharing(answer=Answer)
def instances(
    answer: Answer,
    name: Name,
    pattern: Annotated[str, typer.Option(help="Only keys that match this pattern, such as `ali*`.")] = "*",
    after: Annotated[str, typer.Option(help="Only keys after this one.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="Number of records.")] = 1_000,
) -> None:
    """List the instances of a keyed immortal, by key."""
    request = {"name": name, "pattern": pattern, "after": after, "limit": limit}
    keys = answer.request("immortal.instances", request, list[str])
    answer.table(keys, ["key"], [[key] for key in keys], empty="no instances")


@app.command()
@sharing(answer=Answer)
def checkpoint(answer: Answer, name: Name) -> None:
    """Ask the running binding for a checkpoint, and wait until it is on disk."""
    info = answer.request("immortal.checkpoint", {"name": name}, CheckpointInfo)
    answer.table(info, ["#checkpoint", "#position", "#bytes"], [[info.id, info.position, info.size]])


@app.command()
@sharing(hub=HubOptions)
def hand_over(hub: HubOptions, name: Name) -> None:
    """Move an immortal: its standby, a second program running elsewhere, takes over now."""
    hub.call("immortal.hand-over", {"name": name})


@app.command()
@sharing(answer=Answer)
def replay(
    answer: Answer,
    name: Name,
    checkpoint: Annotated[
        int | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Checkpoint to start from; the newest by default."),
    ] = None,
    until: Annotated[
        int | None, typer.Option(metavar="INDEX", help="Stop before this logged message; by default, replay all.")
    ] = None,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="A what-if test: the upgrade comes before the log.")
    ] = False,
    tell_end: Annotated[
        bool,
        typer.Option(
            "--tell-end", help="At the end of the log, request a checkpoint from the binding, without keeping it."
        ),
    ] = False,
) -> None:
    """Time travel: open a pair of ports where a binding under a debugger sees the past and can change nothing."""
    request = {"name": name, "checkpoint": checkpoint, "until": until, "upgrade": upgrade, "tell_end": tell_end}
    ports = answer.request("immortal.replay", request, DebugPorts)
    columns = ["receive", "send", "#checkpoint", "#first", "#next"]
    answer.table(ports, columns, [[ports.receive, ports.send, ports.checkpoint, ports.first, ports.next]])


@app.command("import")
@sharing(answer=Answer)
def import_instance(
    answer: Answer,
    directory: Annotated[
        Path, typer.Argument(help="Its INSTANCE_VERSION, below the hub's ambrosia.import_root.", show_default=False)
    ],
    name: Annotated[str, typer.Argument(help="Name of the new immortal.", show_default=False)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check the files and show what they hold.")] = False,
    accept_damage: Annotated[
        bool, typer.Option("--accept-damage", help="Import what comes before the damage, if there is any.")
    ] = False,
    receive_port: Annotated[int, typer.Option(help="Port on which the hub receives; 0 for any.")] = 0,
    send_port: Annotated[int, typer.Option(help="Port on which the hub sends; 0 for any.")] = 0,
    host: Annotated[str, typer.Option(help="Address of both ports.")] = "127.0.0.1",
) -> None:
    """Import an instance of the published coordinator: its checkpoint, its log and calls nobody acknowledged.

    A relative directory is taken from ambrosia.import_root, which is headrace-imports beside the data directory unless
    set.
    """
    request = {
        "name": name,
        "directory": str(directory),
        "dry_run": dry_run,
        "accept_damage": accept_damage,
        "options": {"receive": f"{host}:{receive_port}", "send": f"{host}:{send_port}"},
    }
    info = answer.request("immortal.import", request, ImportInfo)
    records = f"{info.next - info.first} from {info.first} on" if info.next > info.first else "none"
    rows = [
        ["imported", "yes" if info.imported else "no: a dry run"],
        ["instance", f"{info.instance}, version {info.version}, committer {info.committer}"],
        ["checkpoint", f"{info.checkpoint}, {info.state_bytes} B of state"],
        ["records", f"{records}, {info.messages} messages"],
        *(["processed", f"{peer.calls} calls and {peer.impulses} impulses of {peer.name}"] for peer in info.senders),
        *(["called", _called(calls)] for calls in info.calls),
        *(["note", note] for note in info.notes),
        *(["damage", damage] for damage in info.damage),
    ]
    answer.table(info, ["what", "found"], rows)


def _called(calls: CallsTo) -> str:
    left_out = f", {calls.impulses_left_out} impulses left out" if calls.impulses_left_out else ""
    return f"{calls.name}: {calls.calls} calls, {calls.waiting} of them not acknowledged{left_out}"


@app.command()
@sharing(hub=HubOptions)
def forget(
    hub: HubOptions,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove an immortal, or a name that was only ever called: its log, checkpoints and pending calls."""
    if not yes:
        typer.confirm(f"Remove {name!r} with its log and checkpoints?", abort=True)
    hub.call("immortal.forget", {"name": name})


@app.command()
def proxy(
    target: Annotated[str, typer.Argument(metavar="MODULE:CLASS", help="The immortal's class.", show_default=False)],
) -> None:
    """Write a typed proxy class for an immortal written in Python, to standard output."""
    from headrace.protocols.ambrosia.client import generate_proxy

    module_name, _, class_name = target.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        immortal_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        fail(f"{target!r} is not MODULE:CLASS of an immortal: {error}", code="bad-request", exit_code=2)
    if not (isinstance(immortal_class, type) and issubclass(immortal_class, Immortal)):
        fail(f"{target!r} is not a class derived from Immortal", code="bad-request", exit_code=2)
    typer.echo(generate_proxy(immortal_class), nl=False)


@app.command()
@sharing(answer=Answer)
def check(
    answer: Answer,
    name: Name,
    file: Annotated[str, typer.Argument(metavar="FILE[:CLASS]", help="The new program.", show_default=False)],
    checkpoint: Annotated[
        int | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Checkpoint to start from; the oldest one kept by default."),
    ] = None,
    beside: Annotated[
        str | None,
        typer.Option(metavar="FILE[:CLASS]", help="The program that ran: show what both do with each call."),
    ] = None,
    all_calls: Annotated[
        bool, typer.Option("--all", help="With --beside, show calls that both do the same with, too.")
    ] = False,
) -> None:
    """Replay an immortal's past to new code before you deploy it, and show the first difference, or all beside the old
    code."""
    from headrace.immortals.checking import Checked
    from headrace.immortals.checking import check as replayed
    from headrace.immortals.comparing import Compared
    from headrace.immortals.comparing import compare as replayed_twice
    from headrace.protocols.ambrosia.binding.immortal import StateError
    from headrace.protocols.ambrosia.binding.methods import DeclarationError

    kind = _immortal_in(file)
    checked: Checked | Compared
    with answer.connect() as client:
        try:
            if beside is None:
                checked = asyncio.run(replayed(kind, name, client, checkpoint))
            else:
                checked = asyncio.run(replayed_twice(_immortal_in(beside), kind, name, client, checkpoint))
        except (StateError, DeclarationError) as error:
            fail(f"{file} cannot continue as {name}: {error}", code="diverged")
    if isinstance(checked, Compared):
        _show_compared(answer, checked, all_calls)
        if checked.not_logged is not None:
            fail(f"{beside} is not the program that ran as {name}: {checked.not_logged}", code="diverged")
    if checked.difference is not None:
        fail(f"{file} does not do what {name} did: {checked.difference}", code="diverged")
    if isinstance(checked, Checked):
        rows = [[checked.checkpoint, checked.messages, "the same"]]
        answer.table(checked, ["#checkpoint", "#messages", "what it says"], rows)


def _show_compared(answer: Answer, compared: Compared, all_calls: bool) -> None:
    shown = [step for step in compared.steps if all_calls or step.differs]
    rows = [[step.index, step.message, *(_did(did) for did in (step.before, step.after))] for step in shown]
    answer.table(
        msgspec.structs.replace(compared, steps=shown),
        ["#index", "call", "before", "after"],
        rows,
        empty=f"both do the same with all {compared.messages} messages",
    )


def _did(did: Did) -> str:
    """In words. The state is shown where it is known."""
    state = None if did.state is None else f"state {msgspec.json.encode(did.state).decode()}"
    return "; ".join([*did.results, *did.calls, *([state] if state else [])]) or "nothing"


def _immortal_in(file: str) -> type[Immortal]:
    """The class of a program, by its file and, if there are several, its name."""
    from headrace.immortals.running import only_read

    path, _, class_name = file.partition(":")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        fail(f"there is no Python file {path}", code="bad-request", exit_code=2)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with only_read():
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
            where = f", in line {lines[-1]}" if lines else ""  # errors of syntax say it themselves
            fail(f"{path} cannot be imported: {type(error).__name__}: {error}{where}", code="bad-request")
    found = {
        each.__name__: each
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Immortal) and each.__module__ == spec.name
    }
    if class_name not in found and (class_name or len(found) != 1):
        fail(
            f"{path} has {', '.join(found) or 'no immortal'}: name one, as {path}:CLASS",
            code="bad-request",
            exit_code=2,
        )
    return found[class_name] if class_name else next(iter(found.values()))


@app.command()
def decode(
    files: Annotated[list[Path], typer.Argument(help="serverlogN and serverchkptN files.", show_default=False)],
    as_json: JsonFlag = False,
) -> None:
    """Show log and checkpoint files of the published coordinator, message by message."""
    from headrace.protocols.ambrosia.files.description import decode_file

    try:
        decoded_files = [decode_file(file.name, file.read_bytes()) for file in files]
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", code="bad-request", exit_code=2)
    if as_json:
        print_json(decoded_files)
        return
    for decoded in decoded_files:
        typer.echo(f"{decoded.name}: {decoded.summary}")
        rows = [[m.sequence, m.kind, m.method, m.call_number, m.text or m.base64] for m in decoded.messages]
        if rows:
            print_table(["#record", "kind", "#method", "#call", "arguments"], rows)
