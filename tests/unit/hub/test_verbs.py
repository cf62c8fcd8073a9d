import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.config import Grant, Limits
from headrace.errors import BadRequest, Forbidden, LimitExceeded
from headrace.hub.hooks import Hooks
from headrace.hub.intake import LARGE_BYTES
from headrace.hub.verbs import READ_BYTES_PER_S, Form, Nothing, UnknownVerb, Verbs
from headrace.security import EVERYTHING, Principal, current


class Trim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream: str
    before: int = 0


async def trim(request: Trim) -> dict[str, Any]:
    return {"stream": request.stream, "by": current().name}


async def who(request: Nothing) -> str:
    return current().name


def principal(*grants: Grant) -> Principal:
    return Principal("alice", (), grants)


def registry() -> Verbs:
    verbs = Verbs()
    verbs.register("stream.trim", Trim, trim, right="admin", summary="Trim")
    verbs.register("stream.list", Nothing, who, right="read", filters=True)
    verbs.register("hub.config", Nothing, who, right="read")
    return verbs


async def test_a_verb_is_called_with_bytes_a_dict_or_the_struct() -> None:
    verbs = registry()
    expected = {"stream": "orders", "by": "local"}
    assert await verbs.call("stream.trim", b'{"stream":"orders"}', EVERYTHING) == expected
    assert await verbs.call("stream.trim", {"stream": "orders"}, EVERYTHING) == expected
    assert await verbs.call("stream.trim", Trim("orders"), EVERYTHING) == expected
    assert await verbs.call_json("hub.config", b"", EVERYTHING) == b'"local"'


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"stream":1}', r"Expected `str`, got `int` - at `\$.stream`"),
        (b'{"stream":"a","bfore":1}', "unknown field `bfore`"),
        (b"{}", "missing required field `stream`"),
        ({"stream": b"x"}, "Expected `str`, got `bytes`"),
        (Nothing(), "expected Trim, got Nothing"),
        (b'{"stream":"\xff"}', "codec can.t decode byte 0xff"),
    ],
)
async def test_a_wrong_body_names_the_field(body: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=f"stream.trim: .*{message}"):
        await registry().call("stream.trim", body, EVERYTHING)


