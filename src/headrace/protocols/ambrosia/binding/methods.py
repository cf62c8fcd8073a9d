"""How methods of an immortal are declared: `@fork`, `@call` and `@impulse`, and how their arguments become bytes.

Arguments travel as a JSON object with the names of the parameters, checked against the annotations on arrival. JSON is
what the Node binding speaks too, and what people read in `headrace immortal log`.

A method's number on the wire is made of its name, so that it stays the same when methods are added, moved or removed.
Give `@fork(id=7)` to choose it, for a method that was renamed or that another language calls.
"""

from __future__ import annotations

import functools
import inspect
import zlib
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, get_type_hints, overload

import msgspec

from headrace.protocols.ambrosia.binding.results import Result
from headrace.protocols.ambrosia.binding.values import json_decoder, to_json
from headrace.protocols.ambrosia.codec import RpcType
from headrace.protocols.ambrosia.interface import KEY_FIELD

METHOD_ID_BITS: Final = 20
# Negative numbers are reserved for bindings. These are ours, and what they carry is JSON.
OUTSIDE_METHOD: Final = -101
DEADLINE_METHOD: Final = -102
TIMER_METHOD: Final = -103
ATTEMPT_METHOD: Final = -104
FULFIL_METHOD: Final = -105
CANCEL_METHOD: Final = -106
INSTANCES_METHOD: Final = -107
"""A query that every keyed immortal answers: the keys of its instances."""
LOOK_METHOD: Final = -108
"""A query that every immortal answers: how it is now (`look.py`)."""
CLOCK_METHOD: Final = -110
"""The time, eight bytes in front of the messages of a record: from the hub, to immortals that want it."""
OWN_NAMES: Final = {"@fulfil": FULFIL_METHOD, "@cancel": CANCEL_METHOD}
"""Of those, what anybody may call by name."""
Function = TypeVar("Function", bound=Callable[..., Any])
Owner = TypeVar("Owner")
P = ParamSpec("P")
R = TypeVar("R")


class DeclarationError(TypeError):
    """A class that cannot be an immortal as it is written."""


class Method:
    """One declared method."""

    def __init__(
        self, function: Callable[..., Any], rpc_type: RpcType, id: int | None, *, is_query: bool = False
    ) -> None:
        self.function = function
        self.rpc_type = rpc_type
        self.is_query = is_query
        self.name = function.__name__
        self.id = method_id(self.name) if id is None else id
        self.parameters = list(inspect.signature(function).parameters.values())[1:]
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if any(parameter.kind not in named for parameter in self.parameters):
            raise DeclarationError(f"{self.name}: parameters must have names: *args, **kwargs and / cannot be sent")
        if is_query and inspect.iscoroutinefunction(function):
            raise DeclarationError(f"{self.name}: a query answers at once, from the state: write def, not async def")

    @functools.cached_property
    def _hints(self) -> dict[str, Any]:
        """Not known before they are needed: annotations may name classes declared later."""
        return get_type_hints(self.function)

    @property
    def returns(self) -> Any:
        """The type of the answer."""
        return self._hints.get("return", Any)

    @functools.cached_property
    def arguments(self) -> type[msgspec.Struct]:
        """The arguments as a struct."""
        fields: list[Any] = []
        for parameter in self.parameters:
            default = () if parameter.default is parameter.empty else (parameter.default,)
            fields.append((parameter.name, self._hints.get(parameter.name, Any), *default))
        return msgspec.defstruct(f"{self.name}_arguments", fields)

    @functools.cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        return json_decoder(self.arguments)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: str | None = None) -> bytes:
        """Arguments as bytes. What the method cannot take, by number, name or type, is an error here and not at the
        other end."""
        try:
            data = to_json(self.arguments(*args, **kwargs))
            self._decoder.decode(data)
        except (TypeError, ValueError) as error:
            text = str(error).replace(f"{self.name}_arguments()", "").replace("Object missing", "it is missing").strip()
            takes = ", ".join(map(str, self.parameters)).replace("'", "")
            raise TypeError(f"{self.name}({takes}) was called with the wrong arguments: {text}") from None
        return data if key is None else with_key(data, key)

    def invoke(self, immortal: Any, data: bytes) -> Any:
        """Call the method with arguments as they came."""
        values = self._decoder.decode(data or b"{}")
        return self.function(immortal, **{name: getattr(values, name) for name in values.__struct_fields__})


