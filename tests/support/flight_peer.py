"""A Flight client that knows nothing of Headrace, in a few short words."""

import json

import pyarrow as pa
import pyarrow.flight as flight
import pytest

PAYLOADS = pa.schema([("payload", pa.binary())])


def call(client, verb, options=None, **params):
    (result,) = client.do_action(flight.Action(verb, json.dumps(params).encode()), options)
    return json.loads(result.body.to_pybytes())


def put(client, batches, descriptor=None, *, metadata=None, schema=PAYLOADS):
    """Send everything, read every ack, close; returns the acks."""
    writer, acks = client.do_put(descriptor or flight.FlightDescriptor.for_path("orders"), schema)
    for number, batch in enumerate(batches):
        if metadata is None:
            writer.write_batch(batch)
        else:
            writer.write_with_metadata(batch, metadata[number])
    writer.done_writing()
    found = []
    while (message := acks.read()) is not None:
        found.append(json.loads(message.to_pybytes()))
    writer.close()
    return found


def payloads(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"payload": list(values)}, schema=PAYLOADS)


def get(client, **ticket):
    return client.do_get(flight.Ticket(json.dumps(ticket).encode()))


def rows(client, **ticket) -> list[bytes]:
    return get(client, **ticket).read_all().column("payload").to_pylist()


def command(**fields) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(fields).encode())


def code_of(error: flight.FlightError) -> str:
    return json.loads(error.extra_info)["code"]


def failing(kind=flight.FlightError):
    return pytest.raises(kind)
