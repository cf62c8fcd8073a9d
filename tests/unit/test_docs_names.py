"""What the pages name exists: tests, files, settings, metrics, error codes, commands, verbs. And what exists and has a
place in the reference is there."""

import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.main import COMMANDS, available, load_command
from headrace.config import Config
from headrace.config.load import load
from headrace.errors import HeadraceError
from headrace.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
PAGES = [page for page in PAGES if "reference" not in page.relative_to(ROOT).parts and page.name != "template.md"]
TESTS = "".join(file.read_text(encoding="utf-8") for file in sorted((ROOT / "tests").rglob("test_*.py")))
TEST_FILES = {file.name for file in (ROOT / "tests").rglob("*.py")}
FOLDERS = ("tests", "src", "docs", "examples", "tools", "benchmarks", ".ci")
# Settings whose names the user chooses stand below these.
FREE = (
    "security.users", "security.roles", "tls.listeners", "futoin.mac_keys", "futoin.master_keys", "ambrosia.immortals",
    "spark.conf", "cluster.advertise",
)  # fmt: skip

# Words that begin as a setting does: verbs, spans, tables of the hub, ports in the ready file, a module of others.
NO_SETTINGS = {
    "futoin.add", "futoin.poll", "futoin.push", "spark.append", "spark.commit", "spark.stage",
    "log.commit", "log.segment", "flight.put", "flight.get", "flight.action",
    "ockam.addresses", "perper.types", "perper.caches", "perper.expiry", "perper.listened",
    "wallaroo.streams", "wallaroo.names", "ockam.indexes", "futoin.consumers",
    "ambrosia.counter.receive", "ambrosia.counter.send",
    "wallaroo.experimental", "pipeline.list",
    "sql.query", "sql.columns", "sql.list", "sql.cancel", "flight.sql",
}  # fmt: skip


def quoted() -> Iterator[tuple[str, str]]:
    """The name of a page with each of what it has between backticks, and of the lines of blocks that are commands."""
    for page in PAGES:
        yield from ((str(page.relative_to(ROOT)), words) for words in quoted_in(page))


def quoted_in(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(?:sh|console)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [*re.findall(r"`([^`\n]+)`", plain), *lines]


def none_of(unknown: Iterable[tuple[str, str]]) -> None:
    """What pages name and is not there, with the page, all at once."""
    found = [f"{page}: {words}" for page, words in unknown]
    assert not found, "\n".join(["", *found])


def test_tests_that_pages_name_exist() -> None:
    named = [(page, name) for page, words in quoted() for name in re.findall(r"\btest_\w+\b(?!\.py|/)", words)]
    assert named
    none_of((page, name) for page, name in named if f"def {name}(" not in TESTS and f"{name}.py" not in TEST_FILES)


def test_files_that_pages_name_exist() -> None:
    named = re.compile(rf"(?:{'|'.join(map(re.escape, FOLDERS))})/[\w./-]+")
    none_of(
        (page, words)
        for page, words in quoted()
        if named.fullmatch(words) and not words.startswith("docs/reference") and not (ROOT / words).exists()
    )


def test_settings_that_pages_name_exist() -> None:
    known = {setting.key for setting in load(environment={}).settings()}
    groups = {".".join(key.split(".")[:depth]) for key in known for depth in (1, 2)}
    unknown = []
    for page, words in quoted():
        found = re.match(rf"((?:{'|'.join(Config.__struct_fields__)})\.[a-z_][a-z_.]*)(?:$| =|=)", words)
        if found is None or found[1].endswith((".py", ".md", ".toml", ".log", ".mark")):
            continue
        key = found[1].rstrip(".")
        is_free = key.startswith((*FREE, "spark.sql"))
        if not is_free and key not in known | groups | NO_SETTINGS:
            unknown.append((page, key))
    none_of(unknown)


def test_metrics_that_pages_name_exist() -> None:
    known: set[str] = set()
    for metric in Metrics().registry.collect():
        known |= {metric.name, f"{metric.name}_total", f"{metric.name}_bucket"}
    known.add("headrace_data")
    named = [(page, name) for page, words in quoted() for name in re.findall(r"\bheadrace_[a-z_]+\b", words)]
    none_of((page, name) for page, name in named if name not in known)


def command_names() -> dict[str, set[str]]:
    found = {}
    for name in filter(available, COMMANDS):
        command: Any = load_command(name, COMMANDS[name][0])
        found[name] = set(getattr(command, "commands", None) or ())
    return found


def test_commands_that_pages_name_exist() -> None:
    known = command_names()
    unknown = []
    for page, words in quoted():
        for found in re.finditer(r"(?:^|[|;&] ?|\bbin/)headrace ([a-z]+)(?: ([a-z-]+))?", words):
            command, below = found.groups()
            is_noun = known.get(command) and below is not None and not below.startswith("-")
            if command not in known or (is_noun and below not in known[command]):
                unknown.append((page, words))
    none_of(unknown)


def reference() -> Any:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def codes(kind: type[HeadraceError] = HeadraceError) -> Iterator[str]:
    for child in kind.__subclasses__():
        yield child.code
        yield from codes(child)


@pytest.mark.slow
def test_the_reference_leaves_nothing_out() -> None:
    made = reference()
    settings = "\n".join(made.config_page())
    for setting in load(environment={}).settings():
        section, _, key = setting.key.partition(".")
        assert f"## {section}\n" in settings
        assert not key or f"| `{key}` |" in settings
        assert setting.description or section == "pipeline", setting.key
    metrics = "\n".join(made.metrics_page())
    for metric in Metrics().registry.collect():
        assert f"`{metric.name}" in metrics
        assert metric.documentation
    errors = "\n".join(made.errors_page())
    for code in {*codes()} - {"error"}:
        assert f"| `{code}` |" in errors, code
    commands = "\n".join(made.cli_page())
    for name, below in command_names().items():
        assert f"## headrace {name}\n" in commands
        assert all(f"### headrace {name} {each}\n" in commands for each in below)
