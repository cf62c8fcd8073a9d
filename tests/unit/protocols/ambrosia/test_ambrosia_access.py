"""Who may be a binding: the protocol has no login, so it is the machine or the client certificate that tells."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest
from support.ambrosia_peer import RawBinding, coordinator, settings
from support.until import until

from headrace.cli.tls import make_self_signed
from headrace.config import Config, ImmortalSection, SecuritySection, Tls, TlsFiles, User
from headrace.config.address import split_address
from headrace.protocols.ambrosia.codec import Type
from headrace.security import EVERYTHING, Security, new_token
from headrace.security.admission import Token
from headrace.testing import memory_hub

USERS = SecuritySection(users={"clerk": User(roles=["writer"]), "guest": User(roles=["reader"])})


def guarded(*, trust_local: bool) -> Config:
    config = settings(a=ImmortalSection())
    ambrosia = msgspec.structs.replace(config.ambrosia, trust_local=trust_local)
    return msgspec.structs.replace(config, ambrosia=ambrosia, security=USERS)


async def test_a_binding_on_this_machine_is_trusted_unless_told_otherwise() -> None:
    async with memory_hub(guarded(trust_local=True)) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        await binding.close()
    async with memory_hub(guarded(trust_local=False)) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.closed()
        await until(lambda: 'headrace_refused_logins_total{protocol="ambrosia"} 2.0' in hub.metrics.text().decode())


async def test_a_binding_of_another_machine_is_refused_where_there_are_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.protocols.ambrosia.coordinator.coordinator.is_loopback", lambda host: False)
    async with memory_hub(guarded(trust_local=True)) as hub, coordinator(hub) as ports:
        await (await RawBinding.to(ports, "a")).closed()
    async with memory_hub(settings(a=ImmortalSection())) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")  # nobody has a name here
        await binding.first_start()
        await binding.close()


def certificate(folder: Path, name: str) -> None:
    key, made = make_self_signed([name])
    (folder / f"{name}.pem").write_bytes(made)
    (folder / f"{name}.key").write_bytes(key)


@pytest.mark.parametrize(("user", "let_in"), [("clerk", True), ("guest", False), ("stranger", False)])
async def test_a_client_certificate_names_the_binding(tmp_path: Path, user: str, let_in: bool) -> None:
    for name in ("localhost", user):
        certificate(tmp_path, name)
    files = TlsFiles(
        certificate=str(tmp_path / "localhost.pem"),
        key=str(tmp_path / "localhost.key"),
        client_ca=str(tmp_path / f"{user}.pem"),
    )
    config = msgspec.structs.replace(guarded(trust_local=False), tls=Tls(listeners={"ambrosia": files}))
    context = ssl.create_default_context(cafile=str(tmp_path / "localhost.pem"))
    context.load_cert_chain(tmp_path / f"{user}.pem", tmp_path / f"{user}.key")
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        binding = RawBinding()
        receive, send = (ports.addresses[f"ambrosia.a.{half}"] for half in ("receive", "send"))
        tls = {"ssl": context, "server_hostname": "localhost"}
        _, binding.to_hub = await asyncio.open_connection(*split_address(receive), **tls)
        binding.from_hub, binding._from_writer = await asyncio.open_connection(*split_address(send), **tls)
        if let_in:
            assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
            await binding.close()
        else:
            await binding.closed()


@pytest.mark.parametrize("change", ["removed", "narrowed", "authority"])
async def test_a_binding_goes_when_it_may_not_be_one_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.chdir(tmp_path)  # where a hub in memory keeps its users
    for name in ("localhost", "robot", "another"):
        certificate(tmp_path, name)
    clients = tmp_path / "clients.pem"
    clients.write_bytes((tmp_path / "robot.pem").read_bytes())
    files = TlsFiles(
        certificate=str(tmp_path / "localhost.pem"), key=str(tmp_path / "localhost.key"), client_ca=str(clients)
    )
    config = msgspec.structs.replace(guarded(trust_local=False), tls=Tls(listeners={"ambrosia": files}))
    context = ssl.create_default_context(cafile=str(tmp_path / "localhost.pem"))
    context.load_cert_chain(tmp_path / "robot.pem", tmp_path / "robot.key")
    async with memory_hub(config) as hub, coordinator(hub) as ports:
        hub.security.add_user("robot", None, ["writer"])
        binding = RawBinding()
        receive, send = (ports.addresses[f"ambrosia.a.{half}"] for half in ("receive", "send"))
        tls = {"ssl": context, "server_hostname": "localhost"}
        _, binding.to_hub = await asyncio.open_connection(*split_address(receive), **tls)
        binding.from_hub, binding._from_writer = await asyncio.open_connection(*split_address(send), **tls)
        assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        hub.security.add_user("robot", None, ["admin"])
        assert ports.coordinator.links(), "a change that leaves the right leaves the link"
        if change == "authority":
            clients.write_bytes((tmp_path / "another.pem").read_bytes())
            hub.admission.rights.look()
        elif change == "narrowed":
            hub.security.add_user("robot", None, ["reader"])
        else:
            hub.security.remove_user("robot")
        assert not ports.coordinator.links()
        await binding.closed()


async def test_a_debugging_session_ends_with_the_admin_who_opened_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    token, digest = new_token()
    async with memory_hub(guarded(trust_local=True)) as hub, coordinator(hub) as ports:
        binding = await RawBinding.to(ports, "a")
        await binding.first_start()
        hub.security.add_user("ann", None, ["admin"])
        hub.security.add_token("ann", digest)
        ann = hub.admission.admit_now("http", "here", Token(token))
        await hub.verbs.call("immortal.replay", {"name": "a"}, ann)
        await hub.verbs.call("immortal.replay", {"name": "a"}, EVERYTHING)
        del ann
        hub.security.add_user("ann", None, ["writer"])
        await until(lambda: len(ports.coordinator.debugging["a"]) == 1)
        assert ports.coordinator.links(), "the immortal itself belongs to the hub"
        await binding.close()


def test_the_certificate_of_all_listeners_is_not_for_bindings(tmp_path: Path) -> None:
    """No published binding speaks TLS: it is there for who asks for it by name."""
    certificate(tmp_path, "localhost")
    files = Tls(certificate=str(tmp_path / "localhost.pem"), key=str(tmp_path / "localhost.key"))
    security = Security(Config(tls=files), tmp_path)
    assert security.tls("ambrosia") is None
    assert security.tls("ockam") is not None


def test_ports_open_to_other_machines_are_warned_about(tmp_path: Path) -> None:
    section = ImmortalSection(receive="0.0.0.0:9001", send="127.0.0.1:9002")
    warnings = Security(settings(a=section), tmp_path).warnings()
    assert [warning.partition(" is open")[0] for warning in warnings] == ["listener 'ambrosia' on 0.0.0.0:9001"] * 2