class Anything(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    inside: Any = None
    kept: dict[str, msgspec.Raw] = {}


async def echo(request: Anything) -> Anything:
    return request


@pytest.mark.parametrize("as_form", [False, True])
async def test_what_a_request_unfolds_to_is_bounded_before_it_unfolds(as_form: bool) -> None:
    refused: list[str] = []
    verbs = Verbs(limits=Limits(json_values_max=10), on_too_many=refused.append)
    verbs.register("any.echo", Anything, echo, right="read", stream_field=None)

    def asked(text: bytes) -> bytes | Form:
        return Form({"name": "x"}, "inside", text) if as_form else b'{"name":"x","inside":%b}' % text

    most = [1] * (9 if as_form else 7)  # the list itself, and where there are more: the name, and all of it
    assert (await verbs.call("any.echo", asked(msgspec.json.encode(most)), EVERYTHING)).inside == most
    text = b'[1, "as many commas as may be: ,,,,,,,,,,,,,[[[[[["]'
    assert (await verbs.call("any.echo", asked(text), EVERYTHING)).inside[0] == 1
    assert not refused
    for more in (msgspec.json.encode([*most, 1]), b"[" * 11):
        with pytest.raises(LimitExceeded, match=r"values of the request 'any.echo'.*limits\.json_values_max"):
            await verbs.call("any.echo", asked(more), EVERYTHING)
    assert refused == ["any.echo", "any.echo"]


async def test_a_large_form_is_read_beside_the_event_loop_and_what_is_kept_is_not_unfolded() -> None:
    apart: list[Any] = []

    async def beside(work: Callable[[], Any]) -> Any:
        apart.append(work)
        return work()

    verbs = Verbs(apart=beside)
    verbs.register("any.echo", Anything, echo, right="read", stream_field=None)
    text = b'{"a": [%b1]}' % (b"[]," * LARGE_BYTES)
    small = await verbs.call("any.echo", Form({"name": "x"}, "kept", b'{"a": "b"}'), EVERYTHING)
    assert (bytes(small.kept["a"]), len(apart)) == (b'"b"', 0)
    large = await verbs.call("any.echo", Form({"name": "x"}, "kept", text), EVERYTHING)
    assert (bytes(large.kept["a"]), len(apart)) == (text[6:-1], 1)


async def test_large_requests_are_read_one_after_the_other_with_time_for_others_in_between() -> None:
    loop = asyncio.get_running_loop()
    began_s: list[float] = []

    async def beside(work: Callable[[], Any]) -> Any:
        began_s.append(loop.time())
        return work()

    verbs = Verbs(apart=beside)
    verbs.register("any.echo", Anything, echo, right="read", stream_field=None)
    text = b'{"name": "%b"}' % (b"x" * (READ_BYTES_PER_S // 20))
    await asyncio.gather(*(verbs.call("any.echo", text, EVERYTHING) for _ in range(3)))
    assert all(later - earlier > 0.045 for earlier, later in itertools.pairwise(began_s))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{}, "name": "y"', "trailing characters"),
        (b'{"a": "\xff"}', "codec can.t decode byte 0xff"),
    ],
)
async def test_the_text_of_a_form_is_one_value_and_nothing_else(text: bytes, message: str) -> None:
    verbs = Verbs()
    verbs.register("any.echo", Anything, echo, right="read", stream_field=None)
    with pytest.raises(BadRequest, match=f"any.echo: .*{message}"):
        await verbs.call("any.echo", Form({"name": "x"}, "kept", text), EVERYTHING)


async def test_an_unknown_verb() -> None:
    with pytest.raises(UnknownVerb, match="no verb 'stream.trin'"):
        await registry().call("stream.trin", b"{}", EVERYTHING)


async def test_a_right_on_one_stream_is_not_one_on_another() -> None:
    clerk = principal(Grant(rights=["admin"], streams=["orders.*"]))
    verbs = registry()
    assert (await verbs.call("stream.trim", {"stream": "orders.eu"}, clerk))["by"] == "alice"
    with pytest.raises(Forbidden, match="'alice' may not stream.trim on stream 'payments': it needs the right 'admin'"):
        await verbs.call("stream.trim", {"stream": "payments"}, clerk)
    with pytest.raises(Forbidden):
        await verbs.call("hub.config", {}, principal(Grant(rights=["read"], streams=["orders.*"])))


async def test_a_verb_that_filters_is_open_to_those_who_see_some_streams() -> None:
    assert await registry().call("stream.list", {}, principal(Grant(rights=["read"], streams=["orders.*"]))) == "alice"
    with pytest.raises(Forbidden):
        await registry().call("stream.list", {}, principal(Grant(rights=["write"])))


async def test_a_number_that_nothing_can_store_is_the_callers_mistake() -> None:
    async def store(request: Trim) -> bytes:
        return msgspec.msgpack.encode(request.before)

    verbs = Verbs()
    verbs.register("number.store", Trim, store, right="write")
    with pytest.raises(BadRequest, match="number.store: a number is out of range"):
        await verbs.call("number.store", {"stream": "x", "before": 2**70}, EVERYTHING)


async def test_a_stranger_learns_nothing_about_the_fields() -> None:
    with pytest.raises(Forbidden):
        await registry().call("stream.trim", b"not even JSON", principal())


async def test_grants_can_name_verbs() -> None:
    narrow = principal(Grant(rights=["read", "admin"], verbs=["hub.*"]))
    assert await registry().call("hub.config", {}, narrow) == "alice"
    with pytest.raises(Forbidden):
        await registry().call("stream.trim", {"stream": "orders"}, narrow)


async def test_the_principal_is_gone_after_the_call() -> None:
    await registry().call("hub.config", {}, principal(Grant(rights=["read"])))
    assert current() is EVERYTHING


async def test_calls_are_observed_with_their_outcome() -> None:
    seen: list[tuple[str, str]] = []

    async def broken(request: Nothing) -> None:
        raise ZeroDivisionError

    async def endless(request: Nothing) -> None:
        await asyncio.Event().wait()

    hooks = Hooks()
    hooks.verb.append(lambda verb, seconds, code: seen.append((verb, code)))
    verbs = Verbs(hooks)
    verbs.register("hub.who", Nothing, who, right="read")
    verbs.register("hub.broken", Nothing, broken, right="read")
    verbs.register("hub.endless", Nothing, endless, right="read")
    await verbs.call("hub.who", {}, EVERYTHING)
    with pytest.raises(UnknownVerb):
        await verbs.call("made.up", {}, EVERYTHING)
    with pytest.raises(ZeroDivisionError):
        await verbs.call("hub.broken", {}, EVERYTHING)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(verbs.call("hub.endless", {}, EVERYTHING), 0.01)
    assert seen == [
        ("hub.who", ""),
        ("unknown", "unknown-verb"),
        ("hub.broken", "internal"),
        ("hub.endless", "cancelled"),
    ]


@pytest.mark.parametrize("name", ["trim", "Stream.trim", "stream.", "stream trim", ".x", "stream/../x"])
def test_names_are_nouns_and_verbs(name: str) -> None:
    with pytest.raises(ValueError, match="not of the form noun.verb"):
        Verbs().register(name, Nothing, who, right="read")


def test_names_are_unique_and_listed_in_order() -> None:
    verbs = registry()
    with pytest.raises(ValueError, match="registered already"):
        verbs.register("hub.config", Nothing, who, right="read")
    assert [verb.name for verb in verbs] == ["hub.config", "stream.list", "stream.trim"]
    assert "hub.config" in verbs
    assert "hub.stop" not in verbs
    assert verbs.get("stream.trim").response == dict[str, Any]


def test_a_handler_without_known_return_type_is_anything() -> None:
    class Callable:
        async def __call__(self, request: Nothing) -> "Missing":  # type: ignore[name-defined] # noqa: F821
            raise NotImplementedError

    verbs = Verbs()
    verbs.register("odd.one", Nothing, Callable().__call__, right="read")
    assert verbs.get("odd.one").response is Any
