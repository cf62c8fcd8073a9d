"""Projects of Spark Declarative Pipelines: one to begin with, and how one runs against a hub.

A project is a folder with `spark-pipeline.yml` and the files that it names. Spark's own `spark-pipelines` runs it:
tables and sinks take what is new, and the run ends. Here it gets what it needs to find Java, the hub and the engine; it
is run again from time to time, and the hub is told how it goes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import msgspec
import pyspark
import yaml

from headrace.errors import HeadraceError
from headrace.spark.engine import Engine, engine_settings
from headrace.spark.errors import PipelineError
from headrace.spark.hub_client import Access, HubPort
from headrace.spark.java import find_java
from headrace.spark.pipelines import own_port
from headrace.spark.pipelines.report import Report
from headrace.spark.spark_session import DEFAULTS, LOG_SETTINGS
from headrace.units import parse_seconds

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
POLL_S = 0.2
REPORT_INTERVAL_S = 1.0
STOP_S = 20.0
LINES_KEPT = 40
JAVA_OPTIONS = "spark.driver.extraJavaOptions"

SPEC = """\
name: {name}
storage: {storage}
libraries:
  - glob:
      include: transformations/**
"""

TRANSFORMATIONS = '''\
"""{stream} as a table, a view of it, and a part of it back into a stream. `headrace pipelines run` runs this."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table
def {table}() -> DataFrame:
    """Every record of the stream, once: a streaming table."""
    records = spark.readStream.format("headrace").option("stream", "{stream}").load()
    return records.selectExpr("index", "time", "type", "cast(payload AS STRING) AS text")


@dp.materialized_view
def {table}_by_type() -> DataFrame:
    """How many there are of each type, recomputed with each run."""
    return spark.read.table("{table}").groupBy("type").count()


dp.create_sink("{table}_long", "headrace", {{"stream": "{stream}.long"}})


@dp.append_flow(target="{table}_long")
def long_{table}() -> DataFrame:
    """Records with long payloads, exactly once into the stream {stream}.long."""
    return spark.readStream.table("{table}").where("length(text) > 10").selectExpr("text AS payload", "type")
'''


def write_project(directory: Path, stream: str) -> None:
    """A project that reads `stream`, in a folder that is not there yet."""
    if directory.exists():
        raise PipelineError(f"{str(directory)!r} is there already; choose another name")
    table = "".join(character if character.isalnum() else "_" for character in stream)
    if not table.isidentifier():
        table = f"stream_{table}"
    (directory / "transformations").mkdir(parents=True)
    storage = (directory / "storage").resolve().as_uri()
    (directory / SPEC_NAMES[0]).write_text(SPEC.format(name=directory.name, storage=storage))
    file = directory / "transformations" / f"{table}.py"
    file.write_text(TRANSFORMATIONS.format(stream=stream, table=table))


def find_spec(directory: Path) -> Path:
    """The file that says what a project consists of."""
    for name in SPEC_NAMES:
        if (directory / name).is_file():
            return directory / name
    raise PipelineError(
        f"there is no {SPEC_NAMES[0]} in {str(directory)!r}; `headrace pipelines init` creates a project"
    )


def interval_s(trigger: str) -> float | None:
    """How long after a run the next one begins: `1m` or `1 minute`; None for `available now` and `once`, one run."""
    words = " ".join(trigger.lower().split())
    if words in ("", "once", "available now"):
        return None
    short = re.sub(r" ?(second|minute|hour|day)s?$", lambda unit: unit[1][0], words)
    try:
        return parse_seconds(short)
    except ValueError:
        raise PipelineError(f"{trigger!r} is not a pause between runs: 30s, 1 minute, or `available now`") from None


def name_of(spec: Path) -> str:
    """What a project calls itself."""
    found = yaml.safe_load(spec.read_text())
    name = found.get("name") if isinstance(found, dict) else None
    if not isinstance(name, str) or not name:
        raise PipelineError(f"{str(spec)!r} has no `name`")
    return name


def settings_for(spec: Path, engine: Engine, access: Access, given: Mapping[str, str]) -> dict[str, str]:
    """The settings of Spark for a project; those that are given go before."""
    home = spec.parent.resolve()
    settings = {
        # Tables must outlast a run. Spark's own catalog is in memory unless it is Hive's, which needs no server.
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": (home / "warehouse").as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={home / 'catalog'};create=true",
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        f"{DEFAULTS}.hub": access.address,
    }
    own = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()} -Dderby.stream.error.file={os.devnull}"
    options = f"{own} {given.get(JAVA_OPTIONS, '')}".strip()
    return settings | dict(given) | engine_settings(engine, given) | {JAVA_OPTIONS: options}


def command_of(spec: Path, arguments: list[str]) -> list[str]:
    """Spark's own program, as its `bin/spark-pipelines` starts it, on a port of its own. It speaks Spark Connect:
    `--remote` is for masters, too, and `spark.master` is refused."""
    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    main = "org.apache.spark.deploy.SparkPipelines"
    return [str(program), main, own_port.__file__, *arguments, "--spec", str(spec.resolve())]


def write_settings(spec: Path, settings: Mapping[str, str]) -> Path:
    """A folder with settings, for SPARK_CONF_DIR. Spark starts two processes, and passes on to the second one not all
    that the first one's command line says."""
    folder = spec.parent.resolve() / ".spark"
    folder.mkdir(exist_ok=True)
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return folder


def environment_of(access: Access, settings: Path) -> dict[str, str]:
    """Where Spark's programs find Java, Python, their settings and the hub. A token is for no file."""
    environment = dict(os.environ) | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": str(settings),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "HEADRACE_HUB": access.address,
    }
    for name, value in (("HEADRACE_TOKEN", access.token), ("HEADRACE_CA", access.ca)):
        if value is not None:
            environment[name] = value
    root = str(Path(__file__).parents[3])  # a checkout, or where the package is installed
    known = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    environment["PYTHONPATH"] = os.pathsep.join([root, *(entry for entry in known if entry != root)])
    return environment


@dataclass
class ProjectRunner:
    """Runs a project once, or again and again, and tells the hub; `say` gets what Spark's program says."""

    name: str
    command: list[str]
    environment: Mapping[str, str]
    port: HubPort
    say: Callable[[str], None]
    report: Report = field(init=False)

    def __post_init__(self) -> None:
        self.report = Report(self.name, run=uuid.uuid4().hex)

    def run(self, pause_s: float | None) -> bool:
        """Until it is stopped, or one run without an interval; whether the last one ended well."""
        while True:
            is_well = self._run_once()
            if pause_s is None or self.report.state == "stopped":
                if self.report.state != "stopped":
                    self.report.state = "done" if is_well else "failed"
                self._tell()
                return is_well
            self.report.state = "running" if is_well else "restarting"
            if not self._wait(pause_s):
                self._tell()
                return is_well

    def _run_once(self) -> bool:
        began_s = time.monotonic()
        last: deque[str] = deque(maxlen=LINES_KEPT)
        with subprocess.Popen(
            self.command,
            env=dict(self.environment),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:
            listening = threading.Thread(target=self._listen, args=(process.stdout, last), daemon=True)
            listening.start()
            while self._told(process):
                time.sleep(POLL_S)
            listening.join()
        self.report.batch += 1
        self.report.batch_ms = 1000 * (time.monotonic() - began_s)
        code = process.returncode
        errors = [line for line in last if "rror" in line and not line.startswith("at ")]  # no frames of a stack
        self.report.error = "" if code == 0 else (errors or [f"it ended with code {code}"])[-1]
        return code == 0 or self.report.state == "stopped"

    def _told(self, process: subprocess.Popen[str]) -> bool:
        """Tell the hub, which every run does at least once; whether the process still runs."""
        if not self._tell():
            process.terminate()
            process.wait(STOP_S)
        return process.poll() is None

    def _listen(self, output: IO[str], last: deque[str]) -> None:
        for line in output:
            self.say(line.rstrip())
            last.append(line.strip())

    def _wait(self, pause_s: float) -> bool:
        until_s = time.monotonic() + pause_s
        while time.monotonic() < until_s:
            if not self._tell():
                return False
            time.sleep(POLL_S)
        return True

    def _tell(self) -> bool:
        """Tell the hub, and hear whether to stop; a hub that is away is told later."""
        try:
            answer = self.port.waiting(REPORT_INTERVAL_S).call("pipeline.report", msgspec.structs.asdict(self.report))
        except HeadraceError:
            return True
        if answer["stop"]:
            self.report.state = "stopped"
        return self.report.state != "stopped"
