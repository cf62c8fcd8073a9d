"""Calls of immortals from outside: `hub.immortal("shop").order(item="pear", qty=2)`.

Each call carries an idempotency key, the caller's own or one that is made here. So it can be repeated when the hub or
the connection dies in the middle, and the method still runs once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar

import msgspec

from headrace.client.connection import decode_result
from headrace.client.lines import NotTaken
from headrace.client.pipe import Pipe
from headrace.errors import BadRequest, Closed, HeadraceError, StillRunning
from headrace.protocols.ambrosia.binding.immortal import Immortal
from headrace.protocols.ambrosia.binding.methods import Method
from headrace.protocols.ambrosia.binding.results import Result
from headrace.protocols.ambrosia.binding.values import from_json, to_json
from headrace.protocols.ambrosia.interface import Interface

if TYPE_CHECKING:
    from headrace.client.client import Client

Threads = Callable[..., Awaitable[Any]]
"""Runs a function in a thread."""

GIVE_UP_S: Final = 60.0
"""How long a hub may be away in the middle of a call."""
PAUSE_S: Final = 0.1
WAIT_S: Final = 20.0
Owner = TypeVar("Owner", bound=Immortal)
P = ParamSpec("P")
R = TypeVar("R")


class _Answer(msgspec.Struct):
    value: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"null"))
    done: bool = True
    age_s: float | None = None


class Aged(msgspec.Struct, frozen=True):
    """What a query said. `age_s` is None if the running program answered; of a standby, the time since the oldest
    message was logged that it had not been sent yet, 0 if there was none."""

    value: Any
    age_s: float | None = None


class ImmortalHandle(Generic[Owner]):
    """An immortal, to call from outside. Its methods are attributes: `handle.order(item="pear")`; `call` is the same
    for type checkers."""

    def __init__(self, client: Client, name: str, kind: type[Owner] | None, key: str | None) -> None:
        self._client = client
        self._name = name
        self._kind = kind
        self._key = key
        self._interface: Interface | None = None

    def __repr__(self) -> str:
        return f"<immortal {self._name!r}{'' if self._key is None else f' [{self._key}]'} at {self._client.address}>"

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*args: Any, idempotency_key: str | None = None, timeout_s: float | None = None, **kwargs: Any) -> Any:
            return self._call(method, args, kwargs, idempotency_key, timeout_s)

        call.__name__ = method
        return call

    def call(self, method: Callable[Concatenate[Owner, P], Result[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`handle.call(Shop.order, item="pear", qty=2)`: what `handle.order(item="pear", qty=2)` does, with types."""
        result: R = self._call(_declared(method).name, args, kwargs, None, None, _declared(method))
        return result

    def send(self, method: str, /, *args: Any, idempotency_key: str | None = None, **kwargs: Any) -> None:
        """Call a method and do not wait for it: its call is durable when this returns."""
        arguments = self._arguments(method, args, kwargs, self._method(method))
        self._request(method, arguments, idempotency_key or uuid.uuid4().hex, 0, None)

    def ask(self, query: str, /, *args: Any, max_age_s: float, **kwargs: Any) -> Aged:
        """Have a query answered by a standby, if one is not further behind than that; otherwise by the running program,
        which is spared the work. The answer says how old it may be."""
        method = self._method(query)
        arguments = self._arguments(query, args, kwargs, method)
        answer = self._request(query, arguments, uuid.uuid4().hex, WAIT_S, None, max_age_s)
        return Aged(from_json(bytes(answer.value), Any if method is None else method.returns), answer.age_s)

    def fulfil(self, token: str, value: Any = None, *, error: str | None = None) -> None:
        """Give a method what it waits for: the value of its token, or the reason why there is none."""
        params = {"name": self._name, "token": token, "value": msgspec.Raw(to_json(value)), "error": error}
        self._client.call("immortal.fulfil", params)

    def cancel(self, idempotency_key: str, *, reason: str = "cancelled") -> None:
        """Cancel the call that was made with this key."""
        self._client.call("immortal.cancel", {"name": self._name, "idempotency_key": idempotency_key, "reason": reason})

    # --- inside -------------------------------------------------------------------------------------------------

    def _method(self, name: str) -> Method | None:
        if self._kind is None:
            return None
        for method in self._kind.__methods__.values():
            if method.name == name:
                return method
        known = ", ".join(method.name for method in self._kind.__methods__.values())
        raise BadRequest(f"{self._kind.__name__} has no method {name!r}; it has {known}")

    def _call(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        idempotency_key: str | None,
        timeout_s: float | None,
        method: Method | None = None,
    ) -> Any:
        method = method or self._method(name)
        arguments = self._arguments(name, args, kwargs, method)
        key = idempotency_key or uuid.uuid4().hex
        answer = self._request(name, arguments, key, WAIT_S, timeout_s)
        return from_json(bytes(answer.value), Any if method is None else method.returns)

    def _arguments(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], method: Method | None
    ) -> msgspec.Raw:
        """The arguments as JSON; what cannot be meant is refused here."""
        if method is not None:
            try:
                return msgspec.Raw(method.encode(args, kwargs))
            except TypeError as error:
                raise BadRequest(f"{self._name}.{error}") from None
        if args:
            kwargs = {**self._named(name, args), **kwargs}
        try:
            return msgspec.Raw(to_json(kwargs))
        except TypeError as error:
            raise BadRequest(f"{self._name}.{name}: {error}") from None

    def _named(self, name: str, args: tuple[Any, ...]) -> dict[str, Any]:
        if self._interface is None:
            self._interface = self._client.request("immortal.methods", {"name": self._name}, Interface)
        parameters = list(self._interface.method(self._name, name).parameters)
        if len(args) > len(parameters):
            raise BadRequest(f"{self._name}.{name} takes {len(parameters)} arguments, and {len(args)} were given")
        return dict(zip(parameters, args, strict=False))

    def _request(
        self,
        method: str,
        arguments: msgspec.Raw,
        idempotency_key: str,
        wait_s: float,
        timeout_s: float | None,
        max_age_s: float | None = None,
    ) -> _Answer:
        """Ask until there is an answer. A hub that has gone away is waited for."""
        params = self._params(method, arguments, idempotency_key)
        params["max_age_s"] = max_age_s
        end = None if timeout_s is None else time.monotonic() + timeout_s
        give_up = time.monotonic() + GIVE_UP_S
        while True:
            left = wait_s if end is None else min(wait_s, max(0.001, end - time.monotonic()))
            try:
                return self._client.request("immortal.call", {**params, "wait_s": left}, _Answer)
            except StillRunning:
                give_up = time.monotonic() + GIVE_UP_S
                if end is not None and time.monotonic() >= end:
                    raise
            except HeadraceError as error:
                now = time.monotonic()
                if not error.retriable or isinstance(error, Closed) or now >= give_up or (end and now >= end):
                    raise
                time.sleep(PAUSE_S)

    def _params(self, method: str, arguments: msgspec.Raw, idempotency_key: str) -> dict[str, Any]:
        return {
            "name": self._name,
            "method": method,
            "arguments": arguments,
            "key": self._key,
            "idempotency_key": idempotency_key,
        }

    async def call_through(self, pipe: Pipe, threads: Threads, name: str, *args: Any, **kwargs: Any) -> Any:
        """The same for an event loop. Whatever goes wrong on the way, the same call is made again with the same key,
        in a thread that waits for a hub that has gone away."""
        key = kwargs.pop("idempotency_key", None) or uuid.uuid4().hex
        timeout_s = kwargs.pop("timeout_s", None)
        began = time.monotonic()
        method = self._method(name)
        if method is None and args:  # their names have to be asked for
            return await threads(self._call, name, args, kwargs, key, timeout_s)
        arguments = self._arguments(name, args, kwargs, method)
        wait_s = WAIT_S if timeout_s is None else min(WAIT_S, timeout_s)
        params = {**self._params(name, arguments, key), "wait_s": wait_s}
        try:
            answer = decode_result(await pipe.ask("immortal.call", to_json(params)), _Answer)
        except (NotTaken, HeadraceError) as error:
            if isinstance(error, HeadraceError) and not error.retriable:
                raise
            left_s = None if timeout_s is None else max(0.001, timeout_s - (time.monotonic() - began))
            answer = await threads(self._request, name, arguments, key, WAIT_S, left_s)
        return from_json(bytes(answer.value), Any if method is None else method.returns)


def _declared(method: Any) -> Method:
    declared = getattr(method, "__ambrosia__", None)
    if not isinstance(declared, Method):
        raise BadRequest(f"{method!r} is not a method of an immortal: declare it with @method or @query")
    return declared
