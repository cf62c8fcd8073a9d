import json

import msgspec
import pyarrow as pa
import pytest

from headrace import errors
from headrace.log.columns import SCHEMA
from headrace.protocols.flight import codec
from headrace.protocols.flight.codec import AtTime, PutAck, PutColumns, PutCommand, PutMetadata, Range, ReadTicket
from headrace.protocols.flight.requests import decode_request
from headrace.protocols.flight.verb_puts import decode_verb_command


def refused(call, *arguments) -> str:
    with pytest.raises(errors.BadRequest) as caught:
        call(*arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    "ticket",
    [
        ReadTicket("orders"),
        ReadTicket("orders", 3, 7, 9, limit=0, columns=("index",), types=("a", None), follow=True, on_trimmed="skip"),
        ReadTicket("orders", start=AtTime(5), end=AtTime(9)),
        ReadTicket("orders", start="latest", end="latest", batch_bytes=1),
        ReadTicket(ranges=(Range("a"), Range("b", 1, 2, 3))),
    ],
)
def test_a_ticket_comes_back_as_it_was(ticket):
    assert codec.decode_ticket(codec.encode(ticket)) == ticket


@pytest.mark.parametrize(
    ("ticket", "names"),
    [
        ({"strem": "a"}, "strem"),
        ({}, "'stream' or 'ranges'"),
        ({"stream": "a", "ranges": [{"stream": "a"}]}, "'stream' or 'ranges'"),
        ({"stream": ""}, "'stream' is empty"),
        ({"stream": 1}, "$.stream"),
        ({"stream": "a", "partition": -1}, "'partition' is -1"),
        ({"stream": "a", "start": -1}, "'start' is -1"),
        ({"stream": "a", "end": 1 << 63}, "'end' is"),
        ({"stream": "a", "start": 5, "end": 4}, "'end' is 4, below 'start' 5"),
        ({"stream": "a", "start": "soon"}, "$.start"),
        ({"stream": "a", "limit": -1}, "'limit' is -1"),
        ({"stream": "a", "limit": 1 << 64}, "'limit' is 18446744073709551616, outside"),
        ({"stream": "a", "batch_bytes": 0}, "'batch_bytes' is 0"),
        ({"stream": "a", "batch_bytes": codec.BATCH_BYTES_MAX + 1}, "'batch_bytes'"),
        ({"stream": "a", "on_trimmed": "cry"}, "$.on_trimmed"),
        ({"ranges": []}, "'ranges' has 0"),
        ({"ranges": [{"stream": "a"}, {"stream": "b", "partition": -2}]}, "ranges[1]: 'partition' is -2"),
        ({"ranges": [{"stream": "a"}] * (codec.RANGES_MAX + 1)}, f"1 to {codec.RANGES_MAX}"),
    ],
)
def test_a_bad_ticket_is_refused_by_the_name_of_its_field(ticket, names):
    assert names in refused(codec.decode_ticket, json.dumps(ticket).encode())


def test_the_limits_of_a_ticket_are_met_from_both_sides():
    most = {"ranges": [{"stream": "a"}] * codec.RANGES_MAX, "batch_bytes": codec.BATCH_BYTES_MAX}
    ticket = codec.decode_ticket(json.dumps(most).encode())
    assert len(codec.ticket_ranges(ticket)) == codec.RANGES_MAX
    text = b'{"stream":"' + b"a" * (codec.MESSAGE_BYTES_MAX - 13) + b'"}'
    assert len(text) == codec.MESSAGE_BYTES_MAX
    codec.decode_ticket(text)
    assert "above the maximum" in refused(codec.decode_ticket, text + b" ")


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"null", b'{"stream":"\xff"}'])
def test_what_is_not_a_json_object_is_refused(data):
    assert "ticket is not valid" in refused(codec.decode_ticket, data)


