"""A hub in memory with the FutoIn application."""

from collections.abc import AsyncIterator

import pytest
from support.futoin_peer import Asgi, make_config

from headrace.config import Config
from headrace.protocols.futoin.server import Application
from headrace.testing import memory_hub


@pytest.fixture
def config(request: pytest.FixtureRequest) -> Config:
    """Settings of the hub; a test changes them with `@pytest.mark.parametrize("config", [...], indirect=True)`."""
    return make_config(**getattr(request, "param", {}))


@pytest.fixture
async def asgi(config: Config) -> AsyncIterator[Asgi]:
    async with memory_hub(config) as hub:
        app = Application(hub)
        try:
            yield Asgi(hub, app)
        finally:
            app.close()
