"""Everything on a hub that is not the log: what servers, the admin API and the command line find on every hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.hub.health import Health
from headrace.hub.hooks import Hooks
from headrace.hub.intake import Intake
from headrace.hub.mounts import Mounts
from headrace.hub.peers import Peers
from headrace.hub.sessions import Sessions
from headrace.hub.set_aside import SetAside
from headrace.hub.verbs import Verbs
from headrace.security import Security
from headrace.security.admission import Admission
from headrace.telemetry.metrics import Metrics
from headrace.telemetry.tracing import OFF, Tracing


class HubBase:
    """The base of `Hub`. No I/O happens here except reading the users file."""

    def __init__(
        self,
        config: Config,
        data: str | Path | None = None,
        *,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        """`data` is the data directory; the users file lies in it."""
        self.config = config
        self.hooks = Hooks()
        self.metrics = Metrics()
        self.metrics.subscribe(self.hooks)
        self.health = Health()
        self.set_aside = SetAside()
        self.health.note("tables", self.set_aside.trouble)
        self.security = Security(config, data, remembers=True)
        self.health.check("users", self.security.trouble, lambda principal: self.security.trouble())
        self.admission = Admission(self.security, config.security, self.metrics)
        self.sessions = Sessions(
            open_max=config.limits.sessions_max,
            ended_kept=config.limits.sessions_kept,
            now_us=now_us,
            changed=self.metrics.session_changed,
        )
        self.intake = Intake(config.limits, self.metrics.intake)
        self.metrics.before_scrape(self._show_intake)
        self.verbs = Verbs(
            self.hooks,
            config.limits,
            lambda verb: self.metrics.verbs.parts.labels(verb=verb).inc(),
            self.intake.apart,
            lambda verb: self.metrics.verbs.too_many.labels(verb=verb).inc(),
        )
        self.mounts = Mounts()
        self.peers = Peers()
        self.tracing: Tracing = OFF
        self.protocol = ""
        """Whose hands it is in."""
        self.shared: dict[type, Any] = {}
        """What listeners of one protocol share, by its type."""
        self.addresses: dict[str, str] = {}
        """Where the listeners are, by name; filled by whoever starts them."""
        self.stopping = asyncio.Event()
        """Set when the process begins to stop: answers without end should end now."""
        self.on_stop: Callable[[], None] = lambda: None
        """Called at the same time."""

    def _show_intake(self) -> None:
        self.metrics.intake.unread_bytes.set(self.intake.held_bytes)
        self.metrics.intake.strangers.set(self.intake.strangers)
