"""A hub in memory with immortals and HTTP, shared by the tests of a file."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import headrace
from headrace.protocols.ambrosia.server import start
from headrace.serving.http import serve as serve_http
from headrace.testing import served_hub


@pytest.fixture(scope="module")
def world() -> Iterator[Any]:
    with served_hub() as served:
        ports = served.run(start(served.hub))
        http = served.run(serve_http(served.hub, "127.0.0.1:0"))
        with headrace.connect(served.address) as client:
            yield SimpleNamespace(served=served, address=served.address, http=f"http://{http.address}", client=client)
        served.run(http.close())
        assert ports is not None
        served.run(ports.close())
