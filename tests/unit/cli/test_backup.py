"""`headrace backup` and `headrace restore`, over a real Flight socket."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.admin.hub_verbs import Admin
from headrace.config import Config, Log
from headrace.config.load import Loaded
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.disk import OsDisk
from headrace.testing import served_hub
from headrace.testing.served import ServedHub

Command = Callable[..., SimpleNamespace]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedHub]:
    config = Config(log=Log(data=str(tmp_path / "data"), backup_root=".."))
    with served_hub(config, disk=OsDisk(tmp_path / "data")) as made:
        runtime = SimpleNamespace(hub=made.hub, config=config, addresses={}, missing=[])
        Admin(runtime, Loaded(config, {})).register(made.hub.verbs)  # type: ignore[arg-type]
        yield made


async def append(hub: Hub, count: int) -> None:
    await hub.create_stream("orders")
    await hub.append("orders", Batch.of([b"%d" % number for number in range(count)]))


async def stored(data: Path) -> list[bytes]:
    hub = await Hub.open(str(data))
    try:
        payloads: list[bytes] = (await hub.read("orders", 0)).column("payload").to_pylist()
        return payloads
    finally:
        await hub.close()


def test_there_and_back(headrace: Command, served: ServedHub, tmp_path: Path) -> None:
    served.run(append(served.hub, 30))
    done = headrace("backup", tmp_path / "copy", "--hub", served.address)
    assert done.code == 0, done.err
    assert "30 records of 1 streams" in done.out
    served.run(append(served.hub, 5))
    done = headrace("restore", tmp_path / "copy", "--data", tmp_path / "new")
    assert done.code == 0, done.err
    assert f"headrace up --data {tmp_path / 'new'}" in done.out
    assert asyncio.run(stored(tmp_path / "new")) == [b"%d" % number for number in range(30)]


def test_for_programs(headrace: Command, served: ServedHub, tmp_path: Path) -> None:
    served.run(append(served.hub, 3))
    found = json.loads(headrace("backup", "copy", "--json", "--hub", served.address).out)
    assert (found["records"], found["streams"], found["path"]) == (3, 1, str(tmp_path / "copy"))
    again = json.loads(headrace("restore", tmp_path / "copy", "--data", tmp_path / "new", "--json").out)
    assert (again["records"], again["path"]) == (3, str(tmp_path / "new"))


def test_what_is_refused(headrace: Command, served: ServedHub, tmp_path: Path) -> None:
    inside = headrace("backup", tmp_path / "data" / "copy", "--hub", served.address)
    assert inside.code == 2
    assert "inside" in inside.err
    outside = headrace("backup", tmp_path.parent / "copy", "--hub", served.address)
    assert (outside.code, "log.backup_root" in outside.err) == (2, True)
    assert not (tmp_path.parent / "copy").exists()
    (tmp_path / "nothing").mkdir()
    none = headrace("restore", tmp_path / "nothing", "--data", tmp_path / "new")
    assert none.code == 2
    assert "is not a backup" in none.err
    assert not (tmp_path / "new").exists()
