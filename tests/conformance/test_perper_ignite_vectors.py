"""Every thin-protocol vector, byte for byte, through our codec in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.perper_peer import read_answer

from headrace.protocols.perper.ignite import binary, codec, shapes
from headrace.protocols.perper.ignite.configuration import write_request
from headrace.protocols.perper.ignite.reader import Reader
from headrace.protocols.perper.ignite.types import read_type

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "perper.json").read_text())
NODE = UUID("00112233-4455-6677-8899-aabbccddeeff")


def of_kind(kind: str, **more: str) -> list[Any]:
    chosen = [v for v in VECTORS if v["kind"] == kind and all(v.get(key) == value for key, value in more.items())]
    assert chosen, f"no vectors of kind {kind}"
    return [pytest.param(v, id=v["name"]) for v in chosen]


def version_of(vector: dict[str, Any]) -> codec.Version:
    major, minor, patch = map(int, vector["fields"].get("protocol", "1.7.0").split("."))
    return (major, minor, patch)


def test_every_vector_belongs_to_a_known_kind() -> None:
    kinds = {v["kind"] for v in VECTORS}
    assert kinds == {
        "ignite-handshake",
        "ignite-request",
        "ignite-response",
        "ignite-object",
        "ignite-id",
        "grpc-message",
    }
    assert len(VECTORS) == 320


@pytest.mark.parametrize("vector", of_kind("ignite-handshake", direction="client->server"))
def test_handshake_request(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    fields = vector["fields"]
    handshake = codec.decode_handshake(data[4:])
    assert ".".join(map(str, handshake.version)) == fields["version"]
    assert handshake.client_type == fields["client_type"]
    assert handshake.features.hex() == fields.get("features", "")
    assert handshake.user == fields.get("user")
    assert handshake.password == fields.get("password")
    assert codec.encode_handshake(handshake) == data


@pytest.mark.parametrize("vector", of_kind("ignite-handshake", direction="server->client"))
def test_handshake_answer(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    if fields["success"]:
        minor = 7 if "features" in fields else 4 if "node_id" in fields else 3
        answer = codec.encode_handshake_success((1, minor, 0), bytes.fromhex(fields.get("features", "04")), NODE)
    else:
        major, minor, patch = map(int, fields["server_version"].split("."))
        answer = codec.encode_handshake_refusal((major, minor, patch), fields["message"], fields["status"])
    assert answer.hex() == vector["hex"]


def simple(argument: Any) -> Any:
    """An object of a vector's `fields` as the number, text or bytes that tells it apart from others."""
    return argument.get("value") if isinstance(argument, dict) else argument


