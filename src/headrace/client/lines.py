"""Asking the hub without gRPC: plain connections, one for each thread that asks at the same time.

A client that asks often has the hub offer it a line (`protocols/flight/requests.py`), which a thread opens while
requests are still calls. They are calls again whenever there is no line: at a hub that knows none, behind a firewall or
a tunnel, after a takeover.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable

from headrace.config.address import split_address
from headrace.errors import Busy, HeadraceError, Unauthenticated, Unreachable
from headrace.protocols.flight.codec import error_from_body
from headrace.protocols.flight.requests import (
    LENGTH_BYTES,
    PATH,
    PROOF_HEADER,
    REQUEST_BYTES_MAX,
    TICKET_HEADER,
    UPGRADE,
    Answer,
    LineOffer,
    client_proof,
    decode_answer,
    hub_proof,
)

# A client with fewer requests than this needs no line.
CALLS_BEFORE = 4
# As many as the async client has threads.
LINES_MAX = 64
OPEN_S = 2.0
# After an attempt in vain.
PAUSE_S = 30.0
HEAD_BYTES_MAX = 8 << 10
RECEIVE_BYTES = 64 << 10


class NotTaken(Exception):
    """There is no line, or it has ended: the request was not done, and may be a call."""


class Line:
    """An open line. One thread at a time asks."""

    def __init__(self, host: str, offer: LineOffer, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        """`host` is the name of the hub, as the client knows it. Raises OSError, also for a stranger at the address."""
        assert offer.address is not None
        self.request_bytes_max = offer.request_bytes_max
        self.requests_max = offer.requests_max
        self._process = os.getpid()
        self._received = b""
        connected = socket.create_connection((host, split_address(offer.address)[1]), OPEN_S)
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = connected if tls is None else tls.wrap_socket(connected, server_hostname=host)
            self._greet(host, offer)
            self._socket.settimeout(timeout_s)
        except BaseException:
            connected.close()
            raise

    def _greet(self, host: str, offer: LineOffer) -> None:
        head = f"GET {PATH} HTTP/1.1\r\nhost: {host}\r\nconnection: upgrade\r\nupgrade: {UPGRADE}\r\n"
        self._socket.sendall(f"{head}{TICKET_HEADER}: {offer.ticket}\r\n\r\n".encode())
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            self._receive()
            if len(self._received) > HEAD_BYTES_MAX:
                raise OSError("what answers at the hub's HTTP address is not a hub")
        status, *headers = self._received[:end].lower().split(b"\r\n")
        self._received = self._received[end + 4 :]
        shown = dict(header.partition(b": ")[::2] for header in headers).get(PROOF_HEADER.encode(), b"")
        if b" 101 " not in status or not hmac.compare_digest(shown, hub_proof(offer.secret)):
            raise OSError("what answers at the hub's HTTP address is not the hub that made the offer")
        self._socket.sendall(client_proof(offer.secret))

    @property
    def is_usable(self) -> bool:
        """Whether it is this process's, and nothing has come that nobody asked for: a last answer, or the end."""
        return self._process == os.getpid() and not select.select([self._socket], [], [], 0)[0]

    def ask(self, request: bytes) -> Answer:
        """The answer; `NotTaken` if the hub ended the line before it took the request."""
        try:
            with contextlib.suppress(ConnectionError):  # the hub may have said why: that is to be read
                self._socket.sendall(request)
            while len(self._received) < LENGTH_BYTES:
                self._receive()
            end = LENGTH_BYTES + int.from_bytes(self._received[:LENGTH_BYTES], "big")
            while len(self._received) < end:
                self._receive()
        except TimeoutError:
            raise Busy("the hub did not answer in time") from None
        except OSError as error:
            raise Unreachable(f"the connection to the hub broke before its answer: {error}") from None
        answer = decode_answer(self._received[LENGTH_BYTES:end])
        self._received = self._received[end:]
        if answer.last:
            why = None if answer.error is None else error_from_body(answer.error)
            raise why if isinstance(why, Unauthenticated) else NotTaken
        return answer

    def _receive(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise OSError("it was closed")
        self._received += data

    def give_up(self) -> socket.socket | None:
        """The connection, for somebody else to use. None with TLS, which cannot change hands."""
        if isinstance(self._socket, ssl.SSLSocket) or self._received:
            return None
        return self._socket.dup()

    def close(self) -> None:
        """Ask nothing more."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __del__(self) -> None:
        # Of a client that nobody has closed.
        if hasattr(self, "_socket"):
            self.close()


class Lines:
    """The lines of one connection, for any number of threads."""

    def __init__(self, open_line: Callable[[], Line | None]) -> None:
        """`open_line` has the hub offer one, and opens it; None where there are none."""
        self._open_line = open_line
        self._idle: list[Line] = []
        self._count = 0  # with those in use
        self._asked = 0
        self._opening = False
        self._not_before = 0.0
        self._generation = 0
        self._lock = threading.Lock()  # guards the six above
        self._request_bytes_max = REQUEST_BYTES_MAX  # as the last offer had it

    def ask(self, request: bytes) -> Answer:
        """The answer to a request, if there is a line for it."""
        if len(request) - LENGTH_BYTES > self._request_bytes_max:
            raise NotTaken
        line, generation = self._take()
        try:
            answer = line.ask(request)
        except BaseException:  # also Ctrl-C: what comes on this line now answers nobody
            self._drop(line, generation)
            raise
        with self._lock:
            if generation == self._generation:
                self._idle.append(line)
                return answer
        line.close()
        return answer

    def _take(self) -> tuple[Line, int]:
        with self._lock:
            self._asked += 1
            while self._idle:
                line = self._idle.pop()
                if line.is_usable:
                    return line, self._generation
                self._count -= 1
                line.close()
            self._want()
        raise NotTaken

    def _drop(self, line: Line, generation: int) -> None:
        line.close()
        with self._lock:
            if generation == self._generation:
                self._count -= 1

    def _want(self) -> None:
        """Have one more opened, if that is worth it."""
        is_due = self._asked > CALLS_BEFORE and time.monotonic() >= self._not_before
        if is_due and not self._opening and self._count < LINES_MAX:
            self._opening = True
            threading.Thread(target=self._open, args=(self._generation,), name="headrace-line", daemon=True).start()

    def _open(self, generation: int) -> None:
        line = None
        with contextlib.suppress(HeadraceError, OSError):
            line = self._open_line()
        with self._lock:
            self._opening = False
            if line is None:
                self._not_before = time.monotonic() + PAUSE_S
            elif generation == self._generation:
                self._idle.append(line)
                self._count += 1
                self._request_bytes_max = line.request_bytes_max
                return
        if line is not None:
            line.close()

    def close(self) -> None:
        """End all of them: those in use when their answer is there. New ones may be opened, at another hub."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._count = 0
            self._asked = 0
            self._not_before = 0.0
            self._generation += 1
        for line in idle:
            line.close()
