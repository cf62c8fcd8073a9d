from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import __version__
from headrace.admin.hub_verbs import Admin, UnknownUser
from headrace.config import Config, Grant, Log, SecuritySection, User, Wallaroo
from headrace.config.load import Loaded
from headrace.errors import BadRequest, Forbidden
from headrace.hub.base import HubBase
from headrace.hub.health import NOT_FOR_ALL
from headrace.security import EVERYTHING, Principal
from headrace.security.policy import NO_USERS_LEFT
from headrace.testing import memory_hub


def admin_of(tmp_path: Path, *, backup_root: str = "../headrace-backups", **sections: Any) -> HubBase:
    config = Config(log=Log(data=str(tmp_path), backup_root=backup_root), **sections)
    hub = HubBase(config, tmp_path)
    runtime = SimpleNamespace(hub=hub, config=config, addresses={"http": "127.0.0.1:8080"}, missing=["ockam"])
    Admin(runtime, Loaded(config, {"log.data": "flag --set log.data"})).register(hub.verbs)  # type: ignore[arg-type]
    return hub


async def call(hub: HubBase, verb: str, **request: Any) -> Any:
    return await hub.verbs.call(verb, request, EVERYTHING)


async def test_hub_info_tells_what_the_first_page_needs(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    hub.health.check("log", lambda: "the disk is full")
    hub.sessions.open("flight", "peer", dict)
    info = await call(hub, "hub.info")
    assert (info.version, info.data) == (__version__, str(tmp_path))
    assert (info.listeners, info.missing) == ({"http": "127.0.0.1:8080"}, ["ockam"])
    assert info.sessions == {"flight": 1}
    assert info.health.reasons == {"log": "the disk is full"}
    assert info.uptime_s >= 0


async def test_hub_info_tells_of_streams_only_to_those_who_may_read_them(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    hub.health.check("damage", lambda: "secret is damaged", lambda principal: f"what {principal.name} may know")
    hub.health.check("maintenance", lambda: "the segment of secret fails")
    clerk = Principal("clerk", (), (Grant(rights=["read"], streams=["orders.*"]),))
    info = await hub.verbs.call("hub.info", {}, clerk)
    assert info.data == "", "where the files are is for admins"
    told = info.health
    assert (told.ready, told.reasons) == (False, {"damage": "what clerk may know", "maintenance": NOT_FOR_ALL})
    assert "secret is damaged" in (await call(hub, "hub.info")).health.reasons["damage"]


async def test_the_asyncapi_document_comes_in_parts() -> None:
    async with memory_hub() as hub:
        runtime = SimpleNamespace(hub=hub, config=Config(), addresses={}, missing=[])
        Admin(runtime, Loaded(Config(), {})).register(hub.verbs)  # type: ignore[arg-type]
        for name in ("a", "b", "c"):
            await hub.create_stream(name)
        first = await call(hub, "hub.asyncapi", limit=2)
        assert list(first["channels"]) == ["a", "b"]
        rest = await call(hub, "hub.asyncapi", limit=2, after=first["x-next"])
        assert (list(rest["channels"]), "x-next" in rest) == (["c"], False)


@pytest.mark.parametrize("ended", [False, True])
async def test_sessions_come_in_pages_in_their_order(tmp_path: Path, ended: bool) -> None:
    hub = admin_of(tmp_path)
    opened = [hub.sessions.open("flight", f"peer {number}", dict) for number in range(5)]
    for session in opened if ended else []:
        session.close()
    whole = [info.peer for info in await call(hub, "session.list", ended=ended)]
    assert sorted(whole) == [f"peer {number}" for number in range(5)]
    seen: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = await call(hub, "session.list", ended=ended, limit=2, **after)
        seen += [info.peer for info in page.items]
        if page.next is None:
            break
        after = {"after": page.next}
    assert seen == whole


async def test_users_come_in_pages(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    for name in ("carol", "alice", "bob"):
        hub.security.add_user(name, None, ["reader"])
    first = await call(hub, "user.list", limit=2)
    assert [info.user for info in first.items] == ["alice", "bob"]
    rest = await call(hub, "user.list", after=first.next)
    assert ([info.user for info in rest.items], rest.next) == (["carol"], None)


async def test_hub_info_warns_of_users_that_are_lost(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    hub.security.add_user("alice", None, ["admin"])
    assert (await call(hub, "hub.info")).warnings == []
    (tmp_path / "users.json").unlink()
    info = await call(hub, "hub.info")
    assert info.warnings == [NO_USERS_LEFT]
    assert info.health.reasons == {"users": NO_USERS_LEFT}


async def test_the_asyncapi_document_holds_what_the_caller_may_read() -> None:
    async with memory_hub() as hub:
        runtime = SimpleNamespace(hub=hub, config=Config(), addresses={"ockam": "127.0.0.1:4000"}, missing=[])
        Admin(runtime, Loaded(Config(), {})).register(hub.verbs)  # type: ignore[arg-type]
        await hub.create_stream("orders.eu", partitions=2)
        await hub.create_stream("secrets")
        clerk = Principal("clerk", (), (Grant(rights=["read"], streams=["orders.*"]),))
        made = await hub.verbs.call("hub.asyncapi", {}, clerk)
        assert list(made["channels"]) == ["orders.eu"]
        assert list(made["servers"]) == ["ockam"]
        assert set((await hub.verbs.call("hub.asyncapi", {}, EVERYTHING))["channels"]) == {"orders.eu", "secrets"}


async def test_verbs_and_sessions_are_listed(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    assert "session.list" in [verb.name for verb in await call(hub, "verb.list")]
    hub.sessions.open("flight", "one", dict)
    hub.sessions.open("ockam", "two", dict).close("bye")
    assert [info.peer for info in await call(hub, "session.list")] == ["one"]
    assert [info.peer for info in await call(hub, "session.list", protocol="ockam")] == []
    assert [info.reason for info in await call(hub, "session.list", ended=True)] == ["bye"]


async def test_settings_are_shown_with_origin_and_without_secrets(tmp_path: Path) -> None:
    hub = admin_of(tmp_path, wallaroo=Wallaroo(cookie="monster"))
    settings = {setting.key: setting for setting in await call(hub, "config.show")}
    assert settings["log.data"].origin == "flag --set log.data"
    assert settings["wallaroo.cookie"].value == "********"


async def test_users_come_change_and_go(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    for short in ("", "seven77"):
        with pytest.raises(BadRequest, match="at least 8 are needed"):
            await call(hub, "user.add", user="alice", secret=short, roles=["writer"])
    made = await call(hub, "user.add", user="alice", secret="wonderland", roles=["writer"])
    assert (made.user, made.roles, made.password, made.tokens, made.editable) == ("alice", ["writer"], True, 0, True)
    alice = hub.security.authenticate("alice", "wonderland")
    assert alice is not None
    token = (await call(hub, "user.token", user="alice")).token
    assert hub.security.authenticate_token(token) is not None
    who = await hub.verbs.call("user.whoami", {}, alice)
    assert (who.user, who.roles) == ("alice", ["writer"])
    assert [user.tokens for user in await call(hub, "user.list")] == [1]
    await call(hub, "user.remove", user="alice")
    assert await call(hub, "user.list") == []
    with pytest.raises(UnknownUser, match="no user 'alice'"):
        await call(hub, "user.remove", user="alice")


async def test_users_of_the_settings_are_changed_there(tmp_path: Path) -> None:
    hub = admin_of(tmp_path, security=SecuritySection(users={"alice": User(secret="x", roles=["reader"])}))
    for verb in ("user.remove", "user.token", "user.add"):
        with pytest.raises(BadRequest, match="is defined in the settings"):
            await call(hub, verb, user="alice")


async def test_every_verb_refuses_without_the_right(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    for verb in hub.verbs:
        with pytest.raises(Forbidden):
            await hub.verbs.call(verb.name, {}, Principal("stranger", (), ()))


async def test_a_backup_goes_nowhere_but_below_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = admin_of(tmp_path / "data")
    root = tmp_path / "headrace-backups"
    went: list[Path] = []

    async def back_up(target: Path) -> None:
        went.append(target)

    monkeypatch.setattr(hub, "back_up", back_up, raising=False)
    root.mkdir()
    (root / "way-out").symlink_to(tmp_path)
    (root / "round").symlink_to("round")
    outside = ["", ".", "..", "../copy", "/", "/etc/headrace", str(tmp_path / "copy"), str(root), f"{root}-2/copy"]
    for path in [*outside, "way-out/copy", "monday/../../copy"]:
        with pytest.raises(BadRequest, match="is not below .*headrace-backups; the setting is log.backup_root"):
            await call(hub, "hub.backup", path=path)
    for path in ("a\0b", "round/copy"):
        with pytest.raises(BadRequest, match="is not a path"):
            await call(hub, "hub.backup", path=path)
    assert went == []
    await call(hub, "hub.backup", path="monday")
    await call(hub, "hub.backup", path=str(root / "weeks" / "one"))
    assert went == [root / "monday", root / "weeks" / "one"]


async def test_the_root_of_backups_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = admin_of(tmp_path / "data", backup_root=str(tmp_path / "elsewhere"))
    went: list[Path] = []

    async def back_up(target: Path) -> None:
        went.append(target)

    monkeypatch.setattr(hub, "back_up", back_up, raising=False)
    await call(hub, "hub.backup", path="monday")
    assert went == [tmp_path / "elsewhere" / "monday"]


async def test_a_backup_needs_an_admin(tmp_path: Path) -> None:
    hub = admin_of(tmp_path)
    reader = Principal("reader", (), (Grant(rights=["read", "write"]),))
    with pytest.raises(Forbidden):
        await hub.verbs.call("hub.backup", {"path": "/x"}, reader)
