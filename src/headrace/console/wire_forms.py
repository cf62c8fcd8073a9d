"""The same record as each protocol would send it, byte for byte, with its fields marked.

The bytes come from the protocols' own encoders; the marks are the lengths of the parts they are made of.
"""

from __future__ import annotations

import msgspec

from headrace.protocols.descriptor import Field, SeenRecord, protocols


class ProtocolFrame(msgspec.Struct, frozen=True):
    """A record on one protocol's wire. The sizes of `fields` add up to the bytes."""

    protocol: str
    message: str
    hex: str
    fields: list[Field]


def record_frames(record: SeenRecord) -> list[ProtocolFrame]:
    """One frame for each protocol that shows records and can carry this one."""
    frames = []
    for protocol in protocols():
        if (form := protocol.shown().wire_form(record)) is not None:
            marked = sum(field.size for field in form.fields)
            assert marked == len(form.data), f"{protocol.name}: {marked} bytes are marked of {len(form.data)}"
            frames.append(ProtocolFrame(protocol.name, form.message, form.data.hex(), form.fields))
    return frames
