"""Projects of Declarative Pipelines without Spark: what is written, and how a run is watched."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.errors import Unreachable
from headrace.spark.engine import Engine
from headrace.spark.errors import PipelineError
from headrace.spark.hub_client import Access
from headrace.spark.pipelines import project
from headrace.spark.pipelines.project import ProjectRunner, find_spec, interval_s, name_of, write_project


class Hub:
    """Hears reports, and may want a run to stop."""

    def __init__(self, stop_after: int | None = None, away: bool = False) -> None:
        self.reports: list[dict[str, Any]] = []
        self.stop_after = stop_after
        self.away = away

    def waiting(self, wait_s: float) -> Hub:
        return self

    def call(self, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        assert verb == "pipeline.report"
        self.reports.append(request)
        if self.away:
            raise Unreachable("away")
        return {"stop": self.stop_after is not None and len(self.reports) > self.stop_after}


def runner(hub: Hub, code: str, said: list[str] | None = None) -> ProjectRunner:
    say = (said if said is not None else []).append
    return ProjectRunner("shop", [sys.executable, "-c", code], {}, hub, say)  # type: ignore[arg-type]


@pytest.mark.parametrize(("stream", "table"), [("orders", "orders"), ("shop.orders", "shop_orders"), ("1", "stream_1")])
def test_a_project_is_python_and_yaml_that_names_the_stream(tmp_path: Path, stream: str, table: str) -> None:
    write_project(tmp_path / "shop", stream)
    spec = find_spec(tmp_path / "shop")
    assert name_of(spec) == "shop"
    assert yaml.safe_load(spec.read_text())["storage"] == (tmp_path / "shop" / "storage").as_uri()
    text = (tmp_path / "shop" / "transformations" / f"{table}.py").read_text()
    functions = [node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    assert functions == [table, f"{table}_by_type", f"long_{table}"]
    assert f'.option("stream", "{stream}")' in text
    with pytest.raises(PipelineError, match="is there already"):
        write_project(tmp_path / "shop", stream)


def test_what_is_no_project_is_said(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="headrace pipelines init"):
        find_spec(tmp_path)
    (tmp_path / "spark-pipeline.yaml").write_text("- 1")
    with pytest.raises(PipelineError, match="no `name`"):
        name_of(find_spec(tmp_path))


def test_pauses_between_runs() -> None:
    assert [interval_s(text) for text in ("", "once", "available now", "30s", "1 minute", "2 Hours")] == [
        None, None, None, 30.0, 60.0, 7200.0,
    ]  # fmt: skip
    with pytest.raises(PipelineError, match="not a pause"):
        interval_s("real time")


def test_settings_that_are_given_go_before(tmp_path: Path) -> None:
    spec = tmp_path / "spark-pipeline.yml"
    access = Access("127.0.0.1:7", token="secret")
    settings = project.settings_for(spec, Engine(Path("/e.jar"), "why"), access, {"spark.jars": "a.jar"})
    assert settings["spark.jars"] == "a.jar,/e.jar"
    assert settings["spark.datasource.headrace.default.hub"] == "127.0.0.1:7"
    folder = project.write_settings(spec, settings)
    written = (folder / "spark-defaults.conf").read_text()
    assert "spark.jars a.jar,/e.jar\n" in written
    assert "secret" not in written
    environment = project.environment_of(access, folder)
    assert (environment["HEADRACE_TOKEN"], environment["SPARK_CONF_DIR"]) == ("secret", str(folder))
    given = {"spark.sql.catalogImplementation": "in-memory"}
    settings = project.settings_for(spec, Engine(None, "why"), access, given)
    assert settings["spark.sql.catalogImplementation"] == "in-memory"


def test_one_run_is_watched_to_its_end() -> None:
    hub, said = Hub(), list[str]()
    assert runner(hub, "print('Run is COMPLETED.')", said).run(None)
    assert said == ["Run is COMPLETED."]
    assert (hub.reports[0]["state"], hub.reports[-1]["state"], hub.reports[-1]["batch"]) == ("running", "done", 0)


@pytest.mark.parametrize(
    ("code", "error"), [("raise ValueError('bad')", "ValueError: bad"), ("raise SystemExit(3)", "it ended with code 3")]
)
def test_a_run_that_fails_says_why(code: str, error: str) -> None:
    hub = Hub()
    assert not runner(hub, code).run(None)
    assert (hub.reports[-1]["state"], hub.reports[-1]["error"]) == ("failed", error)


def test_it_runs_again_and_again_until_it_is_stopped(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    code = f"open({str(marks)!r}, 'a').write('x'); raise SystemExit(len(open({str(marks)!r}).read()) == 2)"
    hub = Hub(stop_after=60)
    runner(hub, code).run(0.01)
    assert len(marks.read_text()) > 2
    assert {"running", "restarting", "stopped"} <= {report["state"] for report in hub.reports}


def test_a_run_that_is_stopped_ends_its_process() -> None:
    assert runner(Hub(stop_after=1), "import time; time.sleep(600)").run(60)


def test_a_hub_that_is_away_is_told_later() -> None:
    assert runner(Hub(away=True), "pass").run(None)
