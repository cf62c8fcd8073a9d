"""The verbs with which anybody calls an immortal: `immortal.call` and what belongs to it.

Who may: a call needs the right `write` on the immortal's inbox, `immortal/NAME/inbox`, and a query `read`; both are
other ways to do what a record in the inbox does.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Annotated, Any, Final, TypeVar

import msgspec

from headrace.errors import BadRequest, Forbidden, HeadraceError, MethodRaised, StillRunning
from headrace.hub.intake import LARGE_BYTES
from headrace.hub.verbs import HttpForm, Nothing, Right, Verbs
from headrace.jsontext import check_utf8
from headrace.protocols.ambrosia.binding.look import Look
from headrace.protocols.ambrosia.binding.methods import (
    CANCEL_METHOD,
    FULFIL_METHOD,
    INSTANCES_METHOD,
    LOOK_METHOD,
    method_id,
)
from headrace.protocols.ambrosia.codec import BodyKind, Return
from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator
from headrace.protocols.ambrosia.coordinator.instance import Instance
from headrace.protocols.ambrosia.coordinator.store import METHODS_TABLE
from headrace.protocols.ambrosia.interface import KEY_FIELD, Interface, MethodInterface, openapi
from headrace.security import Principal, current

WAIT_S_MAX: Final = 25.0
Said = TypeVar("Said")


class DescribeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program says what can be called of it."""

    name: str
    interface: Interface


class MethodsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One immortal."""

    name: str


class CallRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A method to call, or a query to ask."""

    name: str
    method: str
    arguments: dict[str, msgspec.Raw] = {}
    key: str | None = None
    """Which instance of a keyed immortal."""
    idempotency_key: str | None = None
    """The same key again: the same call, which is not made twice, and its result."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX)] = WAIT_S_MAX
    max_age_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """A query may be answered by a standby that is not further behind than that."""


class Called(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a method returned. `done` is false if it had not returned when `wait_s` was over; it goes on. `age_s` says
    that a standby answered a query, and how far behind it was at most."""

    value: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    done: bool = True
    age_s: float | None = None


class InstancesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The instances of a keyed immortal whose keys match a pattern, behind `after`."""

    name: str
    pattern: str = "*"
    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000


class LookRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One immortal; of a keyed one, an instance."""

    name: str
    key: str | None = None


class FulfilRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a method waits for: the token that it handed out, and the value, or the reason why there is none."""

    name: str
    token: str
    value: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    error: str | None = None


class CancelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call that is under way, by the idempotency key that it was made with."""

    name: str
    idempotency_key: str
    reason: str = "cancelled"