@pytest.mark.parametrize("vector", of_kind("ignite-request"))
def test_request(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    fields = vector["fields"]
    request = codec.decode_request(data, 4, len(data))
    assert isinstance(request, codec.Request)
    assert (request.op, request.request_id) == (fields["op"], fields["request_id"])
    assert shapes.OPERATIONS[request.op].has_cache == ("flags" in fields)
    if "flags" in fields:
        assert request.flags == fields["flags"]
        assert request.cache_id == fields.get("cache_id", binary.java_hash("stream-listeners"))
    if "expiry_ms" in fields:
        assert request.expiry == tuple(fields["expiry_ms"].values())
    assert request.transaction == (fields["tx_id"] if "flags" in fields and "tx_id" in fields else None)
    check_arguments(request, fields)
    if request.op in (1053, 1054):
        return  # the length pyignite declares is wrong; see test_configuration_request
    if vector["name"] == "built/get-and-put-if-absent-wrapped-value":
        assert data.endswith(binary.wrap(request.arguments[1]))  # stored without the envelope it came in
        return
    assert codec.encode_request(request).hex() == vector["hex"]


def check_arguments(request: codec.Request, fields: dict[str, Any]) -> None:
    """What the vector says of the body, against what was read."""
    arguments = list(request.arguments)
    keyed = [fields[name] for name in ("key", "expected", "value", "new") if name in fields]
    for said, read in zip(keyed, arguments, strict=False):
        if isinstance(said, str):
            said = {"code": binary.STRING, "value": said} if read[0] == binary.STRING else {"code": read[0]}
        if read[0] != binary.COMPLEX or "type_id" in said:
            check_object(said, read)
    for said, read in zip(fields.get("keys", []), arguments[0] if "keys" in fields else [], strict=True):
        check_object(said, read)
    scalars = {
        "cursor",
        "name",
        "cache_ids",
        "type_id",
        "state",
        "page_size",
        "platform",
        "commit",
        "label",
        "timeout_ms",
    }
    for name in scalars & fields.keys():
        flat = arguments[0].values() if request.op == 2004 else arguments
        assert fields[name] in flat, name


def check_object(said: dict[str, Any], read: bytes) -> None:
    if said["code"] == binary.WRAPPED:
        assert read[0] == binary.COMPLEX
        return
    assert read[0] == said["code"]
    assert binary.skip(read, 0, len(read)) == len(read)
    if said["code"] == binary.STRING:
        assert binary.decode_string(read, 0, len(read))[0] == said["value"]
    elif said["code"] == binary.LONG:
        assert binary.decode_long(read, 0, len(read)) == said["value"]
    elif said["code"] == binary.COMPLEX:
        header = binary.ComplexHeader(read)
        assert (header.type_id, header.schema_id, header.length) == (said["type_id"], said["schema_id"], said["length"])
        assert header.hash == binary.object_hash(read[24 : header.footer])


@pytest.mark.parametrize(
    "vector", [p for p in of_kind("ignite-request") if p.values[0]["fields"]["op"] in (1053, 1054)]
)
def test_configuration_request(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    request = codec.decode_request(data, 4, len(data))
    assert isinstance(request, codec.Request)
    said = vector["fields"]["configuration"]
    configuration = request.arguments[0]
    assert [str(code) for code in configuration.properties] == list(said["properties"])
    assert configuration.name == said["properties"]["0"]
    body = write_request(configuration, said["declared_length"])
    assert codec.frame(data[4:14] + body) == data


def answer_of(fields: dict[str, Any], body: bytes) -> Any:
    """The value our server would give the encoder, from the vector's description (objects from its bytes)."""
    op = fields["op"]
    shape = shapes.OPERATIONS[op].answer if op in shapes.OPERATIONS else "nothing"
    reader = Reader(body)
    if shape == "object":
        return reader.object()
    if shape in ("bool", "long", "byte", "int"):
        return next(fields[name] for name in ("result", "size", "state", "tx_id") if name in fields)
    if shape == "pairs":
        return [(reader.object(), reader.object()) for _ in range(reader.count())]
    if shape == "strings":
        return fields["names"]
    if shape == "string":
        return reader.string()
    if shape == "type":
        return read_type(reader) if reader.bool() else None
    if shape == "partitions":
        return fields["groups"][0]["cache_ids"]
    if shape == "configuration":
        return read_answer(reader, (1, 7, 0))
    if shape.endswith("page"):
        return page_of(shape, fields, reader)
    return None


def page_of(shape: str, fields: dict[str, Any], reader: Reader) -> Any:
    cursor = reader.long() if "next" not in shape else 0
    if shape.startswith("sql"):
        columns = reader.int() if "next" not in shape else 1
        rows = [tuple(reader.object() for _ in range(columns)) for _ in range(reader.count())]
        return shapes.SqlPage(columns, rows, fields["more"], cursor)
    rows = [(reader.object(), reader.object()) for _ in range(reader.count())]
    return shapes.Page(rows, fields["more"], cursor)


@pytest.mark.parametrize("vector", of_kind("ignite-response"))
def test_response(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    fields = vector["fields"]
    version = version_of(vector)
    response = codec.decode_response(data[4:], version)
    assert response.request_id == fields["request_id"]
    if fields.get("flags", 0) & codec.RESPONSE_TOPOLOGY:
        assert response.topology is not None  # our server never sends this flag; our client reads over it
        return
    if fields.get("status"):
        assert (response.status, response.message) == (fields["status"], fields["message"])
        answer = codec.encode_error(response.request_id, response.status, response.message or "", version)
    else:
        assert response.status == 0
        value = answer_of(fields, response.body)
        answer = codec.encode_response(response.request_id, codec.encode_answer(fields["op"], value, version), version)
    assert answer.hex() == vector["hex"]


@pytest.mark.parametrize("vector", of_kind("ignite-object"))
def test_object(vector: dict[str, Any]) -> None:
    data = bytes.fromhex(vector["hex"])
    stored, after = binary.read_object(data, 0, len(data))
    assert after == len(data)
    expected = next(v for v in VECTORS if v["name"] == vector["fields"].get("equals", vector["name"]))
    assert stored.hex() == expected["hex"]
    assert binary.wrap(stored).hex() == next(v for v in VECTORS if v["name"] == "built/object-wrapped")["hex"]


@pytest.mark.parametrize("vector", of_kind("ignite-id"))
def test_id(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    if fields["kind"] == "schema":
        assert [binary.field_id(name) for name in fields["fields"]] == fields["field_ids"]
        assert binary.schema_id(fields["field_ids"]) == fields["id"]
    elif fields["kind"] == "cache":
        assert binary.java_hash(fields["name"]) == fields["id"]
    elif fields["kind"] == "type":
        assert binary.type_id(fields["name"]) == fields["id"]
    else:
        assert binary.field_id(fields["name"]) == fields["id"]
