"""Messages as proto3 has them, and the descriptors that reflection hands out."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pool
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.perper.fabric import codec, descriptors
from headrace.protocols.perper.fabric.descriptors import MESSAGES, METHODS

ITEM = MESSAGES["perper.StreamItemsResponse"]


@pytest.mark.parametrize("service", descriptors.SERVICES)
def test_every_service_is_described_with_all_it_needs(service: str) -> None:
    files = descriptors.files_of_symbol(service)
    pool = descriptor_pool.DescriptorPool()
    for data in reversed(files):
        pool.AddSerializedFile(data)
    for method in pool.FindServiceByName(service).methods:
        assert descriptors.files_of_symbol(method.full_name) == files
        for message in (method.input_type, method.output_type):
            assert descriptors.files_of_symbol(message.full_name)[0] == message.file.serialized_pb


@given(st.sampled_from(sorted(MESSAGES)), st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error(name: str, data: bytes) -> None:
    try:
        message = codec.decode(MESSAGES[name], data)
    except codec.MessageError:
        return
    assert codec.decode(MESSAGES[name], message.SerializeToString()) == message


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a",  # a tag and no length
        b"\x0a\x05ab",  # a string that passes the end
        b"\x0a\x02\xff\xfe",  # not UTF-8
        b"\x0b",  # a group without an end
        b"\xff" * 11,  # a number that never ends
        b"\x0a\xff\xff\xff\xff\x07",  # two gigabytes, announced
        b"\xfb\x07" * 100_000,  # groups in groups
    ],
)
def test_messages_that_cannot_be_read(data: bytes) -> None:
    with pytest.raises(codec.MessageError):
        codec.decode(MESSAGES["perper.ExecutionsRequest"], data)


def test_unknown_fields_of_every_wire_type_are_read_over() -> None:
    unknown = b"\xf8\x07\x01" + b"\xf9\x07" + bytes(8) + b"\xfa\x07\x02ab" + b"\xfd\x07" + bytes(4)
    assert codec.decode(ITEM, unknown + b"\x08\x05").key == 5
    assert codec.decode(ITEM, b"\x0a\x01a" + b"\x08\x05").key == 5  # ours, in another form


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300), max_size=20))
def test_keys_in_bulk(keys: list[int]) -> None:
    assert codec.encode_keys(keys) == b"".join(codec.prefixed(codec.encode(ITEM, {"key": key})) for key in keys)


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
    (fabric,) = descriptors.file_named("fabric.proto")
    (empty,) = descriptors.file_named("google/protobuf/empty.proto")
    for symbol in "perper.Fabric", "perper.Fabric.StreamItems", "perper.StreamItemsRequest":
        assert descriptors.files_of_symbol(symbol) == [fabric, empty]
    assert descriptors.files_of_symbol("google.protobuf.Empty") == [empty]
    assert descriptors.files_of_symbol("externalscaler.MetricSpec") == descriptors.file_named("externalscaler.proto")
    assert descriptors.files_of_symbol("no.such.Thing") == descriptors.files_of_symbol("perper.Fabric.None") == []
    assert descriptors.file_named("no.proto") == []


def test_methods_stream_as_published() -> None:
    streams = {path: (method.client_streams, method.server_streams) for path, method in METHODS.items()}
    assert streams["/perper.Fabric/AllExecutions"] == (False, False)
    assert streams["/perper.Fabric/StreamItems"] == (False, True)
    assert streams["/perper.Fabric/ReservedExecutions"] == (True, True)
