"""What unit tests of several parts share."""

from collections.abc import Iterator

import pytest

from headrace.testing import ServedHub, served_hub


@pytest.fixture
def served() -> Iterator[ServedHub]:
    """A hub in memory behind a real Flight socket."""
    with served_hub() as hub:
        yield hub
