"""Which hub is meant: profiles, the environment and options, and what the shell offers."""

import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli import completion
from headrace.cli.tls import make_self_signed
from headrace.config import Config, SecuritySection, Tls, User
from headrace.config.profiles import Profile, Profiles, load_profiles, profiles_file, resolve, save_profiles
from headrace.errors import BadConfig, BadRequest
from headrace.testing import served_hub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HUB", "TOKEN", "USER", "PASSWORD", "TLS", "CA", "PROFILE"):
        monkeypatch.delenv(f"HEADRACE_{name}", raising=False)
    return tmp_path


def test_a_profile_reaches_a_hub_with_tls_and_users(headrace: Any, home: Path) -> None:
    key, certificate = make_self_signed(["127.0.0.1"])
    (home / "key.pem").write_bytes(key)
    authority = home / "certificate.pem"
    authority.write_bytes(certificate)
    users = {"ann": User(tokens=["secret-token"], secret="a long password", roles=["writer"])}
    config = Config(
        tls=Tls(certificate=str(authority), key=str(home / "key.pem")), security=SecuritySection(users=users)
    )
    with served_hub(config) as served:
        refused = headrace("use", "work", "--hub", served.address, "--token", "secret-token")
        assert (refused.code, load_profiles().current) == (1, "local")
        assert "it speaks TLS; add --ca FILE" in refused.err

        options = ["--hub", served.address, "--ca", authority, "--token", "-", "--no-check"]
        made = headrace("use", "work", *options, stdin="secret-token\n")
        assert made.code == 0, made.err
        assert stat.S_IMODE(profiles_file().stat().st_mode) == 0o600
        authority.unlink()  # the profile keeps what was in it
        assert headrace("append", "orders", "--create", "pear").code == 0
        assert '"payload":"pear"' in headrace("read", "orders", "--json").out
        assert "secret-token" not in headrace("use").out + headrace("use", "--json").out

        assert headrace("use", "local", "--no-check").code == 0
        assert headrace("stream", "ls", "--profile", "work").code == 0
        assert headrace("use", "work", "--forget").code == 0
        assert "there is no profile 'work'; there are local" in headrace("use", "work").err