def test_the_schema_of_a_ticket():
    assert codec.ticket_schema(ReadTicket("a")) == SCHEMA
    assert codec.ticket_schema(ReadTicket(ranges=(Range("a"),))).names == ["stream", "partition", *SCHEMA.names]
    assert codec.ticket_schema(ReadTicket("a", columns=("payload", "stream"))).names == ["payload", "stream"]
    assert "no column 'x'" in refused(codec.ticket_schema, ReadTicket("a", columns=("x",)))
    assert "named twice" in refused(codec.ticket_schema, ReadTicket("a", columns=("id", "id")))
    assert "is empty" in refused(codec.ticket_schema, ReadTicket("a", columns=()))


def test_a_path_names_a_stream_and_perhaps_a_partition():
    assert codec.command_from_path([b"orders"]) == PutCommand("orders")
    assert codec.command_from_path([b"orders", b"12"]) == PutCommand("orders", 12)
    for path in ([], [b"a", b"b"], [b"a", b"-1"], [b"a", b"1", b"2"], [b"a", "²".encode()], [b"a", b"9" * 10]):
        assert "path is" in refused(codec.command_from_path, path)
    assert "UTF-8" in refused(codec.command_from_path, [b"\xff"])
    assert "'stream' is empty" in refused(codec.command_from_path, [b""])


def test_commands_and_metadata_are_checked():
    command = PutCommand("orders", 1, "shop", 7, "last")
    assert codec.decode_command(codec.encode(command)) == command
    assert codec.decode_metadata(None) == codec.decode_metadata(b"") == PutMetadata()
    assert codec.decode_metadata(b'{"producer":"p","sequence":18446744073709551615}').sequence == codec.SEQUENCE_MAX
    assert "'producer' is empty" in refused(codec.decode_metadata, b'{"producer":""}')
    assert "'sequence' is -1" in refused(codec.decode_metadata, b'{"sequence":-1}')
    assert "'sequence' is 18446744073709551616" in refused(codec.decode_metadata, b'{"sequence":18446744073709551616}')
    assert "'sequence'" in refused(codec.decode_command, b'{"stream":"a","sequence":-1}')
    assert "descriptor command" in refused(codec.decode_command, b'{"stream":"a","ack":"each"}')


def test_criteria_and_acks():
    assert codec.decode_criteria(b"").pattern == "*"
    assert codec.decode_criteria(b'{"pattern":"a*"}').pattern == "a*"
    ack = PutAck(3, 4, 5, True, codec.ErrorBody("busy", "wait"))
    assert codec.decode_ack(codec.encode(ack)) == ack
    assert msgspec.json.decode(codec.encode(PutAck(0, 1, 2))) == {
        "batch": 0,
        "first": 1,
        "count": 2,
        "duplicate": False,
        "error": None,
    }


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownStream("orders", 3, 2),
        errors.LimitExceeded("records", 11, 10, "log.records_max"),
        errors.Trimmed("orders", 0, 4, 9),
        errors.Damaged("orders", 0, 4, 9, "a file"),
        errors.ConditionFailed(2, "the key is there", b"\0\xff"),
        errors.BadRequest("no"),
    ],
)
def test_an_error_is_the_same_on_the_other_side(error):
    other = codec.decode_error(codec.encode(codec.error_body(error)))
    assert type(other) is type(error)
    assert str(other) == str(error)
    assert vars(other) == vars(error)


def test_an_error_of_a_kind_that_is_not_known_keeps_its_code():
    other = codec.decode_error(b'{"code":"from-the-future","message":"hm"}')
    assert type(other) is errors.HeadraceError
    assert (other.code, str(other)) == ("from-the-future", "hm")
    assert errors.HeadraceError.code == "error"
    assert codec.decode_error(b"something else") is None
    assert codec.decode_error(b'{"code":"\xff","message":""}') is None
    assert codec.decode_error(b'{"code":"busy","message":"","details":{"a":{"base64":"?"}}}') is None


def test_details_cannot_touch_what_every_error_has():
    body = b'{"code":"busy","message":"m","details":{"args":1,"__class__":2,"a b":3,"fine":{"base64":5}}}'
    error = codec.decode_error(body)
    assert (error.args, vars(error)) == (("m",), {"fine": {"base64": 5}})


