"""Whoever is signed in has the rights of this moment: what changes in the users reaches them while they are here."""

import asyncio
import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from support.until import until

from headrace.config import Config, Grant, SecuritySection, User
from headrace.errors import Unauthenticated
from headrace.security import Principal, Security, hash_secret, new_token
from headrace.security import rights as rights_module
from headrace.security.admission import Admission, Nobody, Password, Signature, Token, Trusted
from headrace.telemetry.metrics import Metrics

PASSWORD = "wonderland"
ROLES = {
    "clerk": [Grant(rights=["read", "write"], streams=["orders.*"])],
    "auditor": [Grant(rights=["read"], streams=["prices.*"])],
}
HERE = "192.0.2.1:5000"


class World:
    """A door, and someone who edits the users file behind its back."""

    def __init__(self, folder: Path, **section: object) -> None:
        self.section = SecuritySection(roles=ROLES, **section)  # type: ignore[arg-type]
        self.folder = folder
        self.security = Security(Config(security=self.section), folder, remembers=True)
        self.metrics = Metrics()
        self.door = Admission(self.security, self.section, self.metrics)
        self.told: list[str] = []

    def edit(self, change: Callable[[dict[str, User]], object]) -> None:
        elsewhere = Security(Config(security=self.section), self.folder)
        with elsewhere.users_file.changing() as users:
            change(users)

    def watched(self, principal: Principal, name: str = "") -> Principal:
        principal.watch(lambda: self.told.append(name or principal.name))
        return principal

    @property
    def ended(self) -> float:
        return self.metrics.security.ended._value.get()


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.edit(lambda users: users.update(alice=User(secret=hash_secret(PASSWORD), roles=["clerk"])))
    return world


async def signed_in(world: World) -> Principal:
    return world.watched(await world.door.admit("http", HERE, Password("alice", PASSWORD)))


async def test_who_is_removed_may_nothing_from_the_next_look_on(world: World) -> None:
    alice = await signed_in(world)
    assert alice.may("write", "orders.eu")
    world.edit(lambda users: users.pop("alice"))
    world.door.rights.look()
    assert not alice.may("read", "orders.eu")
    assert not alice.may_some("read")
    assert isinstance(alice.refusal, Unauthenticated)
    assert (world.told, world.ended) == (["alice"], 1)
    world.edit(lambda users: users.update(alice=User(secret=hash_secret(PASSWORD), roles=["clerk"])))
    world.door.rights.look()
    assert alice.refusal is not None, "a sign-in that has ended does not come back"
    assert (world.told, world.ended) == (["alice"], 1)


async def test_who_gets_other_roles_has_their_rights_at_once(world: World) -> None:
    alice = await signed_in(world)
    world.edit(lambda users: users.update(alice=User(secret=users["alice"].secret, roles=["auditor"])))
    assert alice.may("write", "orders.eu")
    world.door.rights.look()
    assert not alice.may("read", "orders.eu")
    assert alice.may("read", "prices.eu")
    assert (alice.roles, alice.refusal, world.told) == (("auditor",), None, ["alice"])


async def test_what_the_hub_itself_changes_needs_no_look(world: World) -> None:
    alice = await signed_in(world)
    world.security.add_user("alice", None, ["auditor"])
    assert alice.may("read", "prices.eu")
    world.security.remove_user("alice")
    assert alice.refusal is not None


async def test_a_changed_password_ends_the_sign_ins_with_the_old_one_only(world: World) -> None:
    token, digest = new_token()
    world.security.add_token("alice", digest)
    by_password, by_token = await signed_in(world), world.door.admit_now("http", HERE, Token(token))
    world.edit(lambda users: users.update(alice=User(secret=hash_secret("other"), tokens=[digest], roles=["clerk"])))
    world.door.rights.look()
    assert by_password.refusal is not None
    assert by_token.may("write", "orders.eu")
    again = await world.door.admit("http", HERE, Password("alice", "other"))
    assert again.may("write", "orders.eu")
    world.edit(lambda users: users.update(alice=User(secret=users["alice"].secret, roles=["clerk"])))
    world.door.rights.look()
    assert by_token.refusal is not None
    assert again.refusal is None


async def test_a_signature_holds_while_its_user_is_there(world: World) -> None:
    signer = world.door.admit_now("futoin", HERE, Signature("alice", lambda: True))
    world.edit(lambda users: users.pop("alice"))
    world.door.rights.look()
    assert signer.refusal is not None


