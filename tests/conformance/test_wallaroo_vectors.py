"""Every vector decodes to its fields and encodes to its bytes, in its own dialect, and splits at every byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.protocols.wallaroo import frames, two_phase
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect, detect
from headrace.protocols.wallaroo.codec_v2 import V2_2018_12, V2_2019_03
from headrace.protocols.wallaroo.frames import Frame, Message
from headrace.protocols.wallaroo.scan import FrameBuffer, Rows

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "wallaroo.json").read_text())
DIALECTS: dict[str, Dialect] = {d.name: d for d in (DRAFT, V3, V2_2018_12, V2_2019_03)}
LITERAL = "draft-2018-10/message/literal-payload"


def text(value: str | None) -> bytes | None:
    return None if value is None else value.encode()


def frame_of(fields: dict[str, Any], dialect: Dialect) -> Frame:
    """The fields of a vector as our frame."""
    match fields["type"]:
        case "HELLO":
            return frames.Hello(*(fields[name].encode() for name in ("version", "cookie", "program", "instance")))
        case "OK":
            listed = fields.get("points", fields.get("streams", []))
            return frames.Ok(
                fields["credits"],
                tuple((each["stream_id"], each["point_of_ref"]) for each in listed),
                tuple(each["name"].encode() for each in fields.get("streams", [])),
                tuple((each["name"].encode(), each["address"].encode()) for each in fields.get("sources", [])),
            )
        case "ERROR":
            return frames.Error(fields["reason"].encode())
        case "NOTIFY":
            return frames.Notify(fields["stream_id"], fields["name"].encode(), fields["point_of_ref"])
        case "NOTIFY_ACK":
            return frames.NotifyAck(fields["success"], fields["stream_id"], fields["point_of_ref"])
        case "ACK":
            pairs = tuple((a["stream_id"], a.get("message_id", a.get("point_of_ref"))) for a in fields["acks"])
            return frames.Ack(fields["credits"], pairs)
        case "NACK":
            return frames.Nack(fields["credits"], fields["stream_id"], fields["point_of_ref"])
        case "RESTART":
            return frames.Restart(text(fields["address"]))
        case "EOS_MESSAGE":
            return frames.Eos(fields["stream_id"])
        case "WORKERS_LEFT":
            return frames.WorkersLeft(fields["rtag"], tuple(name.encode() for name in fields["workers"]))
        case "MESSAGE":
            payload = None if fields["payload_hex"] is None else bytes.fromhex(fields["payload_hex"])
            event_time = fields["event_time"]
            if dialect is V3:
                event_time = event_time or None
            key = text(fields.get("key"))
            return Message(fields["stream_id"], fields["message_id"], payload, event_time, key, fields.get("flags", 0))
    raise AssertionError(f"vector type {fields['type']} is not known to this test")


def ids(vectors: list[dict[str, Any]]) -> list[str]:
    return [vector["name"] for vector in vectors]


def test_all_vectors_are_here() -> None:
    assert len(VECTORS) == 61
    assert {vector["dialect"] for vector in VECTORS} == set(DIALECTS)


@pytest.mark.parametrize("vector", VECTORS, ids=ids(VECTORS))
def test_vector_decodes_and_encodes(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    dialect = DIALECTS[vector["dialect"]]
    wanted = frame_of(vector["fields"], dialect)
    if vector["name"] == LITERAL:
        assert isinstance(wanted, Message)
        # The draft's constructors leave the stream id out; such a message is never emitted, and not served.
        message = DRAFT.decode(data[4:5] + bytes(8) + data[5:])
        assert message == msgspec.structs.replace(wanted, stream_id=0)
        assert DRAFT.encode(message)[4:] == data[4:5] + bytes(8) + data[5:]
        return
    assert dialect.decode(data[4:]) == wanted
    assert dialect.encode(wanted) == data


SERVED = [v for v in VECTORS if v["dialect"] in (DRAFT.name, V3.name) and v["name"] != LITERAL]


@pytest.mark.parametrize("vector", SERVED, ids=ids(SERVED))
def test_vector_split_at_every_byte(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    dialect = DIALECTS[vector["dialect"]]
    wanted = frame_of(vector["fields"], dialect)
    for cut in range(len(data) + 1):
        buffer = FrameBuffer(dialect=dialect)
        buffer.feed(data[:cut])
        early = buffer.next()
        buffer.feed(data[cut:])
        item = buffer.next() if early is None else early
        assert item is not None
        check_item(item, wanted)
        assert (early is not None) == (cut == len(data))
        assert buffer.next() is None
        assert buffer.held == 0


@pytest.mark.parametrize("vector", SERVED, ids=ids(SERVED))
def test_vector_twice_in_one_segment(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    dialect = DIALECTS[vector["dialect"]]
    wanted = frame_of(vector["fields"], dialect)
    buffer = FrameBuffer(dialect=dialect)
    buffer.feed(data + data)
    first = buffer.next()
    assert first is not None
    if isinstance(first, Rows):
        assert first.count == 2
        assert buffer.next() is None
        check_item(first.select(slice(0, 1)), wanted)
        check_item(first.select(slice(1, 2)), wanted)
    else:
        assert first == buffer.next() == wanted


def check_item(item: Frame | Rows, wanted: Frame) -> None:
    if not isinstance(item, Rows):
        assert item == wanted
        return
    assert isinstance(wanted, Message)
    assert item.count == 1
    assert int(item.stream_ids[0]) == wanted.stream_id
    assert int(item.message_ids[0]) == wanted.message_id
    assert item.payloads().to_pylist() == [wanted.payload or b""]
    keys = item.keys()
    assert (None if keys is None else keys.to_pylist()[0]) == wanted.key
    times = item.times(1, 1)
    assert (None if times is None else times.cast("int64").to_pylist()[0]) == wanted.event_time
    assert item.flags is None or int(item.flags[0]) == wanted.flags


TWO_PHASE = [v for v in VECTORS if "two_pc" in v["fields"]]


def inner_of(fields: dict[str, Any]) -> two_phase.Inner:
    match fields["type"]:
        case "LIST_UNCOMMITTED":
            return two_phase.ListUncommitted(fields["rtag"])
        case "REPLY_UNCOMMITTED":
            return two_phase.ReplyUncommitted(fields["rtag"], tuple(name.encode() for name in fields["txn_ids"]))
        case "PHASE1":
            ranges = tuple((each["stream_id"], each["start"], each["end"]) for each in fields["where"])
            return two_phase.Phase1(fields["txn_id"].encode(), ranges)
        case "REPLY":
            return two_phase.Reply(fields["txn_id"].encode(), fields["commit"])
        case "PHASE2":
            return two_phase.Phase2(fields["txn_id"].encode(), fields["commit"])
        case "WORKERS_LEFT":
            return two_phase.WorkersLeft(fields["rtag"], tuple(name.encode() for name in fields["workers"]))
    raise AssertionError(f"{fields['type']} is not known to this test")


@pytest.mark.parametrize("vector", TWO_PHASE, ids=ids(TWO_PHASE))
def test_two_phase_commit_inner_message(vector: dict[str, Any]) -> None:
    wanted = inner_of(vector["fields"]["two_pc"])
    payload = bytes.fromhex(vector["fields"]["payload_hex"])
    assert two_phase.decode(payload) == wanted
    assert two_phase.encode(wanted) == payload
    assert V3.encode(two_phase.wrap(wanted)).hex() == vector["hex"]


HELLOS = [v for v in SERVED if v["fields"]["type"] == "HELLO"]


@pytest.mark.parametrize("vector", HELLOS, ids=ids(HELLOS))
def test_five_bytes_tell_the_dialect(vector: dict[str, Any]) -> None:
    dialect = detect(bytes.fromhex(vector["hex"])[:5])
    assert dialect is not None
    assert dialect.name == vector["dialect"]


def test_the_ok_of_v2_is_read_by_v3() -> None:
    for vector in VECTORS:
        if vector["dialect"].startswith("v2") and vector["fields"]["type"] == "OK":
            ok = V3.decode(bytes.fromhex(vector["hex"])[4:])
            assert ok == frames.Ok(vector["fields"]["credits"])


def test_the_ok_for_any_generation_is_read_by_all_three() -> None:
    data = V2_2019_03.encode(frames.Ok(100))
    assert data.hex() == next(v["hex"] for v in VECTORS if v["name"] == "v2-2019-03/ok/1-empty")
    for dialect in (V3, V2_2018_12, V2_2019_03):
        ok = dialect.decode(data[4:])
        assert isinstance(ok, frames.Ok)
        assert ok.credits == 100
