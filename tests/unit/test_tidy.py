"""The rules of the house, checked: who may import whom, how long things may be, what may not be left lying about.

A rule is a function that names all who break it, as `file:line: what is wrong`. It is told which house to look at, so
that `BROKEN` at the end can show of each rule that it finds what it is for.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.protocols.descriptor import protocols

ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "tests", "benchmarks", "docs", "examples", "tools")

LAYERS = (
    "errors units",
    "collection",
    "imports",
    "pages",
    "slicing",
    "jsontext",
    "config",
    "log",
    "telemetry",
    "security",
    "hub",
    "admin",
    "serving",
    "sql",
    "cluster",
    "protocols",
    "client",
    "immortals",
    "spark",
    "console testing",
    "doctor demo",
    "cli",
)
"""The rooms of `headrace`, the lowest first. A room knows those in the lines above its own, and none beside it."""
AT_HOME_IN = {"headrace.protocols.descriptor": "config"}
"""Modules that belong to another layer than their folder: the list of the protocols is needed by the settings."""
LOG_VALUES = {f"headrace.log.{name}" for name in ("batch", "columns", "records", "ops")}
"""What protocols may know of the log: values that cross the hub's verbs."""
ENTRY_POINTS = {"headrace.__main__", "headrace.cli.coordinator", "headrace.client"}
ENTRY_POINTS |= {"headrace.immortals", "headrace.testing"}
"""Reached by name rather than by import."""
IO_MODULES = {"asyncio", "socket", "ssl", "threading", "selectors", "uvicorn", "starlette", "httpx"}

CENTRAL = ("config", "telemetry", "serving", "admin", "console", "security", "hub")
"""The rooms that serve every protocol: they go through the list of protocols, and name none."""
PROTOCOL_NAMES = sorted({name for protocol in protocols() for name in (protocol.name, *protocol.labels)})
PROTOCOL_NAME = re.compile(rf"(?<![a-z_])(?:{'|'.join(PROTOCOL_NAMES)})", re.IGNORECASE)

LINE_LENGTH_MAX = 120
UNBROKEN_WORD_MIN = 80
LIMITS = {"src": (500, 60)}
JAVA_COMMENT = re.compile(r"^/\*\*.*?\*/", re.MULTILINE | re.DOTALL)
LIMITS_ELSEWHERE = (600, 70)
"""How many lines a file and a function of a folder may have."""

