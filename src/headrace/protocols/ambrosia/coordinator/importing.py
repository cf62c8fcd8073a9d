"""An instance of the published coordinator becomes an immortal of this hub, and continues where it stopped.

Its checkpoint and the records after it are written into a log that nobody is registered for yet; then its calls that
nobody had acknowledged go where they were meant to; the registration comes last and makes all of it count. An import
that was interrupted before leaves a log without a registration, which the next one replaces.

Numbers are kept: a sender that was imported too says again what it had said, and that is known by its number, whichever
of the two came first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

import msgspec

from headrace.errors import BadRequest, Busy, LimitExceeded
from headrace.log.ops import Append, Op, SetProducer
from headrace.protocols.ambrosia.call_reader import RETURN_NAMES, Calls, label_of_call
from headrace.protocols.ambrosia.codec import Type
from headrace.protocols.ambrosia.coordinator.call_queue import Arrival, pack
from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator
from headrace.protocols.ambrosia.coordinator.instance import checkpoint_meta
from headrace.protocols.ambrosia.coordinator.store import (
    INITIAL_LABEL,
    SEQUENCE_PRODUCER,
    StreamNames,
    check_name,
    producer_of,
)
from headrace.protocols.ambrosia.files.instance import FoundInstance, SingleMessage, read_instance, single_messages
from headrace.protocols.ambrosia.files.layout import DiskRecord, Watermark
from headrace.protocols.ambrosia.settings import Delivery, ImmortalSection
from headrace.security.places import place_below

BLOB_PIECE_BYTES: Final = 1 << 20
TRANSACTION_BYTES: Final = 8 << 20
IMPORT_ROOT: Final = "ambrosia.import_root"
DELIVERIES: Final[dict[Type, Delivery]] = {
    Type.RPC: "bare",
    Type.RPC_BATCH: "batch",
    Type.COUNT_REPLAYABLE_RPC_BATCH: "counted",
}


def find(coordinator: Coordinator, directory: str) -> FoundInstance:
    """Read a directory below `ambrosia.import_root`. Blocks on the disk."""
    place = place_below(coordinator.hub.config.log.data, coordinator.settings.import_root, directory, IMPORT_ROOT)
    if not place.is_dir():
        raise BadRequest(f"there is no directory {place} on the hub's machine")
    return read_instance(place)


async def missing_calls(coordinator: Coordinator, name: str, found: FoundInstance) -> list[str]:
    """Calls that were acknowledged, so that nobody can say them again, and that the hub has not."""
    missing = []
    for destination, said in found.said.items():
        if not destination:
            known = _processed(found, b"")
        elif (instance := coordinator.instances.get(_text(destination))) is not None and instance.registration:
            known = instance.queue.count_of(name)
        else:
            continue  # calls wait for whoever comes by that name
        if known < said.acknowledged:
            missing.append(
                f"{_text(destination) or name} acknowledged {said.acknowledged} calls of {name}, and has {known}"
            )
    waiting = coordinator.instances.get(name)
    for sender, first in (await waiting.first_pending() if waiting is not None else {}).items():
        if (known := _processed(found, sender.encode())) < first - 1:
            missing.append(f"calls {known + 1} to {first - 1} of {sender}, which were acknowledged, are in no file")
    return missing


async def import_found(coordinator: Coordinator, name: str, found: FoundInstance, section: ImmortalSection) -> None:
    """Make it an immortal. What is damaged in it is left out: whoever calls this has said so."""
    refuse_known(coordinator, name)
    _check_sizes(coordinator, found)
    coordinator.importing.add(name)
    try:
        await _write_log(coordinator, name, found)
        await _send_waiting(coordinator, name, found)
    finally:
        coordinator.importing.discard(name)
    known = {
        "committer": found.checkpoint.committer,
        "upgrade_version": found.version,
        "delivery": DELIVERIES[found.delivery_type],
    }
    await coordinator.register(name, msgspec.structs.replace(section, **known))


def _check_sizes(coordinator: Coordinator, found: FoundInstance) -> None:
    limits = coordinator.limits
    for what, size, key in (
        ("bytes of a message", found.largest_bytes, "message_bytes_max"),
        ("bytes of a checkpoint", found.checkpoint.checkpoint.size, "checkpoint_bytes_max"),
    ):
        if size > (limit := getattr(limits, key)):
            raise LimitExceeded(what, size, limit, f"ambrosia.{key}")


def refuse_known(coordinator: Coordinator, name: str) -> None:
    """A name that is taken stays whose it is."""
    check_name(name, coordinator.settings.name_bytes_max)
    known = coordinator.instances.get(name)
    if known is not None and known.registration is not None:
        raise BadRequest(f"there is an immortal {name!r} already; import under another name, or forget that one first")
    if name in coordinator.importing:
        raise Busy(f"immortal {name!r} is being imported")


def _text(name: bytes) -> str:
    return name.decode(errors="replace")


def _processed(found: FoundInstance, source: bytes) -> int:
    return found.processed.get(source, Watermark(source, 0, 0)).last_replayable


# --- the log ---------------------------------------------------------------------------------------------------------


async def _write_log(coordinator: Coordinator, name: str, found: FoundInstance) -> None:
    hub, stream = coordinator.hub, StreamNames(name).log
    if hub.has_stream(stream):  # of an import that was interrupted
        await hub.delete_stream(stream)
    await hub.create_stream(stream)
    writer = await hub.begin_checkpoint(stream)
    try:
        pieces = found.blob(BLOB_PIECE_BYTES)
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            await writer.write(piece)
    except BaseException:
        await writer.abort()
        raise
    sent = {_text(destination) or name: said.replayable for destination, said in found.said.items()}
    await writer.commit(hub.bounds(stream).next, checkpoint_meta(sent, found.version, found.checkpoint.next_sequence))
    transactions = _transactions(found, name, stream)
    while (operations := await asyncio.to_thread(next, transactions, None)) is not None:
        await hub.transact(operations)


def _transactions(found: FoundInstance, name: str, stream: str) -> Iterator[list[Op]]:
    """The records, then the counters. A transaction holds about `TRANSACTION_BYTES`."""
    operations: list[Op] = []
    size = 0
    for record in found.records():
        arrivals = _arrivals(found, record, name)
        if arrivals:
            operations.append(Append(stream, pack(arrivals, record.sequence)[0]))
            size += len(record.payload)
        if size >= TRANSACTION_BYTES:
            yield operations
            operations, size = [], 0
    counts = {
        _text(mark.source) or name: (mark.last_replayable, mark.last - mark.last_replayable)
        for mark in found.processed.values()
    }
    sequence = found.next_sequence
    calls, number = _waiting(found, b"", _processed(found, b""))
    if calls:
        arrivals = [Arrival.of(name, each, (), None) for each in calls]
        operations.append(Append(stream, pack(arrivals, sequence)[0]))
        counts[name] = number, counts.get(name, (0, 0))[1]
        sequence += 1
    operations.append(SetProducer(stream, SEQUENCE_PRODUCER, sequence))
    for sender, numbers in counts.items():
        for number, replayable in zip(numbers, (True, False), strict=True):
            if number:
                operations.append(SetProducer(stream, producer_of(sender, replayable), number))
    yield operations


def _arrivals(found: FoundInstance, record: DiskRecord, name: str) -> list[Arrival]:
    source = found.source_of(record)
    sender = None if source is None else _text(source) or name
    return [
        Arrival.of(name if calls.label == INITIAL_LABEL else sender, calls, (), None)
        for calls in _grouped(single_messages(record.payload))
    ]


def _grouped(messages: Iterator[SingleMessage]) -> list[Calls]:
    """Consecutive messages that share a label, together."""
    groups: list[Calls] = []
    for message in messages:
        if message.body is None:
            label = INITIAL_LABEL
        elif message.method is None:
            label = RETURN_NAMES[message.body]
        else:
            label = label_of_call(message.method, message.rpc_type)
        if not groups or groups[-1].label != label:
            groups.append(Calls(b"", label, message.replayable))
        groups[-1].parts.append(message.data)
        groups[-1].lengths.append(len(message.data))
    return groups


# --- what it had said ------------------------------------------------------------------------------------------------


def _waiting(found: FoundInstance, destination: bytes, known: int) -> tuple[list[Calls], int]:
    """Its calls to one destination that are not known there, and the number of the last."""
    said = found.said.get(destination)
    if said is None:
        return [], 0
    return _grouped(single_messages(b"".join(said.waiting[max(0, known - said.acknowledged) :]))), said.replayable


async def _send_waiting(coordinator: Coordinator, name: str, found: FoundInstance) -> None:
    """What the binding said before its checkpoint it does not say again."""
    for destination in found.said:
        if not destination:
            continue
        instance = coordinator.destination(destination, name)
        calls, last = _waiting(found, destination, instance.queue.count_of(name))
        if not calls:
            continue
        await instance.wait_for_room()
        left = sum(each.count for each in calls)
        for each in calls:
            left -= each.count
            instance.queue.add(name, each, last - left)
        instance.queue.commit()
        await instance.queue.flushed()
