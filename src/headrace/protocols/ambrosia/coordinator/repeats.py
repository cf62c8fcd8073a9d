"""What a recovering binding says again, held against the log.

A recovery rests on code that says the same once more. Code that was changed without an upgrade, or that depends on what
no log knows, says something else, which would be taken for the call whose number it bears. So both are compared before
the checkpoint that ends the recovery counts.

Calls of one sender are numbered without a gap: the last one in a log has the number that its counter has, and the
others are found from there backwards. What one binding says again may have gaps, though: where several follow the same
log, each is the first to say some of it. What was trimmed, or waits in `pending`, cannot be compared.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.hub import Hub
from headrace.log.ops import Bounds
from headrace.protocols.ambrosia.call_reader import Calls
from headrace.protocols.ambrosia.codec import Call, RpcType, decode_messages
from headrace.protocols.ambrosia.coordinator.store import IMPULSE_PREFIX, INITIAL_LABEL
from headrace.protocols.ambrosia.description import describe_messages
from headrace.protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.coordinator.instance import Instance

logger = logging.getLogger("headrace.ambrosia")
COMPARE_BYTES: Final = 4 << 20
LOCATE_COUNT: Final = 65_536
SHOWN_CHARACTERS: Final = 200
NODE_POST_METHOD: Final = -1
NODE_ECHO: Final = "_echo"


@dataclass(slots=True)
class _Said:
    """Calls to one destination that are still to be compared, without a gap."""

    number: int
    """Of the first of them."""
    parts: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    at: int | None = None
    """Where in the log to look for it, once that is known."""

    @property
    def next(self) -> int:
        """The number behind the last of them."""
        return self.number + len(self.lengths)


class Repeats:
    """What one binding has said again."""

    def __init__(self, hub: Hub, sender: str) -> None:
        self._hub = hub
        self._sender = sender
        self._said: dict[Instance, list[_Said]] = {}
        self._comparing = asyncio.Lock()
        self._waiting_bytes = 0

    def add(self, destination: Instance, number: int, calls: Calls, count: int) -> None:
        """The first `count` of these calls are in the destination's log already; `number` is that of the first."""
        runs = self._said.setdefault(destination, [_Said(number)])
        if runs[-1].next != number:
            runs.append(_Said(number))
        said = runs[-1]
        payload = calls.payload()[: sum(calls.lengths[:count])]
        said.parts.append(payload)
        said.lengths += calls.lengths[:count]
        self._waiting_bytes += len(payload)

    @property
    def full(self) -> bool:
        """Whether the binding has to wait for the comparison."""
        return self._waiting_bytes > COMPARE_BYTES

    async def compare(self) -> None:
        """Compare all that was added; raises `RemoteProtocolError` with the first difference."""
        async with self._comparing:
            for destination, runs in list(self._said.items()):
                while runs and runs[0].lengths:
                    await self._compare(destination, runs[0])
                    if len(runs) > 1:
                        runs.pop(0)

    async def _compare(self, destination: Instance, said: _Said) -> None:
        calls = _Said(said.number, said.parts, said.lengths, said.at)
        said.number, said.parts, said.lengths, said.at = said.next, [], [], None
        self._waiting_bytes -= sum(calls.lengths)
        await destination.queue.flushed()
        if not destination.queue.to_log:
            return
        stream = destination.names.log
        last, bounds = destination.queue.durable_count(self._sender), self._hub.bounds(stream)
        try:
            said.at = await asyncio.to_thread(self._check, stream, bounds, last, calls)
        except HeadraceError as error:  # trimmed meanwhile, or damaged: no reason not to recover the sender
            logger.warning("immortal %s: its repeated calls are not compared: %s", self._sender, error)

    def _check(self, stream: str, bounds: Bounds, last: int, calls: _Said) -> int | None:
        """Compare with the log; returns where to go on. Blocks on the disk."""
        number, at = calls.number, calls.at
        if at is None:
            number, at = self._locate(stream, bounds, last, number)
        place = number - calls.number
        if place >= len(calls.lengths):
            return None
        payload = b"".join(calls.parts)
        start = sum(calls.lengths[:place])
        for records in self._hub.scan(stream, at, bounds.next):
            ours = records.filter(self._ours(records)).slice(0, len(calls.lengths) - place)
            lengths = calls.lengths[place : place + len(ours)]
            end = start + sum(lengths)
            logged = ours.column("payload").to_pylist()
            if b"".join(logged) != payload[start:end]:
                self._diverged(stream, calls.number + place, ours, lengths, payload[start:end])
            place, start = place + len(ours), end
            if place >= len(calls.lengths):
                return int(ours.column("index")[-1].as_py()) + 1 if len(ours) else None
        return None

    def _diverged(self, stream: str, number: int, records: pa.RecordBatch, lengths: list[int], said: bytes) -> None:
        start = 0
        for place, (index, logged) in enumerate(
            zip(records.column("index").to_pylist(), records.column("payload").to_pylist(), strict=True)
        ):
            again = said[start : start + lengths[place]]
            start += lengths[place]
            if again != logged and not _is_echo(logged, again):
                raise RemoteProtocolError(
                    f"call {number + place} of {self._sender} is {_shown(logged)} at index {index} of {stream}, and "
                    f"the recovering binding says {_shown(again)}: its code was changed without an upgrade, or depends "
                    "on something that is not logged. Start the code that was running before, and upgrade from it "
                    "(ambrosia.compare_repeats = false lets it pass)"
                )

    def _locate(self, stream: str, bounds: Bounds, last: int, number: int) -> tuple[int, int]:
        """The first call from `number` on that the log still has: its number and its index."""
        found, at, end = last + 1, bounds.next, bounds.next
        while end > bounds.first and found > number:
            start = max(bounds.first, end - LOCATE_COUNT)
            masks = [self._ours(records) for records in self._hub.scan(stream, start, end, columns=["type", "key"])]
            places = np.flatnonzero(np.concatenate([mask.to_numpy(zero_copy_only=False) for mask in masks]))
            taken = min(len(places), found - number)
            if taken:
                found, at = found - taken, start + int(places[-taken])
            end = start
        return max(found, number), at

    def _ours(self, records: pa.RecordBatch) -> pa.BooleanArray:
        """Which records are numbered calls of this sender."""
        label = records.column("type")
        is_other = pc.or_(pc.starts_with(label, pattern=IMPULSE_PREFIX), pc.equal(label, INITIAL_LABEL))
        is_ours = pc.equal(records.column("key"), pa.scalar(self._sender.encode(), pa.binary()))
        return pc.and_not(is_ours, is_other).fill_null(False)


def _is_echo(logged: bytes, again: bytes) -> bool:
    """Whether both are the call with which the Node binding has something logged that no replay could find again, such
    as the time. It says what it finds now, and goes on with what comes back from the log."""
    before, now = (_posted(message) for message in (logged, again))
    return before == now and before.get("methodName") == NODE_ECHO


def _posted(message: bytes) -> dict[str, Any]:
    """What a call of a Node method by its name says, but for the arguments; nothing for any other message."""
    try:
        (call,) = decode_messages(message, addressed=False)
        if isinstance(call, Call) and call.method == NODE_POST_METHOD and call.rpc_type == RpcType.FORK:
            fields = msgspec.json.decode(call.arguments, type=dict[str, Any])
            return {name: value for name, value in fields.items() if not name.startswith("arg:")}
    except (RemoteProtocolError, msgspec.MsgspecError, ValueError):
        pass
    return {}


def _shown(message: bytes) -> str:
    described = describe_messages(message)[0]
    kind = described["kind"] if described.get("method") is None else f"{described['kind']}/{described['method']}"
    return f"{kind} {described.get('text') or described.get('base64') or ''}"[:SHOWN_CHARACTERS].rstrip()
