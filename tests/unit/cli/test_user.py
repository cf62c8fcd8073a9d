import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from headrace.config import Config, Log
from headrace.security import Security, check_secret

Command = Callable[..., SimpleNamespace]


def security(data: Path) -> Security:
    return Security(Config(log=Log(data=str(data))))


def test_add_with_a_password_then_list_then_remove(headrace: Command, tmp_path: Path) -> None:
    options = ["--data", tmp_path]
    added = headrace("user", "add", "alice", "--role", "writer", "--password-stdin", *options, stdin="wonderland\n")
    assert added.code == 0
    assert "wonderland" not in added.out + added.err
    assert security(tmp_path).authenticate("alice", "wonderland") is not None
    (listed,) = json.loads(headrace("user", "ls", "--json", *options).out)
    assert listed == {"user": "alice", "roles": ["writer"], "password": True, "tokens": 0, "editable": True}
    assert headrace("user", "ls", *options).out.splitlines()[1].split() == [
        "alice",
        "writer",
        "yes",
        "0",
        "users",
        "file",
    ]
    assert json.loads(headrace("user", "rm", "alice", "--json", *options).out) == {"user": "alice", "removed": True}
    headrace("user", "add", "alice", "--token", *options)
    assert "alice is gone" in headrace("user", "rm", "alice", *options).err
    assert "now has none, so nobody can sign in" in headrace("user", "ls", *options).err
    assert headrace("user", "rm", "alice", *options).code == 1


def test_the_last_user_leaves_the_hub_shut_until_it_is_opened(headrace: Command, tmp_path: Path) -> None:
    options = ["--data", tmp_path]
    assert "no users: everyone" in headrace("user", "ls", *options).err
    headrace("user", "add", "alice", "--token", *options)
    assert "there are users (alice)" in headrace("user", "open", *options).err
    assert "`headrace user open` lets everybody in" in headrace("user", "rm", "alice", *options).err
    assert security(tmp_path).required
    assert "from its next start on" in headrace("user", "open", *options).err
    assert not security(tmp_path).required
    assert json.loads(headrace("user", "open", "--json", *options).out) == {"open": True}


def test_tokens_are_printed_once_and_work(headrace: Command, tmp_path: Path) -> None:
    first = headrace("user", "add", "robot", "--token", "--data", tmp_path).out.strip()
    second = json.loads(headrace("user", "token", "robot", "--data", tmp_path, "--json").out)["token"]
    third = headrace("user", "token", "robot", "--data", tmp_path).out.strip()
    fourth = json.loads(headrace("user", "add", "other", "--token", "--data", tmp_path, "--json").out)["token"]
    assert len({first, second, third, fourth}) == 4
    for token in (first, second, third, fourth):
        assert security(tmp_path).authenticate_token(token) is not None
    assert headrace("user", "token", "nobody", "--data", tmp_path).code == 1


def test_short_passwords_and_unknown_roles_are_refused(headrace: Command, tmp_path: Path) -> None:
    short = headrace("user", "add", "alice", "--password-stdin", "--data", tmp_path, stdin="short\n")
    assert (short.code, "at least 8" in short.err) == (1, True)
    unknown = headrace("user", "add", "alice", "--role", "king", "--token", "--data", tmp_path)
    assert "no role 'king'; there are admin, reader, writer" in unknown.err
    assert not (tmp_path / "users.json").exists()


def test_hash_prints_what_may_stand_in_a_file(headrace: Command) -> None:
    hashed = headrace("user", "hash", "--password-stdin", stdin="wonderland\n").out.strip()
    assert check_secret(hashed, "wonderland")
    as_json = json.loads(headrace("user", "hash", "--password-stdin", "--json", stdin="wonderland\n").out)
    assert check_secret(as_json["secret"], "wonderland")
