"""The connection of the SDK: addresses, secrets, TLS, hubs that go away and come back."""

import contextlib
import socket
import threading
import time
from datetime import UTC, datetime, timedelta

import pyarrow.flight as flight
import pytest
from free_ports import free_address
from support.until import wait_until

import headrace
from headrace import errors
from headrace.cli.tls import make_self_signed
from headrace.client import puts as puts_module
from headrace.client.connection import to_headrace_error
from headrace.config import Config, Log, SecuritySection, Tls, User
from headrace.testing import MemoryDisk, served_hub


def payloads(reader) -> list[bytes]:
    return [record.payload for record in reader]


def test_nobody_answers():
    address = free_address()
    with headrace.connect(address) as client:
        with pytest.raises(errors.Unreachable, match=address):
            client.streams()
        with pytest.raises(errors.Unreachable):
            client.append("orders", b"x")
        with pytest.raises(errors.Unreachable):
            client.read("orders")


@pytest.mark.slow
def test_a_hub_that_takes_the_connection_and_says_nothing_is_given_the_whole_time():
    """As one that was stopped (SIGSTOP) does. One attempt to connect ended after 5 s, whatever the caller had said."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        headrace.Client("{}:{}".format(*silent.getsockname()), timeout_s=7) as client,
    ):
        began = time.monotonic()
        with pytest.raises(errors.HeadraceError):
            client.streams()
        assert time.monotonic() - began >= 7


def test_an_address_of_another_service_is_named_as_such():
    """The port of the console, say. That `headrace up` starts a hub would be no help."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = "{}:{}".format(*other.getsockname())

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = other.accept()
                    with peer:
                        peer.sendall(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        not_ours = pytest.raises(errors.Unreachable, match=f"^{address} is not the Flight listener of a hub")
        with headrace.connect(address) as client, not_ours:
            client.streams()
        other.shutdown(socket.SHUT_RDWR)


def test_a_closed_client(served):
    client = headrace.connect(served.address)
    client.close()
    client.close()
    for attempt in (client.streams, lambda: client.append("a", b"x")):
        with pytest.raises(errors.Closed):
            attempt()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"address": "nowhere"}, "host:port"),
        ({"address": "http://a:1"}, "the Flight address is host:port"),
        ({"address": "ftp://a:1"}, "grpc"),
        ({"address": "a:1", "token": "t", "user": "u", "password": "p"}, "not both"),
        ({"address": "a:1", "user": "u"}, "belong together"),
    ],
)
def test_bad_arguments(arguments, names):
    with pytest.raises(errors.BadRequest, match=names):
        headrace.connect(**arguments)


def test_the_address_and_token_may_come_from_the_environment(monkeypatch):
    config = Config(security=SecuritySection(users={"ann": User(tokens=["secret"], roles=["admin"])}))
    with served_hub(config) as served:
        monkeypatch.setenv("HEADRACE_HUB", f"grpc://{served.address}")
        with headrace.connect() as client, pytest.raises(errors.Unauthenticated):
            client.streams()
        monkeypatch.setenv("HEADRACE_TOKEN", "secret")
        with headrace.connect() as client:
            assert client.streams() == []
            assert client.address == served.address


def test_users_and_passwords():
    users = {"ann": User(secret="pear", roles=["admin"]), "rob": User(secret="plum", roles=["reader"])}
    with served_hub(Config(security=SecuritySection(users=users))) as served:
        with headrace.connect(served.address, user="ann", password="pear") as client:
            client.create("orders")
            client.append("orders", b"x")
        with headrace.connect(served.address, user="rob", password="plum") as client:
            assert len(client.read("orders").to_list()) == 1
            with pytest.raises(errors.Forbidden, match="'rob' may not write"):
                client.append("orders", b"x")
        with headrace.connect(served.address, user="ann", password="wrong") as client:
            with pytest.raises(errors.Unauthenticated):
                client.read("orders")
            with pytest.raises(errors.Unauthenticated):
                client.append("orders", b"x")


