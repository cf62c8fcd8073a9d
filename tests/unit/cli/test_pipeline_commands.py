"""Commands of `headrace pipeline` that need a hub and no Spark."""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.log.batch import Batch
from headrace.spark.hub import dead_letters, supervisor
from headrace.spark.hub.dead_letters import LETTER_TYPE
from headrace.spark.pipelines.checkpoints import checkpoint_of
from headrace.testing import served_hub
from headrace.testing.served import ServedHub

Command = Callable[..., SimpleNamespace]


@pytest.fixture
def served() -> Iterator[ServedHub]:
    with served_hub() as made:
        made.run(supervisor.start(made.hub))
        yield made


def append(served: ServedHub, stream: str, batch: Batch, partition: int = 0) -> None:
    async def appended() -> None:
        await served.hub.append(stream, batch, partition=partition)

    served.run(appended())


def letters(served: ServedHub, stream: str, count: int, partition: int = 0) -> None:
    found = [{"payload": base64.b64encode(b"%d" % n).decode(), "stream": "orders"} for n in range(count)]
    batch = Batch.of([json.dumps(one).encode() for one in found], types=[LETTER_TYPE] * count)
    append(served, stream, batch, partition)


def test_redrive_sends_all_letters_once(headrace: Command, served: ServedHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_MAX", 4)
    served.run(served.hub.create_stream("orders"))
    served.run(served.hub.create_stream("bad", partitions=2))
    letters(served, "bad", 10)
    letters(served, "bad", 3, partition=1)
    done = headrace("pipeline", "redrive", "bad", "--json", "--hub", served.address)
    assert json.loads(done.out) == {"count": 13, "streams": ["orders"]}
    assert [served.hub.bounds("bad", partition).first for partition in (0, 1)] == [10, 3]
    again = headrace("pipeline", "redrive", "bad", "--into", "other", "--hub", served.address)
    assert (again.code, again.err) == (0, "sent 0 again\n")
    assert served.hub.bounds("orders").next == 13
    assert "there is no stream" in headrace("pipeline", "redrive", "nowhere", "--hub", served.address).err


def test_reset_moves_the_cursor_at_the_hub_and_forgets_the_checkpoint_here(
    headrace: Command, served: ServedHub, tmp_path: Path
) -> None:
    served.run(served.hub.create_stream("orders"))
    append(served, "orders", Batch.of([b"x"] * 9))
    served.run(served.hub.save_cursor("p", "orders", 9))
    options = ["--home", tmp_path, "--hub", served.address]
    checkpoint = checkpoint_of(tmp_path, "p")
    checkpoint.mkdir(parents=True)
    for source, start, words in (("none*", "2", "has no cursor in none*"), ("*", "cursor", "cannot be reset to")):
        refused = headrace("pipeline", "reset", "p", "--source", source, "--start", start, *options)
        assert refused.code == 2
        assert words in refused.err
        assert checkpoint.exists()
    assert headrace("pipeline", "reset", "p", "--start", "2", *options).code == 0
    assert served.hub.cursor("p", "orders") == 2
    assert not checkpoint.exists()
