import asyncio
import base64
import json
import logging
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.cli.tls import make_self_signed
from headrace.config import Config, Futoin, Grant, Listen, Ockam, SecuritySection, Tls, TlsFiles, User
from headrace.config.address import is_loopback
from headrace.errors import BadRequest, Unauthenticated
from headrace.security import (
    EVERYTHING,
    Principal,
    Security,
    SecurityError,
    acting_as,
    check_secret,
    current,
    hash_secret,
    new_token,
    token_digest,
)
from headrace.security.admission import Admission, Password, from_header
from headrace.security.policy import NO_USERS_LEFT, UNREADABLE
from headrace.telemetry.metrics import Metrics

HASHED = hash_secret("wonderland")


def security(tmp_path: Path, *, remembers: bool = False, **section: object) -> Security:
    return Security(Config(security=SecuritySection(**section)), tmp_path, remembers=remembers)  # type: ignore[arg-type]


def door(checks: Security, **section: int) -> Admission:
    return Admission(checks, SecuritySection(**section), Metrics())


def basic(user: str, secret: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{secret}".encode()).decode()


class TestSecrets:
    def test_a_hash_stands_for_its_secret_only_and_is_salted(self) -> None:
        assert check_secret(HASHED, "wonderland")
        assert not check_secret(HASHED, "Wonderland")
        assert not check_secret(HASHED, "")
        assert hash_secret("wonderland") != HASHED
        assert "wonderland" not in HASHED

    def test_a_plain_secret_in_the_settings_works(self) -> None:
        assert check_secret("wonderland", "wonderland")
        assert not check_secret("wonderland", "wonderlan")
        assert check_secret("Grüße", "Grüße")

    @pytest.mark.parametrize(
        "stored", ["scrypt$", "scrypt$1$2$3", "scrypt$x$8$1$AA==$AA==", "scrypt$16384$8$1$AA==$%%"]
    )
    def test_a_broken_hash_is_an_error_and_not_a_wrong_password(self, stored: str) -> None:
        if stored.endswith("%%"):  # base64 skips what it does not know: an empty digest equals nothing
            assert not check_secret(stored, "x")
        else:
            with pytest.raises(SecurityError, match="is not one; write it again"):
                check_secret(stored, "x")

    def test_a_token_is_kept_as_a_digest(self) -> None:
        token, digest = new_token()
        assert token.startswith("hr_")
        assert digest == token_digest(token)
        assert token not in digest
        assert new_token()[0] != token


class TestAuthenticate:
    def test_right_and_wrong_passwords(self, tmp_path: Path) -> None:
        checks = security(tmp_path, users={"alice": User(secret=HASHED, roles=["writer"])})
        alice = checks.authenticate("alice", "wonderland")
        assert alice is not None
        assert (alice.name, alice.roles) == ("alice", ("writer",))
        assert checks.authenticate("alice", "wonderland") is not None  # the remembered way
        assert checks.authenticate("alice", "wrong") is None
        assert checks.authenticate("nobody", "wonderland") is None
        assert checks.authenticate("", "") is None

    def test_a_user_without_password_cannot_log_in_with_one(self, tmp_path: Path) -> None:
        checks = security(tmp_path, users={"robot": User(tokens=["hr_x"], roles=["reader"])})
        for secret in ("", "None", "hr_x"):
            assert checks.authenticate("robot", secret) is None
        assert checks.authenticate_token("hr_x") is not None

    def test_a_changed_password_ends_the_remembered_one(self, tmp_path: Path) -> None:
        checks = security(tmp_path)
        checks.add_user("alice", hash_secret("wonderland"), ["reader"])
        assert checks.authenticate("alice", "wonderland") is not None
        checks.add_user("alice", hash_secret("looking-glass"), ["reader"])
        assert checks.authenticate("alice", "wonderland") is None
        assert checks.authenticate("alice", "looking-glass") is not None

    def test_tokens(self, tmp_path: Path) -> None:
        token, digest = new_token()
        users = {"alice": User(tokens=[digest], roles=["reader"]), "bob": User(tokens=["plain-token"], roles=["admin"])}
        checks = security(tmp_path, users=users)
        assert (found := checks.authenticate_token(token)) is not None
        assert found.name == "alice"
        assert (found := checks.authenticate_token("plain-token")) is not None
        assert found.name == "bob"
        assert checks.authenticate_token(digest) is None  # who reads the file cannot log in with what it holds
        assert checks.authenticate_token("") is None

    async def test_authorization_headers(self, tmp_path: Path) -> None:
        checks = security(tmp_path, users={"alice": User(secret="pass:word", tokens=["tok"], roles=["reader"])})

        async def name(header: str | None) -> str | None:
            try:
                return (await door(checks).admit("http", "", from_header(header))).name
            except Unauthenticated:
                return None

        assert await name(basic("alice", "pass:word")) == "alice"
        assert await name("bearer tok") == "alice"
        for header in (
            None,
            "",
            "Basic",
            "Basic ???",
            "Basic YWxpY2U=",
            basic("alice", "x"),
            "Bearer",
            "Digest a",
            "tok",
        ):
            assert await name(header) is None, header

    async def test_guessing_does_not_use_up_the_threads_of_others(self, tmp_path: Path) -> None:
        checks = security(tmp_path, users={"alice": User(secret=HASHED, roles=["reader"])})
        admission = door(checks, login_failures_max=40)
        guesses = [
            asyncio.create_task(admission.admit("http", "", Password("alice", f"guess {number}")))
            for number in range(40)
        ]
        await asyncio.to_thread(lambda: None)  # as a read of the disk would
        assert not all(guess.done() for guess in guesses)
        found = await asyncio.gather(*guesses, return_exceptions=True)
        assert all(isinstance(one, Unauthenticated) for one in found)

    def test_client_certificates_name_users(self, tmp_path: Path) -> None:
        checks = security(tmp_path, users={"alice": User(roles=["reader"])})
        assert (found := checks.certificate_principal("alice")) is not None
        assert found.may("read", "orders")
        assert checks.certificate_principal("mallory") is None


class TestAnonymous:
    def test_without_users_everyone_is_admin(self, tmp_path: Path) -> None:
        checks = security(tmp_path)
        assert not checks.required
        assert (nobody := checks.anonymous()) is not None
        assert nobody.may("admin", "orders")

    def test_with_users_nobody_is_let_in_without_a_name(self, tmp_path: Path) -> None:
        checks = security(tmp_path, users={"alice": User(secret="x", roles=["reader"])})
        assert checks.required
        assert checks.anonymous() is None

    def test_a_role_for_callers_without_a_name(self, tmp_path: Path) -> None:
        checks = security(tmp_path, users={"alice": User(secret="x")}, anonymous="reader")
        assert (nobody := checks.anonymous()) is not None
        assert nobody.may("read", "orders")
        assert not nobody.may("write", "orders")
        assert security(tmp_path, anonymous="none").required


class TestRights:
    def test_built_in_roles(self, tmp_path: Path) -> None:
        users = {name: User(tokens=[f"token of {name}"], roles=[name]) for name in ("admin", "writer", "reader")}
        checks = security(tmp_path, users={**users, "nothing": User(tokens=["token of nothing"])})
        rights = ("read", "write", "admin")
        table = {}
        for name in ("admin", "writer", "reader", "nothing"):
            principal = checks.authenticate_token(f"token of {name}")
            assert principal is not None
            table[name] = [principal.may(right, "orders") for right in rights]  # type: ignore[arg-type]
        assert table == {
            "admin": [True, True, True],
            "writer": [True, True, False],
            "reader": [True, False, False],
            "nothing": [False, False, False],
        }

    def test_patterns(self) -> None:
        grants = (Grant(rights=["read"], streams=["orders.*", "audit"]), Grant(rights=["write"], streams=["orders.eu"]))
        clerk = Principal("clerk", (), grants)
        assert clerk.may("read", "orders.eu")
        assert clerk.may("read", "audit")
        assert not clerk.may("read", "auditor")
        assert not clerk.may("read", "orders")
        assert clerk.may("write", "orders.eu")
        assert not clerk.may("write", "orders.us")
        assert not clerk.may("read")  # all streams
        assert clerk.may_some("write")
        assert not clerk.may_some("admin")
        assert not Principal("x", (), (Grant(rights=["read"], streams=[]),)).may_some("read")

    def test_a_stream_named_like_a_pattern_gains_nothing(self) -> None:
        clerk = Principal("clerk", (), (Grant(rights=["read"], streams=["orders.*"]),))
        assert not clerk.may("read", "*")

    def test_roles_that_do_not_exist_are_refused_at_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(
            SecurityError, match="user 'alice': there is no role 'clerk'; there are admin, reader, writer"
        ):
            security(tmp_path, users={"alice": User(roles=["clerk"])})
        with pytest.raises(SecurityError, match="security.anonymous"):
            security(tmp_path, anonymous="everyone")

    def test_acting_as_is_for_the_block(self) -> None:
        alice = Principal("alice", (), ())
        with acting_as(alice):
            assert current() is alice
        assert current() is EVERYTHING


class TestUsersFile:
    def test_written_for_the_owner_only_and_read_again_when_it_changes(self, tmp_path: Path) -> None:
        writer, reader = security(tmp_path), security(tmp_path)
        assert reader.users() == {}
        writer.add_user("alice", hash_secret("wonderland"), ["writer"])
        assert reader.users()["alice"].roles == ["writer"]
        assert os.stat(tmp_path / "users.json").st_mode & 0o777 == 0o600
        token, digest = new_token()
        writer.add_token("alice", digest)
        assert reader.authenticate_token(token) is not None
        writer.add_user("alice", None, ["reader"])  # new roles keep the password and the tokens
        assert reader.authenticate("alice", "wonderland") is not None
        assert (principal := reader.authenticate_token(token)) is not None
        assert principal.roles == ("reader",)
        writer.remove_user("alice")
        assert reader.users() == {}
        text = (tmp_path / "users.json").read_text()
        assert "wonderland" not in text
        assert token not in text

    def test_a_data_directory_that_it_makes_is_its_owners(self, tmp_path: Path) -> None:
        security(tmp_path / "data").add_user("alice", None, ["admin"])
        assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700

    def test_settings_win_over_the_file(self, tmp_path: Path) -> None:
        security(tmp_path).add_user("alice", None, ["admin"])
        checks = security(tmp_path, users={"alice": User(roles=["reader"])})
        assert checks.users()["alice"].roles == ["reader"]
        with pytest.raises(BadRequest, match="is defined in the settings"):
            checks.add_user("alice", None, ["admin"])

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "a\n", "x" * 101])
    def test_names(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(BadRequest, match="user name"):
            security(tmp_path).add_user(name, None, ["admin"])

    def test_a_role_that_does_not_exist_is_not_written(self, tmp_path: Path) -> None:
        with pytest.raises(BadRequest, match="no role 'king'"):
            security(tmp_path).add_user("alice", None, ["king"])
        assert not (tmp_path / "users.json").exists()

    def test_a_broken_file_is_an_error_and_not_an_open_door(self, tmp_path: Path) -> None:
        (tmp_path / "users.json").write_text("{")
        with pytest.raises(SecurityError, match="is not a users file"):
            security(tmp_path)

    def test_bytes_that_are_no_text_and_what_is_no_file_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "users.json").write_bytes(b'{"\xff": {}}')
        with pytest.raises(SecurityError, match="is not a users file"):
            security(tmp_path)
        (tmp_path / "users.json").unlink()
        (tmp_path / "users.json").mkdir()
        (tmp_path / "file").touch()
        with pytest.raises(SecurityError, match="cannot be read: not a regular file"):
            security(tmp_path)
        with pytest.raises(SecurityError, match="cannot be read: Not a directory"):
            security(tmp_path / "file")

    def test_what_never_ends_is_not_read(self, tmp_path: Path) -> None:
        users = tmp_path / "users.json"
        os.mkfifo(users)  # to open it would wait for a writer
        with pytest.raises(SecurityError, match="cannot be read: not a regular file"):
            security(tmp_path)
        users.unlink()
        users.symlink_to("/dev/zero")
        with pytest.raises(SecurityError, match="cannot be read: not a regular file"):
            security(tmp_path)
        users.unlink()
        users.symlink_to(users)
        with pytest.raises(SecurityError, match="cannot be read: Too many levels of symbolic links"):
            security(tmp_path)
        users.unlink()
        with users.open("wb") as file:
            file.truncate(1 << 30)
        with pytest.raises(SecurityError, match="cannot be read: larger than 16777216 bytes"):
            security(tmp_path)

    def test_many_commands_at_once_lose_nobody(self, tmp_path: Path) -> None:
        names = [f"user{number}" for number in range(24)]
        with ThreadPoolExecutor(4) as commands:
            list(commands.map(lambda name: security(tmp_path).add_user(name, None, ["reader"]), names))
        assert sorted(security(tmp_path).users()) == sorted(names)

    def test_a_change_is_durable_with_its_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        synced: list[Path] = []
        monkeypatch.setattr("headrace.security.users.fsync_directory", synced.append)
        security(tmp_path).add_user("alice", None, ["reader"])
        assert synced == [tmp_path, tmp_path]  # that there are users, then who


