"""The Python binding without its sockets, fed by a hub of one immortal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.engine import Engine
from headrace.protocols.ambrosia.client import Immortal
from headrace.protocols.ambrosia.codec import Type, encode_record, encode_signal_record
from headrace.protocols.ambrosia.record_reader import RecordReader


class Log:
    """A hub of one immortal: numbers messages and keeps them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sequence = 0
        self.records: list[bytes] = []
        self.sent: list[codec.Message] = []
        self.blob = b""

    def start(self) -> None:
        self._feed(encode_signal_record(1, Type.TAKE_BECOMING_PRIMARY_CHECKPOINT))

    def log(self, *messages: codec.Message) -> None:
        data = encode_record(1, self.sequence, b"".join(map(codec.encode, messages)))
        self.sequence += 1
        self.records.append(data)
        self._feed(data)

    def signal(self, kind: Type) -> None:
        self._feed(encode_signal_record(1, kind))

    def _feed(self, data: bytes) -> None:
        for item in RecordReader().feed(data):
            self.engine.receive(item)
        out = self.engine.take_output()
        at = 0
        while at < len(out):
            size, at = codec.read_int(out, at, len(out))
            message = codec.decode(out, at, at + size, addressed=True)
            at += size
            self.sent.append(message)
            if isinstance(message, codec.Checkpoint):
                self.blob = out[at : at + message.size]
                at += message.size

    def recovered(self, factory: Callable[[], Immortal]) -> Log:
        """Another engine that is given the last checkpoint."""
        other = Log(Engine(factory, self.engine.name))
        other._feed(codec.encode_checkpoint_record(1, len(self.blob)) + self.blob)
        other.sequence = self.sequence
        return other


def call_of(cls: type[Immortal], name: str, **arguments: Any) -> codec.Call:
    method = next(each for each in cls.__methods__.values() if each.name == name)
    caller = b"me" if method.rpc_type == 0 else b""
    return codec.Call(method.id, method.rpc_type, method.encode((), arguments), None, caller, 1 if caller else 0)
