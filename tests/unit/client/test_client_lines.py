"""Requests of the SDK without gRPC: when there is a line, what it may do, and that nothing is lost without one."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from support.line_hub import WithHttp
from support.until import wait_until

import headrace
from headrace.admin.records import NewRecord, StreamAppend
from headrace.cli.tls import make_self_signed
from headrace.client import lines
from headrace.config import Config
from headrace.config.sections import Tls
from headrace.errors import BadRequest, Busy, Forbidden, Unauthenticated, UnknownStream
from headrace.log.ops import Appended, Bounds
from headrace.protocols.flight.lines import APART_BYTES, Lines
from headrace.protocols.flight.requests import (
    PATH,
    REQUEST_BYTES_MAX,
    TICKET_HEADER,
    UPGRADE,
    Answer,
    LineOffer,
    Request,
    client_proof,
    decode_answer,
    framed,
    hub_proof,
)
from headrace.protocols.flight.settings import Flight
from headrace.security import new_token
from headrace.security.admission import Password
from headrace.security.principal import EVERYTHING
from headrace.testing import ServedHub, served_hub


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a hub in memory keeps its users
    return tmp_path


@pytest.fixture
def hub(home) -> Iterator[WithHttp]:
    with served_hub() as served:
        served.run(served.hub.create_stream("orders"))
        whole = WithHttp(served)
        with whole.opened:
            yield whole
        served.run(whole.listener.close())


def connected(address: str, **options) -> headrace.Client:
    """A client that has a line."""
    client = headrace.connect(address, **options)
    wait_until(lambda: client.bounds("orders") and client._connection._lines._idle, "a line to be opened")
    return client


@pytest.fixture
def client(hub: WithHttp) -> Iterator[headrace.Client]:
    with connected(hub.served.address) as opened:
        yield opened


def test_verbs_and_single_appends_go_over_a_line(hub: WithHttp, client: headrace.Client) -> None:
    before = hub.lines[0]["answered"]
    assert client.append("orders", b"pear", type="ORDER", key="k", id=2**63, event_time=5) == Appended(0, 1, False)
    assert client.append("orders", {"fruit": "plum"}) == Appended(1, 1, False)
    assert client.append("orders", headrace.Record(payload=b"fig", id=0, key=b"")) == Appended(2, 1, False)
    assert client.bounds("orders").next == 3
    for_key = 1  # how many partitions there are
    (line,) = hub.lines
    assert (line["state"], line["user"], line["answered"]) == ("open", "anonymous", before + 4 + for_key)
    first, second, third = client.read("orders").to_list()
    assert (first.payload, first.type, first.key, first.id) == (b"pear", "ORDER", b"k", -(2**63))
    assert first.event_time.timestamp() == 5e-6
    assert second.json() == {"fruit": "plum"}
    assert (third.id, third.key) == (0, b"")


def test_errors_are_those_of_calls_and_the_line_stays(hub: WithHttp, client: headrace.Client) -> None:
    with pytest.raises(UnknownStream, match="'nope'"):
        client.append("nope", b"x")
    with pytest.raises(UnknownStream):
        client.bounds("nope")
    with pytest.raises(UnknownStream, match="no partition 7"):
        client.append("orders", b"x", partition=7)
    with pytest.raises(BadRequest, match="'key' does not fit"):
        client.append("orders", b"x", key=7)
    with pytest.raises(BadRequest, match="belong together"):
        client.append("orders", b"x", producer="shop")
    assert len(hub.lines) == 1


def test_what_is_sent_twice_is_stored_once(client: headrace.Client) -> None:
    assert client.append("orders", b"1", producer="shop", sequence=1) == Appended(0, 1, False)
    assert client.append("orders", b"1", producer="shop", sequence=1).duplicate
    assert client.bounds("orders").next == 1


def test_large_records_are_put_and_large_requests_called(client: headrace.Client) -> None:
    client.append("orders", b"x" * 100_000)
    client.call("stream.append", {"stream": "orders", "records": [{"text": "y" * 100_000}]})
    assert [len(record.payload) for record in client.read("orders")] == [100_000, 100_000]


def test_many_threads_have_a_line_each_and_keep_their_answers_apart(hub: WithHttp, client: headrace.Client) -> None:
    for number in range(16):
        client.create(f"s{number}")
    wrong: list[object] = []

    def work(number: int) -> None:
        for count in range(20):
            appended = client.append(f"s{number}", b"%d" % count)
            if appended.first != count or client.bounds(f"s{number}").next != count + 1:
                wrong.append((number, count, appended))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= len(hub.lines) <= lines.LINES_MAX


def test_few_requests_need_no_line(hub: WithHttp) -> None:
    with headrace.connect(hub.served.address) as client:
        for _ in range(lines.CALLS_BEFORE):
            client.bounds("orders")
        assert not client._connection._lines._opening
        assert not hub.lines


# Rights


@pytest.fixture
def ann(hub: WithHttp) -> Iterator[headrace.Client]:
    async def add() -> str:
        token, digest = new_token()
        hub.hub.security.add_user("ann", None, ["writer"])
        hub.hub.security.add_token("ann", digest)
        return token

    with connected(hub.served.address, token=hub.served.run(add())) as client:
        yield client


def test_rights_are_those_of_each_moment(hub: WithHttp, ann: headrace.Client) -> None:
    ann.append("orders", b"x")

    async def reads_only() -> None:
        hub.hub.security.add_user("ann", None, ["reader"])

    hub.served.run(reads_only())
    with pytest.raises(Forbidden, match="'ann' may not write stream 'orders'"):
        ann.append("orders", b"y")
    assert ann.bounds("orders").next == 1
    assert hub.lines[0]["user"] == "ann"


def test_a_removed_user_loses_the_line(hub: WithHttp, ann: headrace.Client) -> None:
    async def remove() -> None:
        hub.hub.security.add_user("bob", None, ["admin"])
        hub.hub.security.remove_user("ann")

    hub.served.run(remove())
    wait_until(lambda: not hub.lines, "the line to be ended")
    with pytest.raises(Unauthenticated):
        ann.append("orders", b"y")
    with pytest.raises(Unauthenticated):
        ann.bounds("orders")


def test_what_is_under_way_when_the_user_goes_is_answered_and_no_more_taken(hub: WithHttp) -> None:
    """Who was told only that they are not known would not know that their record is stored."""

    async def offer_to_ann() -> LineOffer:
        hub.hub.security.add_user("ann", "a secret", ["writer"])
        return await lines_of(hub).offer(await hub.hub.admission.admit("flight", "", Password("ann", "a secret")))

    offer = hub.served.run(offer_to_ann())
    opened = upgraded(hub, offer.ticket)
    while not opened.recv(1000).endswith(b"\r\n\r\n"):
        pass
    entered, go_on = slow_verb(hub)
    opened.sendall(client_proof(offer.secret) + framed(Request("test.slow")))
    assert entered.wait(60)
    opened.sendall(framed(Request(append=StreamAppend("orders", [NewRecord(text="x")]))))

    async def remove() -> None:
        hub.hub.security.add_user("bob", None, ["admin"])
        hub.hub.security.remove_user("ann")

    hub.served.run(remove())
    wait_until(lambda: "last_error" in hub.lines[0] and hub.lines[0]["last_error"], "the line to hear of it")

    async def let_go() -> None:
        go_on.set()

    hub.served.run(let_go())
    first, last = answers(opened)
    assert (bytes(first.result), first.last) == (b"7", False)
    assert last.last
    assert last.error is not None
    assert last.error.code == "unauthenticated"
    assert hub.hub.bounds("orders").next == 0


# Opening one


def lines_of(hub: WithHttp) -> Lines:
    return hub.hub.mounts.upgrades[UPGRADE].__self__


def offered(hub: WithHttp) -> LineOffer:
    return hub.served.run(lines_of(hub).offer(EVERYTHING))


def upgraded(hub: WithHttp, ticket: str, path: str = PATH) -> socket.socket:
    host, port = hub.listener.address.split(":")
    opened = hub.opened.enter_context(socket.create_connection((host, int(port)), 60))
    head = f"GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: {UPGRADE}\r\n"
    opened.sendall(f"{head}{TICKET_HEADER}: {ticket}\r\n\r\n".encode())
    return opened


def answers(opened: socket.socket) -> list[Answer]:
    """All that comes until the hub ends the line."""
    data = b""
    with contextlib.suppress(ConnectionResetError):  # behind all that it said
        while more := opened.recv(65536):
            data += more
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decode_answer(data[4 : 4 + size]))
        data = data[4 + size :]
    return found


def test_a_ticket_is_good_for_one_line_at_one_path(hub: WithHttp) -> None:
    offer = offered(hub)
    assert upgraded(hub, offer.ticket, "/api/v1/other").recv(100).startswith(b"HTTP/1.1 401")
    assert upgraded(hub, offer.ticket).recv(100).startswith(b"HTTP/1.1 401")  # it was shown once
    assert upgraded(hub, "guessed").recv(100).startswith(b"HTTP/1.1 401")
    assert upgraded(hub, offered(hub).ticket).recv(1000).startswith(b"HTTP/1.1 101")


def refusals(hub: WithHttp, limit: str) -> float:
    """How often lines have met a limit, as the metrics say."""
    name = f'headrace_flight_lines_refused_total{{limit="flight.{limit}"}} '
    lines = hub.served.hub.metrics.text().decode().splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@contextlib.contextmanager
def limited(**limits: float) -> Iterator[WithHttp]:
    """A hub with other limits of lines."""
    with served_hub(Config(flight=Flight(**limits))) as served:
        served.run(served.hub.create_stream("orders"))
        whole = WithHttp(served)
        with whole.opened:
            yield whole
        served.run(whole.listener.close())


def test_a_ticket_is_good_for_a_short_time(home) -> None:
    now_s = 1000.0
    with limited(line_ticket_s=5) as hub:
        lines_of(hub).clock_s = lambda: now_s
        early, late = offered(hub), offered(hub)
        now_s += 5
        assert upgraded(hub, early.ticket).recv(1000).startswith(b"HTTP/1.1 101")
        assert refusals(hub, "line_ticket_s") == 0
        now_s += 0.1
        assert upgraded(hub, late.ticket).recv(100).startswith(b"HTTP/1.1 401")
        assert refusals(hub, "line_ticket_s") == 1


def test_of_too_many_offers_the_oldest_is_void(home) -> None:
    with limited(line_tickets_max=2) as hub:
        first, second = offered(hub), offered(hub)
        assert refusals(hub, "line_tickets_max") == 0
        third = offered(hub)
        assert refusals(hub, "line_tickets_max") == 1
        assert upgraded(hub, first.ticket).recv(100).startswith(b"HTTP/1.1 401")
        assert upgraded(hub, second.ticket).recv(1000).startswith(b"HTTP/1.1 101")
        assert upgraded(hub, third.ticket).recv(1000).startswith(b"HTTP/1.1 101")


def test_only_so_many_lines_are_open(home) -> None:
    """Whoever gets none makes calls."""
    with limited(lines_max=1) as hub, connected(hub.served.address) as client:
        assert "headrace_flight_lines 1.0" in hub.served.hub.metrics.text().decode()
        assert refusals(hub, "lines_max") == 0
        assert offered(hub).address is None
        assert refusals(hub, "lines_max") == 1
        with headrace.connect(hub.served.address) as other:
            wait_until(lambda: other.bounds("orders") and refusals(hub, "lines_max") == 2, "another to be refused")
            assert other.append("orders", b"by a call") == Appended(0, 1, False)
        assert len(hub.lines) == 1
        client.close()
        wait_until(lambda: not hub.lines, "the line to end")
        assert offered(hub).address is not None


def test_a_ticket_that_comes_when_there_are_enough_lines_is_refused(home) -> None:
    with limited(lines_max=1) as hub:
        first, second = offered(hub), offered(hub)
        assert upgraded(hub, first.ticket).recv(1000).startswith(b"HTTP/1.1 101")
        assert upgraded(hub, second.ticket).recv(100).startswith(b"HTTP/1.1 503")
        assert refusals(hub, "lines_max") == 1


def test_the_hub_says_how_large_a_request_may_be(home) -> None:
    with limited(line_request_bytes_max=1000) as hub, connected(hub.served.address) as client:
        before = hub.lines[0]["answered"]
        client.append("orders", b"x" * 300)
        assert hub.lines[0]["answered"] == before + 1
        client.append("orders", b"x" * 1000)  # a call, which the SDK knows without asking
        assert (hub.lines[0]["answered"], refusals(hub, "line_request_bytes_max")) == (before + 1, 0)
        opened = open_line(hub)
        opened.sendall((1000).to_bytes(4, "big") + b" " * 1000 + (1001).to_bytes(4, "big"))
        whole, last = answers(opened)
        assert (whole.last, last.last) == (False, True)
        assert last.error is not None
        assert "flight.line_request_bytes_max" in last.error.message
        assert refusals(hub, "line_request_bytes_max") == 1


def test_what_takes_long_to_read_is_read_beside_the_event_loop(hub: WithHttp, monkeypatch) -> None:
    apart = []
    do_apart = hub.hub.intake.apart
    monkeypatch.setattr(hub.hub.intake, "apart", lambda work: apart.append(work) or do_apart(work))
    opened = open_line(hub)
    for count, size in ((500, 1), (501, 1), (1, APART_BYTES)):
        opened.sendall(framed(Request(append=StreamAppend("orders", [NewRecord(text="x" * size)] * count))))
    wait_until(lambda: len(apart) == 2, "two of them to be read apart")
    wait_until(lambda: hub.served.run(bounds(hub)).next == 1002, "all to be stored")


async def bounds(hub: WithHttp) -> Bounds:
    return hub.hub.bounds("orders")


def open_line(hub: WithHttp) -> socket.socket:
    """One without an SDK."""
    offer = offered(hub)
    opened = upgraded(hub, offer.ticket)
    while not opened.recv(1000).endswith(b"\r\n\r\n"):
        pass
    opened.sendall(client_proof(offer.secret))
    return opened


def test_a_long_row_of_appends_is_answered_in_order_the_refused_ones_too(hub: WithHttp) -> None:
    """None of the refused ones waits for anything: done inside each other they would be deeper than Python goes."""
    opened = open_line(hub)
    stored, refused = (framed(Request(append=StreamAppend("orders", [NewRecord(text=text)]))) for text in ("x", None))
    sent = stored + refused * 2_000 + stored + (REQUEST_BYTES_MAX + 1).to_bytes(4, "big")
    threading.Thread(target=opened.sendall, args=(sent,), daemon=True).start()
    codes = [each.error and each.error.code for each in answers(opened)]
    assert codes == [None, *["bad-request"] * 2_000, None, "limit-exceeded"]


def test_whoever_does_not_know_the_secret_gets_nothing(hub: WithHttp) -> None:
    offer = offered(hub)
    opened = upgraded(hub, offer.ticket)
    head = opened.recv(1000)
    assert hub_proof(offer.secret) in head
    assert offer.secret.encode() not in head
    opened.sendall(b"0" * 64 + framed(Request("stream.bounds", msgspec.Raw(b'{"stream":"orders"}'))))
    with contextlib.suppress(ConnectionResetError):
        assert not opened.recv(1000)


def test_frames_may_come_in_pieces_or_together_and_bad_ones_are_answered(hub: WithHttp) -> None:
    offer = offered(hub)
    opened = upgraded(hub, offer.ticket)
    while not opened.recv(1000).endswith(b"\r\n\r\n"):
        pass
    opened.sendall(client_proof(offer.secret)[:10])
    opened.sendall(client_proof(offer.secret)[10:])
    bounds = framed(Request("stream.bounds", msgspec.Raw(b'{"stream":"orders"}')))
    bad = [b"{", b"{}", b'{"verb":"x","extra":1}', b'{"verb":"no.such"}', b"\xff"]
    opened.sendall(bounds + b"".join(len(each).to_bytes(4, "big") + each for each in bad) + bounds[:7])
    opened.sendall(bounds[7:])
    opened.sendall((REQUEST_BYTES_MAX + 1).to_bytes(4, "big"))
    found = answers(opened)
    codes = [each.error and each.error.code for each in found]
    assert codes == [None, *["bad-request"] * 3, "unknown-verb", "bad-request", None, "limit-exceeded"]
    assert found[-1].last
    assert not any(each.last for each in found[:-1])


def test_a_stranger_at_the_address_is_not_believed(served: ServedHub) -> None:
    """Such as behind a tunnel to the Flight port alone."""
    served.run(served.hub.create_stream("orders"))
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        served.hub.addresses["http"] = f"127.0.0.1:{stranger.getsockname()[1]}"

        def answer() -> None:
            accepted, _ = stranger.accept()
            with accepted:
                heard.append(accepted.recv(10_000))
                accepted.sendall(b"HTTP/1.1 101 Switching Protocols\r\nheadrace-proof: " + b"0" * 64 + b"\r\n\r\n")
                heard.append(accepted.recv(10_000))

        threading.Thread(target=answer, daemon=True).start()
        with headrace.connect(served.address) as client:
            wait_until(lambda: client.bounds("orders") is not None and len(heard) == 2)
            assert heard[1] == b""  # nothing more is said
            assert client.append("orders", b"x").first == 0
            assert not client._connection._lines._idle


@pytest.mark.parametrize("http_has_tls", [True, False])
def test_with_tls_there_are_only_lines_with_tls(home, http_has_tls: bool) -> None:
    files = {name: str(home / f"{name}.pem") for name in ("key", "certificate")}
    for file, pem in zip(files.values(), make_self_signed(["localhost", "127.0.0.1"]), strict=True):
        Path(file).write_bytes(pem)
    section = {**files} if http_has_tls else {"listeners": {"flight": files}}
    with served_hub(Config(tls=msgspec.convert(section, Tls))) as served:
        served.run(served.hub.create_stream("orders"))
        whole = WithHttp(served)
        with headrace.connect(served.address, tls=files["certificate"]) as client:
            if http_has_tls:
                wait_until(lambda: client.bounds("orders") and client._connection._lines._idle)
                assert client.append("orders", b"x").first == 0
                assert len(whole.lines) == 1
            else:
                wait_until(lambda: client.bounds("orders") and client._connection._lines._not_before)
                assert not whole.lines
        served.run(whole.listener.close())


def test_a_hub_that_knows_no_lines_is_called(served: ServedHub) -> None:
    served.run(served.hub.create_stream("orders"))  # it has no HTTP listener
    with headrace.connect(served.address) as client:
        wait_until(lambda: client.bounds("orders") and client._connection._lines._not_before)
        assert client.append("orders", b"x").first == 0


# The end


class Nothing(msgspec.Struct):
    pass


def slow_verb(hub: WithHttp) -> tuple[threading.Event, asyncio.Event]:
    """The verb `test.slow`: when it has begun, and what it waits for."""
    entered, go_on = threading.Event(), asyncio.Event()

    async def slow(asked: Nothing) -> int:
        entered.set()
        await go_on.wait()
        return 7

    hub.hub.verbs.register("test.slow", Nothing, slow, right="read")
    return entered, go_on


def stop_while_slow(hub: WithHttp, go_on: asyncio.Event) -> None:
    """Stop the hub, and let the slow verb end meanwhile."""

    async def stop() -> None:
        closing = asyncio.ensure_future(hub.served._listener.close())
        await asyncio.sleep(0)
        go_on.set()
        await closing

    hub.served.run(stop())


def test_when_the_hub_stops_what_is_under_way_is_answered_and_no_more_taken(hub: WithHttp) -> None:
    opened, (entered, go_on) = open_line(hub), slow_verb(hub)
    opened.sendall(framed(Request("test.slow")))
    assert entered.wait(60)
    opened.sendall(framed(Request(append=StreamAppend("orders", [NewRecord(text="x")]))))
    stop_while_slow(hub, go_on)
    first, last = answers(opened)
    assert (bytes(first.result), first.last) == (b"7", False)
    assert last.last
    assert last.error is not None
    assert last.error.code == "closed"
    assert hub.hub.bounds("orders").next == 0


def test_a_line_that_broke_is_not_used(hub: WithHttp, client: headrace.Client) -> None:
    async def cut() -> None:
        for line in tuple(lines_of(hub).connections):
            line.transport.abort()

    hub.served.run(cut())
    assert client.append("orders", b"x").first == 0
    wait_until(lambda: client.bounds("orders") and client._connection._lines._idle, "another line")
    assert len(hub.lines) == 1


def test_an_answer_that_does_not_come_in_time_ends_the_line(hub: WithHttp) -> None:
    async def never(asked: Nothing) -> None:
        await asyncio.Event().wait()

    hub.hub.verbs.register("test.never", Nothing, never, right="read")
    with connected(hub.served.address, timeout_s=1.0) as client:
        with pytest.raises(Busy, match="did not answer in time"):
            client.call("test.never")
        wait_until(lambda: not hub.lines, "the line to be ended")
        assert client.bounds("orders").next == 0


def next_answers(opened: socket.socket, count: int) -> list[Answer]:
    """So many answers of a line that stays open."""
    with opened.makefile("rb", buffering=0) as file:
        return [decode_answer(file.read(int.from_bytes(file.read(4), "big"))) for _ in range(count)]


BOUNDS = msgspec.Raw(b'{"stream":"orders"}')


def test_requests_with_ids_are_answered_as_they_are_done(hub: WithHttp) -> None:
    opened, (entered, go_on) = open_line(hub), slow_verb(hub)
    opened.sendall(framed(Request("test.slow", id=1)) + framed(Request("stream.bounds", BOUNDS, id=2)))
    assert entered.wait(60)
    opened.sendall(framed(Request("no.such", id=3)))
    found = next_answers(opened, 2)
    assert [answer.id for answer in found] == [2, 3]
    assert found[1].error is not None
    hub.served._loop.call_soon_threadsafe(go_on.set)
    (slow,) = next_answers(opened, 1)
    assert (slow.id, bytes(slow.result)) == (1, b"7")


def test_a_request_without_an_id_is_done_alone(hub: WithHttp) -> None:
    opened, (entered, go_on) = open_line(hub), slow_verb(hub)
    opened.sendall(framed(Request("test.slow")) + framed(Request("stream.bounds", BOUNDS, id=2)))
    assert entered.wait(60)
    assert hub.served.run(bounds(hub)).next == 0  # the hub has had a turn
    assert hub.lines[0]["answered"] == 0
    hub.served._loop.call_soon_threadsafe(go_on.set)
    assert [answer.id for answer in next_answers(opened, 2)] == [None, 2]


def test_so_many_requests_of_a_line_are_under_way(home) -> None:
    with limited(line_requests_max=2) as hub:
        assert offered(hub).requests_max == 2
        opened = open_line(hub)
        _, go_on = slow_verb(hub)
        opened.sendall(framed(Request("test.slow", id=1)) + framed(Request("stream.bounds", BOUNDS, id=2)))
        assert [answer.id for answer in next_answers(opened, 1)] == [2]
        assert refusals(hub, "line_requests_max") == 0
        opened.sendall(framed(Request("test.slow", id=3)) + framed(Request("stream.bounds", BOUNDS, id=4)))
        wait_until(lambda: refusals(hub, "line_requests_max"), "the limit to be met")
        assert hub.lines[0]["answered"] == 1
        hub.served._loop.call_soon_threadsafe(go_on.set)
        assert {answer.id for answer in next_answers(opened, 3)} == {1, 3, 4}


def test_when_the_hub_stops_all_that_has_an_id_is_answered(hub: WithHttp) -> None:
    opened, (entered, go_on) = open_line(hub), slow_verb(hub)
    opened.sendall(framed(Request("test.slow", id=1)) + framed(Request("test.slow", id=2)))
    assert entered.wait(60)
    wait_until(lambda: next(iter(lines_of(hub).connections))._under_way == 2, "both to be begun")
    stop_while_slow(hub, go_on)
    *done, last = answers(opened)
    assert [(answer.id, bytes(answer.result)) for answer in done] == [(1, b"7"), (2, b"7")]
    assert last.last
