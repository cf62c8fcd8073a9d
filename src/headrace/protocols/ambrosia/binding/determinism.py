"""What a method may not do, found before it runs: a clock, a random number, a file or an event loop that no log knows.

Methods are read as source, with the functions of the same package that they call. What is passed to `self.effect` runs
outside of the log, and may do what it likes; so may queries, which no recovery runs again. Where there is no source (a
class made by `exec`) nothing is found.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import datetime
import importlib
import inspect
import os
import pathlib
import random
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.protocols.ambrosia.binding.methods import DeclarationError

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.immortal import Immortal

OUTSIDE_OF_THE_LOG: Final = frozenset({"on_primary", "save_state", "load_state", "load_unknown", "__init__", "__new__"})
EFFECTS: Final = frozenset({"effect", "outside"})
_CLOCK: Final = "use self.now(), which the log knows"
_SLEEP: Final = "use await self.sleep(…), whose end is logged"
_RANDOM: Final = "use self.random, which draws the same again in a replay"
_LOOP: Final = "use await self.sleep, self.effect, gather and select of headrace.immortals, which the log knows"
_EFFECT: Final = "use await self.effect(function, …), which runs outside of the log"
_STABLE: Final = "use a value that is the same in every process, such as zlib.crc32(…)"

MODULES: Final[dict[str, str]] = {
    "random": _RANDOM,
    "secrets": "use self.random, or self.uuid().hex",
    "asyncio": _LOOP,
    **dict.fromkeys(
        (
            "subprocess", "socket", "ssl", "threading", "multiprocessing", "concurrent.futures", "urllib.request",
            "http.client", "smtplib", "ftplib", "shutil", "tempfile", "sqlite3", "requests", "httpx", "aiohttp",
            "boto3", "psycopg", "redis",
        ),
        _EFFECT,
    ),
}  # fmt: skip
"""All that is called of these; classes of exceptions excepted."""
FUNCTIONS: Final[dict[Any, str]] = {
    **dict.fromkeys((time.time, time.time_ns, time.monotonic, time.monotonic_ns, time.perf_counter), _CLOCK),
    **dict.fromkeys((time.perf_counter_ns, time.process_time, time.process_time_ns, time.thread_time), _CLOCK),
    **dict.fromkeys((time.sleep, asyncio.sleep), _SLEEP),
    **dict.fromkeys((uuid.uuid1, uuid.uuid4), "use self.uuid()"),
    os.urandom: "use self.random.randbytes(…)",
    **dict.fromkeys((open, input), _EFFECT),
    **dict.fromkeys((hash, id), _STABLE),
}
WITHOUT_TIME: Final[dict[Any, int]] = {
    time.localtime: 0, time.gmtime: 0, time.ctime: 0, time.asctime: 0, time.strftime: 1,
}  # fmt: skip
"""These tell the time if they are given no more arguments."""
CLOCKS: Final = {
    (datetime.datetime, "now"),
    (datetime.datetime, "utcnow"),
    (datetime.datetime, "today"),
    (datetime.date, "today"),
}
PURE_PATHS: Final = frozenset({"fspath", "fsdecode", "fsencode", "strerror"})
LOOKING_PATHS: Final = frozenset({"exists", "lexists", "isfile", "isdir", "getsize", "getmtime", "abspath", "realpath"})
TOUCHING_PATHS: Final = frozenset(
    {"open", "read_text", "read_bytes", "write_text", "write_bytes", "exists", "unlink", "mkdir", "iterdir", "glob"}
)


class _Use(NamedTuple):
    function: FunctionType
    line: int
    what: str
    remedy: str


def check_class(cls: type[Immortal]) -> None:
    """Refuse a class whose methods would do something else in a replay."""
    queries = {method.name for method in cls.__methods__.values() if method.is_query}
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        function = inspect.unwrap(member)
        if name in OUTSIDE_OF_THE_LOG or name in queries or function.__module__.startswith("headrace.protocols."):
            continue
        for use in _uses(function, set()):
            file = os.path.basename(use.function.__code__.co_filename)
            where = "" if use.function is function else f", by way of {use.function.__name__}"
            raise DeclarationError(
                f"{cls.__name__}.{name} ({file}:{use.line}) uses {use.what}{where}: a recovery runs the method again "
                f"and would get another answer; {use.remedy}"
            )


def check_attributes(cls: type[Immortal], kept: Collection[str]) -> None:
    """Refuse a class that sets attributes which no checkpoint keeps: `kept` are those that one does."""
    queries = {method.name for method in cls.__methods__.values() if method.is_query}
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        function = inspect.unwrap(member)
        tree = None if name in queries or function.__module__.startswith("headrace.protocols.") else _tree(function)
        if tree is None or not function.__code__.co_argcount:
            continue
        itself = function.__code__.co_varnames[0]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
                continue
            if not isinstance(node.value, ast.Name) or node.value.id != itself:
                continue
            known = getattr(cls, node.attr, None)
            if node.attr in kept or node.attr.startswith("_") or inspect.isdatadescriptor(known):
                continue
            file, line = os.path.basename(function.__code__.co_filename), function.__code__.co_firstlineno
            raise DeclarationError(
                f"{cls.__name__}.{name} ({file}:{line + node.lineno - 1}) sets self.{node.attr}, which a checkpoint "
                f"would lose: annotate it in the class ({node.attr}: …), or begin its name with an underscore if it "
                "need not be kept"
            )


def _uses(function: FunctionType, seen: set[FunctionType]) -> Iterator[_Use]:
    """What a function uses that no log knows, and what the functions of its package do that it calls."""
    seen.add(function)
    tree = _tree(function)
    if tree is None:
        return
    names: dict[str, Any] = {**vars(builtins), **function.__globals__}
    names |= dict.fromkeys(function.__code__.co_varnames)
    free = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    names |= {name: cell.cell_contents for name, cell in free if _is_filled(cell)}
    inside = list(_inside(tree))
    for node in inside:  # first all names: they may be used before the line that imports them, in a loop
        names |= _bound(node, names)
    for node in inside:
        if (found := _use(node, names)) is not None:
            line = function.__code__.co_firstlineno + getattr(node, "lineno", 1) - 1
            yield _Use(function, line, *found)
    for node in inside:
        called = _value(node.func, names) if isinstance(node, ast.Call) else None
        if isinstance(called, FunctionType) and called not in seen and _is_near(called, function):
            yield from _uses(called, seen)


def _tree(function: FunctionType) -> ast.AST | None:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):  # no source, or a lambda in the middle of a line
        return None


def _is_near(called: FunctionType, caller: FunctionType) -> bool:
    """Whether it is of the same package: libraries are not looked into."""
    return called.__module__.partition(".")[0] == caller.__module__.partition(".")[0]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _inside(tree: ast.AST) -> Iterator[ast.AST]:
    """All that runs in a replay: not what is passed to an effect, nor functions that only effects may call."""
    has_effects = any(_is_effect(node) for node in ast.walk(tree))
    waiting: list[ast.AST] = list(getattr(tree, "body", ()))
    while waiting:
        node = waiting.pop(0)
        yield node
        if _is_effect(node):
            continue
        if has_effects and isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        waiting[:0] = ast.iter_child_nodes(node)


def _is_effect(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EFFECTS


def _bound(node: ast.AST, names: Mapping[str, Any]) -> dict[str, Any]:
    """Names that a statement gives to something that is known now: `import time`, `t = time.time`."""
    if isinstance(node, ast.Import):
        return {
            each.asname or each.name.partition(".")[0]: _module(
                each.name if each.asname else each.name.partition(".")[0]
            )
            for each in node.names
        }
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        module = _module(node.module)
        return {each.asname or each.name: getattr(module, each.name, None) for each in node.names}
    if isinstance(node, ast.Assign) and (value := _value(node.value, names)) is not None:
        return {target.id: value for target in node.targets if isinstance(target, ast.Name)}
    return {}


def _module(name: str) -> ModuleType | None:
    """A module that is there already, or of the standard library: to look must not run a program's own code."""
    if name not in sys.modules and name.partition(".")[0] in sys.stdlib_module_names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    return sys.modules.get(name)


