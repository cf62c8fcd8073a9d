"""Files of the published coordinator become immortals that continue where they stopped, exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.ambrosia_files import Instance, page_of
from support.ambrosia_peer import RawBinding, call_verb, coordinator, fork, impulse, info, recovered
from support.until import until

from headrace.config import Ambrosia, Config
from headrace.errors import BadRequest, HeadraceError, LimitExceeded
from headrace.hub import Hub
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.codec import Call, Checkpoint, InitialMessage, encode
from headrace.protocols.ambrosia.files.layout import Output, Watermark
from headrace.protocols.ambrosia.record_reader import Record
from headrace.protocols.ambrosia.server import ImmortalPorts
from headrace.testing import MemoryDisk, memory_hub


def numbered(first: int, last: int) -> list[Call]:
    """Calls as they are delivered, each with its number as its argument."""
    return [Call(1, 1, b"%d" % number) for number in range(first, last + 1)]


def encoded(calls: list[Call]) -> list[bytes]:
    return [encode(call) for call in calls]


def arguments(records: list[Record]) -> list[bytes]:
    found = []
    for record in records:
        for message in codec.decode_messages(record.payload, addressed=False):
            each = message.calls if isinstance(message, codec.RpcBatch) else (message,)
            found += [call.arguments for call in each if isinstance(call, Call)]
    return found


@asynccontextmanager
async def serving(disk: MemoryDisk | None = None, **limits: Any) -> AsyncIterator[tuple[Hub, ImmortalPorts]]:
    config = Config(ambrosia=Ambrosia(**{"import_root": "/"} | limits))
    async with memory_hub(config, disk=disk or MemoryDisk()) as hub, coordinator(hub) as ports:
        yield hub, ports


async def import_into(hub: Hub, instance: Instance, name: str, **more: Any) -> Any:
    return await call_verb(hub, "immortal.import", name=name, directory=str(instance.path), **more)


def beta_of(parent: Path) -> Instance:
    """It has 7 calls of alpha, the last 3 of them since its checkpoint, and 2 of its own."""
    beta = Instance(parent, "beta", version=3, committer=5)
    beta.checkpoint(2, 10, b"beta's state", inputs=(Watermark(b"alpha", 5, 4), Watermark(b"", 1, 1)),
                    outputs=(Output(b"", 1, 1, 1),))  # fmt: skip
    beta.log(
        2, beta.record(10, (b"alpha", numbered(5, 6)), batch=True), beta.record(11, (b"", numbered(2, 2)), xor=True)
    )
    beta.log(3, beta.record(12, (b"alpha", numbered(7, 7))))
    return beta


def alpha_of(parent: Path) -> Instance:
    """At its checkpoint it had said 9 calls and an impulse to beta, who had acknowledged the first 6, and the
    impulse; two calls wait for a name that nobody has."""
    alpha = Instance(parent, "alpha")
    calls = encoded(numbered(5, 9))
    pages = (page_of(calls[:3], 6), page_of([*calls[3:], encode(Call(2, 2, b"!"))], 9, 2))
    outputs = (
        Output(b"beta", 11, 7, 6, pages),
        Output(b"nobody", 2, -1, -1, (page_of(encoded(numbered(1, 2)), 1),)),
        Output(b"", 3, 1, 1, (page_of(encoded(numbered(2, 3)), 2),)),
    )
    alpha.checkpoint(1, 4, b"alpha's state", inputs=(Watermark(b"", 2, 2),), outputs=outputs)
    return alpha


# --- as it should be --------------------------------------------------------------------------------------------------


async def test_a_binding_recovers_what_the_files_hold_and_is_called_from_there_on(tmp_path: Path) -> None:
    beta, disk = beta_of(tmp_path), MemoryDisk()
    async with serving(disk) as (hub, ports):
        looked = await import_into(hub, beta, "beta", dry_run=True)
        assert (looked.imported, looked.version, looked.first, looked.next) == (False, 3, 10, 13)
        assert not hub.streams("immortal/*")
        assert not await call_verb(hub, "immortal.list")
        done = await import_into(hub, beta, "beta")
        assert (done.imported, done.messages, done.damage, done.notes) == (True, 4, [], [])
        assert [(peer.name, peer.calls, peer.impulses) for peer in done.senders] == [("beta", 2, 0), ("alpha", 7, 1)]
    async with serving(disk) as (hub, ports):  # it is durable
        found = await info(hub, "beta")
        assert (found.version, found.committer, found.sequence) == (3, 5, 13)
        binding = await RawBinding.to(ports, "beta")
        blob, records = await recovered(binding, 3)
        assert blob == b"beta's state"
        assert [record.sequence for record in records] == [10, 11, 12]
        assert arguments(records) == [b"5", b"6", b"2", b"7"]
        binding.say(fork(b"2"), fork(b"new"))  # it says again what it had said
        assert (await binding.calls(1))[0].arguments == b"new"
        await binding.close()


@pytest.mark.parametrize("alpha_first", [False, True])
async def test_calls_between_two_imported_instances_arrive_once_whichever_comes_first(
    tmp_path: Path, alpha_first: bool
) -> None:
    instances = {"alpha": alpha_of(tmp_path), "beta": beta_of(tmp_path)}
    async with serving() as (hub, ports):
        for name in sorted(instances, reverse=not alpha_first):
            done = await import_into(hub, instances[name], name)
            assert done.imported
            if name == "alpha":
                said = {each.name: (each.calls, each.waiting, each.impulses_left_out) for each in done.calls}
                assert said == {"alpha": (3, 2, 0), "beta": (9, 3, 1), "nobody": (2, 2, 0)}
        alpha, beta = await RawBinding.to(ports, "alpha"), await RawBinding.to(ports, "beta")
        _, records = await recovered(alpha, 1)
        assert arguments(records) == [b"3"]  # it had 2 of the 3 calls of itself
        alpha.say(fork(b"10", b"beta"))
        _, records = await recovered(beta, 4)
        assert arguments(records) == [b"5", b"6", b"2", b"7", b"8", b"9"]
        assert [call.arguments for call in await beta.calls(1)] == [b"10"]
        assert (await info(hub, "nobody")).pending == 2
        await alpha.close()
        await beta.close()


async def test_what_a_recovering_sender_says_again_is_known_by_its_number(tmp_path: Path) -> None:
    """Alpha says 3 calls since its checkpoint; beta had the first of them."""
    alpha = Instance(tmp_path, "alpha")
    alpha.checkpoint(1, 1, b"s", outputs=(Output(b"beta", 6, 6, 6),))
    alpha.log(1, alpha.record(1, (b"", [Call(9, 1, b"go")])))
    async with serving() as (hub, ports):
        await import_into(hub, beta_of(tmp_path), "beta")
        await import_into(hub, alpha, "alpha")
        binding, beta = await RawBinding.to(ports, "alpha"), await RawBinding.to(ports, "beta")
        await recovered(beta, 3)
        assert await binding.checkpoint() == b"s"
        assert arguments([await binding.record()]) == [b"go"]
        binding.say(*(fork(b"%d" % number, b"beta") for number in (7, 8, 9)))
        assert [call.arguments for call in await beta.calls(2)] == [b"8", b"9"]
        await binding.close()
        await beta.close()


async def test_the_buffer_of_a_checkpoint_counts_if_nothing_was_logged_after_it(tmp_path: Path) -> None:
    first = encode(InitialMessage(b"hi"))
    fresh = Instance(tmp_path, "fresh")
    fresh.checkpoint(1, 0, b"s", buffer=bytes(24) + first)
    logged = Instance(tmp_path, "logged")
    logged.checkpoint(1, 4, b"s", buffer=bytes(24) + encode(Call(1, 1, b"1")), watermarks=(Watermark(b"", 1, 1),),
                      inputs=(Watermark(b"", 1, 1),))  # fmt: skip
    logged._last.clear()  # the record after the checkpoint holds what was in its buffer, and more
    logged.log(1, logged.record(4, (b"", numbered(1, 2))))
    async with serving() as (hub, ports):
        await import_into(hub, fresh, "fresh")
        assert (await import_into(hub, logged, "logged")).messages == 2
        binding = await RawBinding.to(ports, "fresh")
        _, records = await recovered(binding, 1)
        assert (records[0].sequence, records[0].payload) == (0, first)
        await binding.close()
        binding = await RawBinding.to(ports, "logged")
        _, records = await recovered(binding, 1)
        assert arguments(records) == [b"1", b"2"]
        await binding.close()


async def test_which_of_two_sources_said_what_is_not_guessed(tmp_path: Path) -> None:
    mixed = Instance(tmp_path, "mixed")
    mixed.checkpoint(1, 0, b"s")
    records = [
        mixed.record(0, (b"a", numbered(1, 2)), (b"b", numbered(1, 1))),
        mixed.record(1, (b"a", numbered(3, 3))),
        mixed.record(2, (b"c", [*numbered(1, 1), Call(2, 2, b"i")])),
    ]
    mixed.log(1, *records)
    async with serving() as (hub, _):
        await import_into(hub, mixed, "mixed")
        senders = [message.sender for message in await call_verb(hub, "immortal.log", name="mixed")]
        assert senders == [None, None, None, None, "c", "c"]
        counted = {peer.name: (peer.calls, peer.impulses) for peer in (await info(hub, "mixed")).senders}
        assert counted == {"a": (3, 0), "b": (1, 0), "c": (1, 1)}


# --- kills and damage -------------------------------------------------------------------------------------------------


async def test_what_a_kill_leaves_is_noted_and_nothing_is_lost_by_it(tmp_path: Path) -> None:
    torn = Instance(tmp_path, "torn")
    torn.checkpoint(1, 0, b"good")
    torn.log(1, torn.record(0, (b"", numbered(1, 1))), torn.record(1, (b"", numbered(2, 2)))[:-9])
    torn._last[b""] = (1, 1)
    torn.log(2, torn.record(1, (b"", numbered(2, 3))))
    torn.log(0, b"from before the checkpoint")
    torn.checkpoint(3, 9, b"was being written")
    whole = torn.path / "serverchkpt3"
    whole.write_bytes(whole.read_bytes()[:-1])
    async with serving() as (hub, _):
        done = await import_into(hub, torn, "torn")
        assert (done.checkpoint, done.messages, done.damage) == ("serverchkpt1", 3, [])
        assert [note.partition(" ")[0] for note in done.notes] == ["serverchkpt3", "serverlog1"]


def every_cut_and_flip(data: bytes) -> list[bytes]:
    flips = [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(len(data))]
    return [data[:size] for size in range(len(data))] + flips


async def test_no_damage_of_a_log_is_taken_for_the_truth(tmp_path: Path) -> None:
    """Each cut and each flipped bit is named, or leaves records that are a beginning of the true ones."""
    beta = beta_of(tmp_path)
    path = beta.path / "serverlog2"
    whole = path.read_bytes()
    last = (beta.path / "serverlog3").read_bytes()
    async with serving() as (hub, _):
        for place, data in enumerate(every_cut_and_flip(whole)):
            path.write_bytes(data)
            looked = await import_into(hub, beta, "beta", dry_run=True)
            assert looked.damage, f"variant {place}: {looked}"  # a file follows it
        path.write_bytes(whole)
        for place, data in enumerate(every_cut_and_flip(last)):
            (beta.path / "serverlog3").write_bytes(data)
            looked = await import_into(hub, beta, "beta", dry_run=True)
            assert looked.notes or looked.damage or not data, f"variant {place}: {looked}"
            assert looked.messages == 3


async def test_damage_is_refused_unless_it_is_accepted(tmp_path: Path) -> None:
    beta = beta_of(tmp_path)
    path = beta.path / "serverlog2"
    data = bytearray(path.read_bytes())
    data[data.index(b"5")] ^= 1
    path.write_bytes(data)
    async with serving() as (hub, ports):
        with pytest.raises(BadRequest, match="serverlog2, byte 0: record 10: wrong check bytes; record 11 comes after"):
            await import_into(hub, beta, "beta")
        assert not await call_verb(hub, "immortal.list")
        done = await import_into(hub, beta, "beta", accept_damage=True)
        assert (done.imported, done.messages, done.next) == (True, 0, 10)
        binding = await RawBinding.to(ports, "beta")
        assert await recovered(binding, 0) == (b"beta's state", [])
        await binding.close()


async def test_calls_that_were_acknowledged_and_that_no_file_has_are_named(tmp_path: Path) -> None:
    beta, alpha = Instance(tmp_path, "beta"), alpha_of(tmp_path)
    beta.checkpoint(1, 0, b"old", inputs=(Watermark(b"alpha", 4, 4),))
    async with serving() as (hub, _):
        await import_into(hub, beta, "beta")
        with pytest.raises(BadRequest, match="beta acknowledged 6 calls of alpha, and has 4"):
            await import_into(hub, alpha, "alpha")
    async with serving() as (hub, _):
        await import_into(hub, alpha, "alpha")
        looked = await import_into(hub, beta, "beta", dry_run=True)
        assert looked.damage == ["calls 5 to 6 of alpha, which were acknowledged, are in no file"]


async def test_names_directories_and_sizes_are_refused(tmp_path: Path) -> None:
    beta = beta_of(tmp_path)
    async with serving(message_bytes_max=4) as (hub, _):
        with pytest.raises(LimitExceeded, match="ambrosia.message_bytes_max"):
            await import_into(hub, beta, "beta")
        for directory, reason in (
            (str(tmp_path / "nowhere"), "there is no directory .*nowhere on the hub's machine"),
            ("a\0b", "is not a path"),
            (str(tmp_path), "has no checkpoint to continue from: no file is called serverchkptN"),
        ):
            with pytest.raises(BadRequest, match=reason):
                await call_verb(hub, "immortal.import", name="beta", directory=directory)
        with pytest.raises(HeadraceError, match="cannot name an immortal"):
            await import_into(hub, beta, "@beta")
    async with serving() as (hub, _):
        await import_into(hub, beta, "beta")
        with pytest.raises(BadRequest, match="there is an immortal 'beta' already"):
            await import_into(hub, beta, "beta")
        await import_into(hub, beta, "another")


async def test_directories_elsewhere_are_not_read(tmp_path: Path) -> None:
    """An admin of the hub is not one of its machine."""
    root = tmp_path / "imports"
    root.mkdir()
    beta = beta_of(tmp_path)
    (root / "way-out").symlink_to(tmp_path)
    async with serving(import_root=str(root)) as (hub, _):
        for directory in (str(beta.path), "../beta_3", "way-out/beta_3", "", "."):
            with pytest.raises(BadRequest, match=r"is not below .*imports; the setting is ambrosia.import_root"):
                await call_verb(hub, "immortal.import", name="beta", directory=directory, dry_run=True)
        beta.path.rename(root / "beta_3")
        assert (await call_verb(hub, "immortal.import", name="beta", directory="beta_3")).imported


async def test_an_import_that_was_interrupted_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beta, disk = beta_of(tmp_path), MemoryDisk()
    async with serving(disk) as (hub, ports):
        real = hub.transact
        waiting = asyncio.Event()

        def stuck(operations: Any) -> Any:
            if any(getattr(each, "producer", None) == "sequence" for each in operations):
                waiting.set()
                return asyncio.get_running_loop().create_future()
            return real(operations)

        monkeypatch.setattr(hub, "transact", stuck)
        task = asyncio.ensure_future(import_into(hub, beta, "beta"))
        await asyncio.wait_for(waiting.wait(), 60)
        with pytest.raises(HeadraceError, match="is being imported"):
            await import_into(hub, beta, "beta")
        with pytest.raises(HeadraceError, match="is being imported"):
            await call_verb(hub, "immortal.register", name="beta")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        monkeypatch.undo()
    async with serving(disk) as (hub, ports):
        assert not await call_verb(hub, "immortal.list")
        await import_into(hub, beta, "beta")
        binding = await RawBinding.to(ports, "beta")
        _, records = await recovered(binding, 3)
        assert arguments(records) == [b"5", b"6", b"2", b"7"]
        binding.say(impulse(b"i"), Checkpoint(1), b"x")
        await until(lambda: hub.bounds("immortal/beta/log").next >= 5)
        await binding.close()
