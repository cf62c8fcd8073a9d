"""Which transactions have a body that is written before its frame (ahead.py), and what else their frames hold."""

from __future__ import annotations

from typing import Final

from headrace.log import ahead, ops
from headrace.log.frame import RECORDS, ProducerSet, encode_event
from headrace.log.pending import Pending
from headrace.log.state import State

MOST: Final = 2**64 - 1


def body_of(pending: Pending, state: State) -> tuple[bytes, int] | None:
    """The body of the only records that a transaction stores, if it is large, and the bytes of its directory at most.
    Producers may be set beside it."""
    if pending.nbytes < ahead.LARGE_BYTES:
        return None
    set_beside = [op for op in pending.operations if isinstance(op, ops.SetProducer)]
    storing = [op for op in pending.operations if not isinstance(op, ops.SetProducer)]
    if len(storing) != 1:
        return None
    producer = ""
    match storing[0]:
        case ops.Append() as op if state.may_take(op):
            records, producer = op.batch, op.producer or ""
        case ops.Put() | ops.PutMany() as op:
            pending.prepared = records = op.records()
        case _:
            return None
    if len(records.body) < ahead.LARGE_BYTES:
        return None
    events = (encode_event(ProducerSet(MOST, MOST, _encodable(op.producer), MOST)) for op in set_beside)
    return records.body, RECORDS.size + len(_encodable(producer).encode()) + sum(map(len, events))


def _encodable(name: str) -> str:
    """One that cannot be encoded is refused by the commit."""
    return name.encode(errors="replace").decode()
