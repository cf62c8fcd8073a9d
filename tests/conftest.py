"""What all tests share."""

import atexit
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.early import JAVA_OPTIONS, Early
from support.kafka import broker_cluster, brokers  # noqa: F401  # fixtures
from support.order import longest_files_first, workers
from support.programs import leave_out, needed_by, needs

# How long one example takes says something of the machine and nothing of the code; figures live in benchmarks/.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")

# Tests that start processes run this tree, whether or not it is installed.
SOURCE = str(Path(__file__).parent.parent / "src")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCE, os.environ.get("PYTHONPATH")]))

# Whoever runs the tests may have a profile in use; tests speak to the hubs that they start.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="headrace-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


# Spark's JVMs live for seconds here. Its launcher, too, is one.
for name in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ[name] = JAVA_OPTIONS


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Early())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    return workers()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER"):
        longest_files_first(items)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    needs(*needed_by(item))  # before any of its fixtures starts something


@pytest.fixture(scope="session")
def futoin_node_modules() -> Path:
    """The published FutoIn clients, installed once into a cache outside the tree, named by what is asked for."""
    needs("node", "npm")
    wanted = (Path(__file__).parent / "interop" / "futoin" / "package.json").read_bytes()
    root = Path(os.environ.get("HEADRACE_TEST_CACHE", Path.home() / ".cache" / "headrace-tests"))
    folder = root / f"futoin-{hashlib.sha256(wanted).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # two runs of the tests at once install it once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            _install(folder, wanted)
    return folder / "node_modules"


def _install(folder: Path, wanted: bytes) -> None:
    (folder / "package.json").write_bytes(wanted)
    # No install scripts: native parts belong to the reference's database, which the clients do not need.
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(command, cwd=folder, check=False, timeout=280, capture_output=True, text=True)
    if done.returncode != 0:
        leave_out(f"FutoIn's published clients: npm cannot fetch them: {done.stderr.strip()[-500:]}")
    (folder / "complete").touch()
