from collections.abc import Iterator

import pyarrow.flight as flight
import pytest

from headrace.testing import ServedHub, served_hub


@pytest.fixture
def served() -> Iterator[ServedHub]:
    with served_hub() as hub:
        yield hub


@pytest.fixture
def plain(served: ServedHub) -> Iterator[flight.FlightClient]:
    """A Flight client that knows nothing of Headrace."""
    with flight.connect(f"grpc://{served.address}") as client:
        yield client
