"""What hubs compress themselves: the same bytes come back, and what is not worth it is left alone."""

from __future__ import annotations

import random

import pytest
from google_crc32c import value as crc32c

from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.client import Received
from headrace.log.kafka.confluent import FIXED_PRODUCER
from headrace.log.kafka.messages import BODY_BYTES_MAX, HEAD, Kind, commit_messages, decode
from headrace.log.kafka.packing import SIZE_MAX, WORTH_BYTES, BadPacking, pack, unpack
from headrace.log.kafka.reader import BEGINNING, UNPACKED_BYTES_MAX, CellReader
from headrace.log.kafka.topic_store import PACKED, TopicStore
from headrace.log.store import BlobDamaged
from headrace.testing import FakeKafka

CODECS = ("gzip", "snappy", "lz4", "zstd")
NOISE = random.Random(1).randbytes(WORTH_BYTES)
TEXT = b"an order, and another one; " * 400
MIXED = TEXT + NOISE


@pytest.mark.parametrize("codec", CODECS)
def test_the_same_bytes_come_back(codec: str) -> None:
    packed = pack(MIXED, codec)
    assert packed is not None
    assert len(packed) < len(MIXED) / 2
    assert unpack(packed) == MIXED


def test_layout() -> None:
    packed = pack(TEXT, "zstd")
    assert packed is not None
    assert packed[:8] == b"\4\0\0\0" + len(TEXT).to_bytes(4, "little")
    assert packed[8:12] == b"\x28\xb5\x2f\xfd", "a frame of zstd"
    assert [number for codec in CODECS for number in (pack(TEXT, codec) or b"\0")[:1]] == [1, 2, 3, 4]


@pytest.mark.parametrize("data", [b"", TEXT[: WORTH_BYTES - 1], NOISE])
def test_what_is_small_or_does_not_shrink_is_left_alone(data: bytes) -> None:
    assert pack(data, "zstd") is None


def test_nothing_is_packed_without_a_codec() -> None:
    assert pack(TEXT, "none") is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\4\0\0", "too short"),
        (b"\5\0\0\0\1\0\0\0x", "codec 5"),
        (b"\4\0\0\0" + (SIZE_MAX + 1).to_bytes(4, "little") + b"x", "the most"),
        (b"\4\0\0\0\x40\0\0\0" + b"x" * 40, "(?i)zstd"),
    ],
)
def test_what_was_not_packed_like_this(data: bytes, why: str) -> None:
    with pytest.raises(BadPacking, match=why):
        unpack(data)


def test_a_commit_in_parts() -> None:
    frames = [(MIXED,), (TEXT, TEXT), (b"small",)]
    values = commit_messages(3, 4, frames, 5_000, "zstd")
    assert {value[4] for value in values} == {Kind.PACKED}
    messages = [message for value in values if (message := decode(value, 0))]
    assert b"".join(message.body for message in messages) == MIXED + TEXT + TEXT + b"small"
    assert {message.kind for message in messages} == {Kind.COMMIT}, "nobody above notices"
    assert [(message.part, message.parts) for message in messages] == [(n, len(values)) for n in range(len(values))]
    assert sum(map(len, values)) < sum(len(piece) for frame in frames for piece in frame) / 2


def test_a_small_commit_is_sent_as_it_is() -> None:
    assert commit_messages(1, 2, [(b"one record",)], compression="zstd") == commit_messages(1, 2, [(b"one record",)])


def test_a_commit_that_cannot_be_unpacked_stops_the_reader() -> None:
    (value,) = commit_messages(1, 2, [(TEXT,)], compression="zstd")
    body = value[HEAD.size : HEAD.size + 20]
    fields = (*HEAD.unpack_from(value)[:-1], crc32c(body))
    with pytest.raises(Unrecoverable, match="offset 7 .* unpacked"):
        decode(HEAD.pack(*fields) + body, 7)
    damaged = bytearray(value)
    damaged[-1] ^= 1
    with pytest.raises(Unrecoverable, match="checksum"):
        decode(bytes(damaged), 7)


def test_a_reader_unpacks_some_at_a_time(kafka: FakeKafka) -> None:
    """Some kilobytes of messages may hold hundreds of megabytes."""
    producer = kafka.producer("blobs")
    for sequence in range(40):
        for value in commit_messages(0, sequence, [(bytes(BODY_BYTES_MAX),)], compression="zstd"):
            assert len(value) < 1_000
            producer.send(0, value)
    producer.poll(1)
    reader = CellReader(kafka, "blobs", 0, BEGINNING, timeout_s=1, piece_bytes_max=2**30)
    sizes = []
    while reader.offset < 40:
        commits = reader.receive(1)
        assert commits is not None
        sizes.append(sum(len(commit.body) for commit in commits))
    assert max(sizes) < UNPACKED_BYTES_MAX + BODY_BYTES_MAX
    assert (sum(sizes), reader.rule.sequence) == (40 * BODY_BYTES_MAX, 40)


@pytest.fixture
def kafka() -> FakeKafka:
    kafka = FakeKafka()
    kafka.create_topic("blobs", 1, 3, {})
    return kafka


def test_blobs_are_packed_and_read_by_anybody(kafka: FakeKafka) -> None:
    """Also those that an earlier hub stored as they are."""
    plain, packing = TopicStore(kafka, "blobs", 0), TopicStore(kafka, "blobs", 0, compression="zstd")
    one, two = plain.put("f/plain", MIXED), packing.put("f/packed", MIXED)
    for store in (plain, packing):
        assert store.get(one) == store.get(two) == MIXED
    sizes = [len(received.value or b"") for received in _all(kafka)]
    assert sizes[1] < sizes[0] / 2


def test_a_blob_that_cannot_be_unpacked_is_damaged(kafka: FakeKafka) -> None:
    store = TopicStore(kafka, "blobs", 0, compression="zstd")
    store.put("f/a", TEXT)
    (received,) = _all(kafka)
    assert received.value is not None
    assert received.value.startswith(PACKED)
    body = received.value[16:30]
    producer = kafka.producer("blobs")
    producer.send(0, PACKED + received.value[4:12] + crc32c(body).to_bytes(4, "little") + body, key=received.key)
    producer.poll(1)
    with pytest.raises(BlobDamaged, match="unpacked"):
        store.get("f/a")


def _all(kafka: FakeKafka) -> list[Received]:
    low, high = kafka.bounds("blobs", 0)
    consumer = kafka.consumer("blobs", 0, low)
    found: list[Received] = []
    while len(found) < high - low:
        found += consumer.receive(1)
    return found


def test_the_client_compresses_nothing_by_itself() -> None:
    assert FIXED_PRODUCER["compression.type"] == "none"
    assert KafkaSettings().compression == "zstd"
