"""A real hub whose disk fails to make one kind of file durable: it ends with code 4 and has lost nothing."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.hub_process import STOP_S, HubProcess

import headrace
from headrace.errors import HeadraceError

pytestmark = [pytest.mark.slow, pytest.mark.long]

INJECTED = Path(__file__).with_name("failing_syncs")
LOG_FAILED = 4
SMALL = ("log.journal_file_bytes=65536", "log.segment_bytes=65536", "log.maintenance_interval_s=0.1")
Work = Callable[[headrace.Client, HubProcess], None]


def append(client: headrace.Client, hub: HubProcess) -> None:
    """More than fits into a few files of the journal, until the hub is gone."""
    for number in range(10_000):
        client.append("s", [bytes(1_000)] * 20, producer="p", sequence=number, retry_s=0)


def back_up(client: headrace.Client, hub: HubProcess) -> None:
    client.request("hub.backup", {"path": "copy"}, dict)


def add_user(client: headrace.Client, hub: HubProcess) -> None:
    client.request("user.add", {"user": "ada", "secret": "long enough for all", "roles": ["admin"]}, dict)


def stop(client: headrace.Client, hub: HubProcess) -> None:
    os.kill(hub.pid, signal.SIGTERM)


CASES: dict[str, tuple[str, Work, tuple[str, ...]]] = {
    "a new journal file's name": (r"/journal$", append, ()),
    "a segment": (r"/segments/.*\.tmp$", append, ("log.seal_apart_bytes=0",)),
    "a segment of the sealing process": (r"/segments/.*\.tmp$", append, ("log.seal_apart_bytes=1",)),
    "a segment's place": (r"rename:.*/segments/", append, ()),
    "a segment's name": (r"/segments/\d+/\d+$", append, ()),
    "a snapshot": (r"/snapshots/.*\.tmp$", append, ()),
    "a snapshot's place": (r"rename:.*/snapshots/", append, ()),
    "a snapshot's name": (r"/snapshots$", append, ()),
    "the final snapshot": (r"/snapshots/.*\.tmp$", stop, ()),
    "a spare's place": (r"rename:.*\.spare$", append, ()),
    "a backup": (r"/headrace-backups/.*\.journal$", back_up, ()),
    "a backup's manifest": (r"/backup\.json\.tmp$", back_up, ()),
    "the users file": (r"/users\.new$", add_user, ()),
    "the users file's place": (r"rename:.*/users\.json$", add_user, ()),
    "the mark of a hub with users": (r"/users\.required$", add_user, ()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failed_sync_ends_the_hub_with_code_4(case: str, tmp_path: Path) -> None:
    pattern, work, settings = CASES[case]
    path = os.pathsep.join([str(INJECTED), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    hub = HubProcess(tmp_path, *SMALL, *settings, only=("flight",), environment={"PYTHONPATH": path})
    stored = 0
    with hub:  # a disk that is well
        with headrace.connect(hub.addresses["flight"]) as client:
            client.create("s")
            for _ in range(3):
                stored += client.append("s", [b"before"]).count
        assert hub.stop() == 0
        hub._environment = {"PYTHONPATH": path, "HEADRACE_FAILING_SYNCS": pattern}
        hub.start()
        assert hub.process is not None
        process = hub.process
        with headrace.connect(hub.addresses["flight"]) as client:
            with contextlib.suppress(HeadraceError):
                stored += client.append("s", [b"since"]).count
                work(client, hub)
            assert process.wait(STOP_S) == LOG_FAILED, hub.log.read_text()[-2000:]
        hub.process = None
        text = hub.log.read_text()
        assert "Traceback" not in text
        assert "the log accepts nothing more" in text
        hub._environment = {}
        hub.start()
        if work is not add_user:  # there may be a user now, and this is a stranger
            with headrace.connect(hub.addresses["flight"]) as client:
                payloads = client.read("s").to_arrow().column("payload").to_pylist()
            assert payloads[:stored] == [b"before", b"before", b"before", b"since"][:stored]
