"""What tests of the log share."""

from collections.abc import Iterator

import pytest
from support.s3 import S3Server, s3_server
from unit.log.helpers import Backend, do, open_log

from headrace.log import ops
from headrace.log.log import Log

ON_BOTH = {
    "test_log",
    "test_log_nouns",
    "test_log_threads",
    "test_maintenance",
    "test_log_trouble",
}
"""Modules whose tests run on files and on Kafka."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in ON_BOTH:
        is_about_files = any(mark.name == "files" for mark in metafunc.definition.iter_markers())
        metafunc.parametrize("backend", ["files"] if is_about_files else ["files", "kafka"], indirect=True)


@pytest.fixture(autouse=True)
def backend(request: pytest.FixtureRequest) -> Iterator[None]:
    Backend.is_kafka = getattr(request, "param", "files") == "kafka"
    yield
    Backend.is_kafka = False


@pytest.fixture
def log() -> Log:
    made = open_log()
    do(made, ops.CreateStream("orders", 2))
    do(made, ops.CreateStream("state", kind="table"))
    return made


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3_folder(s3: S3Server) -> str:
    return s3.bucket()
