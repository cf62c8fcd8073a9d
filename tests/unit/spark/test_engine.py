"""Which engine it is, and why; and the jar that decides it."""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace.spark import engine, jar
from headrace.spark.engine import EXTENSIONS, Engine, choose_engine, engine_settings
from headrace.spark.errors import BadOption, PipelineError

ROOT = Path(__file__).parents[3]
COMPILES = """while [ "$1" != "-d" ]; do
  [ "$1" = "-version" ] && echo "javac {version}" && exit 0
  shift
done
mkdir -p "$2/headrace/spark" && echo class > "$2/headrace/spark/Source.class"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing on it: no compiler, an empty cache, no jar."""
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(jar, "PACKAGED", tmp_path / "packaged.jar")
    return tmp_path


def jdk(home: Path, version: str, script: str = COMPILES) -> dict[str, str]:
    """An environment with a compiler that makes one class."""
    program = home / f"jdk-{version}" / "bin" / "javac"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text("#!/bin/sh\n" + script.replace("{version}", version))
    program.chmod(0o755)
    return {"JAVA_HOME": str(program.parent.parent), "PATH": ""}


def test_without_a_jar_and_without_a_jdk_it_is_python(home: Path) -> None:
    chosen = choose_engine({"PATH": ""})
    assert (chosen.name, chosen.jar) == ("python", None)
    assert "no JDK 17 or newer" in str(chosen)
    assert engine_settings(chosen, {}) == {}
    with pytest.raises(PipelineError, match="HEADRACE_SPARK_ENGINE=java, but"):
        choose_engine({"PATH": "", "HEADRACE_SPARK_ENGINE": "java"})


def test_a_jdk_that_is_too_old_does_not_count(home: Path) -> None:
    assert choose_engine(jdk(home, "11.0.2")).jar is None


def test_a_jdk_compiles_once_and_the_cache_serves_after_that(home: Path) -> None:
    assert "will be compiled" in choose_engine(jdk(home, "17.0.1"), may_compile=False).why
    first = choose_engine(jdk(home, "17.0.1"))
    assert (first.name, first.why) == ("java", "compiled now, from this checkout")
    assert first.jar is not None
    with zipfile.ZipFile(first.jar) as archive:
        assert (
            archive.read("META-INF/services/org.apache.spark.sql.sources.DataSourceRegister")
            == b"headrace.spark.Source\n"
        )
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.namelist() == sorted(archive.namelist())
    assert choose_engine({"PATH": ""}) == Engine(first.jar, "compiled before, from this checkout")


def test_sources_that_do_not_compile_leave_python(home: Path) -> None:
    script = '[ "$1" = "-version" ] && echo javac 21 && exit 0\necho "Source.java:1: error" >&2\nexit 1\n'
    chosen = choose_engine(jdk(home, "21", script))
    assert (chosen.jar, "does not compile" in chosen.why) == (None, True)


def test_the_jar_of_the_installation_goes_first(home: Path) -> None:
    jar.PACKAGED.touch()
    assert choose_engine({"PATH": ""}) == Engine(jar.PACKAGED, "the jar of this installation")


def test_the_variable_decides_and_must_make_sense(home: Path) -> None:
    jar.PACKAGED.touch()
    assert choose_engine({"HEADRACE_SPARK_ENGINE": "python"}).name == "python"
    assert choose_engine({"HEADRACE_SPARK_ENGINE": "java", "PATH": ""}).name == "java"
    with pytest.raises(BadOption, match="java or python"):
        choose_engine({"HEADRACE_SPARK_ENGINE": "steam"})


@pytest.mark.parametrize(
    ("version", "name"), [("4.1.3", "python"), ("4.2.0", "java"), ("4.9.0", "java"), ("5.0.0", "python")]
)
def test_a_spark_that_the_jar_does_not_know(
    home: Path, monkeypatch: pytest.MonkeyPatch, version: str, name: str
) -> None:
    jar.PACKAGED.touch()
    monkeypatch.setattr(engine.metadata, "version", lambda package: version)
    assert choose_engine({"PATH": ""}).name == name


def test_settings_of_the_user_stay_beside_ours(tmp_path: Path) -> None:
    ours = Engine(tmp_path / "a.jar", "")
    given = {"spark.jars": "/b.jar", "spark.sql.extensions": f"theirs,{EXTENSIONS}"}
    settings = engine_settings(ours, given)
    assert settings["spark.jars"] == f"/b.jar,{tmp_path / 'a.jar'}"
    assert settings["spark.sql.extensions"] == f"theirs,{EXTENSIONS}"


def hook(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Any:
    """The build hook, without the build tool around it."""
    names = ["hatchling", "builders", "hooks", "plugin", "interface"]
    for depth in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:depth]), ModuleType(names[depth - 1]))
    sys.modules[".".join(names)].BuildHookInterface = SimpleNamespace  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "tools" / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.JarHook(root=str(ROOT), target_name="wheel", **fields)


def test_a_wheel_brings_the_jar_where_a_jdk_is(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in jdk(home, "17").items():
        monkeypatch.setenv(name, value if name != "PATH" else "/usr/bin:/bin")
    building = hook(monkeypatch, directory=str(home / "dist"))
    data: dict[str, Any] = {"force_include": {}}
    building.initialize("standard", data)
    ((made, target),) = data["force_include"].items()
    assert target == "headrace/spark/headrace-spark.jar"
    assert zipfile.is_zipfile(made)
    building.finalize("standard", data, "")
    assert not Path(made).exists()


def test_a_wheel_without_a_jdk_says_so_unless_it_is_required(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    building = hook(monkeypatch, directory=str(home / "dist"))
    data: dict[str, Any] = {"force_include": {}}
    building.initialize("standard", data)
    assert data == {"force_include": {}}
    assert "this wheel has no Java part: there is no JDK 17 or newer" in capsys.readouterr().err
    monkeypatch.setenv("HEADRACE_JVM", "require")
    with pytest.raises(SystemExit, match="HEADRACE_JVM=require"):
        building.initialize("standard", data)
