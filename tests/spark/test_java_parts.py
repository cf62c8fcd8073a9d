"""Parts of the Java engine without a Spark: what it must have in common with Python, and what it must refuse."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka_brokers
import pyarrow as pa
import pytest
import xxhash

from headrace.log.columns import SCHEMA
from headrace.log.disk import OsDisk
from headrace.log.segment import write_segment
from headrace.log.store import DirectoryStore
from headrace.spark import jar
from headrace.spark.engine import spark_jars
from headrace.spark.options import parse_point
from headrace.spark.source import offsets

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.needs("javac")]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def engine_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    javac = jar.find_javac(os.environ)
    assert javac is not None
    target = tmp_path_factory.mktemp("jar") / "engine.jar"
    jar.build(target, javac, spark_jars(), strict=True)
    return target


@pytest.fixture(scope="module")
def ask(engine_jar: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    classes = tmp_path_factory.mktemp("classes")
    javac = jar.find_javac(os.environ)
    class_path = os.pathsep.join([str(engine_jar), str(spark_jars() / "*")])
    source = Path(__file__).with_name("java_parts") / "Parts.java"
    subprocess.run(
        [str(javac), "-nowarn", "-proc:none", "-d", str(classes), "-cp", class_path, str(source)],
        check=True,
        timeout=300,
    )
    opened = ["--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"]
    command = ["java", *opened, "-XX:TieredStopAtLevel=1", "-cp", f"{classes}{os.pathsep}{class_path}"]
    with subprocess.Popen(
        [*command, "headrace.spark.Parts"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as parts:
        assert parts.stdin is not None
        assert parts.stdout is not None

        def asking(do: str, **what: Any) -> Any:
            parts.stdin.write(json.dumps({"do": do, **what}).encode() + b"\n")
            parts.stdin.flush()
            return json.loads(parts.stdout.readline())

        yield asking
        parts.stdin.close()
        parts.wait(60)


def test_a_key_has_the_same_hash_in_both_engines(ask: Ask) -> None:
    lengths = (*range(300), 1023, 1024, 1025, 5000)
    keys = [bytes((7 * place + length) % 256 for place in range(length)) for length in lengths]
    expected = [str(xxhash.xxh3_64_intdigest(key)) for key in keys]
    assert ask("hash", keys=[key.hex() for key in keys])["hashes"] == expected


def framed(*messages: bytes) -> bytes:
    return b"".join(b"\0" + len(message).to_bytes(4, "big") + message for message in messages)


def test_messages_may_be_cut_at_every_byte(ask: Ask) -> None:
    whole = framed(b"first", b"", b"x" * 300)
    assert ask("messages", bytes=whole.hex())["messages"] == [b"first".hex(), "", "78" * 300, "whole"]
    assert ask("messages", bytes=whole[:-1].hex())["messages"][-1] == "inside"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"\1\0\0\0\1x", "compressed"),
        (b"\0\4\0\0\1x", "above 67108864"),
        (b"\0\xff\xff\xff\xff", "4294967295 bytes, above"),
    ],
)
def test_a_message_that_is_too_large_or_compressed_is_refused(ask: Ask, data: bytes, problem: str) -> None:
    assert problem in ask("messages", bytes=data.hex())["error"]


def test_unknown_fields_are_passed_over_and_broken_ones_refused(ask: Ask) -> None:
    message = b"\x08\x96\x01" + b"\x11" + b"\1" * 8 + b"\x1d" + b"\2" * 4 + b"\x12\3abc" + b"\xc2\x3e\2hi"
    assert ask("field", bytes=message.hex(), number=2) == {"bytes": b"abc".hex()}
    assert ask("field", bytes=message.hex(), number=1000) == {"bytes": b"hi".hex()}
    assert ask("field", bytes=message.hex(), number=7) == {"bytes": None}
    for size in range(1, len(message)):
        answer = ask("field", bytes=message[:size].hex(), number=9)
        assert answer == {"bytes": None} or "ends inside" in answer["error"]
    assert "unknown type" in ask("field", bytes="0b", number=1)["error"]
    assert "more than ten bytes" in ask("field", bytes="ff" * 11, number=1)["error"]


def flight_message(batch: pa.RecordBatch) -> bytearray:
    message = pa.ipc.read_message(batch.serialize())
    header, body = message.metadata.to_pybytes(), message.body.to_pybytes()

    def varint(value: int) -> bytes:
        return bytes([value & 127 | 128]) + varint(value >> 7) if value > 127 else bytes([value])

    return bytearray(b"\x12" + varint(len(header)) + header + b"\xc2\x3e" + varint(len(body)) + body)


def records(count: int) -> pa.RecordBatch:
    """Every kind of column: full, with some nulls, with none at all."""
    numbers = range(count)
    columns = {
        "index": [100 + number for number in numbers],
        "time": [1_000_000 + number for number in numbers],
        "event_time": [None] * count,
        "id": [number * 7 - 3 for number in numbers],
        "type": [None if number % 3 else f"t{number % 2}" for number in numbers],
        "key": [b"k" if number % 11 else None for number in numbers],
        "payload": [b"payload %d" % number for number in numbers],
    }
    return pa.RecordBatch.from_pydict(columns, schema=SCHEMA)


def test_a_frame_whose_offsets_lie_is_refused(ask: Ask) -> None:
    message = flight_message(records(9))
    assert ask("frame", bytes=message.hex()) == {"rows": 9}
    whole = bytes(message)
    for place in range(len(whole)):
        message[:] = whole
        message[place] ^= 0xFF
        answer = ask("frame", bytes=message.hex())
        assert "rows" in answer or "IOException" in answer["error"], answer


def segment(tmp_path: Path, count: int) -> tuple[dict[str, Any], pa.RecordBatch]:
    batch = records(count)
    store = DirectoryStore(OsDisk(tmp_path))
    ref = write_segment(store, "s", 7, 0, [batch])
    where = {"path": str(tmp_path / ref.path), "first": ref.first, "next": ref.next, "bytes": ref.bytes, "stream": "s"}
    return where, batch


def plain(batch: pa.RecordBatch) -> list[list[Any]]:
    columns = []
    for field in SCHEMA:
        column = batch.column(field.name)
        values = (column.cast(pa.int64()) if pa.types.is_timestamp(field.type) else column).to_pylist()
        columns.append([value.hex() if isinstance(value, bytes) else value for value in values])
    return [list(row) for row in zip(*columns, strict=True)]


def test_a_sealed_file_is_read_as_python_reads_it(ask: Ask, tmp_path: Path) -> None:
    where, batch = segment(tmp_path, 1000)
    assert ask("scan", **where, start=100, end=1100) == {"rows": plain(batch)}
    assert ask("scan", **where, start=517, end=523)["rows"] == plain(batch)[417:423]
    odd = ask("scan", **where, start=100, end=1100, type="t1")["rows"]
    assert odd == [row for row in plain(batch) if row[4] == "t1"]
    assert ask("scan", **where, start=100, end=1100, type="none of them")["rows"] == []


def test_a_damaged_file_is_never_rows(ask: Ask, tmp_path: Path) -> None:
    where, batch = segment(tmp_path, 40)
    path, expected = Path(where["path"]), plain(batch)
    whole = path.read_bytes()
    named = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x5A]) + whole[place + 1 :])
        answer = ask("scan", **where, start=100, end=140)
        if "error" in answer:  # damaged; or not this segment any more, and the hub that is asked then is not there
            named += "Damaged: stream 's' partition 0: indexes 100 to 139" in answer["error"]
            assert "Damaged" in answer["error"] or "Unreachable" in answer["error"], answer
        else:
            assert answer["rows"] == expected
    assert named > 100


@pytest.mark.parametrize("change", [{"bytes": 17}, {"next": 1101}, {"stream": "another"}])
def test_another_file_than_the_hub_says_is_not_read(ask: Ask, tmp_path: Path, change: dict[str, Any]) -> None:
    where, _ = segment(tmp_path, 1000)
    assert "Unreachable" in ask("scan", **where | change, start=100, end=1100)["error"]


@pytest.mark.parametrize("partitions", [None, [0, 2]])
def test_offsets_are_the_same_bytes(ask: Ask, partitions: list[int] | None) -> None:
    positions = {'ü"\\\n': offsets.Position(2**60, (0, 5, 7), (1, 2**53 + 1, 9)), "a": offsets.Position(1, (), ())}
    made = json.dumps(offsets.make(positions, "cursor ☕", "grpc+tls://hub:7070", partitions))
    options = {"hub": "grpc+tls://hub:7070", "stream": "*", "cursor": "cursor ☕"}
    if partitions is not None:
        options["partitions"] = ",".join(map(str, reversed(partitions)))
    assert ask("offset", json=made, options=options) == {"json": made}


@pytest.mark.parametrize("hub", ["h", "another"])
def test_a_batch_says_in_both_engines_from_where_to_where_it_read(ask: Ask, hub: str) -> None:
    def at(*begin: int, to: tuple[int, ...], id: int = 1, cursor: str | None = "c", **more: Any) -> str:
        return json.dumps(offsets.make({"a": offsets.Position(id, begin, to)}, cursor, "h") | more)

    two = [at(0, 0, 2, to=(8, 6, 3)), at(0, 0, 2, to=(7, 9, 3))]
    for before, planned in (
        ([at(0, 0, to=(5, 6)), at(0, 0, to=(4, 9))], two),
        ([], two),
        (None, two),
        ([at(0, to=(5,))], [at(7, to=(9,), id=2, cursor=None)]),
        ([], [at(1, 2, to=(3, 4), partitions=[1]), "12"]),
    ):
        lines = None if before is None else "\n".join(before)
        answer = ask("ranges", before=lines, planned="\n".join(planned), hub=hub)
        assert answer["ranges"] == offsets.read_ranges(before, planned, hub)


@pytest.mark.parametrize(
    "text",
    ["earliest", "latest", "cursor", "17", "2026-11-15T08:00:00Z", "2026-11-15 08:00:00.123456+02:00", "2026-11-15"],
)
def test_points_mean_the_same(ask: Ask, text: str) -> None:
    point = parse_point("start", text)
    assert ask("point", text=text) == {"kind": point.kind, "value": point.value}


@pytest.mark.parametrize("text", ["soon", "-1", "2026-13-01", '{"a": [-1]}', '{"a": 1.5', ""])
def test_points_that_mean_nothing_are_refused(ask: Ask, text: str) -> None:
    assert "BadOption" in ask("point", text=text)["error"]


@pytest.mark.needs("kafka")  # for Maven
@pytest.mark.timeout(900)  # Maven fetches 55 MB once
def test_one_jar_is_for_every_spark_that_it_serves(engine_jar: Path, tmp_path: Path) -> None:
    """Compiled against the earliest one, the sources are the same bytes: all that they use of Spark is in both."""
    pom = Path(kafka_brokers.__file__).with_name("spark42") / "pom.xml"
    earliest = kafka_brokers.CACHE / f"spark-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    kafka_brokers.copy_jars(pom, earliest, "Spark 4.2", "-DexcludeTransitive=true")
    jars = tmp_path / "jars"
    jars.mkdir()
    names = {path.name.partition("_")[0] for path in earliest.glob("*.jar")}
    others = [path for path in spark_jars().glob("*.jar") if path.name.partition("_")[0] not in names]
    for path in (*others, *earliest.glob("*.jar")):
        (jars / path.name).symlink_to(path)
    javac = jar.find_javac(os.environ)
    assert javac is not None
    jar.build(tmp_path / "again.jar", javac, jars)
    assert (tmp_path / "again.jar").read_bytes() == engine_jar.read_bytes()