def test_a_user_signs_in_with_a_password(headrace: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = {"ann": User(secret="a long password", roles=["writer"])}
    with served_hub(Config(security=SecuritySection(users=users))) as served:
        asked = headrace("stream", "ls", "--hub", served.address, "--user", "ann")
        assert "set HEADRACE_PASSWORD" in asked.err
        monkeypatch.setenv("HEADRACE_PASSWORD", "a long password")
        assert headrace("stream", "ls", "--hub", served.address, "--user", "ann").code == 0
        monkeypatch.setenv("HEADRACE_TOKEN", "of somebody else")  # what stands on the line counts
        assert headrace("stream", "ls", "--hub", served.address, "--user", "ann").code == 0


def test_arguments_come_before_the_environment_and_that_before_the_profile() -> None:
    save_profiles(Profiles("work", {"work": Profile("work:1", True, "PEM", None, "work-token")}))
    plain: dict[str, str] = {}
    assert resolve(environment=plain) == resolve(profile="work", environment={"HEADRACE_HUB": "other:1"})
    found = resolve(environment=plain)
    assert (found.address, found.tls, found.token) == ("grpc+tls://work:1", b"PEM", "work-token")
    by_hand = resolve("other:1", environment=plain)
    assert (by_hand.address, by_hand.tls, by_hand.token) == ("other:1", False, None), "its token is for work alone"
    named = resolve(environment={"HEADRACE_HUB": "other:1", "HEADRACE_CA": "ca.pem", "HEADRACE_TOKEN": "t"})
    assert (named.address, named.tls, named.token) == ("grpc+tls://other:1", "ca.pem", "t")
    assert resolve("grpc://other:1", environment={"HEADRACE_TLS": "1"}).tls is False
    assert resolve("other:1", environment={"HEADRACE_TLS": "1"}).tls is True
    assert resolve("grpc+tls://other:1", environment={"HEADRACE_CA": "ca.pem"}).tls == "ca.pem"
    assert resolve("other:1", user="ann", environment={"HEADRACE_TOKEN": "t"}).token is None
    with pytest.raises(BadRequest, match="there are local, work"):
        resolve(environment={"HEADRACE_PROFILE": "wrok"})


def test_a_damaged_file_of_profiles_is_named(home: Path) -> None:
    profiles_file().parent.mkdir(parents=True)
    profiles_file().write_text("{")
    with pytest.raises(BadConfig, match=r"profiles\.json is damaged"):
        load_profiles()


def test_the_nearest_name_is_suggested(headrace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_hub() as served:
        monkeypatch.setenv("HEADRACE_HUB", served.address)
        headrace("append", "orders", "--create", "pear")
        assert "stream 'ordres' does not exist; did you mean 'orders'?" in headrace("read", "ordres").err
        lost = headrace("read", "nothing-like-it").err
        assert "`headrace stream ls` lists the streams" in lost
        missing = headrace("read", "orders", "--partition", "3").err
        assert "has no partition 3" in missing
        assert "stream create" not in missing


def offered(function: Any, incomplete: str, **line: Any) -> list[str]:
    names: list[str] = function(SimpleNamespace(params=line), incomplete)
    return names


def test_the_shell_is_offered_names_of_the_hub_settings_and_profiles(headrace: Any) -> None:
    save_profiles(Profiles("local", {"work": Profile("work:1")}))
    assert completion.profiles("w") == ["work"]
    assert completion.profiles("") == ["local", "work"]
    assert "log.segment_bytes=" in completion.settings("log.seg")
    with served_hub() as served:
        headrace("append", "orders", "--create", "pear", "--hub", served.address)
        headrace("append", "prices", "--create", "1", "--hub", served.address)
        headrace("cursor", "reset", "billing", "orders", "--to", "latest", "--yes", "--hub", served.address)
        assert offered(completion.streams, "or", hub=served.address) == ["orders"]
        assert offered(completion.streams, "o*", hub=served.address) == []
        assert offered(completion.cursors, "b", hub=served.address, stream="orders") == ["billing"]
        assert offered(completion.cursors, "b", hub=served.address, stream="prices") == []
        assert offered(completion.tables, "", hub=served.address) == []
    assert offered(completion.streams, "or", hub="127.0.0.1:1") == []
    assert offered(completion.streams, "or", hub=served.address, user="ann") == []


def test_a_shell_completes_a_stream(headrace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with served_hub() as served:
        monkeypatch.setenv("HEADRACE_HUB", served.address)
        headrace("append", "orders", "--create", "pear")
        monkeypatch.setenv("_HEADRACE_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "headrace read or")
        monkeypatch.setenv("COMP_CWORD", "2")
        done: SimpleNamespace = headrace()
        assert done.out.split() == ["orders"]


def test_a_log_of_an_earlier_version_is_not_passed_over(headrace: Any, home: Path) -> None:
    data = home / "headrace-data"
    (data / "data" / "journal").mkdir(parents=True)
    (data / "pipelines").mkdir()
    for command in (["up"], ["user", "add", "ann", "--token"], ["demo", "--no-spark"]):
        refused = headrace(*command, "--data", data)
        assert refused.code == 2, refused.err
        assert f"mv {data} {data}-old && mv {data}-old/data {data}" in refused.err
    assert not (data / "users.json").exists()
    assert "holds a log, of an earlier `make up`" in headrace("doctor", "--data", data, "--no-ports").out
    (data / "journal").mkdir()  # both: the one that was asked for serves
    both = headrace("user", "add", "ann", "--token", "--data", data)
    assert both.code == 0
    assert "holds another log" in both.err


def test_the_demo_does_not_run_where_it_could_not_sign_in(headrace: Any, home: Path) -> None:
    headrace("user", "add", "ann", "--token", "--data", home)
    assert "has users, and the demo cannot sign in" in headrace("demo", "--no-spark", "--data", home).err
