"""A put into a verb: requests whose bytes travel as they are, and not as base64 inside JSON.

    descriptor.command        = {"verb": "spark.stage"}
    the schema                one binary column, named after the field of the request that holds the bytes
    app_metadata of a batch   = {"query": "q", "run": "r", …}   all other fields of the request
    metadata sent back        = the answer of the verb, for each row in turn

Every row is one call, and the next is read when it is answered. The first refusal ends the put.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from headrace.errors import BadRequest, LimitExceeded
from headrace.protocols.flight.codec import has_field
from headrace.units import KIB

FIELDS_BYTES_MAX: Final = 64 * KIB
"""All fields of a request but the one with the bytes."""


class VerbCommand(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The verb that the rows of a put are requests of."""

    verb: str


def decode_verb_command(data: bytes) -> VerbCommand | None:
    """The descriptor command of a put into a verb; None for one that appends to a stream."""
    if not has_field(data, "verb"):
        return None
    try:
        return msgspec.json.decode(data, type=VerbCommand)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the descriptor command is not valid: {error}") from None


def serve_requests(
    verb: str,
    reader: flight.MetadataRecordBatchReader,
    writer: flight.FlightMetadataWriter,
    call: Callable[[dict[str, Any], int], bytes],
    bytes_max: int,
) -> None:
    """Until all is sent. `call` takes a request and the size of its batch, and raises what ends the put."""
    field = _field(reader.schema)
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.data is None:
            raise BadRequest(f"{verb}: a message without a row")
        size = chunk.data.get_total_buffer_size()
        if size > bytes_max:
            raise LimitExceeded(f"bytes of the request {verb!r}", size, bytes_max, "flight.action_bytes_max")
        chunk.data.validate(full=True)
        if chunk.data.column(0).null_count:
            raise BadRequest(f"{verb}: {field!r} is null in a row")
        request = _decode_request(chunk.app_metadata)
        for value in chunk.data.column(0):
            writer.write(pa.py_buffer(call({**request, field: value.as_py()}, size)))


def _field(schema: pa.Schema) -> str:
    if len(schema) != 1 or not pa.types.is_binary(schema.field(0).type):
        raise BadRequest(
            f"a put into a verb has one binary column, and not {schema.to_string(show_schema_metadata=False)}"
        )
    return str(schema.names[0])


def _decode_request(metadata: pa.Buffer | None) -> dict[str, Any]:
    data = b"{}" if metadata is None else metadata.to_pybytes()
    if len(data) > FIELDS_BYTES_MAX:
        raise BadRequest(f"the app_metadata has {len(data)} bytes, above the maximum of {FIELDS_BYTES_MAX}")
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the app_metadata is not valid: {error}") from None