class TestUsersThatAreLost:
    """Once a hub has had users it never falls open, whatever becomes of their file."""

    @pytest.mark.parametrize("content", [None, "{}", "", "{"])
    async def test_while_it_runs_and_after_a_start(
        self, tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
    ) -> None:
        running = security(tmp_path, remembers=True)
        assert running.anonymous() is not None
        security(tmp_path).add_user("alice", hash_secret("wonderland"), ["admin"])
        assert running.trouble() is None
        file = tmp_path / "users.json"
        kept = file.read_bytes()
        file.unlink() if content is None else file.write_text(content)
        expected = NO_USERS_LEFT if content in (None, "{}") else UNREADABLE
        for _ in range(3):
            assert running.anonymous() is None
            assert running.required
            assert running.trouble() == expected
        assert running.warnings() == [expected]
        assert [record.getMessage() for record in caplog.records] == [expected]
        assert str(tmp_path) not in expected
        with pytest.raises(Unauthenticated) as refused:
            await door(running).admit("http", "", Password("alice", "wonderland"))
        assert str(tmp_path) not in str(refused.value)
        if expected is NO_USERS_LEFT:
            again = security(tmp_path, remembers=True)
            assert again.anonymous() is None
            assert again.warnings() == [NO_USERS_LEFT]
        file.write_bytes(kept)
        assert running.trouble() is None
        assert running.authenticate("alice", "wonderland") is not None

    def test_a_new_user_mends_it(self, tmp_path: Path) -> None:
        checks = security(tmp_path, remembers=True)
        checks.add_user("alice", hash_secret("wonderland"), ["admin"])
        checks.remove_user("alice")
        assert (checks.anonymous(), checks.trouble()) == (None, NO_USERS_LEFT)
        checks.add_user("alice", hash_secret("wonderland"), ["admin"])
        assert (checks.anonymous(), checks.trouble()) == (None, None)
        assert checks.authenticate("alice", "wonderland") is not None

    def test_a_file_that_somebody_wrote_by_hand_counts_and_so_do_the_settings(self, tmp_path: Path) -> None:
        (tmp_path / "users.json").write_text('{"alice": {"roles": ["reader"]}}')
        security(tmp_path, remembers=True)
        (tmp_path / "users.json").unlink()
        assert security(tmp_path).anonymous() is None
        for name, section in (("settings", {"users": {"bob": User(roles=["reader"])}}), ("elsewhere", {})):
            (tmp_path / name).mkdir()
            (tmp_path / "secrets.json").write_text('{"carol": {"roles": ["reader"]}}')
            outside = "../secrets.json" if name == "elsewhere" else "users.json"
            security(tmp_path / name, remembers=True, users_file=outside, **section)
            (tmp_path / "secrets.json").unlink()
            assert security(tmp_path / name, users_file=outside).anonymous() is None, name

    def test_looking_at_users_writes_nothing(self, tmp_path: Path) -> None:
        security(tmp_path, users={"bob": User(roles=["reader"])})
        assert list(tmp_path.iterdir()) == []

    def test_a_hub_in_memory_leaves_nothing_behind(self, tmp_path: Path) -> None:
        security(tmp_path / "memory", remembers=True, users={"bob": User(roles=["reader"])})
        assert list(tmp_path.iterdir()) == []

    def test_it_is_opened_again_only_when_told_so(self, tmp_path: Path) -> None:
        checks = security(tmp_path)
        checks.add_user("alice", None, ["admin"])
        with pytest.raises(BadRequest, match=r"there are users \(alice\): remove them first"):
            checks.open_to_all()
        checks.remove_user("alice")
        by_setting = security(tmp_path, anonymous="admin")
        assert by_setting.trouble() is None
        assert not by_setting.required
        assert security(tmp_path).required
        checks.open_to_all()
        assert not security(tmp_path).required

    def test_a_mark_that_cannot_be_looked_for_is_taken_for_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def denied(path: Path) -> os.stat_result:
            if path.suffix == ".required":
                raise PermissionError(13, "Permission denied")
            raise FileNotFoundError

        monkeypatch.setattr(Path, "stat", denied)
        assert security(tmp_path).required

    async def test_a_stored_secret_that_is_none_is_a_refusal_and_a_line_in_the_log(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        checks = security(tmp_path, users={"alice": User(secret="scrypt$1", roles=["reader"])})
        with pytest.raises(Unauthenticated, match="is not known here"):
            await door(checks).admit("http", "", Password("alice", "wonderland"))
        assert "a login could not be checked" in caplog.text


class TestTls:
    def test_contexts_per_listener(self, tmp_path: Path) -> None:
        key, certificate = make_self_signed(["localhost"])
        (tmp_path / "key.pem").write_bytes(key)
        (tmp_path / "certificate.pem").write_bytes(certificate)
        files = TlsFiles(
            certificate=str(tmp_path / "certificate.pem"),
            key=str(tmp_path / "key.pem"),
            client_ca=str(tmp_path / "certificate.pem"),
        )
        checks = Security(Config(tls=Tls(listeners={"flight": files})), tmp_path)
        assert (context := checks.tls("flight")) is not None
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert checks.tls("http") is None
        everywhere = Security(Config(tls=Tls(certificate=files.certificate, key=files.key)), tmp_path)
        assert (context := everywhere.tls("http")) is not None
        assert context.verify_mode == ssl.CERT_NONE

    def test_missing_files_name_the_listener(self, tmp_path: Path) -> None:
        checks = Security(Config(tls=Tls(certificate="/no/such.pem")), tmp_path)
        with pytest.raises(SecurityError, match="tls of listener 'http'.*/no/such.pem"):
            checks.tls("http")


class TestWarnings:
    def test_loopback_needs_no_warning(self, tmp_path: Path) -> None:
        assert security(tmp_path).warnings() == []

    def test_an_open_listener_without_authentication_is_named_loudly(self, tmp_path: Path) -> None:
        config = Config(listen=Listen(flight="0.0.0.0:7070", http="[::]:8080", ockam="off"))
        warnings = Security(config, tmp_path).warnings()
        assert [warning.split("'")[1] for warning in warnings] == ["http", "http", "flight", "flight"]
        assert "may read and delete everything" in warnings[0]
        assert "without TLS" in warnings[1]

    def test_with_users_only_tls_is_missed(self, tmp_path: Path) -> None:
        section = SecuritySection(users={"alice": User(secret="x", roles=["reader"])})
        config = Config(listen=Listen(flight="0.0.0.0:7070"), security=section)
        assert len(Security(config, tmp_path).warnings()) == 1

    @pytest.mark.parametrize(
        ("host", "local"),
        [
            ("127.0.0.1", True),
            ("127.1.2.3", True),
            ("localhost", True),
            ("::1", True),
            ("::1%lo", True),
            ("::ffff:127.0.0.1", True),
            ("0.0.0.0", False),
            ("10.0.0.1", False),
            ("::ffff:10.0.0.1", False),
            ("127.evil.example", False),
            ("127.0.0.1.evil.example", False),
            ("localhost.evil.example", False),
            ("", False),
        ],
    )
    def test_loopback(self, host: str, local: bool) -> None:
        assert is_loopback(host) is local


def test_a_principal_does_not_show_secrets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checks = security(tmp_path, users={"alice": User(secret="wonderland", tokens=["hr_glass"], roles=["reader"])})
    with caplog.at_level(logging.DEBUG):
        principal = checks.authenticate("alice", "wonderland")
        checks.authenticate("alice", "wrong-secret")
        checks.authenticate_token("hr_wrong")
    shown = (
        repr(principal) + caplog.text + json.dumps([str(arg) for record in caplog.records for arg in record.args or ()])
    )
    for secret in ("wonderland", "hr_glass", "wrong-secret", "hr_wrong"):
        assert secret not in shown


def test_the_second_ockam_listener_is_warned_about_too(tmp_path: Path) -> None:
    config = Config(ockam=Ockam(cbor_listen="0.0.0.0:4001"))
    warnings = Security(config, tmp_path).warnings()
    assert [warning.partition(" is open")[0] for warning in warnings] == ["listener 'ockam' on 0.0.0.0:4001"] * 2


def test_a_door_left_open_beside_users_is_warned_about(tmp_path: Path) -> None:
    insecure = Futoin(insecure=True)
    assert Security(Config(futoin=insecure), tmp_path).warnings() == []
    users = SecuritySection(users={"alice": User(roles=["reader"])})
    (warning,) = Security(Config(futoin=insecure, security=users), tmp_path).warnings()
    assert warning.startswith("futoin.insecure lets every program on this machine write without a name")
