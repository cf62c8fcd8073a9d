"""Messages: codings, good requests, and the first rule that a bad one breaks."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from headrace.protocols.futoin import codec
from headrace.protocols.futoin.codec import Coding, Deviation
from headrace.protocols.futoin.errors import PeerError
from headrace.protocols.futoin.interface import CALLS, GEN, POLL, PUSH, AddEvent, Interface, PollEvents

ADD = {"f": "futoin.evt.gen:1.1:addEvent", "p": {"type": "A", "data": 1}}


def explained(
    fields: Any, *, authenticated: bool = True, constraint: PeerError | None = None
) -> tuple[str, str | None]:
    def check(interface: Interface) -> None:
        if constraint is not None:
            raise constraint

    error = codec.explain(fields, authenticated=authenticated, check=check)
    return error.name, error.text


class TestCodings:
    @pytest.mark.parametrize(
        ("message", "coding"),
        [
            (b"{}", Coding.JSON), (b"MPCK\x80", Coding.MESSAGEPACK), (b"CBOR\xa0", Coding.CBOR), (b"", Coding.JSON),
            (b" {}", Coding.JSON), (b"MPC", Coding.JSON), (b"\x80", Coding.JSON),
        ],
    )  # fmt: skip
    def test_first_bytes_tell(self, message: bytes, coding: Coding) -> None:
        assert codec.coding_of(message) is coding

    @pytest.mark.parametrize("coding", list(Coding))
    def test_every_call_in_every_coding(self, coding: Coding) -> None:
        params = {
            "addEvent": {"type": "A", "data": {"x": [1, None]}},
            "registerConsumer": {"component": "c"},
            "ping": {"echo": 1},
            "pollEvents": {"component": "c", "last_id": None, "want": None},
            "readyToReceive": {"component": "c"},
        }
        for call in CALLS.values():
            message = codec.request(call.name, params[call.function], "C1", "u:s", coding)
            decoded = codec.decode(message, coding)
            assert not isinstance(decoded, Deviation)
            assert codec.CALL_OF[type(decoded)] is call
            assert (decoded.rid, decoded.sec) == ("C1", "u:s")

    def test_optional_fields(self) -> None:
        message = {**ADD, "sec": {"user": "u", "secret": "s"}, "forcersp": True, "obf": {"lid": "x"}}
        decoded = codec.decode(json.dumps(message).encode(), Coding.JSON)
        assert not isinstance(decoded, Deviation)
        assert (decoded.rid, decoded.sec, decoded.forcersp) == (None, {"user": "u", "secret": "s"}, True)

    def test_request_without_rid_and_sec(self) -> None:
        assert codec.request("a:1.0:b", {}, None, None, Coding.JSON) == b'{"f":"a:1.0:b","p":{}}'

    @pytest.mark.parametrize("coding", list(Coding))
    def test_undecodable(self, coding: Coding) -> None:
        with pytest.raises(codec.Undecodable):
            codec.decode(codec.PREFIXES[coding] + b"\xc1", coding)

    @pytest.mark.parametrize("body", [b'{"f":"\xff"}', b"{" * 9, b'{"a":1e999}', b'{"a":"\\ud800"}', b"[" * 100_000])
    def test_undecodable_json(self, body: bytes) -> None:
        with pytest.raises(codec.Undecodable):
            codec.decode(body, Coding.JSON)

    def test_cbor_that_messagepack_cannot_hold(self) -> None:
        body = b"CBOR" + bytes.fromhex("a1616138ff")  # {"a": -256} is fine, and is no request
        assert isinstance(codec.decode(body, Coding.CBOR), Deviation)
        negative_64_bit = b"CBOR" + bytes.fromhex("a161613bffffffffffffffff")
        assert isinstance(codec.decode(negative_64_bit, Coding.CBOR), Deviation)


class TestDeviations:
    @pytest.mark.parametrize(
        ("fields", "rid", "is_answer"),
        [
            ({"r": 1, "rid": "S1"}, "S1", True), ({"e": "X"}, None, True), ({"r": None}, None, True),
            ({"r": 1, "f": "x"}, None, False), ({"rid": 5}, 5, False), ({"rid": [5]}, None, False),
            ([], None, False), (None, None, False),
        ],
    )  # fmt: skip
    def test_answers(self, fields: Any, rid: codec.Rid | None, is_answer: bool) -> None:
        deviation = Deviation(fields)
        assert (deviation.rid, deviation.is_answer) == (rid, is_answer)

    @pytest.mark.parametrize(
        ("fields", "answer"),
        [
            ({"r": True, "rid": "S1"}, codec.Answer("S1", True)),
            ({"e": "Name", "edesc": "text", "rid": "S1"}, codec.Answer("S1", None, "Name", "text")),
            ({"e": 5, "edesc": 5, "rid": "S1"}, codec.Answer("S1", None, "5", None)),
            ({"r": True}, None),
            ({"r": True, "rid": 1}, None),
        ],
    )
    def test_answer(self, fields: dict[str, Any], answer: codec.Answer | None) -> None:
        assert codec.answer(fields) == answer


class TestExplain:
    """The order of FTN3 executors: function, constraints, fields, parameters."""

    @pytest.mark.parametrize(
        ("change", "name", "text"),
        [
            ({"f": None}, "InvalidRequest", "Missing req.f"),
            ({"f": 5}, "InvalidRequest", "Missing req.f"),
            ({"f": "a:b"}, "InvalidRequest", "Invalid req.f"),
            ({"f": "a:1.0:b:c"}, "InvalidRequest", "Invalid req.f"),
            ({"f": "futoin.evt.gen:1:addEvent"}, "InvalidRequest", "Invalid req.f (version)"),
            ({"f": "futoin.evt.gen:1.x:addEvent"}, "InvalidRequest", "Invalid req.f (version)"),
            ({"f": "futoin.evt.gen:1.0\n:addEvent"}, "InvalidRequest", "Invalid req.f (version)"),
            ({"f": "no:1.0:x"}, "UnknownInterface", "Unknown interface: no"),
            ({"f": "futoin.evt.gen:2.0:x"}, "NotSupportedVersion", "Different major version: futoin.evt.gen:2"),
            ({"f": "futoin.evt.gen:1.2:x"}, "NotSupportedVersion", "Iface version is too old: futoin.evt.gen:1.2"),
            ({"f": "futoin.evt.gen:1.10:x"}, "NotSupportedVersion", "Iface version is too old: futoin.evt.gen:1.10"),
            ({"f": "futoin.evt.gen:1.1:x"}, "InvalidRequest", "Unknown interface function: x"),
            ({"zzz": 1}, "InvalidRequest", "Unknown request field: zzz"),
            ({"p": None}, "InvalidRequest", "Invalid message: p"),
            ({"p": []}, "InvalidRequest", "Invalid message: p"),
            ({"rid": [1]}, "InvalidRequest", "Invalid message: rid"),
            ({"forcersp": 1}, "InvalidRequest", "Invalid message: forcersp"),
            ({"sec": 1}, "InvalidRequest", "Invalid message: sec"),
            ({"p": {"x": 1}}, "InvalidRequest", "Unknown parameter: futoin.evt.gen:1.1:addEvent(x)"),
            ({"p": {"type": "A"}}, "InvalidRequest", "Missing parameter: futoin.evt.gen:1.1:addEvent(data)"),
            ({}, "InvalidRequest", "Invalid message"),
        ],
    )
    def test_first_rule_broken(self, change: dict[str, Any], name: str, text: str) -> None:
        assert explained({**ADD, **change}) == (name, text)

    @pytest.mark.parametrize("fields", [None, [], 5, "x"])
    def test_not_an_object(self, fields: Any) -> None:
        assert explained(fields) == ("InvalidRequest", "Missing req.f")

    @pytest.mark.parametrize("f", ["futoin.evt.gen:2.0:x", "futoin.evt.gen:1.9:x", "futoin.evt.gen:1.1:x"])
    def test_strangers_learn_nothing(self, f: str) -> None:
        assert explained({"f": f, "p": {}}, authenticated=False)[0] == "UnknownInterface"
        assert explained({"f": f.replace("evt.gen", "anonping"), "p": {}}, authenticated=False)[0] != "UnknownInterface"

    def test_constraints_come_before_parameters(self) -> None:
        constraint = PeerError("SecurityError", "Insecure channel")
        assert explained({**ADD, "p": {}}, constraint=constraint) == ("SecurityError", "Insecure channel")

    @pytest.mark.parametrize(
        ("function", "params", "bad"),
        [
            ("gen:1.1:addEvent", {"type": "a", "data": 1}, "type"),
            ("gen:1.1:addEvent", {"type": "A1", "data": 1}, "type"),
            ("gen:1.1:addEvent", {"type": "", "data": 1}, "type"),
            ("gen:1.1:addEvent", {"type": "A" * 17, "data": 1}, "type"),
            ("gen:1.1:addEvent", {"type": "A\n", "data": 1}, "type"),
            ("gen:1.1:addEvent", {"type": None, "data": 1}, "type"),
            ("poll:1.1:registerConsumer", {"component": "a-b"}, "component"),
            ("poll:1.1:registerConsumer", {"component": "a" * 17}, "component"),
            ("poll:1.1:registerConsumer", {"component": ""}, "component"),
            ("poll:1.1:pollEvents", {"component": "a", "last_id": "0"}, "last_id"),
            ("poll:1.1:pollEvents", {"component": "a", "last_id": "01"}, "last_id"),
            ("poll:1.1:pollEvents", {"component": "a", "last_id": ""}, "last_id"),
            ("poll:1.1:pollEvents", {"component": "a", "last_id": "-1"}, "last_id"),
            ("poll:1.1:pollEvents", {"component": "a", "last_id": 1}, "last_id"),
            ("poll:1.1:pollEvents", {"component": "a", "last_id": "1" * 19}, "last_id"),
            ("poll:1.1:pollEvents", {"component": "a", "want": "A"}, "want"),
            ("poll:1.1:pollEvents", {"component": "a", "want": ["a"]}, "want"),
            ("poll:1.1:pollEvents", {"component": "a", "want": [None]}, "want"),
            ("gen:1.1:ping", {"echo": 2**31}, "echo"),
            ("gen:1.1:ping", {"echo": -(2**31) - 1}, "echo"),
            ("gen:1.1:ping", {"echo": 1.5}, "echo"),
            ("gen:1.1:ping", {"echo": True}, "echo"),
            ("gen:1.1:ping", {"echo": "1"}, "echo"),
        ],
    )
    @pytest.mark.parametrize("coding", list(Coding))
    def test_parameters_out_of_range(self, function: str, params: dict[str, Any], bad: str, coding: Coding) -> None:
        call = f"futoin.evt.{function}"
        decoded = codec.decode(codec.request(call, params, None, None, coding), coding)
        assert isinstance(decoded, Deviation)
        name, text = explained(decoded.fields)
        assert name == "InvalidRequest"
        assert text is not None
        assert text.startswith(f"Type mismatch for parameter: {call}({bad})")

    @pytest.mark.parametrize(
        ("function", "params"),
        [
            ("gen:1.0:addEvent", {"type": "A" * 16, "data": None}),
            ("gen:1.0:addEvent", {"type": "_", "data": None}),
            ("poll:1.0:registerConsumer", {"component": "aZ09_aZ09_aZ09_a"}),
            ("poll:1.0:pollEvents", {"component": "a", "last_id": "9" * 18, "want": []}),
            ("poll:1.0:pollEvents", {"component": "a", "last_id": "1", "want": ["A", "A"]}),
            ("gen:1.0:ping", {"echo": 2**31 - 1}),
            ("gen:1.0:ping", {"echo": -(2**31)}),
            ("gen:1.0:ping", {"echo": 5.0}),
        ],
    )
    def test_parameters_in_range(self, function: str, params: dict[str, Any]) -> None:
        decoded = codec.decode(codec.request(f"futoin.evt.{function}", params, None, None, Coding.JSON), Coding.JSON)
        assert not isinstance(decoded, Deviation)


class TestReplies:
    def test_results(self) -> None:
        assert codec.result("5", "C1", Coding.JSON) == b'{"r":"5","rid":"C1"}'
        assert codec.result([], None, Coding.JSON) == b'{"r":[]}'

    def test_failures(self) -> None:
        assert codec.failure(PeerError("X", "t"), "C1", Coding.JSON) == b'{"rid":"C1","e":"X","edesc":"t"}'
        assert codec.failure(PeerError("X"), None, Coding.JSON) == b'{"e":"X"}'

    @pytest.mark.parametrize("coding", list(Coding))
    def test_groups(self, coding: Coding) -> None:
        data = msgspec.Raw(b'{"a":1}') if coding is Coding.JSON else {"a": 1}
        event = codec.Event("7", "T", data, "2026-01-01T00:00:00Z")
        message = codec.decode_object(codec.on_events(3, [event], "S4", 0, coding), coding)
        assert message == {
            "f": "futoin.evt.receiver:1.0:onEvents",
            "p": {"seq": 3, "events": [{"id": "7", "type": "T", "data": {"a": 1}, "ts": "2026-01-01T00:00:00Z"}]},
            "rid": "S4",
        }

    def test_rids_are_escaped(self) -> None:
        assert json.loads(codec.result(1, 'odd"\n', Coding.JSON))["rid"] == 'odd"\n'


def payload_of(data: bytes, coding: Coding = Coding.JSON, bytes_max: int = 1000) -> bytes:
    return codec.event_payload(msgspec.Raw(data), coding, bytes_max)


class TestEventData:
    def test_json_is_kept_as_it_came(self) -> None:
        text = '{"b": 1.0,  "a":[12345678901234567890123, "é\\u00e9"]}'.encode()
        assert payload_of(text) == text

    def test_messagepack_becomes_json(self) -> None:
        data = msgspec.msgpack.encode({"a": [1, None, True, 1.5, "é"], "bytes": b"\x00\xff"})
        assert json.loads(payload_of(data, Coding.MESSAGEPACK)) == {"a": [1, None, True, 1.5, "é"], "bytes": "AP8="}

    @pytest.mark.parametrize(
        ("data", "coding"),
        [
            (b'"\xff"', Coding.JSON),
            (b"1e999", Coding.JSON),
            (msgspec.msgpack.encode(msgspec.msgpack.Ext(5, b"x")), Coding.MESSAGEPACK),
            (b"\x81\x90\x01", Coding.MESSAGEPACK),  # {[]: 1}
            (b"\xa1\xff", Coding.MESSAGEPACK),
        ],
    )
    def test_what_json_cannot_keep(self, data: bytes, coding: Coding) -> None:
        with pytest.raises(PeerError, match="InvalidRequest"):
            payload_of(data, coding)

    def test_size_limit(self) -> None:
        assert payload_of(b'"12"', bytes_max=4) == b'"12"'
        with pytest.raises(PeerError, match="message_bytes_max"):
            payload_of(b'"123"', bytes_max=4)

    def test_depth_limit(self) -> None:
        deepest = codec.DATA_DEPTH_MAX
        payload_of(b"[" * deepest + b"]" * deepest)
        payload_of(b"[" + b",".join([b'{"[[[[":"]"}'] * 200) + b"]", bytes_max=10_000)
        with pytest.raises(PeerError, match="nested"):
            payload_of(b"[" * (deepest + 1) + b"]" * (deepest + 1))

    def test_nesting(self) -> None:
        assert codec.nesting(b"[[[]]]") == 0  # plainly below the limit: not counted
        assert codec.nesting(b"[" * 200 + b"]" * 200) == 200
        assert codec.nesting(b"[" + b'"\\"[[[",' * 150 + b"{},[]]") == 2


def test_params_types() -> None:
    decoded = codec.decode(json.dumps(ADD).encode(), Coding.JSON)
    assert isinstance(decoded.p, AddEvent)  # type: ignore[union-attr]
    poll = codec.decode(b'{"f":"futoin.evt.push:1.0:pollEvents","p":{"component":"c"}}', Coding.JSON)
    assert isinstance(poll.p, PollEvents)  # type: ignore[union-attr]


def test_limits_by_version() -> None:
    kib, mib = 1024, 1024 * 1024
    assert CALLS["futoin.evt.poll:1.0:pollEvents"].reply_bytes_max == 64 * kib
    assert CALLS["futoin.evt.poll:1.1:pollEvents"].reply_bytes_max == 8 * mib
    assert CALLS["futoin.evt.push:1.1:pollEvents"].reply_bytes_max == 64 * kib
    assert CALLS["futoin.evt.push:1.0:readyToReceive"].push_bytes_max == 64 * kib
    assert CALLS["futoin.evt.push:1.1:readyToReceive"].push_bytes_max == 8 * mib
    assert (GEN.secure, POLL.secure, PUSH.bidirectional) == (True, False, True)
