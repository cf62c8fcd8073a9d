"""`headrace immortal`, run as a shell would, against a real hub with a real binding."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.ambrosia_files import Instance, page_of

from headrace.config import Ambrosia, Config, ImmortalSection
from headrace.protocols.ambrosia.client import Host, Immortal, fork, impulse
from headrace.protocols.ambrosia.codec import Call, encode
from headrace.protocols.ambrosia.files.layout import Output
from headrace.protocols.ambrosia.server import start
from headrace.testing import ServedHub, served_hub

FORK = encode(Call(1, 1, b"x"))
Command = Callable[..., SimpleNamespace]
VECTORS = Path(__file__).parents[2] / "conformance" / "vectors" / "ambrosia.json"


class Counter(Immortal):
    """Adds."""

    total: int = 0

    @fork
    def add(self, amount: int) -> None:
        self.total += amount

    @impulse
    def poke(self, amount: int) -> None:
        self.itself.add(amount)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedHub]:
    config = Config(ambrosia=Ambrosia(import_root="/", immortals={"counter": ImmortalSection()}))
    with served_hub(config) as made:
        monkeypatch.setenv("HEADRACE_HUB", made.address)
        ports = made.run(start(made.hub))
        assert ports is not None
        addresses = ports.addresses
        host = Host(
            Counter,
            name="counter",
            receive=addresses["ambrosia.counter.receive"],
            send=addresses["ambrosia.counter.send"],
        )
        made.run(_begin(host, made))
        yield made
        made.run(_end(ports))


RUNNING: list[asyncio.Task[None]] = []


async def _begin(host: Host, served: ServedHub) -> None:
    RUNNING.append(asyncio.ensure_future(host.run()))
    await asyncio.wait_for(host.wait_primary(), 60)
    host.itself.poke(5)
    async with asyncio.timeout(60):
        await served.hub.wait("immortal/counter/log", 2)


async def _end(ports: object) -> None:
    task = RUNNING.pop()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await ports.close()  # type: ignore[attr-defined]


def test_the_life_of_an_immortal_on_the_command_line(headrace: Command, served: ServedHub) -> None:
    (info,) = json.loads(headrace("immortal", "ls", "--json").out)
    assert (info["name"], info["state"], info["log_next"]) == ("counter", "running", 3)
    assert "counter" in headrace("immortal", "ls").out
    words = json.loads(headrace("immortal", "log", "counter", "--json").out)
    assert [each["kind"] for each in words] == ["initial", "impulse", "fork"]
    assert words[2]["text"] == '{"amount":5}'
    shown = headrace("immortal", "log", "counter", "--from", "1", "-n", "1").out
    assert "impulse" in shown
    assert "fork" not in shown
    taken = json.loads(headrace("immortal", "checkpoint", "counter", "--json").out)
    assert taken["position"] == 3
    assert "3" in headrace("immortal", "checkpoint", "counter").out
    debug = json.loads(
        headrace("immortal", "replay", "counter", "--from", str(taken["id"]), "--upgrade", "--tell-end", "--json").out
    )
    assert (debug["checkpoint"], debug["first"], debug["next"]) == (taken["id"], 3, 3)
    assert "127.0.0.1" in headrace("immortal", "replay", "counter").out
    assert headrace("immortal", "replay", "counter", "--from", "999").code == 2


def test_register_and_forget(headrace: Command, served: ServedHub) -> None:
    made = json.loads(headrace("immortal", "register", "late", "--delivery", "counted", "--json").out)
    assert made["state"] == "absent"
    assert not made["receive"].endswith(":0")
    assert "late" in headrace("immortal", "register", "late", "--checkpoint-log", "1MiB").out
    assert headrace("immortal", "register", "late", "--delivery", "pigeon").code == 2
    assert headrace("immortal", "forget", "late", stdin="n\n").code == 1
    assert headrace("immortal", "forget", "late", "--yes").code == 0
    assert "no immortal" in headrace("immortal", "forget", "late", "--yes").err
    assert [each["name"] for each in json.loads(headrace("immortal", "ls", "--json").out)] == ["counter"]


def test_import_of_an_instance_of_the_published_coordinator(
    headrace: Command, served: ServedHub, tmp_path: Path
) -> None:
    old = Instance(tmp_path, "old shop", version=2)
    old.checkpoint(1, 4, b"state", outputs=(Output(b"bank", 3, 1, 1, (page_of([FORK] * 2, 2),)),))
    old.log(1, old.record(4, (b"", [Call(1, 1, b"a")])), b"half a record")
    looked = headrace("immortal", "import", str(old.path), "shop", "--dry-run").out
    for shown in (
        "no: a dry run",
        "old shop, version 2, committer -77",
        "serverchkpt1, 5 B of state",
        "1 from 4 on, 1 messages",
        "1 calls and 0 impulses of shop",
        "bank: 3 calls, 2 of them not acknowledged",
        "serverlog1 ends at byte",
    ):
        assert shown in looked
    assert "shop" not in headrace("immortal", "ls").out
    done = json.loads(headrace("immortal", "import", str(old.path), "shop", "--json").out)
    assert (done["imported"], done["next"], done["damage"]) == (True, 5, [])
    listed = {each["name"]: each for each in json.loads(headrace("immortal", "ls", "--json").out)}
    assert (listed["shop"]["version"], listed["shop"]["undelivered"], listed["bank"]["pending"]) == (2, 1, 2)
    again = headrace("immortal", "import", str(old.path), "shop")
    assert (again.code, "there is an immortal 'shop' already" in again.err) == (2, True)


def test_new_code_is_checked_and_methods_are_called(headrace: Command, served: ServedHub, tmp_path: Path) -> None:
    head = "from headrace.protocols.ambrosia.client import Immortal, fork, impulse\n\nclass Counter(Immortal):\n"
    body = "    total: int = 0\n\n    @fork\n    def add(self, amount: int) -> None:\n        self.total += amount\n\n"
    poke = "    @impulse\n    def poke(self, amount: int) -> None:\n        self.itself.add({})\n"
    same, other, empty = (tmp_path / f"{name}.py" for name in ("same", "other", "empty"))
    same.write_text(head + body + poke.format("amount"))
    other.write_text(head + body + poke.format("amount + 1"))
    empty.write_text("x = 1\n")
    checked = json.loads(headrace("immortal", "check", "counter", str(same), "--json").out)
    assert checked["difference"] is None
    assert checked["messages"] >= 3
    assert "the same" in headrace("immortal", "check", "counter", f"{same}:Counter").out
    refused = headrace("immortal", "check", "counter", str(other))
    assert refused.code == 1
    assert "does not do what counter did" in refused.err
    assert '"amount":5' in refused.err
    both = headrace("immortal", "check", "counter", str(other), "--beside", str(same), "--json")
    assert both.code == 1
    compared = json.loads(both.out)
    assert compared["not_logged"] is None
    (step,) = compared["steps"]
    assert (step["index"], step["message"]) == (1, 'poke {"amount":5}')
    assert step["before"]["calls"] == ['itself: add {"amount":5}']
    assert step["after"]["calls"] == ['itself: add {"amount":6}']
    told = headrace("immortal", "check", "counter", str(same), "--beside", str(same))
    assert (told.code, "both do the same" in told.out + told.err) == (0, True)
    assert "poke" in headrace("immortal", "check", "counter", str(same), "--beside", str(same), "--all").out
    assert (
        "is not the program that ran" in headrace("immortal", "check", "counter", str(same), "--beside", str(other)).err
    )
    served_too = tmp_path / "program.py"
    run = '\nfrom headrace.immortals import run\n\nrun(Counter, "counter", "127.0.0.1:1")\n'
    served_too.write_text(head + body + poke.format("amount") + run)
    assert "the same" in headrace("immortal", "check", "counter", str(served_too)).out
    broken = tmp_path / "broken.py"
    for text, said in {
        "def x(:\n": "SyntaxError: invalid syntax (broken.py, line 1)",
        "x = 1\ny = x.z\n": "AttributeError: 'int' object has no attribute 'z', in line 2",
    }.items():
        broken.write_text(text)
        assert f"cannot be imported: {said}" in headrace("immortal", "check", "counter", str(broken)).err
    for wrong in (str(empty), f"{same}:Nobody", str(tmp_path / "none.py")):
        assert headrace("immortal", "check", "counter", wrong).code == 2
    assert headrace("immortal", "call", "counter", "add", "[1]").code == 2
    assert json.loads(headrace("immortal", "call", "counter", "add", '{"amount": 2}', "--json").out) is None
    assert "is not keyed" in headrace("immortal", "instances", "counter").err


def test_a_proxy_is_written_for_a_class(headrace: Command) -> None:
    source = headrace("immortal", "proxy", "unit.cli.test_immortal:Counter").out
    assert "class CounterProxy(Proxy):" in source
    for wrong in ("unit.cli.test_immortal:Nobody", "no.such.module:X", "json:JSONDecoder"):
        assert headrace("immortal", "proxy", wrong).code == 2


def test_files_of_the_published_coordinator_are_shown(headrace: Command, tmp_path: Path) -> None:
    vectors = {vector["name"]: bytes.fromhex(vector["hex"]) for vector in json.loads(VECTORS.read_text())}
    log, old, checkpoint = tmp_path / "serverlog1", tmp_path / "serverlog0", tmp_path / "serverchkpt1"
    log.write_bytes(vectors["disk record 0"] + b"junk")
    old.write_bytes(vectors["disk record, old XOR form"])
    checkpoint.write_bytes(vectors["checkpoint file of a first start"])
    shown = headrace("immortal", "decode", log, old, checkpoint).out
    assert "records 0 to 0, xxHash64" in shown
    assert "records 1 to 1, XOR" in shown
    assert "before record 0, 10 bytes of state" in shown
    decoded = json.loads(headrace("immortal", "decode", old, "--json").out)
    assert decoded[0]["messages"][0] == {
        "sequence": 1, "kind": "fork", "method": 33, "caller": None, "call_number": None, "text": "abc", "base64": None,
        "bytes": 3,
    }  # fmt: skip
    checkpoint.write_bytes(b"short")
    log.write_bytes(b"")
    shown = headrace("immortal", "decode", log, checkpoint).out
    assert "no record that holds" in shown
    assert "no checkpoint file" in shown
    assert headrace("immortal", "decode", tmp_path / "missing").code == 2
