"""Hubs in front of real Kafka brokers, each a process of its own."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from support.forked_hub import ForkedHub
from support.hub_process import HubProcess
from support.kafka import new_cell
from support.until import wait_until

from headrace.serving.runtime import LISTENERS

TAKEOVER_S = 90.0
SESSION_TIMEOUT_S = 4
"""Brokers as they come allow 6 s at least; ours allow less, and a busy machine needs some."""


def get(hub: HubProcess, path: str, body: bytes | None = None) -> tuple[int, str]:
    """The status and body of an answer; 0 for none."""
    headers = {"Content-Type": "application/json", "Connection": "close"}
    request = urllib.request.Request(hub.page + path, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=90) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


class HubCluster:
    """Hubs `hub-1`, `hub-2` and so on, over one prefix. As a context they run inside, and none is left behind."""

    def __init__(
        self,
        folder: Path,
        servers: str,
        prefix: str,
        *settings: str,
        count: int = 2,
        only: tuple[str, ...] = tuple(LISTENERS),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._only = only
        self._environment = environment
        self.settings = (
            "log.backend=kafka",
            f"log.kafka.servers={servers}",
            f"log.kafka.prefix={prefix}",
            "log.kafka.store=kafka",
            "log.disk_reserve_bytes=1MiB",
            f"cluster.session_timeout_s={SESSION_TIMEOUT_S}",
            *settings,
        )
        self.hubs = [self.new_hub(f"hub-{number}") for number in range(1, count + 1)]

    def new_hub(self, name: str) -> HubProcess:
        """One more, not started, with an empty disk."""
        (self._folder / name).mkdir(parents=True)
        settings = (*self.settings, f"cluster.hub={name}")
        if self._environment is None:
            return ForkedHub(self._folder / name, *settings, only=self._only)
        return HubProcess(self._folder / name, *settings, only=self._only, environment=self._environment)

    def __enter__(self) -> HubCluster:
        try:
            self.hubs[0].start()
            self.wait_for_owner()
            for hub in self.hubs[1:]:
                hub.start()
        except BaseException:
            self.kill_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        for hub in self.hubs:
            if hub.process is not None:
                hub.process.send_signal(signal.SIGCONT)
            hub.kill()

    def find_owner(self) -> HubProcess | None:
        """The hub that says that it is, and runs."""
        for hub in self.hubs:
            if hub.process is not None and hub.addresses and get(hub, "/health?cell=0")[0] == 200:
                return hub
        return None

    def wait_for_owner(self) -> HubProcess:
        owner: HubProcess = wait_until(self.find_owner, "a hub owns the cell", TAKEOVER_S)
        return owner

    @property
    def followers(self) -> list[HubProcess]:
        owner = self.wait_for_owner()
        return [hub for hub in self.hubs if hub is not owner and hub.process is not None]

    def kill_owner(self) -> HubProcess:
        """SIGKILL; another one owns the cell when this returns. The one that was killed."""
        killed = self.wait_for_owner()
        killed.kill()
        self.wait_for_owner()
        return killed

    def epoch(self) -> int:
        """How often the log has been claimed, as the logs of the hubs tell."""
        found = re.findall(r'"owns the cell".*?"epoch": (\d+)', "".join(hub.log.read_text() for hub in self.hubs))
        return max(map(int, found), default=0)

    def status(self, hub: HubProcess) -> Any:
        """`cluster.status`, as a hub answers it."""
        code, text = get(hub, "/api/v1/cluster.status", b"{}")
        assert code == 200, text
        return json.loads(text)


class FailoverHub(HubProcess):
    """Two hubs of a cluster in the place of one hub: clients are given the address of one, the other owns the log at
    first. `kill` is of the owner, whichever that is; `start` has another take over, and brings the killed one back.

    So what tests ask of a hub that is killed and started again is asked of a takeover, through a hub that does not own
    the log. Made again over the same folder it is the same cluster, as a hub would have the same data.
    """

    clusters: ClassVar[dict[Path, HubCluster]] = {}
    servers: ClassVar[str] = ""

    def __init__(self, folder: Path, *settings: str, only: tuple[str, ...] = tuple(LISTENERS)) -> None:
        super().__init__(folder, *settings, only=only)
        self.data.mkdir(exist_ok=True)
        if folder not in self.clusters:
            chosen, kafka = new_cell(self.servers)
            kafka.close()
            users = f"security.users_file={self.data / 'users.json'}"
            wanted = tuple(dict.fromkeys((*only, "http")))
            self.clusters[folder] = HubCluster(folder, self.servers, chosen.prefix, users, *settings, only=wanted)
        self.cluster = self.clusters[folder]

    def start(self) -> None:
        other, near = self.cluster.hubs
        if other.process is None and near.process is None:
            other.start()
        self.cluster.wait_for_owner()
        for hub in (other, near):
            if hub.process is None:
                hub.start()
        self.process, self.addresses = near.process, near.addresses

    def kill(self) -> None:
        """A second time it does nothing: one hub must be left."""
        if self.process is not None:
            self.cluster.wait_for_owner().kill()
            self.process = None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process = None
        return max(hub.stop(number) for hub in self.cluster.hubs if hub.process is not None)

    @classmethod
    def end(cls) -> None:
        for cluster in cls.clusters.values():
            cluster.kill_all()
        cls.clusters.clear()
