"""Values as they travel and are kept: what msgspec knows (dataclasses, structs, datetimes …), and pydantic models where
that is installed. Pydantic is never imported here: a model is known by its methods."""

from __future__ import annotations

from typing import Any

import msgspec


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_json_schema")


def _refusal(kind: type) -> TypeError:
    return TypeError(f"a {kind.__name__} cannot be sent or kept: use a dataclass, a msgspec or pydantic type")


def _encode_other(value: Any) -> Any:
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    raise _refusal(type(value))


def _decode_other(kind: type, value: Any) -> Any:
    if _is_model(kind):
        try:
            return kind.model_validate(value)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(" ".join(str(error).split())) from None
    if isinstance(value, kind):
        return value
    raise _refusal(kind)


def _schema_of_other(kind: type) -> dict[str, Any]:
    if kind is object:
        return {"description": "Anything"}
    if _is_model(kind):
        return kind.model_json_schema()  # type: ignore[attr-defined, no-any-return]
    raise _refusal(kind)


_json = msgspec.json.Encoder(enc_hook=_encode_other)
_packed = msgspec.msgpack.Encoder(enc_hook=_encode_other)


def to_json(value: Any) -> bytes:
    """A value on its way."""
    return _json.encode(value)


def from_json(data: bytes, kind: Any = Any) -> Any:
    """A value that came, as what was declared. Whatever is wrong with it, that is a `msgspec.DecodeError`."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_decode_other)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def json_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """The same for many values."""
    return msgspec.json.Decoder(kind, dec_hook=_decode_other)


def pack(value: Any) -> bytes:
    """A value to keep."""
    return _packed.encode(value)


def unpack(data: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """A value that was kept."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_decode_other)


def schemas_of(kinds: list[Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """JSON schemas of types, and what they refer to."""
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_schema_of_other, ref_template="#/components/schemas/{name}"
    )
    return list(schemas), dict(components)