def applied(**columns) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pydict(columns)
    return PutColumns(batch.schema).apply(batch)


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.string_view(), pa.binary_view(), pa.binary(2)],
)
def test_payloads_may_come_in_any_kind_of_bytes_or_text(kind):
    values = pa.array([b"ab", b"cd"], pa.binary(2)) if kind == pa.binary(2) else pa.array(["ab", "cd"]).cast(kind)
    batch = applied(payload=values, key=values)
    assert batch.column("payload").to_pylist() == batch.column("key").to_pylist() == [b"ab", b"cd"]
    assert batch.column("payload").type == pa.binary()


def views_of(value: bytes, rows: int) -> pa.Array:
    """Rows that all show the same bytes."""
    one = pa.array([value], pa.binary_view())
    _, views, *data = one.buffers()
    return pa.Array.from_buffers(pa.binary_view(), rows, [None, pa.py_buffer(views.to_pybytes() * rows), *data])


def shared(kind: pa.DataType, value: bytes, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, None] * rows, pa.int8()), pa.array([value, b"other"], kind))


UNFOLDING = {"values": lambda value, rows: shared(pa.binary(), value, rows), "views": views_of}


@pytest.mark.parametrize("make", UNFOLDING.values(), ids=UNFOLDING)
def test_what_unfolds_is_measured_before_it_unfolds(make):
    keys = make(bytes(1000), 10)
    batch = pa.record_batch({"key": keys, "payload": pa.array([b""] * len(keys))})
    assert PutColumns(batch.schema, 10_000).apply(batch).num_rows == batch.num_rows
    with pytest.raises(errors.LimitExceeded, match=r"log\.batch_bytes_max"):
        PutColumns(batch.schema, 9_999).apply(batch)


def test_a_dictionary_of_views_is_refused_as_long_as_arrow_cannot_unfold_it():
    batch = pa.record_batch({"payload": shared(pa.binary_view(), bytes(1000), 10).drop_null()})
    with pytest.raises(errors.BadRequest, match="'payload'"):
        PutColumns(batch.schema).apply(batch)
    with pytest.raises(errors.LimitExceeded):
        PutColumns(batch.schema, 9_999).apply(batch)


def test_a_terabyte_of_one_megabyte_is_refused():
    batch = pa.record_batch({"payload": views_of(bytes(1 << 20), 1 << 20)})
    with pytest.raises(errors.LimitExceeded):
        PutColumns(batch.schema).apply(batch)


def test_numbers_of_a_dictionary_and_sliced_columns_are_measured_too():
    times = pa.DictionaryArray.from_arrays(pa.array([0] * 10, pa.int8()), pa.array([7], pa.timestamp("us", "UTC")))
    assert codec.unfolded_bytes(times) == 80
    assert codec.unfolded_bytes(views_of(b"x" * 20, 10).slice(7)) == 60
    assert codec.unfolded_bytes(pa.array([b"plain"])) == 0


def test_rows_that_take_no_bytes_are_counted():
    batch = pa.record_batch({"payload": pa.array([b""] * 100, pa.binary(0)), "key": pa.nulls(100)})
    assert PutColumns(batch.schema, 400).apply(batch).num_rows == 100
    with pytest.raises(errors.LimitExceeded):
        PutColumns(batch.schema, 399).apply(batch)


def test_dictionaries_are_unpacked():
    batch = applied(
        payload=pa.array(["a", "b", "a"]).dictionary_encode(), type=pa.array(["x", None, "x"]).dictionary_encode()
    )
    assert batch.column("payload").to_pylist() == [b"a", b"b", b"a"]
    assert batch.column("type").to_pylist() == ["x", None, "x"]


def test_ids_keep_their_bits():
    batch = applied(payload=[b"", b""], id=pa.array([1, (1 << 64) - 1], pa.uint64()))
    assert batch.column("id").to_pylist() == [1, -1]
    assert applied(payload=[b""], id=pa.array([7], pa.uint8())).column("id").type == pa.int64()


