"""The rules of the house, checked: who may import whom, how long things may be, what may not be left lying about."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocols.descriptor import BUILT_IN, protocols

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"
LINE_LENGTH_MAX = 120
FILE_LINES_MAX = 600
UNBROKEN_WORD_MIN = 80
FUNCTION_LINES_MAX = 70

# The lowest layer: anyone may import these, and they import only each other.
FOUNDATION = {"headrace", "headrace.errors", "headrace.units", "headrace.serving.listener", "headrace.config.sections"}
# What the log offers to those above the hub: values that cross the hub's verbs.
LOG_VALUES = {"headrace.log.batch", "headrace.log.columns", "headrace.log.records", "headrace.log.ops"}
ABOVE_HUB = (
    "headrace.protocols",
    "headrace.spark",
    "headrace.console",
    "headrace.cli",
    "headrace.serving.runtime",
    "headrace.client",
)
# Reached by name rather than by import: entry points of the package and of users.
ENTRY_POINTS = {"headrace.__main__", "headrace.client", "headrace.testing"}
IO_MODULES = {"asyncio", "socket", "ssl", "threading", "selectors", "uvicorn", "starlette", "httpx"}
PRAGMA = re.compile(r"\s+# (?:type: ignore|noqa|pragma).*$")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in sorted(SOURCE.rglob("*.py"))}
PYTHON_FILES = sorted(
    file
    for folder in ("src", "tests", "benchmarks", "docs", "examples", "tools")
    for file in (ROOT / folder).rglob("*.py")
    if (ROOT / folder).exists()
)


@functools.cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


def imports_of(module: str) -> Iterator[str]:
    """Every module a module imports, wherever in it, as absolute names; those only for type checkers left out."""
    file = MODULES[module]
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    skipped = {node for block in ast.walk(tree_of(file)) if _for_type_checkers(block) for node in ast.walk(block)}
    for node in ast.walk(tree_of(file)):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1]]) if node.level else ""
            name = ".".join(filter(None, [base, node.module]))
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names if f"{name}.{alias.name}" in MODULES)


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def own_imports(module: str) -> set[str]:
    return {name for name in imports_of(module) if name == "headrace" or name.startswith("headrace.")}


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("module", MODULES)
def test_layers(module: str) -> None:
    imported = own_imports(module) - {"headrace"}
    if module in FOUNDATION - {"headrace"}:
        assert imported <= FOUNDATION
    elif under(module, "headrace.log"):
        wrong = {name for name in imported if not under(name, "headrace.log") and name not in FOUNDATION}
        assert not wrong, "the log imports nothing above it"
        assert "asyncio" not in set(imports_of(module)), "the log knows no event loop"
        # The sealing process is spoken to through a pair of sockets: pipes that know how long to wait.
        assert "socket" not in set(imports_of(module)) or module == "headrace.log.sealer", "the log knows no network"
    elif module == "headrace.hub.hub":
        assert not [name for name in imported if under(name, *ABOVE_HUB)]
    elif under(module, "headrace.protocols"):
        check_protocol(module, imported)
    if not under(module, "headrace.spark"):
        assert not [name for name in imports_of(module) if under(name, "pyspark")], "PySpark only in headrace.spark"


def spark_modules_of(module: str) -> set[str]:
    """The modules of `headrace.spark` that a module of it brings along when it is imported, itself among them."""
    found, waiting = set(), {module}
    while waiting:
        found |= waiting
        waiting = {name for one in waiting for name in own_imports(one) if under(name, "headrace.spark")} & set(MODULES)
        waiting -= found
    return found


@pytest.mark.parametrize("module", [name for name in MODULES if under(name, "headrace.spark.hub")])
def test_the_hub_imports_no_pyspark(module: str) -> None:
    for one in spark_modules_of(module):
        assert not [name for name in imports_of(one) if under(name, "pyspark")], f"PySpark in the hub, by {one}"


def check_protocol(module: str, imported: set[str]) -> None:
    parts = module.split(".")
    own = parts[2] if len(parts) > 2 else ""
    for other in BUILT_IN:
        if own and other != own:
            foreign = {name for name in imported if under(name, f"headrace.protocols.{other}")}
            assert not foreign, "protocols never import each other"
    above = ("headrace.serving.runtime", "headrace.cli", "headrace.console", "headrace.spark")
    assert not [name for name in imported if under(name, *above)]
    inside_log = {name for name in imported if under(name, "headrace.log")} - LOG_VALUES - {"headrace.log"}
    assert not inside_log, "protocols reach the log through the hub"
    if parts[-1] in ("codec", "session") or (len(parts) > 3 and "codec" in parts[3:]):
        everything = set(imports_of(module))
        assert not [name for name in everything if name.split(".")[0] in IO_MODULES], "codec and session do no I/O"
        assert not [name for name in imported if under(name, "headrace.hub.hub")], "and know no hub"


# What every protocol is served by. Each iterates over the protocols.
CENTRAL = ("config", "telemetry", "serving", "admin", "console", "security", "hub")
PROTOCOL_NAMES = {name for protocol in protocols() for name in (protocol.name, *protocol.labels)}
NAMED = re.compile(rf"(?<![a-z_])(?:{'|'.join(sorted(PROTOCOL_NAMES))})", re.IGNORECASE)


def test_no_central_module_names_a_protocol() -> None:
    central = [file for module, file in MODULES.items() if under(module, *(f"headrace.{each}" for each in CENTRAL))]
    assert len(central) > len(CENTRAL)
    assert not [f"{file}: {name}" for file in central for name in NAMED.findall(file.read_text(encoding="utf-8"))]
    assert NAMED.findall("import FutoinMetrics, ockam  # in_flight") == ["Futoin", "ockam"]


def is_too_long(line: str) -> bool:
    """A line that could be broken. A golden value of one long word cannot; a word to the checkers does not count."""
    line = PRAGMA.sub("", line)
    return len(line) > LINE_LENGTH_MAX and max(map(len, line.split())) < UNBROKEN_WORD_MIN


@pytest.mark.parametrize("file", PYTHON_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_sizes(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= FILE_LINES_MAX
    assert not [number for number, line in enumerate(lines, 1) if is_too_long(line)]
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            length = node.end_lineno - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("file", PYTHON_FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_unfinished_is_left_lying_about(file: Path) -> None:
    assert UNFINISHED.search(file.read_text(encoding="utf-8")) is None


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(tree_of(MODULES[module]))


# In a Spark worker there is no logger of ours: what it prints ends in Spark's own log.
@pytest.mark.parametrize("module", [name for name in MODULES if not under(name, "headrace.cli", "headrace.spark")])
def test_only_the_command_line_prints(module: str) -> None:
    calls = [node for node in ast.walk(tree_of(MODULES[module])) if isinstance(node, ast.Call)]
    assert not [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "print"]


def test_no_module_is_dead() -> None:
    """Each is imported by another, named as "module:function" or as a command, offered to users as a client or in the
    documentation, or an entry point."""
    used = set(ENTRY_POINTS) | {
        name for name in MODULES if under(name, "headrace.protocols") and name.endswith(".client")
    }
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]:
        used |= set(re.findall(r"headrace(?:\.\w+)+", page.read_text(encoding="utf-8")))
    for module, file in MODULES.items():
        used |= own_imports(module) - {module}
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("headrace."):
                used.add(node.value.partition(":")[0])
    used |= {".".join(name.split(".")[:depth]) for name in used for depth in range(1, name.count(".") + 2)}
    dead = {name for name in MODULES if name not in used and not under(name, "headrace.testing")}
    assert not dead


def test_the_rules_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above find what they are for."""
    bad = tmp_path / "codec.py"
    bad.write_text("import asyncio\nfrom headrace.protocols.ockam import codec\nfrom headrace.hub import Hub\n")
    monkeypatch.setitem(MODULES, "headrace.protocols.wallaroo.codec", bad)
    with pytest.raises(AssertionError, match="never import each other"):
        test_layers("headrace.protocols.wallaroo.codec")
    bad.write_text("import asyncio\n")
    tree_of.cache_clear()
    with pytest.raises(AssertionError, match="no I/O"):
        test_layers("headrace.protocols.wallaroo.codec")
    monkeypatch.setitem(MODULES, "headrace.spark.hub.registry", bad)
    bad.write_text("from headrace.spark.source import cursors\n")
    tree_of.cache_clear()
    with pytest.raises(AssertionError, match="PySpark in the hub, by headrace.spark.source.cursors"):
        test_the_hub_imports_no_pyspark("headrace.spark.hub.supervisor")
