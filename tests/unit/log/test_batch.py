"""Batches: what goes in comes out, and what cannot be meant is refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.log import batch as batch_module
from headrace.log.batch import Batch, Columns, decode_single
from headrace.log.columns import SCHEMA, TIMESTAMP

i64 = st.integers(-(2**63), 2**63 - 1)
rows = st.lists(
    st.tuples(
        st.none() | i64,
        st.none() | i64,
        st.none() | st.text(max_size=9),
        st.none() | st.binary(max_size=9),
        st.binary(max_size=20),
    ),
    min_size=1,
    max_size=20,
)


def decoded(batch: Batch) -> list[tuple[object, ...]]:
    records = Columns(batch.body).to_arrow(100, 5)
    records.validate(full=True)
    assert records.schema.equals(SCHEMA)
    assert records.column("index").to_pylist() == list(range(100, 100 + batch.count))
    assert records.column("time").cast(pa.int64()).to_pylist() == [5] * batch.count
    columns = [
        records.column("event_time").cast(pa.int64()),
        *(records.column(name) for name in ("id", "type", "key", "payload")),
    ]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@given(rows)
def test_columns_come_back_as_they_were_given(given_rows: list[tuple[object, ...]]) -> None:
    event_times, ids, types, keys, payloads = (list(column) for column in zip(*given_rows, strict=True))
    batch = Batch.of(payloads, ids=ids, event_times=event_times, types=types, keys=keys)  # type: ignore[arg-type]
    assert batch.count == len(given_rows)
    assert batch.largest == max(len(row[4]) for row in given_rows)  # type: ignore[arg-type]
    assert batch.nbytes % 8 == 0
    assert decoded(batch) == given_rows


@given(rows)
def test_a_single_record_has_the_same_bytes_whichever_way_it_is_made(given_rows: list[tuple[object, ...]]) -> None:
    for event_time, id, type, key, payload in given_rows:
        one = Batch.one(payload, id=id, event_time=event_time, type=type, key=key)  # type: ignore[arg-type]
        assert decoded(one) == [(event_time, id, type, key, payload)]
        assert decode_single(one.body) == (event_time, id, type, key, payload)


@given(rows)
def test_a_single_record_made_of_columns_is_decoded_quickly_too(given_rows: list[tuple[object, ...]]) -> None:
    for event_time, id, type, key, payload in given_rows:
        of = Batch.of([payload], ids=[id], event_times=[event_time], types=[type], keys=[key])  # type: ignore[list-item]
        assert decode_single(of.body) == (event_time, id, type, key, payload)


@given(rows, st.integers(0, 5), st.integers(0, 5))
def test_arrow_batches_come_back_also_when_sliced(given_rows: list[tuple[object, ...]], skip: int, drop: int) -> None:
    kept = given_rows[skip : len(given_rows) - drop]
    if not kept:
        return
    event_times, ids, types, keys, payloads = zip(*given_rows, strict=True)
    records = pa.RecordBatch.from_pydict(
        {
            "payload": pa.array(payloads, pa.binary()),
            "event_time": pa.array(event_times, pa.int64()).cast(TIMESTAMP),
            "id": pa.array(ids, pa.int64()),
            "type": pa.array(types, pa.string()),
            "key": pa.array(keys, pa.binary()),
        }
    ).slice(skip, len(kept))
    assert decoded(Batch.from_arrow(records)) == kept


def test_one_type_for_all() -> None:
    assert decoded(Batch.of([b"a", b"b"], types="T")) == [(None, None, "T", None, b"a"), (None, None, "T", None, b"b")]


def test_unsigned_ids_keep_their_bit_pattern() -> None:
    assert [row[1] for row in decoded(Batch.of([b"", b""], ids=[2**64 - 1, 2**63]))] == [-1, -(2**63)]
    assert decode_single(Batch.one(b"", id=2**64 - 1).body)[1] == -1


def test_arrow_columns_of_other_types_are_cast() -> None:
    records = pa.RecordBatch.from_pydict({"payload": pa.array(["text"]), "id": pa.array([7], pa.int16())})
    assert decoded(Batch.from_arrow(records)) == [(None, 7, None, None, b"text")]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Batch.of([]), "at least one record"),
        (lambda: Batch.of([b"a"], ids=[1, 2]), "ids has 2 values for 1 payloads"),
        (lambda: Batch.of([b"a"], types=["a", "b"]), "types has 2 values for 1 payloads"),
        (lambda: Batch.of([b"a"], ids=[2**64]), "id 18446744073709551616 does not fit 64 bits"),
        (lambda: Batch.one(b"a", event_time=-(2**63) - 1), "event_time"),
        (lambda: Batch.from_arrow(pa.RecordBatch.from_pydict({"x": [1]})), "needs a column 'payload'"),
        (lambda: Batch.from_arrow(pa.RecordBatch.from_pydict({"payload": pa.array([], pa.binary())})), "at least one"),
        (lambda: Batch.from_arrow(pa.RecordBatch.from_pydict({"payload": pa.array([None], pa.binary())})), "nulls"),
        (
            lambda: Batch.from_arrow(pa.RecordBatch.from_pydict({"payload": [b"a"], "id": ["x"]})),
            "column 'id' is string and cannot become int64",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(make: object, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        make()  # type: ignore[operator]


def test_malformed_arrow_columns_are_refused_before_they_reach_the_disk() -> None:
    offsets = pa.array([0, 5, 2, 5], pa.int32()).buffers()[1]
    bad = pa.Array.from_buffers(pa.binary(), 3, [None, offsets, pa.py_buffer(b"short")])
    with pytest.raises(BadRequest, match="'payload' is malformed"):
        Batch.from_arrow(pa.RecordBatch.from_arrays([bad], ["payload"]))
    not_text = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(BadRequest, match="'type' is malformed"):
        Batch.from_arrow(pa.RecordBatch.from_arrays([pa.array([b"x"]), not_text], ["payload", "type"]))


def test_a_column_beyond_32_bit_offsets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "DATA_BYTES_MAX", 3)
    Batch.of([b"abc"])
    with pytest.raises(BadRequest, match="payload column has 4 bytes"):
        Batch.of([b"ab", b"cd"])


@given(
    count=st.integers(1, 40),
    size=st.integers(0, 30),
    gap=st.integers(0, 5),
    first_id=st.integers(-(2**63), 2**63 - 50),
)
def test_even_batches_are_the_same_bytes_as_others(count: int, size: int, gap: int, first_id: int) -> None:
    received = np.frombuffer(bytes(range(256)) * 6, np.uint8)
    matrix = np.ndarray((count, size), np.uint8, received, 3, (size + gap, 1))
    ids = np.arange(first_id, first_id + count, dtype=np.int64)
    made = Batch.even(matrix, ids)
    expected = Batch.of([row.tobytes() for row in matrix], ids=ids.tolist())
    assert bytes(made.body) == expected.body
    assert (made.count, made.largest, made.nbytes) == (count, size, expected.nbytes)
    assert decoded(made) == decoded(expected)


def test_even_batches_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "DATA_BYTES_MAX", 20)
    ids = np.arange(5, dtype=np.int64)
    assert Batch.even(np.zeros((5, 4), np.uint8), ids).count == 5
    with pytest.raises(BadRequest, match="25 bytes"):
        Batch.even(np.zeros((5, 5), np.uint8), ids)
