"""`session()`: a Spark session with the settings that suit streams on a small machine.

Each setting below was measured; docs/spark.md says what each is worth. A setting given by the caller always wins.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import headrace
from headrace.spark.engine import EXTENSIONS, choose_engine, engine_settings
from headrace.spark.hub_client import Access, access_to
from headrace.spark.java import Java, cache_directory, find_java, write_executable
from headrace.spark.source.cursors import listen, session_name
from headrace.spark.source.data_source import bound_source

CHECKPOINT_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
CLUSTER_CORES = 8  # of a cluster whose size nobody knows before it has started
PYTHON_NAME = "headrace-python"
CONNECT = "sc://"
# The Java source finds the hub of the session here; its options go before.
DEFAULTS = "spark.datasource.headrace.default"
QUIET_JAVA_OPTIONS = "-Dio.netty.tryReflectionSetAccessible=true"

logger = logging.getLogger("headrace.spark")
_equipped: dict[str, Access] = {}
_engines: dict[str, str] = {}


def tuned_settings(cores: int) -> dict[str, str]:
    """The settings of every Headrace session, for `cores` cores."""
    return {
        # One shuffle partition per core: Spark's default of 200 makes a small stateful batch take seconds.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.default.parallelism": str(cores),
        # Spark's default checkpoint manager starts about 17 processes per batch where Hadoop has no native library.
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_MANAGER,
        # TCP between the JVM and its Python workers loses about 40 ms per exchange to delayed acknowledgements.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.streaming.stateStore.providerClass": STATE_STORE,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Real-time mode takes no other. A new checkpoint can change its trigger and its engine later.
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.noDataProgressEventInterval": "2000",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
    }


def is_local(master: str) -> bool:
    """Whether driver and executors are one process on this machine."""
    return master == "local" or master.startswith("local[")


def local_cores(master: str) -> int:
    """How many tasks run at once under a `local` master."""
    inside = master.partition("[")[2].partition("]")[0].partition(",")[0]
    if inside.isdigit():
        return int(inside)
    return (os.cpu_count() or 1) if inside == "*" else 1


def fast_python() -> Path:
    """A Python that imports PySpark from the installed package.

    Spark puts `pyspark.zip` first on the workers' path; importing from a zip costs a second per worker process.
    """
    script = (
        "#!/bin/sh\n"
        "# Drops zip archives from PYTHONPATH: the installed packages load four times as fast.\n"
        "kept=\n"
        "old_separators=$IFS; IFS=:\n"
        "for entry in $PYTHONPATH; do\n"
        '  case "$entry" in *pyspark.zip|*py4j-*.zip) ;; *) kept="${kept:+$kept:}$entry";; esac\n'
        "done\n"
        "IFS=$old_separators\n"
        'PYTHONPATH="$kept"; export PYTHONPATH\n'
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    name = "python-" + hashlib.sha256(sys.executable.encode()).hexdigest()[:12]
    path = cache_directory() / name
    write_executable(path, script)
    return path


def class_archive(java: Java) -> Path:
    """Where the class archive for this Java and this PySpark lives. It halves the start of the JVM."""
    identity = f"{java.home}|{java.major}|{pyspark.__version__}|{pyspark.__file__}"
    return cache_directory() / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"


def archive_option(java: Java, *, create: bool) -> str:
    """The JVM option that uses the class archive, makes it when the JVM ends, or nothing."""
    archive = class_archive(java)
    if archive.exists():
        return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"
    if not create:
        return ""
    archive.parent.mkdir(parents=True, exist_ok=True)
    return f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"


def logging_option(config: Mapping[str, str]) -> str:
    """The JVM option that keeps Spark quiet, unless someone has settings of their own for its log."""
    own = "SPARK_CONF_DIR" in os.environ or "log4j" in config.get("spark.driver.extraJavaOptions", "")
    return "" if own else f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"


def package_archive() -> Path:
    """This package as a zip for `--py-files`: executors elsewhere get the code without hand work."""
    root = Path(headrace.__file__).parent
    files = sorted(root.rglob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    target = cache_directory() / f"headrace-{digest}.zip"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        half = target.with_name(f".{target.name}.{os.getpid()}")
        with zipfile.ZipFile(half, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, path.relative_to(root.parent))
        half.replace(target)
    return target


def session(
    name: str = "headrace",
    *,
    master: str | None = None,
    hub: str | None = None,
    token: str | None = None,
    ca: str | None = None,
    config: Mapping[str, str] | None = None,
    make_class_archive: bool = False,
    move_cursors: bool = True,
) -> Any:
    """A Spark session that knows the format "headrace"; the one that runs already, if there is one.

    `master` is one of Spark's own, or `sc://host:port`: a server of Spark Connect, which takes no Java here. `hub` is
    the default address for sources and sinks, `token` and `ca` (a file of certificates) what they need to go there.
    `config` adds or overrides Spark settings. `make_class_archive` writes the class archive when this JVM ends (once; a
    few seconds), so that later ones start in half the time. `move_cursors` lets completed batches move the cursors that
    the sources name.
    """
    active = SparkSession.getActiveSession()
    if active is None:
        master = master or os.environ.get("SPARK_REMOTE") or os.environ.get("SPARK_MASTER") or "local[*]"
        if master.startswith(CONNECT):
            active = SparkSession.builder.remote(master).config(map=dict(config or {})).getOrCreate()
        else:
            active = _start(name, master, config or {}, make_class_archive)
    equip(active, hub=hub, token=token, ca=ca, move_cursors=move_cursors)
    return active


def _start(name: str, master: str, config: Mapping[str, str], make_class_archive: bool) -> Any:
    local = is_local(master)
    settings = tuned_settings(local_cores(master) if local else CLUSTER_CORES)
    java = find_java()  # the driver runs here, whatever the master is
    os.environ["JAVA_HOME"] = str(java.home)
    java_options = [QUIET_JAVA_OPTIONS, logging_option(config)]
    if java.major >= 24:
        java_options.append("--enable-native-access=ALL-UNNAMED")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):  # tasks, and planning on the driver
            os.environ.setdefault(variable, str(fast_python()))
        _show_package_to_workers()
        java_options.append(archive_option(java, create=make_class_archive))
    else:
        settings["spark.submit.pyFiles"] = str(package_archive())
        # Unix sockets need one machine per worker and its JVM, which clusters have too; memory is the cluster's to say.
        del settings["spark.driver.memory"]
    engine = choose_engine()
    chosen = settings | dict(config) | engine_settings(engine, config)
    given = chosen.get("spark.driver.extraJavaOptions", "")
    chosen["spark.driver.extraJavaOptions"] = " ".join(part for part in (*java_options, given) if part)
    started = SparkSession.builder.appName(name).master(master).config(map=chosen).getOrCreate()
    started.sparkContext.setLogLevel(os.environ.get("HEADRACE_SPARK_LOG", "ERROR"))
    logger.info("streams are read and written by %s", engine)
    return started


def warm(java_options: str = "") -> Path:
    """Make the class archive now, from a small query, and say where it is. Ends the JVM of this process."""
    archive = class_archive(find_java())
    if archive.exists():
        return archive
    config = {"spark.driver.extraJavaOptions": java_options} if java_options else {}
    spark = session(config=config, make_class_archive=True, move_cursors=False)
    with tempfile.TemporaryDirectory() as directory:
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        counted = source.groupBy("value").count()
        writer = counted.writeStream.format("noop").outputMode("update").trigger(once=True)
        writer.option("checkpointLocation", directory).start().awaitTermination()
        spark.range(1000).selectExpr("sum(id)", "to_json(struct(max(id)))").collect()
        spark.range(10).mapInArrow(lambda batches: batches, "id bigint").collect()
        spark.stop()
    gateway = pyspark.SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    return archive


def _show_package_to_workers() -> None:
    """Workers inherit PYTHONPATH; a package that runs from its source tree must be on it."""
    root = str(Path(headrace.__file__).parent.parent)
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if root not in known and "site-packages" not in root:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *known])


def equip(
    spark: Any,
    *,
    hub: str | None = None,
    token: str | None = None,
    ca: str | None = None,
    move_cursors: bool = True,
) -> None:
    """Teach any session, also one that Headrace did not start, the format "headrace" and its cursors.

    `hub` becomes the default address, with `token` and `ca` (a file of certificates) to go there. They travel inside
    the data source itself: workers started before, or on other machines, do not see this process's environment.
    """
    access = access_to(hub, token, ca)
    name = session_name(spark)
    if _equipped.get(name) != access:
        _engines[name] = _register(spark, access)
        _equipped[name] = access
    if move_cursors:
        listen(spark, access)


def engine_of(spark: Any) -> str:
    """`java` or `python`: what reads and writes "headrace" in an equipped session, unless a query says otherwise."""
    return _engines[session_name(spark)]


def _register(spark: Any, access: Access) -> str:
    """The Python source under a name of its own, to which the Java source hands over what only Python can do; and as
    "headrace", where Spark takes the Java source first if there is one. The answer is the engine."""
    # Spark refuses a Python source that takes filters, unless this is set.
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(bound_source(access, PYTHON_NAME))
    for name, value in (("hub", access.address), ("token", access.token), ("ca", access.ca)):
        if value is None:
            spark.conf.unset(f"{DEFAULTS}.{name}")
        else:
            spark.conf.set(f"{DEFAULTS}.{name}", value)
    try:
        spark.dataSource.register(bound_source(access))
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        return "java"
    # Spark does not say so where it has found our Python source by itself.
    return "java" if EXTENSIONS in (spark.conf.get("spark.sql.extensions", "") or "") else "python"