def test_a_put_that_is_refused_before_it_has_a_batch_is_not_tried_again(monkeypatch):
    send, sent = puts_module.Put.send, []

    def late(put, batch, metadata):
        sent.append(put)
        wait_until(lambda: put.ended)
        return send(put, batch, metadata)

    monkeypatch.setattr(puts_module.Put, "send", late)
    users = {"ann": User(secret="pear", roles=["admin"])}
    with (
        served_hub(Config(security=SecuritySection(users=users))) as served,
        headrace.connect(served.address, user="ann", password="wrong") as client,
        pytest.raises(errors.Unauthenticated),
    ):
        client.append("orders", [b"x", b"y"])
    assert len(sent) == 1


def test_tls(tmp_path, monkeypatch):
    key, certificate = make_self_signed(["127.0.0.1"])
    (tmp_path / "key.pem").write_bytes(key)
    authority = tmp_path / "certificate.pem"
    authority.write_bytes(certificate)
    with served_hub(Config(tls=Tls(certificate=str(authority), key=str(tmp_path / "key.pem")))) as served:
        with headrace.connect(served.address, tls=authority) as client:
            client.create("orders")
            assert client.append("orders", b"x").first == 0
        monkeypatch.setenv("HEADRACE_CA", str(authority))
        with headrace.connect(f"grpc+tls://{served.address}") as client:
            assert len(client.streams()) == 1
        with headrace.connect(served.address) as client, pytest.raises(errors.TlsTrouble, match="it speaks TLS; add"):
            client.streams()
        with headrace.connect(served.address) as client, pytest.raises(errors.TlsTrouble, match="it speaks TLS; add"):
            client.read("orders").to_list()
        monkeypatch.delenv("HEADRACE_CA")
        elsewhere = f"localhost:{served.address.rpartition(':')[2]}"
        for address, tls, said in [(served.address, True, "signs itself"), (elsewhere, authority, "not for this name")]:
            with headrace.connect(address, tls=tls) as client, pytest.raises(errors.TlsTrouble, match=said):
                client.streams()


def test_a_hub_without_tls_is_named_as_such():
    _, certificate = make_self_signed(["127.0.0.1"])
    said = "speaks without TLS; leave out --tls"
    with (
        served_hub() as served,
        headrace.connect(served.address, tls=certificate) as client,
        pytest.raises(errors.TlsTrouble, match=said),
    ):
        client.streams()


@pytest.mark.slow
def test_an_idempotent_append_survives_a_restart_of_the_hub():
    disk = MemoryDisk()
    with served_hub(disk=disk) as served:
        address = served.address
        client = headrace.connect(address)
        client.create("orders")
        client.append("orders", b"a", producer="p", sequence=1)
        client.append("orders", b"plain")
    with pytest.raises(errors.Unreachable):
        client.append("orders", b"lost?")
    done = []
    sending = threading.Thread(
        target=lambda: done.append(client.append("orders", b"b", producer="p", sequence=2, retry_s=30))
    )
    sending.start()
    with served_hub(disk=disk, address=address):
        sending.join(60)
        assert done == [headrace.Appended(2, 1, False)]
        assert client.append("orders", b"b", producer="p", sequence=2).duplicate
        assert payloads(client.read("orders")) == [b"a", b"plain", b"b"]
        client.close()


def test_an_append_without_sequence_after_an_idle_break_goes_over_a_new_put():
    """The put broke while nothing was under way: nothing can have been stored twice, so it is sent."""
    disk = MemoryDisk()
    with served_hub(disk=disk) as served:
        address = served.address
        client = headrace.connect(address)
        client.create("orders")
        client.append("orders", b"a")
    with served_hub(disk=disk, address=address):
        assert _within(10, lambda: client.append("orders", b"b")) == headrace.Appended(1, 1, False)
        client.close()


def _within(timeout_s: float, attempt):
    """gRPC waits a moment before it tries a broken connection again."""
    deadline = datetime.now(UTC) + timedelta(seconds=timeout_s)
    while True:
        try:
            return attempt()
        except errors.Unreachable:
            assert datetime.now(UTC) < deadline


