from datetime import UTC, datetime

import pytest
import typer

from headrace import units
from headrace.cli import positions
from headrace.client import Record

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _noon(monkeypatch):
    monkeypatch.setattr(units, "_now", lambda: NOW)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("0", 0),
        ("120", 120),
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("5m", datetime(2026, 11, 15, 11, 55, tzinfo=UTC)),
        ("1d", datetime(2026, 11, 14, 12, 0, tzinfo=UTC)),
        ("2026-11-15T12:00:00Z", NOW),
        ("2026-11-15T13:00:00+01:00", NOW),
    ],
)
def test_positions(text, position):
    assert positions.parse_position(text) == position


def test_a_time_without_a_zone_is_local():
    assert positions.parse_position("2026-11-15T12:00:00").tzinfo is not None


@pytest.mark.parametrize("text", ["", "soon", "-5", "1.5.2"])
def test_bad_positions(text):
    with pytest.raises(typer.BadParameter, match="is not an index"):
        positions.parse_position(text)


def test_times_for_people():
    assert positions.shown_time(NOW) == positions.shown_time(int(NOW.timestamp() * 1e6)) == "2026-11-15 12:00:00.000Z"
    assert positions.shown_time(None) is None


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, None),
        (b"pear", "pear"),
        (b"a\nb\tc", "a⏎b c"),
        (b"\xff\x00", "0xff00"),
        (b"pear\xff", "0x70656172ff"),
        (b"\x1b[31m", "0x1b5b33316d"),
        (b"x" * 81, "x" * 79 + "…"),
        ("ä".encode() * 200, "ä" * 79 + "…"),
        (b"x" + "ä".encode() * 200, "x" + "ä" * 78 + "…"),
    ],
)
def test_bytes_for_people(data, shown):
    assert positions.shown_bytes(data) == shown


def test_records_for_programs():
    record = Record(payload=b"pear", index=3, time=NOW, key=b"k", partition=0)
    assert positions.json_record(record) == {"index": 3, "time": NOW, "partition": 0, "key": "k", "payload": "pear"}
    assert positions.json_record(Record(payload=b"\xff", time=NOW))["payload_base64"] == b"\xff"
