"""What went wrong in a query, the part that people can act on first.

Spark reports a Python error as a Java exception around a worker's traceback around the error. Here the innermost
Python error comes first, then its traceback, and the JVM's stack only for who asks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?P<body>(?:[ \t].*\n|\n)*)(?P<error>\S.*)")
# Errors of the Java part begin with the name that they have in Python: `headrace.spark.HubError: Fenced: …`.
_OF_JAVA_PART = re.compile(r"headrace\.spark\.\w+: (?P<error>[A-Z]\w+: .*)")
_LINE_OF_JVM = re.compile(r"^\s*(?:at [\w.$/]+\(|Caused by: |\.\.\. \d+ more)|^\t+at ")
_NOISE = re.compile(r"\s*SQLSTATE: \w+\s*$")


@dataclass(frozen=True)
class Failure:
    """A failed query, taken apart."""

    headline: str
    python: str
    jvm: str


def explain(error: BaseException | str) -> Failure:
    """Take an error of Spark apart."""
    text = str(error)
    jvm = "\n".join(line for line in text.splitlines() if _LINE_OF_JVM.match(line))
    if tracebacks := list(_TRACEBACK.finditer(text)):
        innermost = tracebacks[-1]
        return Failure(_NOISE.sub("", innermost["error"]).strip(), innermost[0].strip(), jvm)
    if named := list(_OF_JAVA_PART.finditer(text)):
        return Failure(_NOISE.sub("", named[-1]["error"]).strip(), "", jvm)
    lines = [line for line in text.splitlines() if line.strip() and not _LINE_OF_JVM.match(line)]
    headline = _NOISE.sub("", lines[0]).strip() if lines else type(error).__name__
    headline = re.sub(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: ", "", headline)
    return Failure(headline, "", jvm)


def exception_name(headline: str) -> str:
    """`package.module.Error: text` → `Error`."""
    return headline.partition(":")[0].rpartition(".")[2].strip()
