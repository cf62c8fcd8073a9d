"""The commands, as a user types them, on the suite's own Spark session."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hubs import ThreadHub
from live_queries import WAIT_S, wait_for
from spark_support import environment, java_options
from test_pipelines import documents, orders
from typer.testing import CliRunner, Result

from headrace.cli.pipeline import app
from headrace.cli.pipeline_run import progress_line
from headrace.cli.sql import app as sql_app
from headrace.spark.pipelines.report import Report

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FILE = '''
from headrace.spark import pipeline

@pipeline(source="{name}", sink="{name}=out", decode="json", schema="item STRING, price INT", name="{name}")
def dear(orders):
    """Dear ones."""
    return orders.where("value.price > {above}").selectExpr("value.price AS price")
'''

LIVE = """
from headrace.spark import pipeline

@pipeline(source="{name}", sink="{name}=out", name="{name}", trigger="real time")
def copied(records):
    return records.select("payload")
"""


@pytest.fixture
def commands(hub: ThreadHub, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command; the session that it uses is the suite's, which it must not stop."""

    class Borrowed:
        def __getattr__(self, name: str) -> Any:
            return getattr(spark, name)

        def stop(self) -> None:
            pass

    monkeypatch.setattr("headrace.spark.spark_session.session", lambda *_, **__: Borrowed())
    monkeypatch.setenv("HEADRACE_HUB", hub.address)

    def run(*arguments: str, of: Any = app) -> Result:
        result = CliRunner().invoke(of, list(arguments))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


def test_run_ls_status_replay(commands: Any, hub: ThreadHub, name: str, tmp_path: Path) -> None:
    orders(hub, name)
    file = tmp_path / "mine.py"
    file.write_text(FILE.format(name=name, above=7))
    home = str(tmp_path / "home")
    assert commands("run", str(file), "--once", "--home", home).exit_code == 0
    assert documents(hub, f"{name}=out") == [{"price": 8}, {"price": 9}]
    found = {one["name"]: one for one in json.loads(commands("ls", "--json").stdout)}
    assert found[name]["state"] == "done"
    assert found[name]["report"]["rows"] == 10
    assert "10" in commands("status", name).stdout
    assert commands("replay", f"{file}:{name}", "--into", f"{name}=again").exit_code == 0
    assert documents(hub, f"{name}=again") == documents(hub, f"{name}=out")
    explained = commands("explain", str(file)).stdout
    assert f"{name} → stream {name}=out" in explained
    assert "Filter" in explained


@pytest.mark.needs("javac")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_without_a_word_of_trouble(hub: ThreadHub, name: str, tmp_path: Path, number: int) -> None:
    """In the middle of a long batch, and twice at once, as `timeout` sends it."""
    hub.create(name)
    file = tmp_path / "live.py"
    file.write_text(LIVE.format(name=name))
    command = [sys.executable, "-m", "headrace", "pipeline", "run", str(file), "--home", str(tmp_path / "home")]
    options = ["--master", "local[1]", "--conf", f"spark.driver.extraJavaOptions={java_options()}"]
    known = {**environment(), "HEADRACE_HUB": hub.address}
    process = subprocess.Popen(
        [*command, *options], env=known, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        hub.append(name, [b"a"])
        wait_for(hub, name, 1)
        for _ in range(2):
            process.send_signal(number)
        said = process.communicate(timeout=WAIT_S)[0]
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "KeyboardInterrupt" not in said, said
    assert "InterruptedIOException" not in said, said


def test_create_run_stop_delete(commands: Any, hub: ThreadHub, name: str, tmp_path: Path) -> None:
    orders(hub, name)
    text = f"SELECT payload FROM stream('{name}') WHERE type = 'odd'"
    assert commands("create", name, "--sql", text, "--into", f"{name}=out").exit_code == 0
    assert commands("run", name, "--once", "--home", str(tmp_path)).exit_code == 0
    assert [one["price"] for one in documents(hub, f"{name}=out")] == [1, 3, 5, 7, 9]
    assert commands("stop", name).exit_code == 0
    assert commands("delete", name).exit_code == 0


def test_failures_end_with_their_reason_and_a_code(commands: Any, hub: ThreadHub, name: str, tmp_path: Path) -> None:
    orders(hub, name)
    hub.run(hub.hub.trim(name, 5))
    text = f"SELECT payload FROM stream('{name}', start => 2)"
    commands("create", name, "--sql", text, "--into", f"{name}=out")
    result = commands("run", name, "--once", "--home", str(tmp_path))
    assert result.exit_code == 1
    assert "indexes 2 to 4" in result.stderr
    assert "at org.apache.spark" not in result.stderr


def test_built_in_commands(commands: Any, hub: ThreadHub, name: str, tmp_path: Path) -> None:
    orders(hub, name)
    home = ["--once", "--quiet", "--home", str(tmp_path / "home")]
    assert commands("archive", name, "--to", str(tmp_path / "lake"), *home).exit_code == 0
    assert hub.cursor(f"archive/{name}", name) == 10
    rule = f"type = 'odd' => {name}.odd"
    assert commands("route", name, "--rule", rule, *home).exit_code == 0
    assert len(hub.payloads(f"{name}.odd")) == 5
    assert commands("merge", name, f"{name}.odd", "--into", f"{name}.both", *home).exit_code == 0
    assert len(hub.payloads(f"{name}.both")) == 15


def test_sql(commands: Any, hub: ThreadHub, name: str) -> None:
    orders(hub, name)
    text = f"SELECT type, count(*) AS n, max(payload) AS p FROM stream('{name}') GROUP BY type ORDER BY type"
    lines = commands(text, "--json", "--engine", "spark", of=sql_app).stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["type"], row["n"]) for row in rows] == [("even", 5), ("odd", 5)]
    assert rows[0]["p"].startswith('{"item"')
    few = commands(
        f"SELECT `index` FROM stream('{name}')", "--output", "csv", "--limit", "2", "--engine", "spark", of=sql_app
    )
    assert few.stdout.split() == ["index", "0", "1"]
    bad = commands("SELECT nonsense FROM stream('nowhere-at-all')", "--engine", "spark", of=sql_app)
    assert bad.exit_code != 0
    assert "nonsense" in bad.stderr or "nowhere-at-all" in bad.stderr


def test_progress_in_one_line() -> None:
    one = Report("p", "running", batch=3, rows_per_s=12345.6, batch_ms=87.2, lag=1000, state_rows=5, state_bytes=2e6)
    line = progress_line(one)
    for part in ("p  running", "batch 3", "12,346 rows/s", "87 ms", "lag 1,000", "state 5 rows, 2.0 MB"):
        assert part in line
