"""Fuzz target: what a binding or a hub might be sent. `fuzz(data)` must never raise anything of its own."""

from __future__ import annotations

from contextlib import suppress

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.call_reader import Calls, Event, Malformed, MessageReader
from headrace.protocols.ambrosia.codec import Blob
from headrace.protocols.ambrosia.files import layout
from headrace.protocols.ambrosia.record_reader import RecordReader
from headrace.protocols.ambrosia.settings import Ambrosia
from headrace.protocols.errors import RemoteProtocolError

LIMITS = Ambrosia(message_bytes_max=1 << 16, checkpoint_bytes_max=1 << 16)


def fuzz(data: bytes) -> None:
    """All parsers; the fast reader must not care how its bytes were cut, and must agree with the plain codec."""
    whole = _read([data])
    cut = data[0] % 7 + 1 if data else 1
    assert _flat(whole) == _flat(_read([data[at : at + cut] for at in range(0, len(data), cut)]))
    for event in whole:
        if isinstance(event, Calls):
            payload = event.payload()
            assert sum(event.lengths) == len(payload)
            assert len(codec.decode_messages(payload, addressed=False)) == event.count
    for addressed in (False, True):
        try:
            messages = codec.decode_messages(data, addressed=addressed)
        except RemoteProtocolError:
            continue
        again = b"".join(map(codec.encode, messages))
        assert codec.decode_messages(again, addressed=addressed) == messages
    for read in (RecordReader(1 << 20).feed, layout.decode_disk_record, layout.decode_checkpoint_head, layout.read_log):
        with suppress(RemoteProtocolError):
            read(data)


def _read(pieces: list[bytes]) -> list[Event]:
    reader = MessageReader(LIMITS)
    return [event for piece in pieces for event in reader.feed(piece)]


def _flat(events: list[Event]) -> list[object]:
    """Events without the borders that depend on how the bytes were cut."""
    flat: list[object] = []
    for event in events:
        if isinstance(event, Calls):
            flat += [(event.destination, event.label)] * event.count + [event.payload()]
        elif isinstance(event, Blob):
            flat += [bytes((byte,)) for byte in event.data] + ([b"end"] if event.last else [])
        else:
            flat.append(type(event) if isinstance(event, Malformed) else event)
    calls = [each for each in flat if isinstance(each, tuple)]
    blob = b"".join(each for each in flat if isinstance(each, bytes))
    return [calls, blob, [each for each in flat if not isinstance(each, (tuple, bytes))]]
