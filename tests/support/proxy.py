"""A TCP proxy for tests: all that comes goes on, both ways, until it is told to swallow the answers."""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK = 1 << 16


class Proxy:
    """Listens on a port of its own from the start; `target` is where it leads."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.swallows = False
        """Requests go on; answers are read and thrown away, and the connection stays: nobody learns of it."""
        self.accepted = 0
        """Connections, so far."""
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:  # closed
                return
            self.accepted += 1
            try:
                assert self.target is not None
                far = socket.create_connection(self.target, 10)
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink, is_answer in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._move, args=(source, sink, is_answer), daemon=True).start()

    def _move(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if not (is_answer and self.swallows):
                    sink.sendall(data)
        self._end(source, sink)

    def _end(self, *ends: socket.socket) -> None:
        with self._lock:
            gone = self._open.intersection(ends)
            self._open -= gone
        for end in gone:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """End all connections. A half answer must not be followed by the rest of another."""
        self._end(*self._open)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()
