"""The admin verbs: a name, a request struct, a handler and the right it needs.

A verb is registered once and reached three ways, always through `Verbs.call`, which checks the right:
the CLI and SDK, and HTTP (`POST /api/v1/<verb>`).

Rights and streams. If the request has a field `stream` (or the one named by `stream_field`), the caller needs the right
on that stream. Otherwise the right must hold for all streams, unless the verb was registered with `filters=True`: then
any caller with the right on some stream may call it, and the handler shows only what `security.current()` may see.
A verb that moves cursors (`moves_cursor=True`) names one in its field `cursor`.

Lists. The handler of a verb that is registered with `listed_by` returns entries in the order of that; the caller gets
them in pages (`pages.py`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from headrace.config.sections import Limits
from headrace.errors import BadRequest, Forbidden, HeadraceError, LimitExceeded
from headrace.hub.hooks import Hooks
from headrace.hub.intake import LARGE_BYTES
from headrace.jsontext import check_utf8, count_values
from headrace.pages import FirstItems, Listed, Page, Place, take
from headrace.security import Principal, acting_as, is_reserved
from headrace.units import MIB

Right = Literal["read", "write", "admin"]
Request = TypeVar("Request", bound=msgspec.Struct)
Body = bytes | bytearray | memoryview
READ_BYTES_PER_S: Final = 100 * MIB
"""As much of large requests is read, one after the other: msgspec lets no other thread of Python run meanwhile, and who
has waited for that should not meet the next at once."""
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[.-][a-z0-9]+)+")


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The request of a verb that takes no arguments."""


class UnknownVerb(BadRequest):
    """No verb of that name."""

    code = "unknown-verb"
    status = 404


class HttpForm(msgspec.Struct, frozen=True):
    """A path of its own for a verb, beside `POST /api/v1/<verb>`: parts of the path, headers and the query are fields
    of the request, the body is one more, and the answer is one field of the result."""

    path: str
    method: Literal["GET", "POST"] = "POST"
    body: str | None = None
    """The field that the body is, a JSON object."""
    headers: dict[str, str] = {}
    """Header → field."""
    query: tuple[str, ...] = ()
    result: str | None = None
    """The field of the result that is the answer; the whole if it has no name."""


class Form(NamedTuple):
    """A request of which all fields are known but one, which is JSON still."""

    fields: dict[str, Any]
    name: str
    text: Body


class Verb(msgspec.Struct, frozen=True):
    """One registered verb."""

    name: str
    request: type[msgspec.Struct]
    response: Any
    handler: Callable[[Any], Awaitable[Any]]
    right: Right
    summary: str
    stream_field: str | None
    filters: bool
    moves_cursor: bool
    allows: Callable[[Principal, Any], bool] | None
    listed_by: Callable[[Any], Place] | None
    http: HttpForm | None = None


class Answer(NamedTuple):
    """What a transport sends. `next` for a caller that got the first entries of a list without asking for a page."""

    body: bytes
    next: str | None


