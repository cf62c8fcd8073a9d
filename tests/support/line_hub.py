"""A hub whose HTTP listener takes lines of the SDK."""

from __future__ import annotations

import contextlib

from headrace.serving import http
from headrace.testing import ServedHub


class WithHttp:
    """A hub in memory with its HTTP listener, which takes lines."""

    def __init__(self, served: ServedHub) -> None:
        self.served = served
        self.hub = served.hub
        self.listener = served.run(http.serve(served.hub, "127.0.0.1:0"))
        self.hub.addresses["http"] = self.listener.address
        self.opened = contextlib.ExitStack()

    @property
    def lines(self) -> list[dict[str, object]]:
        """What `session ls` shows of them."""

        async def shown() -> list[dict[str, object]]:
            return [each.details for each in self.hub.sessions.list() if "answered" in each.details]

        return self.served.run(shown())