async def test_others_are_not_told(world: World) -> None:
    world.edit(lambda users: users.update(bob=User(secret=hash_secret(PASSWORD), roles=["clerk"])))
    alice, bob = await signed_in(world), await world.door.admit("http", HERE, Password("bob", PASSWORD))
    world.watched(bob)
    heard: list[bool] = []
    unwatch = world.door.rights.watch(lambda: heard.append(True))
    world.edit(lambda users: users.pop("bob"))
    world.door.rights.look()
    world.door.rights.look()
    assert (world.told, heard) == (["bob"], [True])
    assert alice.may("write", "orders.eu")
    unwatch()
    world.edit(lambda users: users.pop("alice"))
    world.door.rights.look()
    assert heard == [True]


async def test_callers_without_a_name_go_when_the_first_user_comes(tmp_path: Path) -> None:
    world = World(tmp_path)
    nobody = world.door.admit_now("http", HERE, Nobody())
    assert nobody.may("admin")
    world.edit(lambda users: users.update(alice=User(secret=hash_secret(PASSWORD), roles=["clerk"])))
    world.door.rights.look()
    assert nobody.refusal is not None
    with pytest.raises(Unauthenticated):
        world.door.admit_now("http", HERE, Nobody())


LOSSES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda file: file.unlink(),
    "emptied": lambda file: file.write_text("{}"),
    "garbled": lambda file: file.write_text("{"),
    "a folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("loss", LOSSES)
async def test_when_the_users_are_lost_everyone_goes_and_no_setting_lets_anyone_in(world: World, loss: str) -> None:
    """A cookie that all share, a place on this machine, a setting for development: meant beside users, not instead."""
    ways = (Trusted(), Nobody("writer"), Token("cookie", "cookie"))
    there = [world.door.admit_now("any", HERE, way) for way in ways]
    alice = await signed_in(world)
    LOSSES[loss](world.folder / "users.json")
    world.door.rights.look()
    assert [each.refusal is not None for each in (*there, alice)] == [True] * 4
    for way in ways:
        with pytest.raises(Unauthenticated):
            world.door.admit_now("any", HERE, way)


async def test_a_setting_lets_in_beside_users_and_where_there_never_were_any(world: World, tmp_path: Path) -> None:
    for each in (world, World(tmp_path / "new")):
        assert each.door.admit_now("any", HERE, Trusted()).may("admin")
        assert each.door.admit_now("any", HERE, Token("cookie", "cookie")).may("admin")
        assert each.door.admit_now("any", HERE, Nobody("writer")).may("write", "orders.eu")
    reader = World(tmp_path / "reader", anonymous="reader")
    assert not reader.door.admit_now("any", HERE, Nobody("writer")).may("write", "orders.eu")


async def test_a_change_while_a_password_is_checked_is_not_missed(world: World) -> None:
    """The rights are found in a thread; whoever is removed before the loop has them in hand is not let in."""
    before = world.security.authenticate("alice", PASSWORD)
    assert before is not None
    world.security.remove_user("alice")
    assert not world.door.rights.hold(before)


async def test_users_that_cannot_be_read_any_more_let_nobody_in(world: World) -> None:
    before = world.security.authenticate("alice", PASSWORD)
    assert before is not None
    (world.folder / "users.json").write_text("{")
    assert not world.door.rights.hold(before)


async def test_a_sign_in_that_nobody_uses_is_forgotten(world: World) -> None:
    somebody = weakref.ref(world.watched(world.door.admit_now("http", HERE, Trusted())))
    gc.collect()
    assert somebody() is None


async def test_one_who_cannot_be_told_does_not_keep_it_from_the_others(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    alice = await world.door.admit("http", HERE, Password("alice", PASSWORD))
    unwatch = alice.watch(lambda: world.told.append("gone"))
    alice.watch(lambda: 1 / 0)
    world.watched(alice, "last")
    unwatch()
    unwatch()
    world.edit(lambda users: users.pop("alice"))
    with caplog.at_level(logging.INFO, "headrace.security"):
        world.door.rights.look()
    assert world.told == ["last"]
    assert "could not notify a session that rights have changed" in caplog.text
    assert "a sign-in is no longer valid" in caplog.text


async def test_the_files_are_looked_at_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rights_module.LOOK_S <= 0.5, "a change takes effect within a second"
    monkeypatch.setattr(rights_module, "LOOK_S", 0.001)
    alice = await signed_in(world)
    looks = iter([RuntimeError("once"), *[None] * 100_000])
    original = world.security.standing

    def standing() -> tuple[object, ...]:
        if error := next(looks):
            raise error
        return original()

    monkeypatch.setattr(world.security, "standing", standing)
    following = asyncio.create_task(world.door.rights.follow())
    world.edit(lambda users: users.pop("alice"))
    await until(lambda: alice.refusal is not None)
    following.cancel()
