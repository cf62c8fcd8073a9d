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
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_type_hints, overload

import msgspec

from headrace.protocols.ambrosia.codec import RpcType

METHOD_ID_BITS: Final = 20
Function = TypeVar("Function", bound=Callable[..., Any])


class DeclarationError(TypeError):
    """A class that cannot be an immortal as it is written."""


class Method:
    """One declared method."""

    def __init__(self, function: Callable[..., Any], rpc_type: RpcType, id: int | None) -> None:
        self.function = function
        self.rpc_type = rpc_type
        self.name = function.__name__
        self.id = method_id(self.name) if id is None else id
        self.parameters = list(inspect.signature(function).parameters.values())[1:]
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        if any(parameter.kind not in named for parameter in self.parameters):
            raise DeclarationError(f"{self.name}: parameters must have names: *args, **kwargs and / cannot be sent")

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
        return msgspec.json.Decoder(self.arguments)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Arguments as bytes; a wrong number or name of them is an error here, not at the other end."""
        return msgspec.json.encode(self.arguments(*args, **kwargs))

    def invoke(self, immortal: Any, data: bytes) -> Any:
        """Call the method with arguments as they came."""
        values = self._decoder.decode(data or b"{}")
        return self.function(immortal, **{name: getattr(values, name) for name in values.__struct_fields__})


def method_id(name: str) -> int:
    """The number of a method that was not given one."""
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
