"""Where settings come from: defaults < TOML file < environment < flags. Each value remembers its origin.

    environment   HEADRACE_LOG__SEGMENT_BYTES=64MiB   (section, two underscores, key)
    flag          --set log.segment_bytes=64MiB

A wrong value names the place it came from, the key, what was expected, and the nearest key when one was mistyped.
"""

from __future__ import annotations

import difflib
import functools
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from headrace.config import Config
from headrace.config.address import split_address
from headrace.errors import BadConfig
from headrace.units import parse_bytes, parse_seconds

ENVIRONMENT_PREFIX = "HEADRACE_"
DEFAULT = "default"


class ConfigError(BadConfig):
    """A setting is unknown or has a wrong value. `origin` is the file, variable or flag; `key` is `section.key`."""

    def __init__(self, origin: str, key: str, problem: str) -> None:
        self.origin = origin
        self.key = key
        super().__init__(f"{origin}: {key}: {problem}" if key else f"{origin}: {problem}")


class Setting(msgspec.Struct, frozen=True):
    """One value with the place it came from."""

    key: str
    value: Any
    origin: str
    description: str
    unit: str


class Loaded(msgspec.Struct, frozen=True):
    """The settings and, for every key that was set, its origin."""

    config: Config
    origins: dict[str, str]

    def settings(self) -> Iterator[Setting]:
        """Every setting in the order of the sections; secrets are masked."""
        yield from _settings(self.config, (), self.origins)


def load(
    file: str | Path | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Loaded:
    """Settings from all sources. `file` may be None; a file that was named must exist."""
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        for path, value in _from_file(Path(file)):
            _put(tree, origins, path, value, str(file))
    for name, text in sorted((os.environ if environment is None else environment).items()):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            path = _joined(tuple(part.lower() for part in name.removeprefix(ENVIRONMENT_PREFIX).split("__")))
            _put(tree, origins, path, _from_text(path, text, f"environment {name}"), f"environment {name}")
    for flag in flags:
        key, separator, text = flag.partition("=")
        origin = f"flag --set {key}"
        path = _joined(tuple(key.strip().split(".")))
        if not separator or len(path) < 2:
            raise ConfigError(f"flag --set {flag}", "", "expected section.key=value")
        _put(tree, origins, path, _from_text(path, text, origin), origin)
    try:
        config = msgspec.convert(tree, Config)
    except msgspec.ValidationError as error:  # every leaf was checked, so only something required can be missing
        raise ConfigError(str(file or "settings"), "", str(error)) from error
    _check_addresses(config, origins)
    return Loaded(config, origins)


def _from_file(file: Path) -> Iterator[tuple[tuple[str, ...], Any]]:
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(str(file), "", f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(file), "", f"is not TOML, which is UTF-8 text: {error}") from error
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(file), "", f"is not TOML: {error}") from error
    yield from _leaves(document, (), str(file))


