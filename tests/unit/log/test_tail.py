"""Tails: whatever the sizes of the batches, the same records in the same order."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log import tail as tail_module
from headrace.log.batch import Batch, Columns
from headrace.log.columns import SCHEMA
from headrace.log.tail import Tail, TailEntry, to_arrow

texts = st.text(max_size=5)
batches = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=9), min_size=1, max_size=6),
        st.sampled_from(["none", "all", "some"]),
        st.none() | texts,
    ),
    min_size=1,
    max_size=8,
)


def entries_of(described: list[tuple[list[bytes], str, str | None]]) -> list[TailEntry]:
    made = []
    at = 10
    for number, (payloads, optional, type) in enumerate(described):
        count = len(payloads)
        kept = [None if optional == "some" and n % 2 else n for n in range(count)]
        batch = Batch.of(
            payloads,
            ids=None if optional == "none" else kept,
            event_times=None if optional == "none" else kept,
            types=type if optional != "some" else [None if n is None else f"t{n}" for n in kept],
            keys=None if optional == "none" else [None if n is None else b"k" * n for n in kept],
        )
        made.append(TailEntry(at, count, 1_000 + number, batch.body, number))
        at += count
    return made


def one_by_one(entries: list[TailEntry]) -> pa.Table:
    return pa.Table.from_batches([Columns(entry.body).to_arrow(entry.base, entry.time_us) for entry in entries])


@given(batches, st.integers(1, 7))
def test_every_way_gives_the_same_records(described: list[tuple[list[bytes], str, str | None]], small: int) -> None:
    entries = entries_of(described)
    before = tail_module.SMALL_RECORDS
    tail_module.SMALL_RECORDS = small
    try:
        records = to_arrow(entries)
    finally:
        tail_module.SMALL_RECORDS = before
    records.validate(full=True)
    assert records.schema.equals(SCHEMA)
    assert pa.Table.from_batches([records]).to_pylist() == one_by_one(entries).to_pylist()


@given(batches, st.integers(0, 60), st.integers(1, 20), st.integers(1, 100))
def test_reading_starts_where_it_should(
    described: list[tuple[list[bytes], str, str | None]], start: int, limit: int, bytes_max: int
) -> None:
    entries = entries_of(described)
    tail = Tail()
    for entry in entries:
        tail.append(entry)
    records = tail.read(start, limit, bytes_max)
    end = entries[-1].next
    if not 10 <= start < end:
        assert records is None
        return
    assert records is not None
    indexes = records.column("index").to_pylist()
    assert indexes == list(range(start, start + len(indexes)))
    assert 1 <= len(indexes) <= limit


def test_reading_stops_at_a_gap() -> None:
    entries = entries_of([([b"a"], "none", None)] * 4)
    del entries[2]
    tail = Tail(entries)
    records = tail.read(10, 100, 1_000)
    assert records is not None
    assert records.num_rows == 2
    assert tail.read(12, 1, 1_000) is None
    after = tail.without(2)
    assert after.bytes == len(entries[2].body)
    assert after.read(13, 1, 1) is not None


def test_a_large_batch_of_few_records_is_not_copied_for_each_of_them() -> None:
    for count in (1, 10):
        body = Batch.of([bytes(300_000)] * count).body
        tail = Tail([TailEntry(0, count, 0, body, 0)])
        for index in range(count):
            records = tail.read(index, 1, 1)
            assert records is not None
            assert records.column("payload").buffers()[2].address - pa.py_buffer(body).address in range(len(body))


def packed_of(entries: list[TailEntry]) -> bytes:
    fields = b"".join(
        tail_module.PACKED_ENTRY.pack(entry.time_us, entry.sequence, entry.count, len(entry.body)) for entry in entries
    )
    return tail_module.pack(entries[0].base, entries[-1].next, fields, [entry.body for entry in entries])


@given(batches, st.integers(1, 7))
def test_a_packed_tail_says_what_its_entries_say(
    described: list[tuple[list[bytes], str, str | None]], middle: int
) -> None:
    entries = entries_of(described)
    plain, packed = Tail(entries), Tail.of_packed(packed_of(entries))
    assert (len(packed), packed.bytes, packed.oldest) == (len(plain), plain.bytes, plain.oldest)
    assert packed.spans() == [(plain.entries[0].base, plain.entries[-1].next)]
    assert packed.entries == entries
    assert (len(packed), packed.bytes, packed.oldest, packed.spans()) == (
        len(plain),
        plain.bytes,
        plain.oldest,
        plain.spans(),
    )
    if entries[middle:]:
        joined = tail_module.join_packed(packed_of(entries[:middle]), packed_of(entries[middle:]))
        assert joined == packed_of(entries)
    if entries[middle + 1 :]:
        assert tail_module.join_packed(packed_of(entries[:middle]), packed_of(entries[middle + 1 :])) is None


def test_a_tail_without_entries_is_false_and_has_no_other_attributes() -> None:
    assert not Tail()
    assert Tail().spans() == []
    with pytest.raises(AttributeError, match="color"):
        Tail().color  # type: ignore[attr-defined]  # noqa: B018


def test_what_is_appended_while_a_reader_unpacks_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entries_of([([b"a"], "none", None), ([b"b"], "none", None)])
    new = TailEntry(entries[-1].next, 1, 5, entries[0].body, 9)
    tail = Tail.of_packed(packed_of(entries))
    writer = threading.Thread(target=tail.append, args=(new,))
    unpack = tail_module.unpack

    def unpacked(packed: bytes) -> list[TailEntry]:
        """As a reader does it, with the writer in the middle: it has to wait for what the reader makes."""
        monkeypatch.setattr(tail_module, "unpack", unpack)
        writer.start()
        writer.join(0.1)
        return unpack(packed)

    monkeypatch.setattr(tail_module, "unpack", unpacked)
    assert tail.entries[:2] == entries
    writer.join()
    assert tail.entries == [*entries, new]
