"""What README and tutorial show is run, so that it stays true."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.hub_process import HubProcess
from support.programs import needs

from headrace.config import Listen
from headrace.config.address import split_address
from headrace.serving.runtime import LISTENERS
from headrace.telemetry.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ON_THEIR_OWN = {
    "how-to/python.md": "tests/unit/protocols/flight/test_flight_docs.py",
    "how-to/cluster.md": "tests/faults/test_cluster_page.py",
    "tutorial-shop.md": "tests/faults/test_shop_page.py",
    "protocols/flight.md": "tests/unit/protocols/flight/test_flight_docs.py",
    "protocols/ambrosia.md": "tests/unit/protocols/ambrosia/test_ambrosia_docs.py",
    "protocols/ockam.md": "tests/unit/protocols/ockam/test_ockam_docs.py",
}
"""Pages that have tests of their own."""
EXCERPTS = {"log-format.md", "spark.md", "sql.md", "protocols/futoin.md", "protocols/perper.md"}
"""Pages whose blocks are parts of programs: they need a database, a cluster or agents around them."""
HOW_TO = [
    page for page in sorted((DOCS / "how-to").glob("*.md")) if page.relative_to(DOCS).as_posix() not in ON_THEIR_OWN
]
PROTOCOLS = [DOCS / "protocols" / name for name in ("wallaroo.md",)]
TOP = [DOCS / name for name in ("tutorial.md", "security.md", "operations.md", "upgrade.md")]
PAGES = [ROOT / "README.md", *TOP, *HOW_TO, *PROTOCOLS]
RUN = (  # as a notebook does: with `await` anywhere
    "import ast, asyncio, inspect, sys\n"
    "code = compile(sys.stdin.read(), 'page', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)\n"
    "result = eval(code, {'__name__': '__main__'})\n"
    "if inspect.iscoroutine(result): asyncio.run(result)\n"
)
NOT_RUN = {
    "",  # diagrams and output
    "json", "text", "toml", "mermaid",
    "py", "js", "rust",  # for clients that are not here, or that a test of their own runs
}  # fmt: skip
SERVICE = "# runs until it is stopped\n"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECURED = "## Open it to others"
"""The section of the README that `test_readme_secured.py` runs, on a hub of its own."""
LONG_S = 500


class Live(NamedTuple):
    """A hub to run the examples against."""

    addresses: dict[str, str]
    folder: Path

    def with_addresses(self, text: str) -> str:
        for name in LISTENERS:
            default = getattr(Listen(), name)
            address = self.addresses.get(name, default)
            (host, port), (new_host, new_port) = (split_address(each) for each in (default, address))
            text = text.replace(default, address).replace(f'"{host}", {port}', f'"{new_host}", {new_port}')
        return text

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HEADRACE_LOG__DATA": str(self.folder / "users"),
            "HEADRACE_HUB": self.addresses["flight"],
            "APACHE_IGNITE_ENDPOINT": self.addresses["ignite"],
            "PERPER_FABRIC_ENDPOINT": f"http://{self.addresses['fabric']}",
        }

    def run(self, command: list[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
        )

    def run_until(self, program: str, expected: str) -> None:
        """Run a program that does not end by itself, until it has printed what it should."""
        command = [sys.executable, "-c", program]
        process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, text=True)
        killer = threading.Timer(LONG_S, process.kill)
        killer.start()
        try:
            assert process.stdout is not None
            printed = "".join(process.stdout.readline() for _ in expected.splitlines())
        finally:
            killer.cancel()
            process.kill()
            process.communicate()
        assert printed == expected


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("docs")
    with HubProcess(folder, "futoin.insecure=true") as hub:  # as the page says
        yield Live(hub.addresses, folder)


def blocks(page: Path) -> list[tuple[str, str]]:
    text = page.read_text(encoding="utf-8")
    before, title, after = text.partition(SECURED)
    return BLOCK.findall(before + after[after.index("\n## ") :] if title else text)


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def run_shell_line(live: Live, line: str, expected: str | None) -> None:
    words = shlex.split(live.with_addresses(line), comments=True)
    stdin = ""
    if words[:1] == ["echo"] and "|" in words:
        stdin = " ".join(words[1 : words.index("|")]) + "\n"
        words = words[words.index("|") + 1 :]
    match words:
        case []:
            return
        case ["make", target, *variables]:
            assert target in targets()
            assert all("=" in variable for variable in variables)
            return
        case ["pip", "install", requirement]:  # here already: what the page asks for is what is tested
            assert requirement in (ROOT / "pyproject.toml").read_text()
            return
        case ["curl", *rest]:
            needs("curl")
            words = ["curl", "--silent", "--show-error", "--fail", *rest]
        case ["headrace", "up", *rest]:  # runs until it is stopped: here only its options are tried
            words = [sys.executable, "-m", "headrace", "config", "show", *rest]
        case ["headrace", "user", "add", *rest] if "--token" not in rest:
            words = [sys.executable, "-m", "headrace", "user", "add", *rest, "--password-stdin"]
            stdin = "a long password\n"
        case ["headrace", *rest]:
            words = [sys.executable, "-m", "headrace", *rest]
        case _:
            pytest.fail(f"no way to try {line!r}")
    done = live.run(words, stdin)
    if expected is not None and expected.startswith("error: "):
        assert (done.returncode != 0, done.stderr) == (True, expected)
    else:
        assert done.returncode == 0, done.stderr
    if expected is not None and expected.startswith("{"):
        assert json.loads(done.stdout) == json.loads(expected)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_does_what_the_page_says(live: Live, page: Path) -> None:
    found = blocks(page)
    tried = 0
    for number, (language, text) in enumerate(found):
        following = found[number + 1] if number + 1 < len(found) else ("", "")
        if language == "sh":
            expected = following[1] if following[0] in ("json", "text") else None
            for line in text.replace("\\\n", " ").splitlines():
                run_shell_line(live, line, expected)
                tried += 1
        elif language == "python" and text.startswith(SERVICE):
            live.run_until(live.with_addresses(text), live.with_addresses(following[1]))
            tried += 1
        elif language == "python":
            done = live.run([sys.executable, "-c", RUN], live.with_addresses(text))
            assert done.returncode == 0, done.stderr
            if following[0] == "text":
                assert done.stdout == following[1]
            tried += 1
        else:
            assert language in NOT_RUN, f"a block of {language!r} is not tried"
    assert tried or page in HOW_TO


def test_every_page_with_something_to_run_is_run_or_says_why_not() -> None:
    def is_run(language: str) -> bool:
        return language in ("sh", "python", "console")

    pages = [page for page in DOCS.rglob("*.md") if any(is_run(language) for language, _ in blocks(page))]
    names = {page.relative_to(DOCS).as_posix() for page in pages if "reference" not in page.parts}
    known = {page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents}
    assert names <= known | set(ON_THEIR_OWN) | EXCERPTS
    for name, test in ON_THEIR_OWN.items():
        assert Path(name).name in (ROOT / test).read_text(), test


def tool(name: str) -> Any:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_dashboard_is_made_by_its_tool_and_asks_only_for_metrics_that_exist() -> None:
    made = tool("dashboard").dashboard()
    assert json.loads((ROOT / "examples" / "grafana-dashboard.json").read_text()) == made
    known = set()
    for metric in Metrics().registry.collect():
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(metric.type, [""])
        known |= {metric.name + ending for ending in endings}
    asked = {
        name
        for panel in made["panels"]
        for target in panel.get("targets", [])
        for name in re.findall(r"headrace_\w+", target["expr"])
    }
    assert asked
    assert asked <= known


@pytest.mark.slow
def test_the_reference_is_made_from_the_code(tmp_path: Path) -> None:
    tool("reference").main(tmp_path)
    assert "`segment_bytes` | `32.0 MiB` |" in (tmp_path / "config.md").read_text()
    assert "### headrace user add" in (tmp_path / "cli.md").read_text()
    assert "| `headrace_log_records_total` | counter |" in (tmp_path / "metrics.md").read_text()
    assert "| `disk-full` | 507 |" in (tmp_path / "errors.md").read_text()
    assert "| `hub.info` | read |" in (tmp_path / "api.md").read_text()
    assert json.loads((tmp_path / "openapi.json").read_text())["openapi"] == "3.1.0"


@pytest.mark.slow
def test_the_immortal_of_its_page_counts_on_when_it_is_run_again(live: Live) -> None:
    page = DOCS / "how-to" / "ambrosia.md"
    program = next(text for language, text in blocks(page) if language == "python").replace('"counter"', '"again"')
    run_shell_line(live, "headrace immortal register again", None)
    printed = [live.run([sys.executable, "-c", live.with_addresses(program)]).stdout for _ in range(3)]
    assert [text.splitlines()[-1] for text in printed] == ["total 5", "total 10", "total 15"]
