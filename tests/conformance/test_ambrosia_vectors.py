"""Every vector of the AMBROSIA protocol: read into the stated fields, written back to the same bytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from support import ambrosia_files

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.call_reader import Calls, Event, MessageReader
from headrace.protocols.ambrosia.codec import Blob, Checkpoint, Type
from headrace.protocols.ambrosia.files import layout
from headrace.protocols.ambrosia.record_reader import Record, RecordReader

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "ambrosia.json").read_text())
KINDS = {vector["kind"] for vector in VECTORS}


def of_kind(*kinds: str, direction: str | None = None) -> list[Any]:
    return [
        pytest.param(vector, id=vector["name"])
        for vector in VECTORS
        if vector["kind"] in kinds and direction in (None, vector["direction"])
    ]


def describe(message: codec.Message) -> dict[str, Any]:
    """A message in the words of the vector file, without its size."""
    match message:
        case codec.Call(method, rpc_type, arguments, destination, caller, number):
            fields: dict[str, Any] = {"type": 0, "body_kind": 0, "method": method, "rpc_type": rpc_type}
            fields["args_hex"] = arguments.hex()
            if rpc_type == 0:
                fields |= {"caller": caller.decode(), "call_no": number}
        case codec.Return(kind, responder, number, value, destination):
            fields = {"type": 0, "body_kind": int(kind), "responder": responder.decode(), "call_no": number}
            fields["value_hex"] = value.hex()
        case codec.RpcBatch(calls, replayable):
            inner = [with_size(call) for call in calls]
            if replayable is None:
                return {"type": 5, "count": len(calls), "rpcs": inner}
            return {"type": 13, "count": len(calls), "replayable": replayable, "rpcs": inner}
        case codec.AttachTo(destination):
            return {"type": 1, "dest": destination.decode()}
        case codec.InitialMessage(data):
            return {"type": 9, "data_hex": data.hex()}
        case Checkpoint(size, fixed):
            return {"type": 8, "blob_size": size, "size_form": "fixed64" if fixed else "zigzag-long"}
        case codec.Signal(kind):
            return {"type": int(kind)}
        case codec.Numbers(Type.TRIM_TO, (number,)):
            return {"type": 14, "trim_to": number}
        case codec.Numbers(kind, (every, replayable)):
            return {"type": int(kind), "all": every, "replayable": replayable}
        case codec.Ping(kind, codec.Call(method, rpc_type, stamps, destination)):
            fields = {"type": int(kind), "body_kind": 0, "method": method, "rpc_type": rpc_type}
            fields["stamps"] = list(struct.unpack("<5q", stamps))
    if destination is not None:
        fields["dest"] = destination.decode()
    return fields


NAMES = {
    0: "RPC", 1: "AttachTo", 2: "TakeCheckpoint", 3: "Commit", 4: "ReplayFrom", 5: "RPCBatch", 6: "Ping",
    7: "PingReturn",
    8: "Checkpoint", 9: "InitialMessage", 10: "UpgradeTakeCheckpoint", 11: "TakeBecomingPrimaryCheckpoint",
    12: "UpgradeService", 13: "CountReplayableRPCBatch", 14: "TrimTo", 15: "BecomingPrimary",
}  # fmt: skip


def with_size(message: codec.Message) -> dict[str, Any]:
    encoded = codec.encode(message)
    size, _ = codec.read_int(encoded, 0, len(encoded))
    fields = describe(message)
    return {"size": size, "type_name": NAMES[fields["type"]], **fields}


def split(data: bytes, *, addressed: bool) -> tuple[list[codec.Message], bytes]:
    """Messages, and the blob if the last one is a Checkpoint."""
    messages: list[codec.Message] = []
    at = 0
    while at < len(data):
        size, at = codec.read_int(data, at, len(data))
        messages.append(codec.decode(data, at, at + size, addressed=addressed))
        at += size
        if isinstance(messages[-1], Checkpoint):
            return messages, data[at:]
    return messages, b""


def expected(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "blob_hex"}


def test_no_kind_of_vector_is_left_out() -> None:
    assert {
        "zigzag-int", "zigzag-long", "xxh64", "xor64", "message", "messages", "message-head", "record", "disk-record",
        "checkpoint-file", "transcript",
    } == KINDS  # fmt: skip
    assert len(VECTORS) == 92


@pytest.mark.parametrize("vector", of_kind("zigzag-int", "zigzag-long"))
def test_integers(vector: dict[str, Any]) -> None:
    data, value = bytes.fromhex(vector["hex"]), vector["fields"]["value"]
    bits = 32 if vector["kind"] == "zigzag-int" else 64
    assert codec.zigzag_int(value, bits) == data
    assert codec.read_int(data, 0, len(data), bits) == (value, len(data))


@pytest.mark.parametrize("vector", of_kind("xxh64", "xor64"))
def test_check_bytes(vector: dict[str, Any]) -> None:
    check = codec.check_bytes if vector["kind"] == "xxh64" else layout.check_bytes_xor
    assert check(bytes.fromhex(vector["hex"])).to_bytes(8, "little").hex() == vector["fields"]["check_hex"]


@pytest.mark.parametrize("vector", of_kind("message", "messages"))
def test_messages(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    messages, blob = split(data, addressed=vector["direction"] == "LB->IC")
    wanted = fields["messages"] if vector["kind"] == "messages" else [fields]
    assert [with_size(message) for message in messages] == [expected(one) for one in wanted]
    assert blob.hex() == wanted[-1].get("blob_hex", "")
    assert b"".join(map(codec.encode, messages)) + blob == data


@pytest.mark.parametrize("vector", of_kind("message-head"))
def test_message_heads(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    if fields["type"] == Type.RPC:
        call = codec.Call(fields["method"], fields["rpc_type"], bytes(fields["args_bytes"]), fields["dest"].encode())
        whole: codec.Message = call
    else:
        rpc = codec.Call(1, 1, b"abc", b"")
        assert len(codec.encode(rpc)) * 2 == 18
        whole = codec.RpcBatch((rpc, rpc))
    assert codec.encode(whole).hex().startswith(vector["hex"])
    size, _ = codec.read_int(bytes.fromhex(vector["hex"]), 0, 5)
    assert size == fields["size"]


@pytest.mark.parametrize("vector", of_kind("record"))
def test_records(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    record, *blobs = RecordReader().feed(data)
    assert isinstance(record, Record)
    assert (record.committer, record.sequence) == (fields["committer"], fields["sequence"])
    assert [with_size(m) for m in codec.decode_messages(record.payload, addressed=False)] == [
        expected(one) for one in fields["messages"]
    ]
    if record.sequence == codec.SEQUENCE_CHECKPOINT:
        (blob,) = blobs
        assert isinstance(blob, Blob)
        assert blob.data.hex() == fields["messages"][0]["blob_hex"]
        assert codec.encode_checkpoint_record(record.committer, len(blob.data)) + blob.data == data
    else:
        assert codec.encode_record(record.committer, record.sequence, record.payload) == data


@pytest.mark.parametrize("vector", of_kind("disk-record"))
def test_disk_records(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    record, after = layout.decode_disk_record(data)
    assert after == len(data)
    assert ambrosia_files.encode_disk_record(record) == data
    assert (record.committer, record.sequence) == (fields["committer"], fields["sequence"])
    assert record.xor == (fields["check_algorithm"] == "xor")
    assert 24 + len(record.payload) == fields["length"]
    assert [with_size(m) for m in codec.decode_messages(record.payload, addressed=False)] == fields["messages"]
    assert [
        {"source": m.source.decode(), "last_id": m.last, "last_replayable_id": m.last_replayable}
        for m in record.watermarks
    ] == fields["watermarks"]
    assert [{"destination": t.destination.decode(), "replayable_trim": t.replayable} for t in record.trims] == fields[
        "trims"
    ]


@pytest.mark.parametrize("vector", of_kind("checkpoint-file"))
def test_checkpoint_files(vector: dict[str, Any]) -> None:
    data, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    file = layout.decode_checkpoint_head(data)
    assert ambrosia_files.encode_checkpoint_head(file) + data[file.blob_at :] == data
    assert (file.committer, file.next_sequence) == (fields["committer"], fields["next_record_id"])
    assert (file.buffer_bytes, file.commit_buffer.hex()) == (fields["buffer_size"], fields["buffer_hex"])
    assert (file.watermarks, file.trims, file.inputs, file.outputs) == ((), (), (), ())
    assert with_size(file.checkpoint) == expected(fields["checkpoint"])
    assert data[file.blob_at :].hex() == fields["checkpoint"]["blob_hex"]


@pytest.mark.parametrize("vector", of_kind("message", "messages", direction="LB->IC"))
@pytest.mark.parametrize("step", [1, 3, 1 << 20])
def test_the_fast_reader_agrees_with_the_plain_one(vector: dict[str, Any], step: int) -> None:
    """What a binding sends, in pieces: the reader of the coordinator yields what the codec decodes."""
    data = bytes.fromhex(vector["hex"])
    messages, blob = split(data, addressed=True)
    reader = MessageReader()
    events: list[Event] = []
    for at in range(0, len(data), step):
        events += reader.feed(data[at : at + step])
    if isinstance(messages[0], codec.Ping):
        assert reader.failed
        return
    assert not reader.failed
    calls = [call for m in messages for call in (m.calls if isinstance(m, codec.RpcBatch) else (m,))]
    rpcs = [call for call in calls if isinstance(call, (codec.Call, codec.Return))]
    delivered = b"".join(codec.frame(Type.RPC, codec.encode_body(call)) for call in rpcs)
    assert b"".join(event.payload() for event in events if isinstance(event, Calls)) == delivered
    others = [event for event in events if not isinstance(event, (Calls, Checkpoint, Blob))]
    assert others == [m for m in calls if isinstance(m, (codec.AttachTo, codec.InitialMessage, codec.Signal))]
    assert b"".join(event.data for event in events if isinstance(event, Blob)) == blob
