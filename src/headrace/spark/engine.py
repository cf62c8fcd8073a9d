"""Which engine reads and writes streams in Spark: Java, or Python, which is always there; and why.

Order: what HEADRACE_SPARK_ENGINE says; a version of Spark that the Java part knows; the jar of this installation, one
in the cache, or one that a JDK can make now. A query can still choose for itself with the option `engine`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from headrace.spark import jar
from headrace.spark.errors import BadOption, PipelineError
from headrace.spark.java import cache_directory

VARIABLE = "HEADRACE_SPARK_ENGINE"
SPARK_MIN, SPARK_END = (4, 2), (5, 0)
EXTENSIONS = "headrace.spark.Extensions"


@dataclass(frozen=True)
class Engine:
    """An engine: its jar, if it is Java, and why it is this one."""

    jar: Path | None
    why: str

    @property
    def name(self) -> str:
        return "python" if self.jar is None else "java"

    def __str__(self) -> str:
        return f"{self.name} ({self.why})"


def choose_engine(environ: Mapping[str, str] | None = None, *, may_compile: bool = True) -> Engine:
    """The engine of a session that starts here. Compiles the Java part when that is what it takes, once."""
    environ = os.environ if environ is None else environ
    wanted = environ.get(VARIABLE, "")
    if wanted not in ("", "java", "python"):
        raise BadOption(VARIABLE, wanted, "java or python")
    if wanted == "python":
        return Engine(None, f"{VARIABLE}=python")
    chosen = _spark_unknown() or _found(environ, may_compile)
    if wanted == "java" and chosen.jar is None:
        raise PipelineError(f"{VARIABLE}=java, but there is no Java engine: {chosen.why}")
    return chosen


def _spark_unknown() -> Engine | None:
    version = metadata.version("pyspark")
    if SPARK_MIN <= tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < SPARK_END:
        return None
    return Engine(None, f"the Java part is for Spark 4.2 and later 4.x, and this is {version}")


def _found(environ: Mapping[str, str], may_compile: bool) -> Engine:
    if jar.PACKAGED.exists():
        return Engine(jar.PACKAGED, "the jar of this installation")
    if not jar.sources():
        return Engine(None, "this installation has no jar: it was built without a JDK")
    cached = cache_directory() / f"spark-{metadata.version('pyspark')}-{jar.sources_digest()}" / jar.NAME
    if cached.exists():
        return Engine(cached, "compiled before, from this checkout")
    javac = jar.find_javac(environ)
    if javac is None:
        return Engine(None, f"there is no jar, and no JDK {jar.JAVA_MAJOR_MIN} or newer to make one: set JAVA_HOME")
    if not may_compile:
        return Engine(cached, f"it will be compiled with {javac} when it is first needed")
    try:
        jar.build(cached, javac, spark_jars())
    except (jar.JarNotBuilt, OSError) as error:
        return Engine(None, str(error).partition("\n")[0])
    return Engine(cached, "compiled now, from this checkout")


def spark_jars() -> Path:
    """Where PySpark keeps Spark's own jars."""
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "jars"


def engine_settings(engine: Engine, given: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark that bring the Java part to driver and executors, beside what is given."""
    if engine.jar is None:
        return {}
    return {
        "spark.jars": _joined(given.get("spark.jars"), str(engine.jar)),
        "spark.sql.extensions": _joined(given.get("spark.sql.extensions"), EXTENSIONS),
        # Spark's own list of what real-time mode takes knows no other sinks than its own; ours checks plans itself.
        "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
        # It writes progress aside only for those sinks, too.
        "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
        # Real-time mode takes no other. A new checkpoint can change its trigger later, an old one stays as it is.
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    }


def _joined(given: str | None, own: str) -> str:
    entries = [entry for entry in (given or "").split(",") if entry]
    return ",".join(entries if own in entries else [*entries, own])
