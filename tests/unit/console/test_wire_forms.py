"""One record in five protocols: the bytes are what the protocols' own decoders read back."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.console.wire_forms import record_frames
from headrace.protocols.descriptor import SeenRecord
from headrace.protocols.ockam.codec import decode_response
from headrace.protocols.wallaroo.codec import V3

records = st.builds(
    SeenRecord,
    index=st.integers(0, 2**62),
    time_us=st.integers(0, 2**50),
    payload=st.binary(max_size=300),
    event_time_us=st.none() | st.integers(-(2**63), 2**63 - 1),
    id=st.none() | st.integers(-(2**63), 2**63 - 1),
    type=st.none() | st.sampled_from(["ORDER", "not a type"]),
    key=st.none() | st.binary(max_size=20),
)


@given(records)
def test_every_byte_is_marked_and_every_protocol_is_there(record: SeenRecord) -> None:
    frames = record_frames(record)
    assert [frame.protocol for frame in frames] == ["wallaroo", "ockam", "futoin", "perper", "ambrosia"]
    for frame in frames:
        assert sum(field.size for field in frame.fields) * 2 == len(frame.hex)
        assert all(field.size >= 0 for field in frame.fields)


def test_a_protocol_that_cannot_carry_the_record_is_left_out() -> None:
    record = SeenRecord(index=0, time_us=0, payload=b"x", key=bytes(2**16))
    assert [frame.protocol for frame in record_frames(record)] == ["ockam", "futoin", "perper", "ambrosia"]


@given(records)
def test_the_bytes_say_what_the_record_says(record: SeenRecord) -> None:
    frames = {frame.protocol: bytes.fromhex(frame.hex) for frame in record_frames(record)}
    message = V3.decode(frames["wallaroo"][4:])
    assert message.payload == record.payload  # type: ignore[union-attr]
    pulled = decode_response(frames["ockam"])
    assert [(one.index, one.data) for one in pulled.messages] == [(record.index, record.payload)]  # type: ignore[union-attr]
    event = msgspec.json.decode(frames["futoin"])
    assert event["id"] == str(record.index + 1)
    assert frames["perper"] == b"\x0c" + len(record.payload).to_bytes(4, "little") + record.payload
    assert frames["ambrosia"].endswith(record.payload)
