"""Streams with several partitions at the command line; output that is read by another program."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as sdk
from headrace.testing import served_hub

PARTITIONS = 3
LONG_S = 60


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[sdk.Client]:
    with served_hub() as served, sdk.connect(served.address) as client:
        monkeypatch.setenv("HEADRACE_HUB", served.address)
        client.create("orders", partitions=PARTITIONS)
        for number in range(9):
            client.append("orders", b"%d" % number, partition=number % PARTITIONS)
        yield client


def test_read_shows_all_partitions_by_time(hub: sdk.Client, headrace: Any) -> None:
    rows = [line.split() for line in headrace("read", "orders").out.splitlines()]
    assert rows[0][:2] == ["partition", "index"]
    assert [row[-1] for row in rows[1:]] == [str(number) for number in range(9)]
    assert [row[0] for row in rows[1:4]] == ["0", "1", "2"]
    limited = headrace("read", "orders", "--limit", 4, "--raw")
    assert limited.out.split() == ["0", "1", "2", "3"]
    one = headrace("read", "orders", "--partition", 1, "--raw")
    assert one.out.split() == ["1", "4", "7"]


def test_more_partitions_than_are_merged_come_one_after_the_other(
    hub: sdk.Client, headrace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.cli.merged.MERGED_MAX", 2)
    told = headrace("read", "orders", "--raw")
    assert told.out.split() == list("036147258")
    assert "3 partitions, one after the other" in told.err


def test_tail_begins_with_the_latest_of_all_partitions(hub: sdk.Client, headrace: Any) -> None:
    for last, expected in ((4, "5678"), (100, "012345678")):
        followed = headrace("tail", "orders", "--raw", "--last", last, "--limit", len(expected))
        assert sorted(followed.out.split()) == list(expected)
    assert "2/2" in headrace("tail", "orders", "--last", 1, "--limit", 1).out


def test_json_says_text_where_it_is_text(hub: sdk.Client, headrace: Any) -> None:
    hub.create("mixed")
    hub.append("mixed", [b"pear", b"\xff"], key=[b"k", b"\xfe"])
    text, other = map(json.loads, headrace("read", "mixed", "--json").out.splitlines())
    assert (text["key"], text["payload"]) == ("k", "pear")
    assert (other["key_base64"], other["payload_base64"]) == ("/g==", "/w==")
    assert "key" not in other


def test_options_of_a_stream_are_changed_one_at_a_time(hub: sdk.Client, headrace: Any) -> None:
    assert headrace("stream", "set", "orders", "--retain-age", "7d", "--label", "team=a").code == 0
    assert headrace("stream", "set", "orders", "--retain-bytes", "10GiB").code == 0
    options = hub.describe("orders").options
    assert (options.retention_age_s, options.retention_bytes, options.labels) == (7 * 86400, 10 << 30, {"team": "a"})
    assert headrace("stream", "set", "orders", "--retain-age", "off", "--label", "team=").code == 0
    options = hub.describe("orders").options
    assert (options.retention_age_s, options.retention_bytes, options.labels) == (None, 10 << 30, {})
    assert "name what to change" in headrace("stream", "set", "orders").err
    assert "--retain-age" in headrace("stream", "set", "orders", "--retain-age", "soon").err


def test_a_stream_that_exists_is_left_as_it_is_and_this_is_said(hub: sdk.Client, headrace: Any) -> None:
    again = headrace("stream", "create", "orders", "--partitions", 4, "--retain-age", "1d")
    assert again.code == 0
    assert "exists already, with 3 partitions; it is left as it is" in again.out
    assert "`headrace stream grow orders 4`" in again.err
    assert "`headrace stream set orders` changes its options" in again.err
    assert "created stream new with 1 partition" in headrace("stream", "create", "new").out


def test_a_cursor_that_is_not_there(hub: sdk.Client, headrace: Any) -> None:
    hub.cursor("billing", "orders").save(1)
    hub.cursor("billing", "orders", partition=1).save(1)
    assert (
        "has no cursor 'biling'; did you mean 'billing'?" in headrace("cursor", "delete", "biling", "orders", "-y").err
    )
    moved = headrace("cursor", "reset", "biling", "orders", "--to", "latest", "--dry-run")
    assert "there is no cursor biling yet; did you mean 'billing'?" in moved.err
    assert headrace("cursor", "delete", "billing", "orders", "-y").code == 0
    assert hub.cursors() == []


@pytest.mark.parametrize(
    "line",
    ["read many -n 0", "read many -n 0 --json", "read many -n 0 --raw", "stream ls", "config show"],
)
def test_a_reader_that_has_enough_is_no_failure(hub: sdk.Client, line: str) -> None:
    hub.create("many")
    hub.append("many", [b"x" * 100] * 5_000)
    for number in range(50):
        hub.create(f"stream-with-a-long-name-{number}-{'x' * 100}")
    environment = {**os.environ, "PYTHONPATH": str(Path(sdk.__file__).parent.parent)}
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *line.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(1)
    process.stdout.close()
    errors = process.stderr.read().decode()
    process.stderr.close()
    assert (process.wait(LONG_S), errors) == (0, "")
