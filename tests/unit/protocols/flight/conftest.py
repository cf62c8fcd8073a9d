from collections.abc import Iterator

import pyarrow.flight as flight
import pytest
from support.flight_peer import payloads, put

from headrace.testing import ServedHub


@pytest.fixture
def plain(served: ServedHub) -> Iterator[flight.FlightClient]:
    """A Flight client that knows nothing of Headrace."""
    with flight.connect(f"grpc://{served.address}") as client:
        yield client


@pytest.fixture
def orders(served, plain):
    """A stream with two partitions."""
    served.run(served.hub.create_stream("orders", 2))
    return plain


@pytest.fixture
def ten(served, orders):
    put(orders, [payloads(*[b"%d" % n for n in range(10)])])
    return orders
