"""Verbs whose bytes travel as Arrow, over a real socket, with a Flight client that knows nothing of Headrace."""

import json
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from support.flight_peer import code_of, command, failing, payloads

from headrace.config import Config, Flight
from headrace.testing import served_hub


class Echo(msgspec.Struct, forbid_unknown_fields=True):
    body: bytes
    word: str = ""


BODY = pa.schema([("body", pa.binary())])


def bodies(*values: bytes | None) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], schema=BODY)


@pytest.fixture
def server():
    async def echo(request: Echo) -> dict[str, Any]:
        return {"word": request.word, "bytes": len(request.body)}

    with served_hub(Config(flight=Flight(action_bytes_max=1000))) as running:
        running.run(register(running.hub, echo))
        yield flight.connect(f"grpc://{running.address}")


async def register(hub, echo) -> None:
    hub.verbs.register("test.echo", Echo, echo, right="write", filters=True)


def ask(client, batches: list[pa.RecordBatch], metadata: list[bytes], verb="test.echo", schema=BODY) -> list[Any]:
    writer, answers = client.do_put(command(verb=verb), schema)
    for batch, beside in zip(batches, metadata, strict=True):
        writer.write_with_metadata(batch, beside)
    writer.done_writing()
    found = []
    while (answer := answers.read()) is not None:
        found.append(json.loads(answer.to_pybytes()))
    writer.close()
    return found


def test_each_row_is_answered_in_turn(server):
    asked = [bodies(b"a", b"bc"), bodies(b""), bodies()]
    answers = ask(server, asked, [b'{"word": "x"}', b'{"word": "y"}', b"{}"])
    assert [(answer["word"], answer["bytes"]) for answer in answers] == [("x", 1), ("x", 2), ("y", 0)]


@pytest.mark.parametrize(
    ("verb", "schema", "batch", "metadata", "code", "names"),
    [
        ("test.none", BODY, bodies(b"a"), b"{}", "unknown-verb", "test.none"),
        ("test.echo", payloads().schema, payloads(b"a"), b"{}", "bad-request", "payload"),
        (
            "test.echo",
            pa.schema([("body", pa.string())]),
            pa.record_batch({"body": ["a"]}),
            b"{}",
            "bad-request",
            "string",
        ),
        ("test.echo", BODY, bodies(None), b"{}", "bad-request", "null in a row"),
        ("test.echo", BODY, bodies(b"a"), b"[1]", "bad-request", "app_metadata"),
        ("test.echo", BODY, bodies(b"a"), b'{"colour": 1}', "bad-request", "colour"),
        ("test.echo", BODY, bodies(b"a"), b'{"word": "%b"}' % (b"x" * 65_536), "bad-request", "maximum of 65536"),
        ("test.echo", BODY, bodies(b"a" * 1001), b"{}", "limit-exceeded", "flight.action_bytes_max"),
    ],
)
def test_what_is_no_request_is_refused_with_a_name(server, verb, schema, batch, metadata, code, names):
    with failing() as caught:
        ask(server, [batch], [metadata], verb, schema)
    assert code_of(caught.value) == code
    assert names in str(caught.value)


def test_a_refusal_ends_the_put_and_answers_before_it_stand(server):
    writer, answers = server.do_put(command(verb="test.echo"), BODY)
    writer.write_with_metadata(bodies(b"a" * 900), b"{}")
    assert json.loads(answers.read().to_pybytes())["bytes"] == 900
    writer.write_with_metadata(bodies(b"a"), b"{")
    with failing() as caught:
        writer.close()
    assert code_of(caught.value) == "bad-request"


def test_a_descriptor_that_only_mentions_a_verb_is_an_append(server):
    with failing() as caught:
        writer, _ = server.do_put(command(stream='"verb"'), BODY)
        writer.close()
    assert code_of(caught.value) == "unknown-stream"
    with failing() as caught:
        ask(server, [], [], verb=7)
    assert "descriptor command" in str(caught.value)
