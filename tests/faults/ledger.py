"""Transactions over every noun, asked for in lines of text: a protocol that the hubs of `takeovers.py` serve.

    do WRITER ROUND     ok | error WHY      once the round is durable, now or before

A round is one transaction: records for two streams, a row of a table, a move of a cursor, the position of a producer
and, every `CHECKPOINT_EVERY` rounds, a checkpoint in the place of the one before. Everything in it follows from its
writer and number, so that a judge knows what must be there.
"""

from __future__ import annotations

import asyncio

from headrace.errors import ConditionFailed, HeadraceError
from headrace.hub import Hub
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.log import Log
from headrace.serving.listener import Listener

MANY, ONE, ROWS = "ledger/many", "ledger/one", "ledger.rounds"
CHECKPOINT_EVERY = 8
LARGE_EVERY = 50
LARGE_BYTES = 1_200_000
"""A commit of two messages."""


# -- what a round is ---------------------------------------------------------------------------------------------------


def payloads(writer: str, round: int) -> list[bytes]:
    many = [b"%s %d %d" % (writer.encode(), round, number) for number in range(1 + round % 5)]
    if round % LARGE_EVERY == LARGE_EVERY - 1:
        many[0] += b"x" * LARGE_BYTES
    return many


def has_checkpoint(round: int) -> bool:
    return round % CHECKPOINT_EVERY == 0


def blob(writer: str, round: int) -> bytes:
    return b"%s %d\n" % (writer.encode(), round) * 200


async def do(hub: Hub, writer: str, round: int) -> None:
    operations: list[ops.Op] = [
        ops.Append(MANY, Batch.of(payloads(writer, round)), producer=writer, sequence=round),
        ops.Append(ONE, Batch.one(b"%s %d" % (writer.encode(), round))),
        ops.Put(ROWS, writer.encode(), b"%d" % round),
        ops.SaveCursor(writer, ONE, round),
        ops.SetProducer(ONE, writer, round),
    ]
    made = None
    if has_checkpoint(round):
        before = [info for info in hub.checkpoints(MANY) if info.meta["writer"] == writer]
        made = await asyncio.to_thread(hub._log.begin_checkpoint, MANY)
        await asyncio.to_thread(made.write, blob(writer, round))
        await asyncio.to_thread(made.finish)
        meta = {"writer": writer, "round": str(round)}
        operations.append(ops.RegisterCheckpoint(made.id, MANY, round, made.size, meta))
        operations += [ops.DropCheckpoint(info.id) for info in before]
    try:
        await hub.transact(operations)
    except ConditionFailed:  # the sequence is stored: the transaction is, since it is one
        if made is not None:
            await asyncio.to_thread(made.abort)


async def serve(hub: Hub, address: str) -> Listener:
    for stream in (MANY, ONE):
        if not hub.has_stream(stream):
            await hub.create_stream(stream)
    if not hub.has_stream(ROWS):
        await hub.create_table(ROWS)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                _, who, round = line.decode().split()
                try:
                    await do(hub, who, int(round))
                    writer.write(b"ok\n")
                except HeadraceError as error:
                    writer.write(f"error {error.code} {error}\n".replace("\n", " ").encode() + b"\n")
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    host, _, port = address.rpartition(":")
    server = await asyncio.start_server(answer, host, int(port))

    async def stop() -> None:
        server.close()

    return Listener("{}:{}".format(*server.sockets[0].getsockname()), stop)


# -- the judge ---------------------------------------------------------------------------------------------------------


def judge(log: Log, rounds: dict[str, int]) -> int:
    """Whether a log holds, of each writer, so many rounds from 0 on, each whole and once; how many records."""
    many, one = texts(log, MANY), texts(log, ONE)
    expected = []
    seen = dict.fromkeys(rounds, 0)
    for text in one:
        writer, _, round = text.rpartition(b" ")
        name = writer.decode()
        assert int(round) == seen[name], f"{name}: round {round.decode()} stands where {seen[name]} comes next"
        seen[name] += 1
        expected += payloads(name, int(round))
    assert seen == rounds, f"acknowledged {rounds}, stored {seen}"
    assert many == expected, "the transactions of both streams differ, or their order does"
    checkpoints = {info.meta["writer"]: info for info in log.checkpoints()}
    assert len(checkpoints) == len(log.checkpoints()) == sum(count > 0 for count in rounds.values())
    for writer, count in rounds.items():
        if not count:
            continue
        last = count - 1
        found = log.table_get(ROWS, writer.encode()), log.cursor(writer, ONE), log.producer(ONE, writer)
        assert found == (b"%d" % last, last, last), f"{writer}: {found} after round {last}"
        assert log.producer(MANY, writer) == last
        info = checkpoints[writer]
        round = last - last % CHECKPOINT_EVERY
        assert (info.position, info.meta["round"]) == (round, str(round))
        assert b"".join(log.read_checkpoint(info.id)) == blob(writer, round)
    return len(many) + len(one)


def texts(log: Log, stream: str) -> list[bytes]:
    """All payloads of a stream; its indexes are dense from 0."""
    bounds = log.bounds(stream)
    assert bounds.first == 0
    found: list[bytes] = []
    for batch in log.scan(stream, 0, bounds.next):
        assert batch.column("index").to_pylist() == list(range(len(found), len(found) + batch.num_rows))
        found += batch.column("payload").to_pylist()
    return found