def _value(node: ast.AST, names: Mapping[str, Any]) -> Any:
    """What an expression names: a module, something of a module or of a class; None if that is not known."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = _value(node.value, names)
        return getattr(owner, node.attr, None) if inspect.ismodule(owner) or inspect.isclass(owner) else None
    return None


def _use(node: ast.AST, names: Mapping[str, Any]) -> tuple[str, str] | None:
    """What an expression uses that no log knows, and what to use in its place."""
    if isinstance(node, ast.Attribute) and _value(node, names) is os.environ:
        return ast.unparse(node), _EFFECT
    if not isinstance(node, ast.Call):
        return None
    remedy = _remedy(node, _value(node.func, names), names)
    return None if remedy is None else (ast.unparse(node.func), remedy)


def _remedy(call: ast.Call, called: Any, names: Mapping[str, Any]) -> str | None:
    if isinstance(call.func, ast.Attribute):
        owner, attribute = _value(call.func.value, names), call.func.attr
        if inspect.isclass(owner) and (owner, attribute) in CLOCKS:
            return _CLOCK
        if owner is os and attribute not in PURE_PATHS and called not in FUNCTIONS:
            return _EFFECT
        if owner is os.path and attribute in LOOKING_PATHS:
            return _EFFECT
        if isinstance(owner, random.Random):
            return _RANDOM
        made = _value(call.func.value.func, names) if isinstance(call.func.value, ast.Call) else None
        if inspect.isclass(made) and issubclass(made, pathlib.Path) and attribute in TOUCHING_PATHS:
            return _EFFECT
    if called is None or not isinstance(called, Callable):  # type: ignore[arg-type]
        return None
    if called is random.Random and (call.args or call.keywords):  # seeded
        return None
    if inspect.isclass(called) and issubclass(called, BaseException):
        return None
    if _is_hashable(called) and called in FUNCTIONS:
        return FUNCTIONS[called]
    if _is_hashable(called) and called in WITHOUT_TIME and len(call.args) <= WITHOUT_TIME[called]:
        return _CLOCK
    return _remedy_of_module(_home(called))


def _home(called: Any) -> str:
    """The module that something is from: of a method, that of its object, as for `random.choice`."""
    module = getattr(called, "__module__", None) or type(getattr(called, "__self__", None)).__module__
    return str(module)


def _remedy_of_module(module: str) -> str | None:
    while module:
        if module in MODULES:
            return MODULES[module]
        module = module.rpartition(".")[0]
    return None


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
