"""Mistakes that people make at the command line, and that the answer says what to do."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.testing import served_hub

Command = Callable[..., SimpleNamespace]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with served_hub() as served:
        monkeypatch.setenv("HEADRACE_HUB", served.address)
        yield served.address


def flat(text: str) -> str:
    """Without the frame and line ends that usage errors have."""
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(("typed", "meant"), [("streams", "stream"), ("dotcor", "doctor"), ("sesion", "session")])
def test_a_command_that_is_mistyped(headrace: Command, typed: str, meant: str) -> None:
    result = headrace(typed)
    assert result.code == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in flat(result.err)


def test_a_command_like_no_other(headrace: Command) -> None:
    assert "No such command 'xyzzy'" in flat(headrace("xyzzy").err)


def test_a_stream_that_is_not_there(headrace: Command, hub: str) -> None:
    result = headrace("append", "nosuch", "1 pear")
    assert result.code == 1
    assert "stream 'nosuch' does not exist" in result.err
    assert "`headrace stream create NAME` creates one" in result.err
    assert "stream create" not in headrace("append", "nosuch", "1 pear", "--json").err, "programs get the error alone"


def test_nothing_to_append(headrace: Command, hub: str, tmp_path: Path) -> None:
    headrace("stream", "create", "orders")
    (tmp_path / "empty").write_bytes(b"")
    result = headrace("append", "orders", "--file", tmp_path / "empty")
    assert "nothing to append: give records as arguments" in flat(result.out)


def test_nobody_there(headrace: Command) -> None:
    result = headrace("stream", "ls", "--hub", "127.0.0.1:1")
    assert result.code == 5
    assert "the hub at 127.0.0.1:1 does not answer" in result.err
    assert "`headrace up` starts one" in result.err
    assert "data message" not in result.err


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("localhost", "is not host:port, such as 127.0.0.1:7070"),
        ("[::1", "is not host:port, such as 127.0.0.1:7070"),
        ("127.0.0.1:1:1", "is not host:port, such as 127.0.0.1:7070"),
        (
            "http://127.0.0.1:8080",
            "is an address of the console and the API; the Flight address is host:port, port 7070",
        ),
        ("ftp://127.0.0.1:21", "must be host:port, grpc://host:port or grpc+tls://host:port"),
    ],
)
def test_addresses_that_are_none(headrace: Command, address: str, words: str) -> None:
    result = headrace("stream", "ls", "--hub", address)
    assert (result.code, words in flat(result.err)) == (2, True)


def test_a_user_is_checked_before_a_password_is_asked_for(headrace: Command, tmp_path: Path) -> None:
    wrong_role = headrace("user", "add", "bob", "--role", "king", "--data", tmp_path)
    assert "there is no role 'king'; there are admin, reader, writer" in flat(wrong_role.err)
    wrong_name = headrace("user", "add", "bad name!", "--data", tmp_path)
    assert "letters, digits, dot, dash, underscore and @" in flat(wrong_name.err)


def test_no_terminal_to_ask_on(headrace: Command, tmp_path: Path) -> None:
    result = headrace("user", "add", "bob", "--data", tmp_path)
    assert (result.code, "use --password-stdin, or --token" in result.err) == (1, True)


def test_a_backup_that_is_not_there(headrace: Command, tmp_path: Path) -> None:
    result = headrace("restore", tmp_path / "nowhere", "--data", tmp_path / "new")
    assert (result.code, f"there is no directory {tmp_path / 'nowhere'}" in flat(result.err)) == (2, True)


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (("read", "s", "--output", "/no/such/directory/s.parquet"), 1, "No such file or directory"),
        (("append", "s", "--file", "/"), 2, "cannot read /: it is a directory"),
        (("append", "s", "x", "--key", "\udcff"), 2, "an argument is not UTF-8 text"),
        (("read", "s\udcff"), 2, "an argument is not UTF-8 text"),
        (("read", "s", "--start", "99999999999d"), 2, "is before the year 1"),
        (("connect", "generate", "--stream", "s", "--tls-ca", "/no/such"), 2, "cannot use /no/such: No such file"),
    ],
    ids=lambda value: ascii(value),
)
def test_what_is_wrong_is_said_in_a_line(
    headrace: Command, hub: str, line: tuple[str, ...], code: int, words: str
) -> None:
    headrace("stream", "create", "s")
    result = headrace(*line)
    assert (result.code, words in flat(result.err)) == (code, True), result.err
    assert headrace(*line, "--json").code == code


def test_settings_that_are_no_text(headrace: Command, tmp_path: Path) -> None:
    (tmp_path / "hub.toml").write_bytes(b'[log]\ndata = "\xff"\n')
    result = headrace("config", "show", "--config", tmp_path / "hub.toml")
    assert (result.code, "is not TOML, which is UTF-8 text" in flat(result.err)) == (2, True)


def test_a_data_directory_that_is_a_file(headrace: Command, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = headrace("up", "--data", tmp_path / "file")
    assert (result.code, f"{tmp_path / 'file'}: File exists" in result.err.replace("\n", "")) == (1, True)


@pytest.mark.parametrize("manifest", [b'{"path":"\xff"}', None])
def test_a_backup_that_cannot_be_read(headrace: Command, tmp_path: Path, manifest: bytes | None) -> None:
    if manifest is None:
        (tmp_path / "backup.json").mkdir()
    else:
        (tmp_path / "backup.json").write_bytes(manifest)
    result = headrace("restore", tmp_path, "--data", tmp_path.with_name("new"))
    assert (result.code, "backup.json cannot be read" in flat(result.err)) == (1, True)
