"""The commands for streams, records, cursors and tables, run as a shell would, against a real hub."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyarrow.ipc
import pyarrow.parquet
import pytest
from support.until import DEADLINE_S, wait_until

import headrace as sdk
from headrace.cli.main import run
from headrace.testing import ServedHub, served_hub


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedHub]:
    with served_hub() as hub:
        monkeypatch.setenv("HEADRACE_HUB", hub.address)
        yield hub


@pytest.fixture
def hub(served: ServedHub) -> Iterator[sdk.Client]:
    with sdk.connect(served.address) as client:
        yield client


@pytest.fixture
def command(
    served: ServedHub, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], tmp_path: Path
) -> Callable[..., SimpleNamespace]:
    def call(*arguments: object, stdin: bytes = b"") -> SimpleNamespace:
        source = tmp_path / "stdin"
        source.write_bytes(stdin)
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        capfdbinary.readouterr()
        with source.open("rb") as file:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(file))
            with pytest.raises(SystemExit) as end:
                run()
        seen = capfdbinary.readouterr()
        code = end.value.code
        return SimpleNamespace(code=code or 0, out=seen.out.decode(), err=seen.err.decode())

    return call


def ok(result: SimpleNamespace) -> str:
    assert result.code == 0, result.err
    return result.out


def as_json(result: SimpleNamespace):
    return json.loads(ok(result))


def test_streams(command):
    made = as_json(command("stream", "create", "orders", "-p", 2, "--retain-age", "7d", "--label", "a=b", "--json"))
    assert (made["partitions"], made["options"]) == (2, {"retention_age_s": 604800.0, "labels": {"a": "b"}})
    assert "exists already, with 2 partitions" in ok(command("stream", "create", "orders"))
    listed = ok(command("stream", "ls"))
    assert "orders" in listed
    assert "keep 7.0 d, a=b" in listed
    assert [each["name"] for each in as_json(command("stream", "ls", "--json"))] == ["orders"]
    assert "no streams" in command("stream", "ls", "nothing*").err
    assert "partition" in ok(command("stream", "describe", "orders"))
    assert as_json(command("stream", "describe", "orders", "--json"))["kind"] == "stream"
    assert as_json(command("stream", "grow", "orders", 3, "--json"))["partitions"] == 3


def test_creating_anew_or_badly(command):
    ok(command("stream", "create", "orders"))
    again = command("stream", "create", "orders", "--new", "--json")
    assert again.code == 1
    assert json.loads(again.err)["error"]["code"] == "stream-exists"
    for bad in (["--retain-age", "x"], ["--retain-bytes", "x"], ["--label", "x"], ["-p", "0"]):
        result = command("stream", "create", "other", *bad)
        assert result.code == 2
        assert bad[0] in result.err or "label" in result.err or "-p" in result.err
    assert len(as_json(command("stream", "ls", "--json"))) == 1


def test_delete_and_trim_ask_first(command, hub):
    hub.create("orders")
    hub.append("orders", [b"x"] * 5)
    asked = command("stream", "trim", "orders", 2, stdin=b"n\n")
    assert asked.code == 1
    assert "forget 2 records" in asked.err
    assert hub.bounds("orders").first == 0
    refused = command("stream", "trim", "orders", 2, "--json")
    assert refused.code == 2
    assert "--yes" in json.loads(refused.err)["error"]["message"]
    assert "forgot 2 records" in ok(command("stream", "trim", "orders", 2, stdin=b"y\n"))
    assert as_json(command("stream", "trim", "orders", 3, "--yes", "--json")) == {"first": 3, "next": 5, "removed": 1}
    assert "2 records" in command("stream", "delete", "orders", stdin=b"\n").err
    assert as_json(command("stream", "delete", "orders", "-y", "--json"))["deleted"] == "orders"
    assert hub.streams() == []


def test_append_from_arguments_lines_and_files(command, hub, tmp_path):
    assert "indexes 0 to 1" in ok(command("append", "orders", "a", "b", "--create"))
    found = as_json(command("append", "orders", "c", "--type", "t", "--key", "k", "--json"))
    assert found == {"stream": "orders", "partition": 0, "records": 1, "first": 2, "last": 2, "duplicates": 0}
    assert "appended 3" in ok(command("append", "orders", stdin=b"d\r\n\nlast"))
    lines = tmp_path / "lines"
    lines.write_bytes(b"".join(b"%d\n" % number for number in range(1000)))
    assert as_json(command("append", "orders", "--file", lines, "--json"))["records"] == 1000
    assert as_json(command("append", "orders", "--file", lines, "--whole", "--json"))["records"] == 1
    assert as_json(command("append", "orders", "--file", "-", "--whole", "--json", stdin=b"1\n2\n"))["records"] == 1
    records = hub.read("orders").to_list()
    assert [record.payload for record in records[:6]] == [b"a", b"b", b"c", b"d", b"", b"last"]
    assert (records[2].type, records[2].key) == ("t", b"k")
    assert records[-2].payload == lines.read_bytes()
    assert records[-1].payload == b"1\n2\n"


def test_lines_longer_than_a_chunk(command, hub, monkeypatch):
    monkeypatch.setattr("headrace.cli.append.CHUNK_BYTES", 3)
    ok(command("append", "orders", "--create", stdin=b"abcdefgh\nij\nklmnop"))
    assert [record.payload for record in hub.read("orders")] == [b"abcdefgh", b"ij", b"klmnop"]
    monkeypatch.setattr("headrace.cli.append.LINE_BYTES_MAX", 5)
    assert "longer than 5" in command("append", "orders", stdin=b"abcdefgh").err


def test_a_key_chooses_the_partition(command, hub):
    hub.create("wide", partitions=4)
    assert "partition 2" in ok(command("append", "wide", "x", "--key", "pear"))
    assert "partition 1" in ok(command("append", "wide", "x", "--key", "pear", "--partition", 1))
    assert "partition 0" in ok(command("append", "wide", "x"))


def test_append_once(command, hub):
    hub.create("orders")
    for expected in ("appended 1", "nothing new appended to stream orders partition 0; 1 had been stored before"):
        assert expected in ok(command("append", "orders", "a", "--producer", "p", "--sequence", 1))
    assert "belong together" in command("append", "orders", "a", "--producer", "p").err


def test_append_badly(command):
    assert "'nowhere' does not exist" in command("append", "nowhere", "a").err
    assert command("append", "nowhere", "a", "--file", "x").code == 2
    missing = command("append", "nowhere", "--file", "/does/not/exist")
    assert "cannot read" in missing.err


def test_read(command, hub, tmp_path):
    hub.create("orders")
    assert "no records" in command("read", "orders").err
    hub.append("orders", [b"pear", b"\xff", b"plum"], type=["a", None, "b"], key="k")
    table = ok(command("read", "orders"))
    assert "pear" in table
    assert "0xff" in table
    lines = [json.loads(line) for line in ok(command("read", "orders", "--json")).splitlines()]
    assert [line.get("payload") for line in lines] == ["pear", None, "plum"]
    assert lines[1]["payload_base64"] == "/w=="
    assert ok(command("read", "orders", "--raw", "-s", 2)) == "plum\n"
    assert ok(command("read", "orders", "--raw", "-s", "5m", "-e", "latest", "--type", "a")) == "pear\n"
    limited = command("read", "orders", "-n", 1)
    assert "there may be more" in limited.err
    for suffix, opened in (("arrow", pyarrow.ipc.open_file), ("parquet", pyarrow.parquet.ParquetFile)):
        file = tmp_path / f"orders.{suffix}"
        assert "wrote 3 records" in ok(command("read", "orders", "-o", file))
        source = opened(file)
        assert (source.read_all() if suffix == "arrow" else source.read()).num_rows == 3
    assert as_json(command("read", "orders", "-s", 2, "-o", tmp_path / "orders.csv", "--json"))["records"] == 1
    assert ".parquet" in command("read", "orders", "-o", tmp_path / "orders.doc").err


def test_records_of_a_year_that_python_does_not_know(command, hub):
    hub.create("s")
    hub.append("s", b"far", event_time=1_700_000_000 * 10**9)
    assert "far" in ok(command("read", "s"))
    assert "far" in ok(command("tail", "s", "--start", "earliest", "--limit", 1))
    assert json.loads(ok(command("read", "s", "--json")))["event_time"] == 1_700_000_000 * 10**9


def test_read_badly(command, hub):
    hub.create("orders")
    hub.append("orders", [b"x"] * 5)
    hub.trim("orders", 3)
    gone = command("read", "orders", "-s", 0, "--json")
    assert json.loads(gone.err)["error"]["code"] == "trimmed"
    assert len(ok(command("read", "orders", "-s", 0, "--raw", "--skip-trimmed")).splitlines()) == 2
    assert "does not exist" in command("read", "nowhere").err
    assert command("read", "orders", "-e", "earliest").code == 2
    assert command("read", "orders", "-s", "soon").code == 2


def test_tail(command, hub):
    hub.create("orders", partitions=2)
    hub.append("orders", [b"%d" % number for number in range(20)], type="t", key="k", partition=0)
    shown = ok(command("tail", "orders", "-n", 10))
    assert "19" in shown
    assert len(shown.splitlines()) == 10
    assert ok(command("tail", "orders", "--raw", "-s", 17, "-n", 3)) == "17\n18\n19\n"
    lines = ok(command("tail", "orders", "--json", "-s", "earliest", "-n", 2)).splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["0", "1"]
    assert "0/0" in ok(command("tail", "orders", "--all-partitions", "-s", "earliest", "-n", 1))


@pytest.mark.slow
def test_tail_follows_until_it_is_interrupted(served, hub):
    hub.create("orders")
    environment = {**os.environ, "HEADRACE_HUB": served.address, "PYTHONPATH": str(Path(sdk.__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", "tail", "orders", "--raw"], stdout=subprocess.PIPE, env=environment
    )
    wait_until(lambda: served.hub.sessions.list("flight"))
    for number in range(3):
        hub.append("orders", b"%d" % number)
        assert process.stdout.readline() == b"%d\n" % number
    process.send_signal(signal.SIGINT)
    assert process.wait(DEADLINE_S) == 130
    process.stdout.close()


def test_cursors(command, hub):
    hub.create("orders", partitions=2)
    hub.append("orders", [b"x"] * 10)
    assert "no cursors" in command("cursor", "ls").err
    hub.cursor("mill", "orders").save(6)
    assert "mill" in ok(command("cursor", "ls"))
    assert as_json(command("cursor", "ls", "--stream", "orders", "--json"))[0]["lag"] == 4
    preview = ok(command("cursor", "reset", "mill", "orders", "--to", "earliest", "--dry-run"))
    assert "read again" in preview
    assert "6" in preview
    assert hub.cursor("mill", "orders").get() == 6
    asked = command("cursor", "reset", "mill", "orders", "--to", 8, "--partition", 0, stdin=b"n\n")
    assert asked.code == 1
    assert hub.cursor("mill", "orders").get() == 6
    assert "--yes" in command("cursor", "reset", "mill", "orders", "--to", 8, "--partition", 0, "--json").err
    (move,) = as_json(command("cursor", "reset", "mill", "orders", "--to", 8, "--partition", 0, "--yes", "--json"))
    assert (move["before"], move["after"], move["skipped"]) == (6, 8, 2)
    assert "moved cursor mill" in ok(command("cursor", "reset", "mill", "orders", "--to", "1h", "--yes"))
    assert hub.cursor("mill", "orders").get() == 0
    assert "outside 0 to 10" in command("cursor", "reset", "mill", "orders", "--to", 11, "--partition", 0, "--yes").err
    one = as_json(command("cursor", "delete", "mill", "orders", "--yes", "--partition", 1, "--json"))
    assert one["partitions"] == [1]
    ok(command("cursor", "delete", "mill", "orders", "--yes"))
    assert hub.cursors() == []


def test_tables(command, hub):
    assert "no tables" in command("table", "ls").err
    table = hub.create_table("prices")
    table.put("pear", "3")
    table.put(b"\xff", b"\xfe")
    assert "prices" in ok(command("table", "ls"))
    assert as_json(command("table", "ls", "--json"))[0]["keys"] == 2
    assert ok(command("table", "get", "prices", "pear")) == "3"
    assert as_json(command("table", "get", "prices", "pear", "--json")) == {"key": "pear", "value": "3"}
    assert as_json(command("table", "get", "prices", "plum", "--json"))["value"] is None
    missing = command("table", "get", "prices", "plum")
    assert missing.code == 1
    assert "no key 'plum'" in missing.err
    assert "0xfe" in ok(command("table", "items", "prices"))
    assert as_json(command("table", "items", "prices", "--json"))[1] == {"key_base64": "/w==", "value_base64": "/g=="}
    assert "no damage" in ok(command("table", "accept-damage", "prices", "--yes"))
    assert command("table", "clear", "prices", "--json").code == 2  # a program must say --yes
    assert ok(command("table", "clear", "prices", "--yes")) == "removed 2 keys of table prices\n"
    assert as_json(command("table", "clear", "prices", "--yes", "--json")) == {"table": "prices", "keys": 0}


def test_no_hub_answers(command, monkeypatch):
    monkeypatch.setenv("HEADRACE_HUB", "127.0.0.1:1")
    result = command("stream", "ls", "--json")
    assert result.code == 5
    assert json.loads(result.err)["error"]["code"] == "unreachable"
