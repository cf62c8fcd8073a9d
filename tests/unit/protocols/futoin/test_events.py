"""Records as events: ids, types, times, data, filters and cuts."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.columns import SCHEMA
from headrace.protocols.futoin import codec, events
from headrace.protocols.futoin.codec import Coding

SECOND_US = 1_000_000
T0_US = 1_794_725_677 * SECOND_US
ROOM = events.Room(events=1000, bytes=1 << 20, bytes_max=1 << 20)


def records(payloads: list[bytes], types: list[str | None] | None = None, first: int = 0) -> pa.RecordBatch:
    count = len(payloads)
    times = pa.array(np.arange(T0_US + 999_999, T0_US + 999_999 + count * SECOND_US, SECOND_US)).view(
        SCHEMA.field("time").type
    )
    columns = {
        "index": pa.array(range(first, first + count), pa.int64()),
        "time": times,
        "type": pa.array(types or ["EVT"] * count, pa.string()),
        "payload": pa.array(payloads, pa.binary()),
    }
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def shown(page: events.Page, coding: Coding = Coding.JSON) -> Any:
    return codec.decode_object(codec.result(page.events, None, coding), coding)["r"]


@pytest.mark.parametrize("coding", list(Coding))
def test_an_event(coding: Coding) -> None:
    page = events.page(records([b'{"a":[1,null]}'], first=41), coding, None, ROOM)
    assert shown(page, coding) == [{"id": "42", "type": "EVT", "data": {"a": [1, None]}, "ts": "2026-11-15T06:54:37Z"}]
    assert (page.first, page.next, page.full, page.too_big) == (41, 42, False, 0)


def test_data_goes_out_byte_for_byte() -> None:
    payload = b'{"b": 1.0, "n":12345678901234567890123,"s":"\\u00e9"}'
    page = events.page(records([payload]), Coding.JSON, None, ROOM)
    assert payload in codec.result(page.events, None, Coding.JSON)


@pytest.mark.parametrize(
    ("kind", "type"),
    [("A", "A"), ("_", "_"), ("A" * 16, "A" * 16), ("A" * 17, "RAW"), ("a", "RAW"), ("A1", "RAW"), ("", "RAW"),
     (None, "RAW"), ("text/plain", "RAW"), ("A\n", "RAW")],
)  # fmt: skip
def test_types(kind: str | None, type: str) -> None:
    assert events.page(records([b"1"], [kind]), Coding.JSON, None, ROOM).events[0].type == type


NOT_JSON = [
    b"", b"\xff\xfe", b"text", b"{", b'{"a":1} x', b"1,2", b'"\xff"', b"NaN", b"[" * 5000, b"01", b"'a'", b"1e999",
    b"[" * 150 + b"]" * 150,
]  # fmt: skip


@pytest.mark.parametrize("coding", list(Coding))
@pytest.mark.parametrize("payload", NOT_JSON, ids=lambda payload: repr(payload[:10]))
def test_other_payloads_become_base64(payload: bytes, coding: Coding) -> None:
    page = events.page(records([b"1", payload, b"[2]"]), coding, None, ROOM)
    wanted = [1, {"base64": base64.b64encode(payload).decode()}, [2]]
    assert [event["data"] for event in shown(page, coding)] == wanted


@pytest.mark.parametrize("coding", [Coding.MESSAGEPACK, Coding.CBOR])
@pytest.mark.parametrize("known_json", [False, True])
@pytest.mark.parametrize("others", [[], [b"no JSON"]])
def test_integers_beyond_64_bits_become_doubles(coding: Coding, known_json: bool, others: list[bytes]) -> None:
    """The binary codings cannot hold them; one such event must not stop whoever uses these."""
    numbers = [2**64 - 1, -(2**63), 2**64, -(2**63) - 1, 10**400, -(10**400)]
    payloads = [json.dumps({"a": [number]}).encode() for number in numbers]
    data, _ = events.event_data(payloads + others, coding, known_json and not others)
    shown = codec.decode_object(codec.encode_object(data, coding), coding)[: len(numbers)]
    assert [one["a"][0] for one in shown] == [2**64 - 1, -(2**63), 2.0**64, -(2.0**63), math.inf, -math.inf]


def test_halves_of_json_do_not_add_up() -> None:
    """`1,2` and `[3` and `4]` together would read as three values."""
    payloads = [b"1,2", b"[3", b"4]"]
    data = [event["data"] for event in shown(events.page(records(payloads), Coding.JSON, None, ROOM))]
    assert data == [{"base64": base64.b64encode(payload).decode()} for payload in payloads]


def test_json_with_space_around_it_is_json() -> None:
    data = [event["data"] for event in shown(events.page(records([b" 1 ", b"\n[2]"]), Coding.JSON, None, ROOM))]
    assert data == [1, [2]]


@pytest.mark.parametrize("coding", list(Coding))
def test_what_is_known_to_be_json_is_not_looked_at_again(coding: Coding) -> None:
    batch = records([b'{"a":1}', b"2"])
    page = events.page(batch, coding, None, ROOM, known_json=True)
    assert shown(page, coding) == shown(events.page(batch, coding, None, ROOM), coding)
    assert page.all_json


def test_whether_all_is_json() -> None:
    assert events.page(records([b"1", b"2"]), Coding.JSON, None, ROOM).all_json
    assert not events.page(records([b"1", b"x"]), Coding.JSON, None, ROOM).all_json
    assert not events.page(records([b"1", b"2"], ["A", "B"]), Coding.JSON, frozenset("A"), ROOM).all_json


class TestFilter:
    TYPES = ("A", "B", None, "A", "C")

    def page(self, want: set[str], limit: int = 1000) -> events.Page:
        batch = records([b"0", b"1", b"2", b"3", b"4"], list(self.TYPES), first=10)
        return events.page(batch, Coding.JSON, frozenset(want), ROOM._replace(events=limit))

    def test_wanted_types(self) -> None:
        page = self.page({"A"})
        assert [event.id for event in page.events] == ["11", "14"]
        assert (page.first, page.next, page.full) == (10, 15, False)

    def test_raw_can_be_wanted(self) -> None:
        page = self.page({"RAW"})
        assert ([event.id for event in page.events], page.first, page.next) == (["13"], 12, 15)

    @pytest.mark.parametrize("want", [set(), {"NO"}])
    def test_nothing_wanted(self, want: set[str]) -> None:
        page = self.page(want)
        assert (page.events, page.first, page.next, page.full) == ([], 15, 15, False)

    def test_cut_stops_before_the_next_match(self) -> None:
        page = self.page({"A"}, limit=1)
        assert (len(page.events), page.next, page.full) == (1, 13, True)


class TestRoom:
    def test_events(self) -> None:
        page = events.page(records([b"1"] * 5), Coding.JSON, None, ROOM._replace(events=3))
        assert (len(page.events), page.next, page.full) == (3, 3, True)

    @pytest.mark.parametrize("coding", list(Coding))
    def test_bytes(self, coding: Coding) -> None:
        payloads = [json.dumps([0.5] * 200).encode()] * 20
        room = events.Room(1000, 8000, 8000)
        page = events.page(records(payloads), coding, None, room)
        assert 0 < len(page.events) < 20
        assert page.full
        assert page.next == len(page.events)
        assert len(codec.result(page.events, None, coding)) <= 8000 + 20

    def test_too_big_for_any_message_is_left_out(self) -> None:
        big = b'"' + b"x" * 5000 + b'"'
        page = events.page(records([b"1", big, b"2"]), Coding.JSON, None, events.Room(1000, 3000, 3000))
        assert [event["data"] for event in shown(page)] == [1, 2]
        assert (page.too_big, page.next, page.full) == (1, 3, False)

    def test_too_big_only_once_encoded(self) -> None:
        payload = b"\xff" * 2900  # base64 makes more of it
        page = events.page(records([payload, b"2"]), Coding.JSON, None, events.Room(1000, 3000, 3000))
        assert [event["data"] for event in shown(page)] == [2]
        assert (page.too_big, page.first) == (1, 1)

    def test_too_big_for_what_is_left_waits(self) -> None:
        big = b'"' + b"x" * 2000 + b'"'
        page = events.page(records([b"1", big, b"2"]), Coding.JSON, None, events.Room(1000, 1500, 3000))
        assert [event["data"] for event in shown(page)] == [1]
        assert (page.too_big, page.next, page.full) == (0, 1, True)

    def test_nothing_fits(self) -> None:
        big = b'"' + b"x" * 2000 + b'"'
        page = events.page(records([big]), Coding.JSON, None, events.Room(1000, 100, 3000))
        assert (page.events, page.first, page.next, page.full) == ([], 0, 0, True)


@given(
    st.lists(st.binary(max_size=12) | st.sampled_from([b"1", b"[]", b'"a"', b"{}", b"[1", b"2]", b"1,2"]), max_size=8)
)
def test_data_is_always_what_was_stored(payloads: list[bytes]) -> None:
    for payload, data in zip(payloads, events.event_data(payloads, Coding.JSON)[0], strict=True):
        value = json.loads(bytes(data))
        if isinstance(value, dict) and set(value) == {"base64"} and not payload.startswith(b'{"base64"'):
            assert base64.b64decode(value["base64"]) == payload
        else:
            assert json.loads(payload) == value
