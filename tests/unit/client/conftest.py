from collections.abc import Iterator

import pytest

import headrace
from headrace.testing import ServedHub


@pytest.fixture
def client(served: ServedHub) -> Iterator[headrace.Client]:
    with headrace.connect(served.address) as connected:
        connected.create("orders", partitions=2)
        yield connected
