"""`@immortal(…)`: what a class says about itself, and what it offers to others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from headrace.protocols.ambrosia.binding.determinism import check_attributes, check_class
from headrace.protocols.ambrosia.binding.immortal import Immortal, annotations_of
from headrace.protocols.ambrosia.binding.methods import DeclarationError
from headrace.protocols.ambrosia.binding.values import schemas_of
from headrace.protocols.ambrosia.codec import RpcType
from headrace.protocols.ambrosia.interface import Interface, MethodInterface

Class = TypeVar("Class", bound=type[Immortal])


def immortal(
    *, keyed: bool = False, renamed: dict[str, str] | None = None, saved_as: str | None = None
) -> Callable[[Class], Class]:
    """Options of a class of immortals.

    `keyed`: any number of instances, each with a key, a state and an order of its own. `renamed`: attributes of the
    state that have another name now, old → new. `saved_as`: the name by which checkpoints know the class, if that was
    renamed.
    """

    def declare(cls: Class) -> Class:
        cls.__keyed__ = keyed
        cls.__renamed__ = dict(renamed or {})
        if saved_as is not None:
            cls.__saved_as__ = saved_as
        return cls

    return declare


def interface_of(cls: type[Immortal]) -> Interface:
    """What can be called of an immortal of a class: its methods with the schemas of their annotations."""
    check_class(cls)
    if cls.save_state is Immortal.save_state:
        check_attributes(cls, annotations_of(cls))
    if cls.__keyed__ and cls.first_start is not Immortal.first_start:
        raise DeclarationError(
            f"{cls.__name__} is keyed, and first_start is for immortals that are one: an instance begins with its "
            "first call, so do there what it needs"
        )
    declared = sorted(cls.__methods__.values(), key=lambda method: method.function.__code__.co_firstlineno)
    kinds: list[Any] = []
    for method in declared:
        own = [method.arguments, method.returns]
        try:
            schemas_of(own)
        except TypeError as error:
            raise DeclarationError(f"{cls.__name__}.{method.name}: {error}{_remedy(str(error))}") from None
        kinds += own
    schemas, components = schemas_of(kinds)
    methods: list[MethodInterface] = []
    for place, method in enumerate(declared):
        arguments = components.pop(_name_of(schemas[2 * place]), schemas[2 * place])
        documentation = inspect.getdoc(method.function) or ""
        methods.append(
            MethodInterface(
                method.name,
                method.id,
                method.is_query,
                documentation.partition("\n")[0],
                arguments.get("properties", {}),
                list(arguments.get("required", [])),
                schemas[2 * place + 1] if method.rpc_type == RpcType.ASYNC else {"type": "null"},
            )
        )
    return Interface(cls.__name__, methods, cls.__keyed__, components)


def _remedy(error: str) -> str:
    """What to do about types that JSON cannot tell apart."""
    if not error.startswith("Type unions"):
        return ""
    return "; in JSON they look alike: derive them from msgspec.Struct with tag=True, or give each a method"


def _name_of(schema: dict[str, Any]) -> str:
    return str(schema.get("$ref", "")).rpartition("/")[2]