def with_key(arguments: bytes, key: str) -> bytes:
    """Arguments, a JSON object, for an instance of a keyed immortal."""
    rest = arguments.strip()[1:].lstrip() or b"}"
    head = msgspec.json.encode({KEY_FIELD: key})[:-1]
    return head + (rest if rest == b"}" else b"," + rest)


def method_id(name: str) -> int:
    """The number of a method that was not given one."""
    if name in OWN_NAMES:
        return OWN_NAMES[name]
    return zlib.crc32(name.encode()) & ((1 << METHOD_ID_BITS) - 1)


class _Decorator:
    """`@fork` or `@fork(id=7)`."""

    def __init__(self, rpc_type: RpcType, doc: str) -> None:
        self._rpc_type = rpc_type
        self.__doc__ = doc

    @overload
    def __call__(self, function: Function) -> Function: ...
    @overload
    def __call__(self, *, id: int) -> Callable[[Function], Function]: ...
    def __call__(self, function: Function | None = None, *, id: int | None = None) -> Any:
        def mark(function: Function) -> Function:
            function.__ambrosia__ = Method(function, self._rpc_type, id)  # type: ignore[attr-defined]
            return function

        return mark if function is None else mark(function)


fork = _Decorator(RpcType.FORK, "Called without an answer: exactly once, in the order in which each caller called.")
call = _Decorator(RpcType.ASYNC, "Called with an answer: the caller awaits what the method returns or raises.")
impulse = _Decorator(
    RpcType.IMPULSE,
    "What comes from outside: input of people, clocks, sensors. Sent only by code that is not replayed.",
)


@overload
def method(
    function: Callable[Concatenate[Owner, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Owner, P], Result[R]]: ...
@overload
def method(function: Callable[Concatenate[Owner, P], R]) -> Callable[Concatenate[Owner, P], Result[R]]: ...
def method(function: Callable[..., Any]) -> Any:
    """A method that others call and await, `def` or `async def`: exactly once, whatever dies."""
    return _awaitable(function, is_query=False)


@overload
def query(
    function: Callable[Concatenate[Owner, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Owner, P], Result[R]]: ...
@overload
def query(function: Callable[Concatenate[Owner, P], R]) -> Callable[Concatenate[Owner, P], Result[R]]: ...
def query(function: Callable[..., Any]) -> Any:
    """A method that reads the state and changes nothing. Asked from outside, it leaves no trace in the log."""
    return _awaitable(function, is_query=True)


def _awaitable(function: Callable[..., Any], *, is_query: bool) -> Any:
    """The method as others see it. The object itself may await it too: then it is an ordinary call of a function."""
    declared = Method(function, RpcType.ASYNC, None, is_query=is_query)
    if inspect.iscoroutinefunction(function):
        function.__ambrosia__ = declared  # type: ignore[attr-defined]
        return function

    @functools.wraps(function)
    def run(self: Any, *args: Any, **kwargs: Any) -> Result[Any]:
        result: Result[Any] = Result()
        result.resolve(function(self, *args, **kwargs))
        return result

    run.__ambrosia__ = declared  # type: ignore[attr-defined]
    return run


def methods_of(cls: type) -> dict[int, Method]:
    """The declared methods of a class and its bases, by number."""
    methods: dict[int, Method] = {}
    for name in dir(cls):
        method = getattr(getattr(cls, name, None), "__ambrosia__", None)
        if method is None:
            continue
        other = methods.get(method.id)
        if other is not None:
            raise DeclarationError(
                f"{cls.__name__}: {other.name} and {method.name} have the same number {method.id}; "
                f"give one of them another with @{method.rpc_type.name.lower()}(id=…)"
            )
        methods[method.id] = method
    return methods
