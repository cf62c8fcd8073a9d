"""Every published vector, byte for byte, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import ockam_application

from headrace.protocols.ockam import bare, codec, routing
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import (
    Address,
    LegacyFraming,
    Message,
    Route,
    decode_wire,
    encode_route,
    encode_wire,
    read_route,
)

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "ockam.json").read_text())
BY_KIND = {kind: [v for v in VECTORS if v["kind"] == kind] for kind in {v["kind"] for v in VECTORS}}


def of_kind(*kinds: str) -> pytest.MarkDecorator:
    chosen = [vector for kind in kinds for vector in BY_KIND[kind]]
    return pytest.mark.parametrize("vector", chosen, ids=[vector["name"] for vector in chosen])


def test_every_kind_of_vector_has_a_test_here() -> None:
    assert set(BY_KIND) == {
        "bare-uint",
        "bare-string",
        "bare-data",
        "bare-optional-string",
        "payload",
        "address",
        "address-legacy-tcp",
        "wire-v1",
        "wire-v2",
        "frame-v1",
        "frame-cbor",
        "app-elixir-bidirectional",
    }


@of_kind("bare-uint")
def test_uint(vector: dict[str, Any]) -> None:
    raw, value = bytes.fromhex(vector["hex"]), vector["fields"]["value"]
    reader = bare.Reader(raw)
    assert reader.uint() == value
    reader.finish()
    assert bare.encode_uint(value) == raw


@of_kind("bare-string", "bare-data", "bare-optional-string")
def test_text_and_data(vector: dict[str, Any]) -> None:
    raw, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    reader = bare.Reader(raw)
    if vector["kind"] == "bare-string":
        assert reader.string() == fields["value"]
        assert bare.encode_string(fields["value"]) == raw
    elif vector["kind"] == "bare-data":
        assert reader.data() == bytes.fromhex(fields["value_hex"])
        assert bare.encode_data(bytes.fromhex(fields["value_hex"])) == raw
    else:
        assert reader.optional_string() == fields["value"]
        present = None if fields["value"] is None else bare.encode_string(fields["value"])
        assert bare.encode_optional(present) == raw
    reader.finish()


def expected_request(f: dict[str, Any]) -> codec.Request | ockam_application.ClientRequest:
    match f["protocol"]:
        case "binary":
            return ockam_application.Binary(bytes.fromhex(f["data_hex"]))
        case "stream_bidirectional":
            return ockam_application.Subscribe(f["stream_name"], f["subscription_id"])
        case "stream_bidirectional_publisher":
            return ockam_application.SubscribePublisher(
                f["publisher_stream"], f["consumer_stream"], f["subscription_id"]
            )
        case "stream_push":
            return codec.PushRequest(f["request_id"], bytes.fromhex(f["data_hex"]))
        case "stream_pull":
            return codec.PullRequest(f["request_id"], f["index"], f["limit"])
        case "stream_index" | "stream_index_partitioned" as protocol:
            if f["union"] == "GetIndex":
                return codec.GetIndex(protocol, f["client_id"], f["stream_name"], f.get("partition"))
            return codec.SaveIndex(protocol, f["client_id"], f["stream_name"], f["index"], f.get("partition"))
        case protocol:
            return codec.CreateRequest(protocol, f["stream_name"], f.get("partitions"))


def expected_response(f: dict[str, Any]) -> codec.Response:
    match f["protocol"]:
        case "error":
            return codec.Error(f["reason"])
        case "stream_push":
            return codec.PushConfirm(f["request_id"], f["status"] == "OK", f["index"])
        case "stream_pull":
            messages = [codec.StreamMessage(m["index"], bytes.fromhex(m["data_hex"])) for m in f["messages"]]
            return codec.PullResponse(f["request_id"], messages)
        case "stream_index" | "stream_index_partitioned" as protocol:
            return codec.Index(protocol, f["client_id"], f["stream_name"], f["index"], f.get("partition"))
        case protocol:
            return codec.Init(protocol, f["stream_name"], f.get("partition"))


def check_payload(raw: bytes, fields: dict[str, Any]) -> None:
    if fields["shape"] == "response":
        response = expected_response(fields)
        assert codec.decode_response(raw, partitioned="partition" in fields) == response
        assert codec.encode_response(response) == raw
        return
    request = expected_request(fields)
    if isinstance(request, ockam_application.ClientRequest):
        assert ockam_application.decode_client_request(raw) == request
        assert ockam_application.encode_client_request(request) == raw
    else:
        assert codec.decode_request(raw) == request
        assert codec.encode_request(request) == raw


@of_kind("payload")
def test_payload(vector: dict[str, Any]) -> None:
    check_payload(bytes.fromhex(vector["hex"]), vector["fields"])


@of_kind("address")
def test_address(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    address = Address(vector["fields"]["type"], vector["fields"]["value"].encode())
    assert read_route(bare.Reader(b"\x01" + raw)) == (address,)
    assert encode_route((address,)) == b"\x01" + raw


@of_kind("address-legacy-tcp")
def test_old_tcp_address(vector: dict[str, Any]) -> None:
    raw, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    (address,) = read_route(bare.Reader(b"\x01" + raw))
    assert ockam_application.decode_old_tcp_value(address.value) == (fields["host"], fields["port"])
    assert ockam_application.encode_old_tcp_value(fields["host"], fields["port"]) == address.value


def route_of(hops: list[dict[str, Any]]) -> Route:
    return tuple(Address(hop["type"], hop["value"].encode()) for hop in hops)


def message_of(fields: dict[str, Any], payload: bytes) -> Message:
    return Message(
        route_of(fields["onward_route"]), route_of(fields["return_route"]), payload, fields.get("tracing_context")
    )


def check_message(message: Message, fields: dict[str, Any]) -> None:
    if "payload" in fields:
        check_payload(message.payload, fields["payload"])
    else:
        assert message.payload == bytes.fromhex(fields["payload_hex"])
    assert message == message_of(fields, message.payload)


@of_kind("wire-v1", "wire-v2")
def test_wire(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    message = decode_wire(raw)
    check_message(message, vector["fields"])
    assert encode_wire(message) == raw


@of_kind("frame-v1")
def test_legacy_frame(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    framing = LegacyFraming()
    assert framing.frame_size(raw, 0) == len(raw) - 2
    message = framing.decode(raw[2:])
    check_message(message, vector["fields"])
    assert framing.encode(message) == raw


@of_kind("frame-cbor")
def test_cbor_frame(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["hex"])
    framing = CborFraming()
    assert framing.frame_size(raw, 0) == len(raw) - 4
    message = framing.decode(raw[4:])
    check_message(message, vector["fields"])
    assert framing.encode(message) == raw


@of_kind("app-elixir-bidirectional")
def test_elixir_record(vector: dict[str, Any]) -> None:
    raw, fields = bytes.fromhex(vector["hex"]), vector["fields"]
    stream, message = routing.decode_bidirectional_record(raw)
    assert stream == fields["return_stream"]
    check_message(message, fields["message"])
    assert routing.encode_bidirectional_record(stream, message) == raw
