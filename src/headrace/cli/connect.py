"""`headrace connect`: feed a stream through the Wallaroo connector protocol, from a file, from lines, or made up.

Sends again nothing that the hub has: stop it, kill it, kill the hub, and start it again.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import DownloadColumn, MofNCompleteColumn, ProgressColumn, TimeRemainingColumn

from headrace.cli.options import sharing
from headrace.cli.output import notes, print_json, progress_bar
from headrace.errors import BadRequest
from headrace.protocols.wallaroo.client import Connector, Source
from headrace.protocols.wallaroo.client_session import Item
from headrace.protocols.wallaroo.sources import FileSource, GenerateSource
from headrace.protocols.wallaroo.trace import GENERATIONS, read_trace

app = typer.Typer(no_args_is_help=True)

DEFAULT_ADDRESS = "127.0.0.1:7100"
READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 4 * 1024 * 1024
"""As much as a frame may have by default."""

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def make_connector(
    to: Annotated[
        str, typer.Option("--to", metavar="HOST:PORT", help="The hub's Wallaroo listener.")
    ] = DEFAULT_ADDRESS,
    cookie: Annotated[
        str, typer.Option("--cookie", envvar="HEADRACE_WALLAROO_COOKIE", help="The cookie that the hub asks for.")
    ] = "",
    instance: Annotated[
        str, typer.Option("--instance", help="Instance name; the stream is then called INSTANCE.STREAM.")
    ] = "",
    dialect: Annotated[
        str, typer.Option("--dialect", help="v3 (published connectors) or draft (the specification).")
    ] = "v3",
    tls: Annotated[bool, typer.Option("--tls", help="Connect with TLS.")] = False,
    tls_ca: Annotated[Path | None, typer.Option("--tls-ca", help="Trust this certificate authority (PEM).")] = None,
) -> Connector:
    """What the options that all commands share stand for."""
    if dialect not in ("v3", "draft"):
        raise typer.BadParameter(f"{dialect!r} is neither v3 nor draft", param_hint="--dialect")
    try:
        context = ssl.create_default_context(cafile=tls_ca) if tls or tls_ca else None
    except OSError as error:
        raise typer.BadParameter(f"cannot use {tls_ca}: {error.strerror or error}", param_hint="--tls-ca") from None
    return Connector(to, dialect=dialect, cookie=cookie, instance=instance, program="headrace connect", tls=context)


@app.callback()
def connect() -> None:
    """Feed a stream as a TCP source connector, resuming exactly after the last durable record."""


@app.command("file")
@sharing(connector=make_connector)
def connect_file(
    connector: Connector,
    path: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The file to send.")],
    stream: Annotated[
        str | None, typer.Option("--stream", help="Name of the stream; the file's name if left out.")
    ] = None,
    framed: Annotated[
        bool, typer.Option("--framed", help="Each record is preceded by its length, a big-endian u32.")
    ] = False,
    skip: Annotated[int, typer.Option("--skip", min=0, help="Skip this many records at the beginning.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Send each line of a file as one record. The message id is the offset after the line, so a file that has grown can
    be sent again and only its new lines travel."""
    with FileSource(path, stream=stream, framed=framed, skip=skip) as source:
        point = asyncio.run(_run(connector, source, source.size, DownloadColumn(), quiet))
    _done(source.name, point, connector, as_json)


@app.command("generate")
@sharing(connector=make_connector)
def connect_generate(
    connector: Connector,
    stream: Annotated[str, typer.Option("--stream", help="Name of the stream.")],
    count: Annotated[int, typer.Option("--count", min=1, help="Total number of records.")] = 1_000,
    size: Annotated[int, typer.Option("--size", min=0, help="Bytes of each payload.")] = 100,
    seed: Annotated[int, typer.Option("--seed", help="The same seed makes the same records.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Send generated records, to try things out or to create load."""
    source = GenerateSource(stream=stream, count=count, size=size, seed=seed)
    point = asyncio.run(_run(connector, source, count, MofNCompleteColumn(), quiet))
    _done(stream, point, connector, as_json)


@app.command("lines")
@sharing(connector=make_connector)
def connect_lines(
    connector: Connector,
    stream: Annotated[str, typer.Option("--stream", help="Name of the stream.")],
    as_json: Json = False,
) -> None:
    """Send each line of standard input as it comes: `tail -F app.log | headrace connect lines --stream app`. Ids
    continue from the last one that the hub has."""
    point = asyncio.run(_send_lines(connector, stream))
    _done(stream, point, connector, as_json)


@app.command("trace")
def connect_trace(
    path: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="Captured bytes of one direction.")],
    generation: Annotated[str, typer.Option("--generation", help="One of: " + ", ".join(GENERATIONS))] = "v3-2020",
) -> None:
    """Print the frames of a captured connection, one per line, whatever version of the protocol it uses."""
    if generation not in GENERATIONS:
        raise typer.BadParameter(f"{generation!r} is not one of {', '.join(GENERATIONS)}", param_hint="--generation")
    for seen in read_trace(path.read_bytes(), GENERATIONS[generation]):
        print(f"{seen.offset:>10}  {seen.fault or seen.frame!r}" + (f"  {seen.inner!r}" if seen.inner else ""))


async def _run(connector: Connector, source: Source, total: int, counter: ProgressColumn, quiet: bool) -> int | None:
    with progress_bar(counter, TimeRemainingColumn(), quiet=quiet, transient=False) as bar:
        task = bar.add_task(source.name, total=total)
        async with connector:
            return await connector.run(source, lambda point: bar.update(task, completed=point))


async def _standard_input() -> Callable[[], Awaitable[bytes]]:
    """A function that reads whatever has come. A loop can only wait for what may be silent for a while."""
    number = sys.stdin.fileno()
    mode = os.fstat(number).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)):
        return lambda: asyncio.to_thread(os.read, number, READ_BYTES)
    reader = asyncio.StreamReader(limit=READ_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.dup(number), "rb")
    )
    return lambda: reader.read(READ_BYTES)


async def _send_lines(connector: Connector, name: str) -> int | None:
    read = await _standard_input()
    async with connector:
        stream = await connector.stream(name)
        next_id = (stream.point or 0) + 1
        rest = b""
        while data := await read():
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise BadRequest(f"line {next_id + len(lines)} is longer than {LINE_BYTES_MAX} bytes: is this text?")
            await stream.send_many(Item(next_id + n, line.removesuffix(b"\r")) for n, line in enumerate(lines))
            next_id += len(lines)
        if rest:
            await stream.send_many([Item(next_id, rest)])
        await stream.flush()
        await stream.end()
        return stream.point


def _done(stream: str, point: int | None, connector: Connector, as_json: bool) -> None:
    result: dict[str, Any] = {"stream": stream, "point": point, "connections": connector.connections}
    if as_json:
        print_json(result)
    else:
        where = "nothing was sent" if point is None else f"durable up to {point}"
        notes().print(f"stream {stream}: {where}")