class CallVerbs:
    """The handlers."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._hub = coordinator.hub

    def register(self, verbs: Verbs) -> None:
        """Add the verbs to a hub."""
        add = verbs.register
        add("immortal.describe", DescribeRequest, self.describe, right="admin", summary="Say what can be called")
        add("immortal.methods", MethodsRequest, self.methods, right="read", filters=True, summary="What can be called")
        get = HttpForm("/api/immortals/openapi.json", "GET")
        add(
            "immortal.openapi",
            Nothing,
            self.document,
            right="read",
            filters=True,
            summary="All of that as OpenAPI",
            http=get,
        )
        headers = {"idempotency-key": "idempotency_key"}
        path = "/api/immortals/{name}/{method}"
        post = HttpForm(path, body="arguments", headers=headers, query=("key",), result="value")
        add("immortal.call", CallRequest, self.call, right="read", filters=True, summary="Call a method", http=post)
        path = "/api/immortals/{name}/tokens/{token}"
        put = HttpForm(path, body="value")
        add(
            "immortal.fulfil",
            FulfilRequest,
            self.fulfil,
            right="write",
            filters=True,
            summary="Fulfil a token",
            http=put,
        )
        add("immortal.instances", InstancesRequest, self.instances, right="read", filters=True, summary="Keys in order")
        add("immortal.look", LookRequest, self.look, right="read", filters=True, summary="How one is now")
        add("immortal.cancel", CancelRequest, self.cancel, right="write", filters=True, summary="Cancel a call")

    async def describe(self, request: DescribeRequest) -> None:
        """Keep it until the next one."""
        self._coordinator.find(request.name)
        await self._hub.put(METHODS_TABLE, request.name.encode(), msgspec.json.encode(request.interface))

    async def methods(self, request: MethodsRequest) -> Interface:
        """As its program last said."""
        instance = self._permitted(request.name, "read", "immortal.methods")
        interface = self._coordinator.store.interface(instance.name)
        if interface is None:
            raise BadRequest(
                f"the program of immortal {request.name!r} has not declared its methods; programs that use "
                "`headrace.immortals.run` do"
            )
        return interface

    async def document(self, request: Nothing) -> dict[str, Any]:
        """Of all immortals that the caller may call."""
        found = {
            name: interface
            for name, instance in sorted(self._coordinator.instances.items())
            if current().may("read", instance.names.inbox, verb="immortal.openapi")
            and (interface := self._coordinator.store.interface(instance.name)) is not None
        }
        return openapi(found)

    async def call(self, request: CallRequest) -> Called:
        """Log the call, and wait for what the method returns: a span of that name in the caller's trace."""
        about = {"headrace.immortal": request.name, "headrace.method": request.method}
        if request.key is not None:
            about["headrace.key"] = request.key
        with self._hub.tracing.span(f"{request.name}.{request.method}", about):
            return await self._call(request)

    async def _call(self, request: CallRequest) -> Called:
        instance = self._permitted(request.name, "read", "immortal.call")
        interface = self._coordinator.store.interface(instance.name)
        method = MethodInterface(request.method, method_id(request.method))
        if interface is not None:
            method = interface.method(request.name, request.method)
            interface.check(request.name, method, request.arguments, request.key)
        given = request.arguments if request.key is None else {**request.arguments, KEY_FIELD: request.key}
        arguments = await self._encoded(given, sum(map(len, request.arguments.values())))
        called = f"{request.name}.{request.method}"
        if method.query:
            return await self._ask(
                instance, "immortal.call", called, method.id, arguments, request.wait_s, request.max_age_s
            )
        if request.max_age_s is not None:
            raise BadRequest(
                f"{called} is not a query: only the running program can answer it, and max_age_s does not apply"
            )
        self._permitted(request.name, "write", "immortal.call")
        calling = self._coordinator.outside.call(
            instance, method.id, arguments, request.idempotency_key, request.wait_s
        )
        answer = await self._while_permitted(request.name, "write", "immortal.call", calling)
        if answer is None and request.wait_s:
            raise StillRunning(
                f"{called} is logged and not answered yet; the same call with the same idempotency key waits on"
            )
        return _called(called, answer)

    async def _ask(
        self,
        instance: Instance,
        verb: str,
        what: str,
        method: int,
        arguments: bytes,
        wait_s: float = WAIT_S_MAX,
        max_age_s: float | None = None,
    ) -> Called:
        asking = self._coordinator.outside.ask(instance, method, arguments, wait_s, max_age_s)
        asked = await self._while_permitted(instance.name, "read", verb, asking)
        if asked.answer is None:
            raise StillRunning(f"immortal {instance.name!r} has no program that could answer: start it")
        return msgspec.structs.replace(_called(what, asked.answer), age_s=asked.age_s)

    async def instances(self, request: InstancesRequest) -> list[str]:
        """As its running program knows them."""
        instance = self._permitted(request.name, "read", "immortal.instances")
        interface = self._coordinator.store.interface(request.name)
        if interface is None or not interface.keyed:
            raise BadRequest(f"immortal {request.name!r} is not keyed: it is one instance")
        arguments = msgspec.json.encode({"pattern": request.pattern, "after": request.after, "limit": request.limit})
        answer = await self._ask(instance, "immortal.instances", request.name, INSTANCES_METHOD, arguments)
        return msgspec.json.decode(answer.value, type=list[str])

    async def look(self, request: LookRequest) -> Look:
        """Its state, which methods wait for what, timers to come and what is being done outside."""
        instance = self._permitted(request.name, "read", "immortal.look")
        interface = await self.methods(MethodsRequest(request.name))  # others would not understand the question
        if interface.keyed and request.key is None:
            raise BadRequest(f"{request.name!r} is keyed: name the instance with `key`")
        arguments = msgspec.json.encode({} if request.key is None else {KEY_FIELD: request.key})
        answer = await self._ask(instance, "immortal.look", request.name, LOOK_METHOD, arguments)
        return msgspec.json.decode(answer.value, type=Look)

    async def fulfil(self, request: FulfilRequest) -> Called:
        """Give a waiting method its value."""
        instance = self._permitted(request.name, "write", "immortal.fulfil")
        given = {"token": request.token, "value": request.value, "error": request.error}
        arguments = await self._encoded(given, len(request.value))
        return await self._tell(instance, "immortal.fulfil", FULFIL_METHOD, arguments)

    async def cancel(self, request: CancelRequest) -> Called:
        """Let a method that is under way end."""
        instance = self._permitted(request.name, "write", "immortal.cancel")
        number = self._coordinator.outside.number_of(instance.name, request.idempotency_key)
        arguments = msgspec.json.encode({"call": number, "reason": request.reason})
        return await self._tell(instance, "immortal.cancel", CANCEL_METHOD, arguments)

    async def _encoded(self, given: dict[str, Any], size: int) -> bytes:
        if size < LARGE_BYTES:
            return msgspec.json.encode(given)
        return await self._hub.intake.apart(lambda: msgspec.json.encode(given))

    async def _tell(self, instance: Instance, verb: str, method: int, arguments: bytes) -> Called:
        telling = self._coordinator.outside.call(instance, method, arguments, uuid.uuid4().hex, WAIT_S_MAX)
        return _called(instance.name, await self._while_permitted(instance.name, "write", verb, telling))

    async def _while_permitted(self, name: str, right: Right, verb: str, answer: Coroutine[Any, Any, Said]) -> Said:
        """An answer is only for those who may still have it. A call that is logged goes on without them."""
        caller, task = current(), asyncio.current_task()
        assert task is not None
        refused: list[HeadraceError] = []

        def look() -> None:
            try:
                self._check(caller, name, right, verb)
            except HeadraceError as error:
                if not refused:
                    refused.append(error)
                    task.cancel()

        unwatch = caller.watch(look)
        try:
            return await answer
        except asyncio.CancelledError:
            if not refused or task.uncancel():  # somebody else cancels it as well
                raise
            raise refused[0] from None
        finally:
            unwatch()

    def _check(self, caller: Principal, name: str, right: Right, verb: str) -> None:
        instance = self._coordinator.instances.get(name)
        stream = f"immortal/{name}/inbox" if instance is None else instance.names.inbox
        if caller.refusal is not None:
            raise caller.refusal
        if not caller.may(right, stream, verb=verb):
            raise Forbidden(f"{caller.name!r} may not {verb} {name!r}: it needs the right {right!r} on {stream!r}")

    def _permitted(self, name: str, right: Right, verb: str) -> Instance:
        self._check(current(), name, right, verb)
        instance = self._coordinator.find(name)
        if instance.registration is None:
            raise BadRequest(f"immortal {name!r} was called by others, but nobody has registered it")
        return instance


def _called(what: str, answer: Return | None) -> Called:
    if answer is None:
        return Called(done=False)
    if answer.kind == BodyKind.EMPTY:
        return Called()
    if answer.kind == BodyKind.EXCEPTION:
        try:
            text = str(msgspec.json.decode(answer.value))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text = answer.value.decode(errors="replace")
        raise MethodRaised(f"{what} raised {text}")
    try:
        check_utf8(answer.value)
        msgspec.json.decode(answer.value, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MethodRaised(f"{what} returned {len(answer.value)} bytes that are not JSON") from None
    return Called(msgspec.Raw(answer.value))