class Verbs:
    """The registry. Protocols add their verbs while the hub starts; names are unique."""

    def __init__(
        self,
        hooks: Hooks | None = None,
        limits: Limits | None = None,
        on_part: Callable[[str], None] = lambda verb: None,
        apart: Callable[[Callable[[], Any]], Awaitable[Any]] | None = None,
        on_too_many: Callable[[str], None] = lambda verb: None,
    ) -> None:
        """`on_part` is told of each list that was sent in part; `apart` reads large requests beside the event loop;
        `on_too_many` is told of each request with too many values."""
        self._verbs: dict[str, Verb] = {}
        self._hooks = hooks or Hooks()
        self._limits = limits or Limits()
        self._on_part = on_part
        self._apart = apart
        self._on_too_many = on_too_many
        self._reading = asyncio.Lock()
        self._rests_until_s = 0.0

    def register(
        self,
        name: str,
        request: type[Request],
        handler: Callable[[Request], Awaitable[Any]],
        *,
        right: Right,
        summary: str = "",
        stream_field: str | None = "stream",
        filters: bool = False,
        moves_cursor: bool = False,
        allows: Callable[[Principal, Request], bool] | None = None,
        response: Any = None,
        listed_by: Callable[[Any], Place] | None = None,
        http: HttpForm | None = None,
    ) -> None:
        """Add a verb. The response type for the API document is the handler's return annotation, unless given. `allows`
        says who may where that depends on more than the right on a stream."""
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"verb name {name!r} is not of the form noun.verb")
        if name in self._verbs:
            raise ValueError(f"verb {name!r} is registered already")
        field = stream_field if stream_field in request.__struct_fields__ else None
        result = _return_type(handler) if response is None else response
        if listed_by is not None:
            (item,) = get_args(result) or (Any,)
            result = list[item] | Page[item]  # type: ignore[valid-type]
        self._verbs[name] = Verb(
            name, request, result, handler, right, summary, field, filters, moves_cursor, allows, listed_by, http
        )

    def get(self, name: str) -> Verb:
        """The verb, or `UnknownVerb`."""
        verb = self._verbs.get(name)
        if verb is None:
            raise UnknownVerb(f"there is no verb {name!r}; verb.list names all of them")
        return verb

    def __iter__(self) -> Iterator[Verb]:
        return iter(sorted(self._verbs.values(), key=lambda verb: verb.name))

    def __contains__(self, name: object) -> bool:
        return name in self._verbs

    async def call(self, name: str, body: Body | Form | dict[str, Any] | msgspec.Struct, principal: Principal) -> Any:
        """Decode, check the right, run. The result is a value msgspec can encode."""
        began = time.perf_counter()
        code = "internal"
        try:
            result = await self._called(name, body, principal)
            code = ""
            return result
        except HeadraceError as error:
            code = error.code
            raise
        except asyncio.CancelledError:
            code = "cancelled"
            raise
        finally:
            known = name if name in self._verbs else "unknown"  # names that callers make up are no labels
            for hook in self._hooks.verb:
                hook(known, time.perf_counter() - began, code)

    async def _called(
        self, name: str, body: Body | Form | dict[str, Any] | msgspec.Struct, principal: Principal
    ) -> Any:
        verb = self.get(name)
        if not principal.may_some(verb.right, verb=name):  # before decoding: a stranger learns nothing about fields
            raise Forbidden(_refusal(principal, verb, None))
        text = body.text if isinstance(body, Form) else body
        if self._apart is not None and isinstance(text, Body) and len(text) >= LARGE_BYTES:
            async with self._reading:
                await asyncio.sleep(self._rests_until_s - asyncio.get_running_loop().time())
                self._rests_until_s = asyncio.get_running_loop().time() + len(text) / READ_BYTES_PER_S
                request = await self._apart(lambda: self._read(verb, body, text))
        else:
            request = self._read(verb, body, text)
        stream = getattr(request, verb.stream_field) if verb.stream_field else None
        if not (stream is None and verb.filters) and not _allows(principal, verb, request, stream):
            raise Forbidden(_refusal(principal, verb, stream))
        with acting_as(principal):
            try:
                result = await verb.handler(request)
                return result if verb.listed_by is None else self._page(verb, request, result, verb.listed_by)
            except OverflowError as error:  # JSON knows integers of any size; storage and protocols do not
                raise BadRequest(f"{name}: a number is out of range: {error}") from error

    def _read(self, verb: Verb, body: Body | Form | dict[str, Any] | msgspec.Struct, text: object) -> msgspec.Struct:
        most = self._limits.json_values_max
        if isinstance(text, Body) and len(text) > most and (count := count_values(text)) > most:
            self._on_too_many(verb.name)
            raise LimitExceeded(f"values of the request {verb.name!r}", count, most, "limits.json_values_max")
        return _decoded(verb, body)

    def limit_of(self, asked: Listed) -> int:
        """How many entries the answer to a list may have."""
        most = self._limits.list_items_max
        limit = min(self._limits.list_items, most) if asked.limit is None else asked.limit
        if limit < 1:
            raise BadRequest(f"'limit' is {limit}, below 1")
        if limit > most:
            raise LimitExceeded("entries of a list", limit, most, "limits.list_items_max")
        return limit

    def _page(self, verb: Verb, asked: Any, items: Any, listed_by: Callable[[Any], Place]) -> Any:
        page = take(asked, items, listed_by, self.limit_of(asked))
        if page.next is not None:
            self._on_part(verb.name)
        if asked.is_paged:
            return page
        first = FirstItems(page.items)
        first.next = page.next
        return first

    async def answer(self, name: str, body: Body, principal: Principal) -> Answer:
        """`call` for transports that carry JSON both ways. An empty body is an empty object."""
        result = await self.call(name, body or b"{}", principal)
        return Answer(msgspec.json.encode(result), result.next if isinstance(result, FirstItems) else None)

    async def call_json(self, name: str, body: Body, principal: Principal) -> bytes:
        """The body of the answer."""
        return (await self.answer(name, body, principal)).body


def _decoded(verb: Verb, body: Body | Form | dict[str, Any] | msgspec.Struct) -> msgspec.Struct:
    try:
        if isinstance(body, Body):
            check_utf8(body)
            return msgspec.json.decode(body, type=verb.request)
        if isinstance(body, Form):
            check_utf8(body.text)
            (kind,) = (field.type for field in msgspec.structs.fields(verb.request) if field.name == body.name)
            body = {**body.fields, body.name: msgspec.json.decode(body.text, type=kind)}
        if isinstance(body, dict):
            return msgspec.convert(body, verb.request)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"{verb.name}: {error}") from error
    if not isinstance(body, verb.request):
        raise BadRequest(f"{verb.name}: expected {verb.request.__name__}, got {type(body).__name__}")
    return body


def _allows(principal: Principal, verb: Verb, request: Any, stream: str | None) -> bool:
    if verb.allows is not None:
        return verb.allows(principal, request)
    if verb.moves_cursor and stream is not None:
        return principal.may_move(request.cursor, stream, verb.right, verb=verb.name)
    return principal.may(verb.right, stream, verb=verb.name)


def _refusal(principal: Principal, verb: Verb, stream: str | None) -> str:
    where = f" on stream {stream!r}" if stream is not None else ""
    if stream is not None and is_reserved(stream):
        return f"{principal.name!r} may not {verb.name}{where}: it is the hub's own, which only admins read"
    return f"{principal.name!r} may not {verb.name}{where}: it needs the right {verb.right!r}"


def _return_type(handler: Callable[..., Any]) -> Any:
    try:
        return get_type_hints(handler).get("return", Any)
    except (NameError, TypeError):  # types that exist only for type checkers, or a callable object
        return Any
