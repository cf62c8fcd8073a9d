"""Messages against the protobuf runtime, which reads the descriptors that reflection hands out."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.perper.fabric import codec, descriptors

POOL = descriptor_pool.DescriptorPool()
for file in ("google/protobuf/empty.proto", "fabric.proto", "externalscaler.proto", "grpc/health/v1/health.proto"):
    data = descriptors.file_descriptor(file)
    assert data is not None
    POOL.AddSerializedFile(data)

NAMES = [name for name in codec.MESSAGES if not name.startswith("grpc.reflection") and not name.endswith("Entry")]
VALUES = {
    "string": st.text(max_size=8),
    "bytes": st.binary(max_size=8),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "bool": st.booleans(),
}


def messages(name: str) -> st.SearchStrategy[dict[str, Any]]:
    parts: dict[str, st.SearchStrategy[Any]] = {}
    for field in codec.MESSAGES[name]:
        one = VALUES[field.kind] if field.kind in VALUES else messages(field.kind)
        if field.kind.endswith("Entry"):  # a map: each key once
            parts[field.name] = st.lists(one, max_size=2, unique_by=lambda entry: entry["key"])
        else:
            parts[field.name] = st.lists(one, max_size=3) if field.repeated else one
    return st.fixed_dictionaries(parts)


def runtime(name: str) -> Any:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


@pytest.mark.parametrize("service", codec.SERVICES)
def test_every_service_is_described_with_all_it_needs(service: str) -> None:
    file = descriptors.file_of_symbol(service)
    assert file is not None
    pool = descriptor_pool.DescriptorPool()
    for data in reversed(descriptors.with_dependencies(file)):
        pool.AddSerializedFile(data)
    for method in pool.FindServiceByName(service).methods:
        assert descriptors.file_of_symbol(method.full_name) == file
        for message in (method.input_type, method.output_type):
            assert descriptors.file_of_symbol(message.full_name) == message.file.name


@given(st.data(), st.sampled_from(NAMES))
def test_what_we_write_the_runtime_reads_and_writes_the_same(data: st.DataObject, name: str) -> None:
    message = data.draw(messages(name))
    encoded = codec.encode(name, message)
    parsed = runtime(name).FromString(encoded)
    theirs = codec.decode(name, parsed.SerializeToString())  # maps may come back in another order
    assert runtime(name).FromString(codec.encode(name, theirs)) == parsed
    assert codec.decode(name, encoded) == message


@given(st.sampled_from(NAMES), st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error(name: str, data: bytes) -> None:
    try:
        message = codec.decode(name, data)
    except codec.MessageError:
        return
    assert codec.decode(name, codec.encode(name, message)) == message


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a tag and no length
        b"\x0a\x05ab",  # a string that passes the end
        b"\x0a\x02\xff\xfe",  # not UTF-8
        b"\x08\x01",  # a number where a string belongs
        b"\x22\x01a",  # bytes where a bool belongs
        b"\x0b",  # a group
        b"\xff" * 11,  # a number that never ends
        b"\x21" + bytes(8),  # eight bytes where a bool belongs
    ],
)
def test_messages_that_cannot_be_read(data: bytes) -> None:
    with pytest.raises(codec.MessageError):
        codec.decode("perper.ExecutionsRequest", data)


def test_unknown_fields_of_every_wire_type_are_read_over() -> None:
    unknown = b"\xf8\x07\x01" + b"\xf9\x07" + bytes(8) + b"\xfa\x07\x02ab" + b"\xfd\x07" + bytes(4)
    assert codec.decode("perper.StreamItemsResponse", unknown + b"\x08\x05") == {"key": 5}


def test_nesting_has_a_limit() -> None:
    with pytest.raises(codec.MessageError, match="too deep"):
        codec.decode("perper.StreamItemsResponse", b"", 0)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=20))
def test_keys_in_bulk(keys: list[int]) -> None:
    name = "perper.StreamItemsResponse"
    assert codec.encode_keys(keys) == b"".join(codec.prefixed(codec.encode(name, {"key": key})) for key in keys)


@given(st.lists(st.binary(max_size=20), max_size=8), st.integers(1, 9))
def test_messages_are_found_however_they_are_cut(parts: list[bytes], step: int) -> None:
    data = b"".join(map(codec.prefixed, parts))
    buffer = codec.MessageBuffer(100)
    found = [message for at in range(0, len(data), step) for message in buffer.feed(data[at : at + step])]
    assert found == parts
    assert buffer.kept_bytes == 0


def test_message_limits() -> None:
    with pytest.raises(codec.TooLong):
        codec.MessageBuffer(100).feed(b"\0" + (101).to_bytes(4, "big"))
    with pytest.raises(codec.MessageError, match="compressed"):
        codec.MessageBuffer(100).feed(b"\1" + (1).to_bytes(4, "big"))


def test_symbols_are_found_in_their_files() -> None:
    assert descriptors.file_of_symbol("perper.Fabric") == "fabric.proto"
    assert descriptors.file_of_symbol("perper.Fabric.StreamItems") == "fabric.proto"
    assert descriptors.file_of_symbol("perper.StreamItemsRequest") == "fabric.proto"
    assert descriptors.file_of_symbol("google.protobuf.Empty") == "google/protobuf/empty.proto"
    assert descriptors.file_of_symbol("no.such.Thing") is None
    assert descriptors.file_descriptor("no.proto") is None
    assert descriptors.with_dependencies("no.proto") == []
    assert len(descriptors.with_dependencies("fabric.proto")) == 2
    assert len(descriptors.with_dependencies("externalscaler.proto")) == 1
    service = POOL.FindServiceByName("perper.Fabric")
    assert [method.name for method in service.methods] == [method.name for method in codec.SERVICES["perper.Fabric"]]
    assert (
        POOL.FindMessageTypeByName("externalscaler.ScaledObjectRef")
        .fields_by_name["scalerMetadata"]
        .message_type.GetOptions()
        .map_entry
    )
