import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.tls import make_self_signed
from headrace.config import Config, Listen, Log, SecuritySection, Tls, User
from headrace.doctor import network
from headrace.doctor.finding import Finding
from headrace.doctor.network import check_ports, check_security, processes_listening
from headrace.security import Security

OFF = dict.fromkeys(Listen().__struct_fields__, "off")


def ports(owner: int | None = None, **addresses: str) -> list[Finding]:
    return list(check_ports(Config(listen=Listen(**{**OFF, **addresses})), owner))


def test_a_free_port() -> None:
    (finding,) = ports(http="127.0.0.1:0")
    assert (finding.level, finding.text) == ("ok", "http: 127.0.0.1:0 is free")


def test_a_taken_port_names_the_listener_and_who_has_it() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        (finding,) = ports(flight=f"127.0.0.1:{port}")
        assert finding.level == "fail"
        assert finding.text.startswith(f"flight: 127.0.0.1:{port} is in use by process {os.getpid()} (")
        assert finding.advice.endswith("stop it, or set listen.flight to another port")
        (ours,) = ports(os.getpid(), flight=f"127.0.0.1:{port}")
        assert (ours.level, "held by the hub that runs on this data directory" in ours.text) == ("ok", True)
        assert processes_listening(port) == [os.getpid()]
    assert processes_listening(port) == []


def test_a_port_of_another_hub_names_its_data_directory(tmp_path: Path) -> None:
    """Whoever left out --data learns which hub it is."""
    program = (
        "import socket, sys; from headrace.log.disk import OsDisk\n"
        "disk, other = OsDisk(sys.argv[1]), socket.create_server(('127.0.0.1', 0))\n"
        "print(other.getsockname()[1], flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hub:
        assert hub.stdin is not None
        assert hub.stdout is not None
        (finding,) = ports(flight=f"127.0.0.1:{int(hub.stdout.readline())}")
        hub.stdin.close()
    assert finding.advice.startswith(f"it is a hub with its log in {tmp_path / 'data'}, which `headrace doctor --data ")


def test_a_child_that_has_the_sockets_of_the_hub_is_no_stranger() -> None:
    """Between fork and exec a child holds all that its parent does."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with subprocess.Popen(["sleep", "60"], pass_fds=[other.fileno()]) as child:
            try:
                assert processes_listening(port) == sorted((os.getpid(), child.pid))
                for owner in (os.getpid(), child.pid):
                    (ours,) = ports(owner, flight=f"127.0.0.1:{port}")
                    assert ours.level == "ok"
            finally:
                child.kill()


def test_a_port_of_a_process_that_we_may_not_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "processes_listening", lambda port: [])
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        (finding,) = ports(flight=f"127.0.0.1:{other.getsockname()[1]}")
    assert "in use by another user's process" in finding.text


def test_two_listeners_on_one_port() -> None:
    found = ports(flight="127.0.0.1:39999", http="127.0.0.1:39999")
    assert [finding.level for finding in found] == ["ok", "fail"]
    assert found[1].text == "flight and http are both to listen on 127.0.0.1:39999"
    assert [finding.level for finding in ports(flight="127.0.0.1:0", http="127.0.0.1:0")] == ["ok", "ok"]


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("192.0.2.1:7070", "no network device"),
        ("127.0.0.1", "to host:port"),
        ("no.such.host.invalid:1", "name an address"),
    ],
)
def test_addresses_that_cannot_be(address: str, words: str) -> None:
    (finding,) = ports(flight=address)
    assert (finding.level, words in finding.advice) == ("fail", True)


def test_a_port_that_needs_a_right(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(socket.socket):
        def bind(self, address: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket, "socket", Refusing)
    (finding,) = ports(http="127.0.0.1:80")
    assert "CAP_NET_BIND_SERVICE" in finding.advice


def security(tmp_path: Path, **sections: object) -> list[Finding]:
    return list(check_security(Config(log=Log(data=str(tmp_path)), **sections)))  # type: ignore[arg-type]


def test_security_findings(tmp_path: Path) -> None:
    assert [finding.level for finding in security(tmp_path)] == ["ok"]
    opened = security(tmp_path, listen=Listen(flight="0.0.0.0:7070"))
    assert [finding.level for finding in opened] == ["warn", "warn"]
    assert [finding.advice for finding in opened] == ["run `headrace user add`", "set [tls]"]
    (absent,) = security(tmp_path, tls=Tls(certificate="/absent.pem"))
    assert (absent.level, "/absent.pem" in absent.text) == ("fail", True)
    (unknown,) = security(tmp_path, security=SecuritySection(users={"ann": User(roles=["queen"])}))
    assert (unknown.level, "there is no role 'queen'" in unknown.text) == ("fail", True)


def test_users_that_are_lost_are_told(tmp_path: Path) -> None:
    Security(Config(log=Log(data=str(tmp_path)))).add_user("ann", None, ["admin"])
    assert [finding.level for finding in security(tmp_path)] == ["ok"]
    (tmp_path / "users.json").write_text("{}")
    (lost,) = security(tmp_path)
    assert (lost.level, "now has none" in lost.text) == ("warn", True)
    assert lost.advice.startswith("`headrace user add` adds one")


def test_a_private_key_that_others_may_read_is_told(tmp_path: Path) -> None:
    key, certificate = make_self_signed(["localhost"])
    (tmp_path / "certificate.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "key.pem").chmod(0o600)
    files = Tls(certificate=str(tmp_path / "certificate.pem"), key=str(tmp_path / "key.pem"))
    assert [finding.level for finding in security(tmp_path, tls=files)] == ["ok"]
    (tmp_path / "key.pem").chmod(0o644)
    assert [finding.advice for finding in security(tmp_path, tls=files) if finding.level == "warn"] == [
        f"chmod 600 {tmp_path / 'key.pem'}"
    ]
