"""A build hook: a wheel brings the Java part of the Spark connector along, when there is a JDK and a PySpark to make it
with. `HEADRACE_JVM=require` makes their absence an error; releases are built that way."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

TARGET = "headrace/spark/headrace-spark.jar"


class JarHook(BuildHookInterface):
    """Compiles the jar into the wheel; the wheel stays pure Python for the rest."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return  # a checkout compiles for itself, when a session first needs it
        builder = _load(Path(self.root) / "src" / "headrace" / "spark" / "jar.py")
        try:
            made = Path(self.directory) / builder.NAME
            builder.build(made, _javac(builder), _spark_jars(builder))
        except builder.JarNotBuilt as problem:
            if os.environ.get("HEADRACE_JVM") == "require":
                raise SystemExit(f"HEADRACE_JVM=require: {problem}") from problem
            print(f"headrace: this wheel has no Java part: {problem}", file=sys.stderr)
            return
        build_data["force_include"][str(made)] = TARGET
        self._made = made

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if (made := getattr(self, "_made", None)) is not None:
            made.unlink()


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("headrace_spark_jar", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _javac(builder: Any) -> Path:
    javac = builder.find_javac(os.environ)
    if javac is None:
        raise builder.JarNotBuilt(f"there is no JDK {builder.JAVA_MAJOR_MIN} or newer: set JAVA_HOME")
    return javac


def _spark_jars(builder: Any) -> Path:
    given = os.environ.get("HEADRACE_SPARK_JARS")
    found = importlib.util.find_spec("pyspark")
    if given:
        return Path(given)
    if found is None or found.origin is None:
        raise builder.JarNotBuilt("there is no PySpark here: build without isolation, or set HEADRACE_SPARK_JARS")
    return Path(found.origin).parent / "jars"