def test_slow_calls_end(served, monkeypatch):
    import asyncio

    import msgspec

    async def sleep(request: msgspec.Struct) -> None:
        await asyncio.sleep(60)

    served.hub.verbs.register("test.sleep", msgspec.Struct, sleep, right="read")
    with headrace.connect(served.address, timeout_s=0.2) as client, pytest.raises(errors.Busy, match="in time"):
        client.call("test.sleep")


def test_limits_reach_the_client():
    with served_hub(Config(log=Log(readers_max=1))) as served, headrace.connect(served.address) as client:
        client.create("orders")
        with client.follow("orders"), pytest.raises(errors.LimitExceeded) as caught:
            client.read("orders")
        assert caught.value.key == "log.readers_max"


@pytest.mark.slow
def test_a_writer_with_a_sequence_sends_again_what_a_break_left_open():
    """The hub goes away in the middle, and comes back on the same disk: every batch is there once, in order."""
    disk = MemoryDisk()
    with served_hub(disk=disk) as served:
        address = served.address
        client = headrace.connect(address)
        client.create("orders")
        writer = client.writer("orders", producer="p", sequence=0)
        futures = []
        sending = threading.Thread(
            target=lambda: futures.extend(writer.append(b"%d" % number) for number in range(5_000))
        )
        sending.start()
        while served.hub.bounds("orders").next < 200:
            pass
    with served_hub(disk=disk, address=address):
        sending.join(60)
        writer.close()
        assert [future.result().count for future in futures] == [1] * 5_000
        assert payloads(client.read("orders")) == [b"%d" % number for number in range(5_000)]
        client.close()


def test_a_writer_gives_up_when_the_hub_stays_away():
    with served_hub() as served:
        client = headrace.connect(served.address)
        client.create("orders")
        writer = client.writer("orders", producer="p", sequence=0, retry_s=0.2)
        writer.append(b"a").result()
    lost = writer.append(b"b")
    assert isinstance(lost.exception(60), errors.Unreachable)
    with pytest.raises(errors.Unreachable):
        writer.close()
    client.close()


def test_a_writer_that_is_refused_when_it_comes_back_is_told(monkeypatch):
    def refuse(self):
        raise errors.Unauthenticated("the password was changed meanwhile")

    with served_hub() as served:
        client = headrace.connect(served.address)
        client.create("orders", options={"ack": "processed:nobody"})
        writer = client.writer("orders", producer="p", sequence=0)
        under_way = writer.append(b"a")
        while client.bounds("orders").next < 1:
            pass
        monkeypatch.setattr(puts_module.Put, "_open", refuse)
    assert isinstance(under_way.exception(60), errors.Unauthenticated)
    client.close()


def test_a_writer_without_a_sequence_does_not_send_twice():
    disk = MemoryDisk()
    with served_hub(disk=disk) as served:
        address = served.address
        client = headrace.connect(address)
        client.create("orders")
        writer = client.writer("orders")
        writer.append(b"a").result()
    lost = writer.append(b"b")
    with served_hub(disk=disk, address=address):
        assert isinstance(lost.exception(60), errors.Unreachable)
        assert _within(10, lambda: client.bounds("orders").next) == 1
        client.close()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Flight returned unavailable error, with message: failed to connect to all addresses. Detail: x", ""),
        ("Flight returned unavailable error, with message: OK", ""),
        ("Flight returned unavailable error, with message: Socket closed", ": Socket closed"),
    ],
)
def test_a_hub_that_is_gone_is_told_in_words(said: str, told: str) -> None:
    error = to_headrace_error(flight.FlightUnavailableError(said), "here:1")
    assert isinstance(error, errors.Unreachable)
    assert str(error) == f"the hub at here:1 does not answer, or went away{told}; `headrace up` starts one"


def test_a_call_that_the_hub_cancels_is_one_that_may_be_made_again() -> None:
    """As a hub does that stops, or dies, in the middle of it: a writer with a producer sends again."""
    error = to_headrace_error(flight.FlightCancelledError("CANCELLED"), "here:1")
    assert isinstance(error, errors.Unreachable)