def _leaves(table: dict[str, Any], path: tuple[str, ...], origin: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        here = (*path, name)
        kind = type_of(here, origin)
        if isinstance(value, dict) and _has_keys(kind):
            yield from _leaves(value, here, origin)
        else:
            yield here, _checked(here, value, kind, origin)


def _from_text(path: tuple[str, ...], text: str, origin: str) -> Any:
    """A value from the environment or a flag: read as TOML (lists, numbers, tables), otherwise the text itself."""
    kind = type_of(path, origin)
    if _plain(kind) is str or _plain(kind) == (str | None):
        return _checked(path, text, kind, origin)
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    return _checked(path, value, kind, origin)


def _fields(kind: Any) -> dict[str, Any] | None:
    """The fields of a struct type with their types, or None for any other type."""
    plain = _plain(kind)
    if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
        return _hints(plain)
    return None


@functools.cache
def _hints(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(struct, include_extras=True)


def _has_keys(kind: Any) -> bool:
    return _fields(kind) is not None or get_origin(_plain(kind)) is dict


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def type_of(path: tuple[str, ...], origin: str) -> Any:
    """The annotated type of the setting at `path`, or a `ConfigError` that suggests the nearest name."""
    kind: Any = Config
    for depth, name in enumerate(path):
        fields = _fields(kind)
        if fields is not None:
            if name not in fields:
                removed = getattr(_plain(kind), "REMOVED", {}).get(name)
                problem = f"was removed: {removed}; delete it" if removed else _no_such(path[:depth], name, fields)
                raise ConfigError(origin, ".".join(path[: depth + 1]), problem)
            kind = fields[name]
        elif _has_keys(kind):
            kind = get_args(_plain(kind))[1]
        else:
            raise ConfigError(origin, ".".join(path), f"{'.'.join(path[:depth])!r} is a single value and has no keys")
    return kind


def _joined(path: tuple[str, ...]) -> tuple[str, ...]:
    """A name with dots in it, where a setting's keys are the user's own (`spark.conf`, `log.kafka.client`), is one."""
    kind: Any = Config
    for depth, name in enumerate(path):
        fields = _fields(kind)
        if fields is None:
            is_text = get_origin(_plain(kind)) is dict and get_args(_plain(kind))[1] is str
            return (*path[:depth], ".".join(path[depth:])) if is_text else path
        kind = fields.get(name)
    return path


def _no_such(parents: tuple[str, ...], name: str, fields: dict[str, Any]) -> str:
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"; did you mean {'.'.join((*parents, near[0]))!r}?" if near else f"; there are {', '.join(fields)}"
    return f"there is no such {'setting' if parents else 'section'}{hint}"


def _unit(kind: Any) -> str:
    for note in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
        if isinstance(note, msgspec.Meta) and note.extra:
            return str(note.extra.get("unit", ""))
    return ""


def _description(kind: Any) -> str:
    notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
    return next((note.description for note in notes if isinstance(note, msgspec.Meta) and note.description), "")


def _checked(path: tuple[str, ...], value: Any, kind: Any, origin: str) -> Any:
    key = ".".join(path)
    unit = _unit(kind)
    try:
        if unit == "bytes" and isinstance(value, str):
            value = parse_bytes(value)
        elif unit == "seconds" and isinstance(value, str):
            value = parse_seconds(value)
        msgspec.convert(value, kind)
    except (ValueError, msgspec.ValidationError) as error:
        raise ConfigError(origin, key, _expectation(str(error), kind)) from error
    return value


def _expectation(problem: str, kind: Any) -> str:
    problem = problem[:1].lower() + problem[1:]
    unit = _unit(kind)
    if get_origin(_plain(kind)) is Literal:
        return f"{problem}; expected one of {', '.join(map(str, get_args(_plain(kind))))}"
    if unit == "bytes" and "is not a size" not in problem:
        return f"{problem}; sizes are written as 4096, 64KiB or 32MiB"
    if unit == "seconds" and "is not a duration" not in problem:
        return f"{problem}; durations are written as 250ms, 30s, 5m, 12h or 7d"
    return problem


def _put(tree: dict[str, Any], origins: dict[str, str], path: tuple[str, ...], value: Any, origin: str) -> None:
    node = tree
    for name in path[:-1]:
        node = node.setdefault(name, {})
    node[path[-1]] = value
    origins[".".join(path)] = origin


def _check_addresses(config: Config, origins: dict[str, str]) -> None:
    for name, address in config.listen.addresses().items():
        if address == "off":
            continue
        try:
            split_address(address)
        except ValueError:
            key = f"listen.{name}"
            problem = f"{address!r} is not host:port (such as 127.0.0.1:7070, port 0 for any) or off"
            raise ConfigError(origins.get(key, DEFAULT), key, problem) from None


def _settings(node: Any, path: tuple[str, ...], origins: dict[str, str]) -> Iterator[Setting]:
    fields: list[tuple[str, Any]]
    if isinstance(node, msgspec.Struct):
        fields = [(name, getattr(node, name)) for name in node.__struct_fields__]
    else:
        fields = list(node.items())
    for name, value in fields:
        here = (*path, name)
        kind = type_of(here, "")
        if _has_keys(kind) and (isinstance(value, msgspec.Struct) or value):
            yield from _settings(value, here, origins)
        else:
            key = ".".join(here)
            shown = masked(here, msgspec.to_builtins(value))
            yield Setting(key, shown, origins.get(key, DEFAULT), _description(kind), _unit(kind))


SECRET_NAMES = frozenset({"secret", "token", "tokens", "cookie", "password", "mac_keys", "master_keys"})
KAFKA_CLIENT = ("log", "kafka", "client")
KAFKA_SHOWN = re.compile(r"security\.protocol|sasl\.mechanisms?|sasl\.username|client\.id|.*\.location|[a-z.]+\.ms")
"""Properties of the Kafka client that are no secrets. There are many that are, and there will be more."""


def masked(path: tuple[str, ...], value: Any) -> Any:
    """`value`, or stars of a fixed length when the key holds a secret that is set."""
    is_hidden = path[:3] == KAFKA_CLIENT and len(path) > 3 and not KAFKA_SHOWN.fullmatch(path[3])
    if (is_hidden or not SECRET_NAMES.isdisjoint(path)) and value:
        return ["********"] * len(value) if isinstance(value, list) else "********"
    return value
