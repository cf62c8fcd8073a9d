"""The Java part of the Spark connector as a jar: built from `jvm/*.java`, the same bytes every time.

A wheel brings the jar along when it was built where a JDK was (`hatch_build.py`). In a checkout with a JDK it is
compiled into the cache, once for each version of the sources and of Spark. Nothing binary is ever in git.

`hatch_build.py` loads this file by its path, before there is a package: it imports nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

JAVA_MAJOR_MIN = 17
COMPILE_TIMEOUT_S = 300.0
NAME = "headrace-spark.jar"
SOURCES = Path(__file__).with_name("jvm")
PACKAGED = Path(__file__).with_name(NAME)
_EPOCH = (1980, 1, 1, 0, 0, 0)
_SERVICES = {
    "META-INF/MANIFEST.MF": "Manifest-Version: 1.0\r\n\r\n",
    "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister": "headrace.spark.Source\n",
}


class JarNotBuilt(Exception):
    """Why there is no jar."""


def sources() -> list[Path]:
    """The Java files, in order."""
    return sorted(SOURCES.glob("*.java"))


def sources_digest() -> str:
    """What tells one version of the sources from another."""
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def find_javac(environ: Mapping[str, str]) -> Path | None:
    """A Java compiler that is new enough: of JAVA_HOME, then on the path."""
    for path in _compilers(environ):
        try:
            done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        version = re.search(r"javac (\d+)", done.stdout + done.stderr)
        if done.returncode == 0 and version and int(version[1]) >= JAVA_MAJOR_MIN:
            return path
    return None


def _compilers(environ: Mapping[str, str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "javac"
    if on_path := shutil.which("javac", path=environ.get("PATH")):
        yield Path(on_path)


def build(target: Path, javac: Path, spark_jars: Path, *, strict: bool = False) -> None:
    """Compile the sources against Spark's jars and put the jar in place. `strict`: a warning is an error."""
    lint = ["-Xlint:all,-path,-processing,-classfile", "-Werror"] if strict else ["-nowarn"]
    with tempfile.TemporaryDirectory() as directory:
        files = [str(path) for path in sources()]
        command = [str(javac), "--release", str(JAVA_MAJOR_MIN), *lint, "-proc:none", "-encoding", "UTF-8"]
        command += ["-d", directory, "-classpath", str(spark_jars / "*"), *files]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise JarNotBuilt(f"the Java part does not compile with {javac}:\n{(done.stderr or done.stdout).strip()}")
        data = _archive(Path(directory))
    target.parent.mkdir(parents=True, exist_ok=True)
    half = target.with_name(f".{target.name}.{os.getpid()}")
    half.write_bytes(data)
    half.replace(target)


def _archive(classes: Path) -> bytes:
    """A jar of the classes: sorted names and no dates, so that the same sources are the same bytes."""
    contents = {name: text.encode() for name, text in _SERVICES.items()}
    contents |= {path.relative_to(classes).as_posix(): path.read_bytes() for path in classes.rglob("*.class")}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, contents[name])
    return data.getvalue()