PRAGMA = re.compile(r"\s+# (?:type: ignore|noqa|pragma).*$")
UNFINISHED = re.compile(r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")
FILE_NAME = re.compile(r"`([\w./-]*\b\w+\.py)\b[^`\n]*`")
USERS_OWN = {"counter.py", "taste.py"}
"""Files that pages let their readers write."""


class House:
    """The files of the project, or of an example of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source = root / "src" / "headrace"
        self.files = sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py"))
        self.java_files = sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.java"))
        self.modules = {self._module_name(file): file for file in self.files if file.is_relative_to(self.source)}
        self.pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]

    def _module_name(self, file: Path) -> str:
        parts = file.relative_to(self.source.parent).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def at(self, file: Path | str, line: int = 1) -> str:
        """Where something is wrong, as editors understand it."""
        found = self.modules[file] if isinstance(file, str) else file
        return f"{found.relative_to(self.root)}:{line}"

    def imports(self, module: str) -> Iterator[tuple[str, int]]:
        """Every module a module imports, wherever in it, and the line; those only for type checkers left out."""
        file = self.modules[module]
        package = module if file.name == "__init__.py" else module.rpartition(".")[0]
        skipped = {node for block in nodes_of(file) if _for_type_checkers(block) for node in ast.walk(block)}
        for node in nodes_of(file):
            if node in skipped:
                continue
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = ".".join(package.split(".")[: package.count(".") + 2 - node.level]) if node.level else ""
                name = ".".join(filter(None, [base, node.module]))
                yield name, node.lineno
                below = (f"{name}.{alias.name}" for alias in node.names)
                yield from ((each, node.lineno) for each in below if each in self.modules)

    def protocol_of(self, module: str) -> str:
        """The protocol whose package a module is in; what the protocols share is in none."""
        parts = module.split(".")
        is_inside = parts[:2] == ["headrace", "protocols"] and len(parts) > 2
        return parts[2] if is_inside and (self.source / "protocols" / parts[2]).is_dir() else ""


@functools.cache
def nodes_of(file: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))))


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def room_of(module: str) -> str:
    """The folder below `headrace`, or the module's own name; nothing for the package itself."""
    return AT_HOME_IN.get(module) or ".".join(module.split(".")[1:2])


def rooms_know_only_those_below_them(house: House) -> Iterator[str]:
    level = {room: number for number, line in enumerate(LAYERS) for room in line.split()}
    for module in house.modules:
        room = room_of(module)
        if room in ("", "__main__"):
            continue
        if room not in level:
            yield f"{house.at(module)}: {room} has no place in LAYERS"
            continue
        for name, line in house.imports(module):
            other = room_of(name) if under(name, "headrace") else ""
            if other and other != room and level.get(other, len(LAYERS)) >= level[room]:
                yield f"{house.at(module, line)}: {room} knows {other}, which is not below it ({name})"


def protocols_do_not_know_each_other(house: House) -> Iterator[str]:
    for module in house.modules:
        own = house.protocol_of(module)
        for name, line in house.imports(module):
            if own and house.protocol_of(name) not in ("", own):
                yield f"{house.at(module, line)}: {own} imports {name}"


def central_rooms_name_no_protocol(house: House) -> Iterator[str]:
    for module, file in house.modules.items():
        if under(module, *(f"headrace.{room}" for room in CENTRAL)):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                yield from (f"{house.at(module, number)}: {name}" for name in PROTOCOL_NAME.findall(line))


def protocols_reach_the_log_through_the_hub(house: House) -> Iterator[str]:
    for module in house.modules:
        if under(module, "headrace.protocols"):
            for name, line in house.imports(module):
                if under(name, "headrace.log") and name not in LOG_VALUES | {"headrace.log"}:
                    yield f"{house.at(module, line)}: {name}"


def codecs_and_sessions_do_no_io_and_know_no_hub(house: House) -> Iterator[str]:
    for module in house.modules:
        parts = module.split(".")
        if house.protocol_of(module) and (parts[-1] in ("codec", "session") or "codec" in parts[3:]):
            for name, line in house.imports(module):
                if name.partition(".")[0] in IO_MODULES or under(name, "headrace.hub.hub"):
                    yield f"{house.at(module, line)}: {name}"


def the_log_knows_no_event_loop_and_no_network(house: House) -> Iterator[str]:
    for module in house.modules:
        if under(module, "headrace.log"):
            for name, line in house.imports(module):
                # The sealing process is spoken to through a pair of sockets: pipes that know how long to wait.
                if name == "asyncio" or (name == "socket" and module != "headrace.log.sealer"):
                    yield f"{house.at(module, line)}: {name}"


def only_spark_imports_pyspark(house: House) -> Iterator[str]:
    for module in house.modules:
        if not under(module, "headrace.spark"):
            for name, line in house.imports(module):
                if under(name, "pyspark"):
                    yield f"{house.at(module, line)}: {name}"


def only_the_log_on_kafka_imports_its_client(house: House) -> Iterator[str]:
    for module in house.modules:
        if not under(module, "headrace.log.kafka"):
            for name, line in house.imports(module):
                if under(name, "confluent_kafka"):
                    yield f"{house.at(module, line)}: {name}"


def the_hub_imports_no_pyspark(house: House) -> Iterator[str]:
    """Neither what runs in the hub's process nor what that brings along."""
    waiting = [module for module in house.modules if under(module, "headrace.spark.hub")]
    found: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in found or module not in house.modules:
            continue
        found.add(module)
        for name, line in house.imports(module):
            if under(name, "pyspark"):
                yield f"{house.at(module, line)}: {name}"
            elif under(name, "headrace.spark"):
                waiting.append(name)


def lines_are_short(house: House) -> Iterator[str]:
    """A golden value of one long word cannot be broken; a word to the checkers does not count."""
    for file in [*house.files, *house.java_files]:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            text = PRAGMA.sub("", line)
            if len(text) > LINE_LENGTH_MAX and max(map(len, text.split())) < UNBROKEN_WORD_MIN:
                yield f"{house.at(file, number)}: {len(text)} characters"


def java_classes_say_what_holds(house: House) -> Iterator[str]:
    """A comment above each class says what it is for, and who may use it: which thread, or all."""
    for file in house.java_files:
        text = file.read_text(encoding="utf-8")
        if len(text.splitlines()) > LIMITS["src"][0]:
            yield f"{house.at(file)}: more than {LIMITS['src'][0]} lines"
        comment = JAVA_COMMENT.search(text)
        if file.is_relative_to(house.source) and (comment is None or "thread" not in comment[0]):
            yield f"{house.at(file)}: nothing above the class says which threads may use it"


def files_and_functions_are_small(house: House) -> Iterator[str]:
    for file in house.files:
        name = str(file.relative_to(house.root))
        lines_max, function_lines_max = LIMITS.get(name.partition("/")[0], LIMITS_ELSEWHERE)
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if lines > lines_max:
            yield f"{house.at(file)}: {lines} lines, {lines_max} at most"
        for node in nodes_of(file):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > function_lines_max:
                    where = f"{house.at(file, node.lineno)}: {node.name}"
                    yield f"{where} has {length} lines, {function_lines_max} at most"


def nothing_unfinished_is_left_lying_about(house: House) -> Iterator[str]:
    for file in house.files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if found := UNFINISHED.search(line):
                yield f"{house.at(file, number)}: {found[0]}"


def every_module_says_what_it_is(house: House) -> Iterator[str]:
    for module, file in house.modules.items():
        if not ast.get_docstring(nodes_of(file)[0]):  # type: ignore[arg-type]
            yield f"{house.at(module)}: no docstring"


def only_the_command_line_prints(house: House) -> Iterator[str]:
    """In a Spark worker there is no logger of ours: what it prints ends in Spark's own log. `headrace.immortals.run` is
    the last line of a program, and shows what that does."""
    for module, file in house.modules.items():
        if not under(module, "headrace.cli", "headrace.spark", "headrace.immortals"):
            for node in nodes_of(file):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                    yield f"{house.at(module, node.lineno)}: print"


def no_clock_is_taken_at_import(house: House) -> Iterator[str]:
    """As the default of a parameter it would be the real one, also in a simulated world."""
    for module, file in house.modules.items():
        if under(module, "headrace.doctor"):  # never in a world
            continue
        for node in nodes_of(file):
            if isinstance(node, ast.arguments):
                for default in (*node.defaults, *node.kw_defaults):
                    if isinstance(default, ast.Attribute) and ast.unparse(default.value) == "time":
                        yield f"{house.at(module, default.lineno)}: {ast.unparse(default)}"


def no_module_is_dead(house: House) -> Iterator[str]:
    """Each is imported by another, named as "module:function" or as a command, offered to users as a client or in the
    documentation, or an entry point."""
    used = set(ENTRY_POINTS)
    used |= {name for name in house.modules if under(name, "headrace.protocols") and name.endswith(".client")}
    for page in [*house.pages, *(file for file in house.files if file.is_relative_to(house.root / "examples"))]:
        used |= set(re.findall(r"headrace(?:\.\w+)+", page.read_text(encoding="utf-8")))
    for module, file in house.modules.items():
        used |= {name for name, _ in house.imports(module) if name != module}
        for node in nodes_of(file):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("headrace."):
                used.add(node.value.partition(":")[0])
    used |= {".".join(name.split(".")[:depth]) for name in used for depth in range(1, name.count(".") + 2)}
    for name in house.modules:
        if name not in used and not under(name, "headrace.testing"):
            yield f"{house.at(name)}: nobody uses it"


def files_that_are_named_exist(house: House) -> Iterator[str]:
    """`name.py` on a page, in a docstring or in a comment. What the changelog tells of may be gone."""
    known = {file.relative_to(house.root).as_posix() for file in house.files}
    texts = [page for page in house.pages if page.name != "CHANGELOG.md"]
    for file in [*texts, *house.modules.values()]:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            for name in FILE_NAME.findall(line):
                if name not in USERS_OWN and not any(f"/{each}".endswith(f"/{name}") for each in known):
                    yield f"{house.at(file, number)}: there is no {name}"


HOUSE = House(ROOT)
DOC = '"""Says what it is."""\n'
WALLAROO = "src/headrace/protocols/wallaroo"
BROKEN: dict[Callable[[House], Iterator[str]], dict[str, str]] = {
    rooms_know_only_those_below_them: {"src/headrace/log/a.py": "\nfrom headrace.hub import b\n"},
    protocols_do_not_know_each_other: {
        f"{WALLAROO}/a.py": "\nfrom headrace.protocols.ockam import codec\n",
        "src/headrace/protocols/ockam/codec.py": DOC,
    },
    central_rooms_name_no_protocol: {"src/headrace/hub/a.py": "\nimport FutoinMetrics  # in_flight\n"},
    protocols_reach_the_log_through_the_hub: {f"{WALLAROO}/a.py": "\nfrom headrace.log.journal import Journal\n"},
    codecs_and_sessions_do_no_io_and_know_no_hub: {f"{WALLAROO}/codec.py": "\nimport asyncio\n"},
    the_log_knows_no_event_loop_and_no_network: {"src/headrace/log/a.py": "\nimport socket\n"},
    only_spark_imports_pyspark: {"src/headrace/hub/a.py": "\nimport pyspark.sql\n"},
    only_the_log_on_kafka_imports_its_client: {"src/headrace/hub/a.py": "\nimport confluent_kafka\n"},
    the_hub_imports_no_pyspark: {
        "src/headrace/spark/source/a.py": "\nimport pyspark\n",
        "src/headrace/spark/hub/b.py": "from headrace.spark.source import a\n",
    },
    java_classes_say_what_holds: {"src/headrace/spark/jvm/A.java": "\n/** Something. */\nfinal class A {}\n"},
    lines_are_short: {"tests/a.py": f"\nx = 1  #{' long' * 30}\n"},
    files_and_functions_are_small: {"src/a.py": "\ndef large():\n" + "    pass\n" * 60},
    nothing_unfinished_is_left_lying_about: {"tools/a.py": "\n# FIX" + "ME\n"},
    every_module_says_what_it_is: {"src/headrace/a.py": "x = 1\n"},
    only_the_command_line_prints: {"src/headrace/hub/a.py": "\nprint(1)\n"},
    no_clock_is_taken_at_import: {"src/headrace/hub/a.py": "\ndef f(now_s=time.monotonic): ...\n"},
    no_module_is_dead: {"src/headrace/a.py": DOC},
    files_that_are_named_exist: {"docs/a.md": "\nSee `log/gone.py`.\n"},
}
"""Every rule, and a house that breaks it: in the second line of its first file, or by the file as a whole."""


@pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.__name__)
def test_tidy(rule: Callable[[House], Iterator[str]]) -> None:
    offenders = list(rule(HOUSE))
    assert not offenders, "\n".join(["", *offenders])


@pytest.mark.parametrize("rule", BROKEN, ids=lambda rule: rule.__name__)
def test_the_rules_can_fail(rule: Callable[[House], Iterator[str]], tmp_path: Path) -> None:
    for name, text in BROKEN[rule].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    offenders = list(rule(House(tmp_path)))
    file = next(iter(BROKEN[rule]))
    assert offenders
    assert all(offender.startswith((f"{file}:2: ", f"{file}:1: ")) for offender in offenders)


def test_a_file_without_a_room_is_found(tmp_path: Path) -> None:
    (tmp_path / "src" / "headrace").mkdir(parents=True)
    (tmp_path / "src" / "headrace" / "loose.py").write_text("")
    assert list(rooms_know_only_those_below_them(House(tmp_path))) == [
        "src/headrace/loose.py:1: loose has no place in LAYERS"
    ]
