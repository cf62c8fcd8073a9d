"""What tests of the log share."""

from collections.abc import Iterator

import pytest
from support.s3 import S3Server, s3_server
from unit.log.helpers import do, open_log

from headrace.log import ops
from headrace.log.log import Log


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