@pytest.mark.parametrize(
    ("times", "microseconds"),
    [
        (pa.array([1_500], pa.timestamp("ns")), 1),
        (pa.array([2], pa.timestamp("s", "Europe/Berlin")), 2_000_000),
        (pa.array([3], pa.timestamp("us")), 3),
        (pa.array([4], pa.int64()), 4),
    ],
)
def test_event_times_become_microseconds(times, microseconds):
    column = applied(payload=[b""], event_time=times).column("event_time")
    assert column.type == SCHEMA.field("event_time").type
    assert column.cast(pa.int64()).to_pylist() == [microseconds]


def test_what_the_hub_assigns_is_left_out_and_so_is_what_says_nothing():
    batch = applied(
        index=[5], time=[1], stream=["a"], partition=[0], payload=[b"x"], key=pa.nulls(1), type=pa.nulls(1, pa.string())
    )
    assert batch.schema.names == ["payload"]


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"key": [b"a"]}, "column 'payload' is missing"),
        ({"payload": [1]}, "column 'payload' has the type int64"),
        ({"payload": pa.nulls(1)}, "column 'payload' has the type null"),
        ({"payload": [b"", None]}, "column 'payload' row 1 is null"),
        ({"payload": [b""], "id": ["a"]}, "column 'id' has the type string; it must be an integer"),
        ({"payload": [b""], "type": [b"a"]}, "column 'type' has the type binary"),
        ({"payload": [b""], "event_time": ["now"]}, "column 'event_time' has the type string"),
        ({"payload": [b""], "event_time": pa.array([1 << 62], pa.timestamp("s"))}, "column 'event_time'"),
        ({"payload": [b""], "colour": ["red"]}, "no column 'colour'"),
    ],
)
def test_a_bad_column_is_refused_by_name(columns, names):
    with pytest.raises(errors.BadRequest, match=names):
        applied(**columns)


def test_a_column_that_is_there_twice_is_refused():
    schema = pa.schema([("payload", pa.binary()), ("payload", pa.binary())])
    assert "twice" in refused(PutColumns, schema)


def test_a_batch_without_rows_is_fine():
    batch = pa.RecordBatch.from_pydict({"payload": pa.array([], pa.binary()), "key": pa.array([], pa.binary())})
    assert PutColumns(batch.schema).apply(batch).num_rows == 0


def test_split_keeps_order_and_never_cuts_a_record():
    batch = pa.RecordBatch.from_pydict({"payload": [bytes([n]) * 100 for n in range(10)] + [b"z" * 1000]})
    parts = list(codec.split(batch, 300))
    assert pa.Table.from_batches(parts).to_pydict() == batch.to_pydict()
    assert all(part.nbytes <= 300 or part.num_rows == 1 for part in parts)
    assert list(codec.split(batch, 1 << 20)) == [batch]


def test_a_ticket_of_one_stream_has_one_range():
    assert codec.ticket_ranges(ReadTicket("a", 1, 2, 3)) == (Range("a", 1, 2, 3),)


def test_what_is_too_large_to_be_a_message_is_not_looked_into() -> None:
    fields = b",".join(b'"%d":0' % number for number in range(500_000))
    for name, decode in (("sql", codec.decode_sql_ticket), ("verb", decode_verb_command)):
        large = b'{"%b":"x",%b}' % (name.encode(), fields)
        assert len(large) > codec.MESSAGE_BYTES_MAX
        assert decode(large) is None  # whoever reads it as the other message refuses it for its size
        assert codec.has_field(large[:1000] + b"}", name) is False
        assert codec.has_field(b'{"other":[{}],"%b":null}' % name.encode(), name)


def test_what_a_line_stores_as_json_is_utf8() -> None:
    asked = b'{"append":{"stream":"orders","records":[{"json":"%b"}]}}'
    assert decode_request(asked % "ä".encode()).append is not None
    with pytest.raises(errors.BadRequest, match="the request is not valid"):
        decode_request(asked % b"\xff")
