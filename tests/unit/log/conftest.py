"""What tests of the log share."""

import pytest
from unit.log.helpers import do, open_log

from headrace.log import ops
from headrace.log.log import Log


@pytest.fixture
def log() -> Log:
    made = open_log()
    do(made, ops.CreateStream("orders", 2))
    do(made, ops.CreateStream("state", kind="table"))
    return made
