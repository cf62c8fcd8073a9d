"""What can be called of an immortal, as its program says it: names, numbers and JSON schemas of methods.

The hub keeps it, so that callers and HTTP use names, a wrong argument is refused before it is logged, and the API has a
document.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw

from headrace.errors import BadRequest

KEY_FIELD: Final = "@key"
"""The field of the arguments that says which instance of a keyed immortal is meant."""
METHOD_FIELD: Final = "@method"
"""The field of a record in the inbox that names the method, for protocols that cannot choose a record's type."""
_KINDS: Final = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_KIND_OF: Final = {b'"': "string", b"t": "boolean", b"f": "boolean", b"[": "array", b"{": "object", b"n": "null"}
"""By the first byte; all else is a number."""
SHOWN_MAX: Final = 60
"""As much of a wrong argument is told."""


class MethodInterface(msgspec.Struct, frozen=True, omit_defaults=True):
    """One method."""

    name: str
    id: int
    query: bool = False
    summary: str = ""
    parameters: dict[str, dict[str, Any]] = {}
    """JSON schemas by name, in the order of the signature."""
    required: list[str] = []
    returns: dict[str, Any] = {}


class Interface(msgspec.Struct, frozen=True, omit_defaults=True):
    """All methods of an immortal."""

    kind: str
    """The name of the class."""
    methods: list[MethodInterface] = []
    keyed: bool = False
    schemas: dict[str, Any] = {}
    """What the methods' schemas refer to."""

    def method(self, immortal: str, name: str) -> MethodInterface:
        """A method by its name."""
        for method in self.methods:
            if method.name == name:
                return method
        known = ", ".join(method.name for method in self.methods) or "none"
        raise BadRequest(f"immortal {immortal!r} has no method {name!r}; it has {known}")

    def check(self, immortal: str, method: MethodInterface, arguments: dict[str, Raw], key: str | None) -> None:
        """Refuse arguments that the method cannot take. The program itself checks them once more, in depth."""
        call = f"{immortal}.{method.name}"
        unknown = [name for name in arguments if name not in method.parameters]
        if unknown:
            takes = ", ".join(method.parameters) or "no arguments"
            raise BadRequest(f"{call} has no parameter {unknown[0]!r}; it takes {takes}")
        missing = [name for name in method.required if name not in arguments]
        if missing:
            raise BadRequest(f"{call} needs {' and '.join(repr(name) for name in missing)}")
        for name, value in arguments.items():
            if (wanted := _mismatch(method.parameters[name], value)) is not None:
                raise BadRequest(f"{call}: {name!r} must be {wanted}, not {_shown(value)}")
        if self.keyed and key is None:
            raise BadRequest(f"{immortal!r} is keyed: name the instance, such as immortal({immortal!r}, key=…)")
        if not self.keyed and key is not None:
            raise BadRequest(f"{immortal!r} is not keyed: it is one instance, and takes no key")


def read_interface(key: bytes, value: bytes) -> Interface:
    """A row of `ambrosia/methods`."""
    return msgspec.json.decode(value, type=Interface)


def _mismatch(schema: dict[str, Any], value: Raw) -> str | None:
    """The kind of value that was wanted, if this is another; the outermost layer only."""
    kinds = schema.get("type")
    if not isinstance(kinds, str):
        choices = [str(each.get("type")) for each in schema.get("anyOf", []) if isinstance(each, dict)]
        if not choices or not all(choice in _KINDS for choice in choices):
            return None
        return None if any(_is_kind(choice, value) for choice in choices) else " or ".join(choices)
    return None if kinds not in _KINDS or _is_kind(kinds, value) else f"of type {kinds}"


def _is_kind(kind: str, value: Raw) -> bool:
    text = bytes(memoryview(value)[:SHOWN_MAX])
    known = _KIND_OF.get(text[:1])
    if known is None:
        known = "number" if any(each in text for each in (b".", b"e", b"E")) else "integer"
    return known == kind or (known == "integer" and kind == "number")


def _shown(value: Raw) -> str:
    if len(value) > SHOWN_MAX:
        return bytes(memoryview(value)[: SHOWN_MAX - 3]).decode(errors="replace") + "…"
    try:
        return repr(msgspec.json.decode(value))
    except msgspec.DecodeError:  # a number that is out of range
        return bytes(value).decode()


def openapi(interfaces: dict[str, Interface]) -> dict[str, Any]:
    """The document of `POST /api/immortals/NAME/METHOD`."""
    paths: dict[str, Any] = {}
    schemas: dict[str, Any] = {}
    for name, interface in interfaces.items():
        prefix = f"{name}."
        for title, schema in interface.schemas.items():
            schemas[prefix + title] = _moved(schema, prefix)
        for method in interface.methods:
            paths[f"/api/immortals/{name}/{method.name}"] = {"post": _operation(name, interface, method, prefix)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Immortals", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(name: str, interface: Interface, method: MethodInterface, prefix: str) -> dict[str, Any]:
    body = {
        "type": "object",
        "properties": {each: _moved(schema, prefix) for each, schema in method.parameters.items()},
        "required": method.required,
        "additionalProperties": False,
    }
    headers = [] if method.query else [_header("Idempotency-Key", "The same key again: the same call, and its result")]
    if interface.keyed:
        headers.append({"name": "key", "in": "query", "required": True, "schema": {"type": "string"}})
    returns = _moved(method.returns, prefix) or {}
    return {
        "operationId": f"{name}.{method.name}",
        "summary": method.summary,
        "tags": [name],
        "parameters": headers,
        "requestBody": {"content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "What it returned", "content": {"application/json": {"schema": returns}}}},
    }


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": {"type": "string"}}


def _moved(schema: Any, prefix: str) -> Any:
    """A schema whose references point into the common document."""
    if isinstance(schema, dict):
        moved = {key: _moved(value, prefix) for key, value in schema.items()}
        if isinstance(reference := moved.get("$ref"), str):
            moved["$ref"] = "#/components/schemas/" + prefix + reference.rpartition("/")[2]
        return moved
    return [_moved(each, prefix) for each in schema] if isinstance(schema, list) else schema
