"""A hub with users and TLS: what a source, a sink and the cursors behind them need to go there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hubs import ThreadHub
from support.until import wait_until
from test_pipelines import run_once

from headrace.cli.tls import make_self_signed
from headrace.config import Config, SecuritySection, Tls, User
from headrace.spark import equip, read, read_stream
from headrace.spark.hub_client import access_to, open_port
from headrace.spark.pipelines import builtin

pytestmark = [pytest.mark.spark, pytest.mark.slow]
TOKEN = "a token that only options carry"


@dataclass
class Guarded:
    """A hub, and the options that lead to it."""

    hub: ThreadHub
    address: str
    ca: str

    @property
    def options(self) -> dict[str, str]:
        return {"hub": self.address, "token": TOKEN, "ca": self.ca}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    place = tmp_path_factory.mktemp("guarded")
    certificate, key = place / "hub.pem", place / "hub.key"
    for path, data in zip((key, certificate), make_self_signed(["127.0.0.1", "localhost"]), strict=True):
        path.write_bytes(data)
    config = msgspec.structs.replace(
        Config(),
        tls=Tls(certificate=str(certificate), key=str(key)),
        security=SecuritySection(users={"spark": User(tokens=[TOKEN], roles=["reader", "writer"])}),
    )
    hub = ThreadHub(place / "data", config=config)
    yield Guarded(hub, f"grpc+tls://{hub.address}", str(certificate))
    hub.close()


def test_a_token_that_only_the_options_name(guarded: Guarded, spark: Any, name: str, tmp_path: Path) -> None:
    guarded.hub.create(name)
    guarded.hub.append(name, [b"a", b"b"], types=["x", "y"])
    frame = read_stream(spark, name, cursor=name, types="x", memory_map=False, **guarded.options)
    writer = frame.select("payload").writeStream.format("headrace").option("stream", f"{name}=out")
    query = writer.options(checkpointLocation=str(tmp_path), **guarded.options).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert guarded.hub.payloads(f"{name}=out") == [b"a"]
    # The source's own commit never comes for the last batch: this is the listener, in another process than the source.
    wait_until(lambda: guarded.hub.cursor(name, name) == 2, "the cursor", 20)
    stored = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert name in stored
    assert TOKEN not in stored


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"token": "wrong"}, "token"), ({"token": ""}, "who you are|authenti"), ({"ca": ""}, "has not answered for 2 s")],
)
def test_without_the_right_papers(
    guarded: Guarded, spark: Any, name: str, change: dict[str, str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guarded.hub.create(name)
    options = {**guarded.options, **change}
    with pytest.raises(Exception, match=f"(?i){problem}"):
        read(spark, name, hub_wait_seconds=2, **options).count()


def test_a_session_that_knows_the_way(guarded: Guarded, spark: Any, name: str, tmp_path: Path) -> None:
    guarded.hub.create(name)
    guarded.hub.append(name, [b"a", b"b"])
    equip(spark, **guarded.options)
    port = open_port(access_to(guarded.address, TOKEN, guarded.ca), wait_s=60)
    run_once(spark, port, builtin.merge([name], f"{name}=out", name=name), tmp_path)
    assert guarded.hub.payloads(f"{name}=out") == [b"a", b"b"]
    assert guarded.hub.cursor(name, name) == 2
    assert "token" not in repr(access_to(guarded.address, TOKEN, guarded.ca))
