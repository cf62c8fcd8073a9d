"""Fuzz targets of the Perper parsers. `fuzz(data)` must return for any bytes; anything it raises is a bug.

By hand, for as long as you like: `python tests/fuzz/fuzz_perper.py SECONDS [SEED]`.
"""

from __future__ import annotations

import random
import sys
import time
from uuid import UUID

from headrace.protocols.perper.errors import FrameError, PeerError
from headrace.protocols.perper.fabric import codec as fabric
from headrace.protocols.perper.fabric import descriptors, http2
from headrace.protocols.perper.ignite import binary, codec
from headrace.protocols.perper.ignite.session import Session, State
from headrace.protocols.perper.records import read_execution, read_listener

HELLO = codec.encode_handshake(codec.Handshake((1, 7, 0), 2, b"\x04"))
MESSAGES = sorted(descriptors.MESSAGES)


def fuzz_session(data: bytes) -> None:
    """The thin protocol, from the handshake on."""
    session = Session(UUID(int=0), 1 << 16, binary.Limits(16))
    try:
        handshake = session.receive_handshake(data if data[:1] == b"\0" else HELLO)
        if handshake is None or session.state is not State.LOGIN:
            return
        session.welcome(handshake)
        for request in session.receive(data[1:]):
            if isinstance(request, codec.Request) and request.op not in (2000,):
                codec.encode_request(request)
    except FrameError:
        return


def fuzz_binary(data: bytes) -> None:
    """The walker of binary objects, and the two records the fabric reads."""
    try:
        value, after = binary.read_object(data, 0, len(data), binary.Limits(16))
    except PeerError:
        return
    assert 0 < after <= len(data)
    wrapped = binary.wrap(value)
    assert binary.skip(wrapped, 0, len(wrapped)) == len(wrapped)
    for read in (read_execution, read_listener):
        try:
            read(value, lambda type_id, schema_id: (binary.field_id("agent"), binary.field_id("stream")))
        except PeerError:
            continue


def fuzz_messages(data: bytes) -> None:
    """The gRPC messages."""
    if not data:
        return
    kind = descriptors.MESSAGES[MESSAGES[data[0] % len(MESSAGES)]]
    try:
        message = fabric.decode(kind, data[1:])
    except fabric.MessageError:
        return
    assert fabric.decode(kind, message.SerializeToString()) == message


def fuzz_http2(data: bytes) -> None:
    """HTTP/2 under gRPC, with the preface in place half of the time."""
    client = http2.GrpcConnection(client=True)
    server = http2.GrpcConnection(client=False)
    if data[:1] < b"\x80":
        client.start_call("h", "/perper.Fabric/Executions")
        server.receive(client.data_to_send())
    server.receive(data[1:])
    server.data_to_send()


TARGETS = (fuzz_session, fuzz_binary, fuzz_messages, fuzz_http2)


def fuzz(data: bytes) -> None:
    """All targets."""
    for target in TARGETS:
        target(data)


SEEDS = (
    codec.encode_request(codec.Request(1001, 1, (binary.encode_long(1), binary.encode_string("x")), 5)),
    codec.encode_request(codec.Request(1004, 1, ([(binary.encode_long(1), binary.encode_string("x"))],), 5)),
    codec.encode_request(codec.Request(2000, 1, (b"\x65", 1, -1, False), 5)),
    codec.encode_request(codec.Request(1052, 1, ("name",))),
    b"\x17"
    + b"\xff" * 4
    + b"\x02\0\0\0"
    + binary.encode_long(5)
    + binary.encode_complex(922529474, [(92750597, b"\x65")]),
    binary.encode_complex(-1232432076, [(-891990144, binary.encode_string("s")), (747804969, binary.encode_long(5))]),
    b"\x19\x01\0\0\0\x01" + binary.encode_string("k") + b"\x1b\x02\0\0\0\x08\x01\0\0\0\0",
    fabric.encode(
        descriptors.MESSAGES["perper.ReservedExecutionsRequest"], {"reserveNext": 1, "filter": {"agent": "a"}}
    ),
    b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01" + b"\0\0\0\x04\x01\0\0\0\0",
)


def mutate(source: random.Random) -> bytes:
    """A seed with some bytes changed, doubled, cut or joined to another."""
    data = bytearray(source.choice(SEEDS))
    for _ in range(source.randint(0, 6)):
        at = source.randrange(len(data) + 1)
        action = source.randrange(5)
        if action == 0 and at < len(data):
            data[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF, 0x65, 0x67, 0x1B, source.randrange(256)))
        elif action == 1:
            data[at:at] = source.randbytes(source.randint(1, 8))
        elif action == 2:
            del data[at : at + source.randint(1, 6)]
        elif action == 3:
            data[at:at] = source.choice(SEEDS)
        else:
            data[at : at + 4] = source.choice((0, -1, 2**31 - 1, 1 << 20)).to_bytes(4, "little", signed=True)
    return bytes((source.randrange(256),)) + bytes(data) if source.random() < 0.5 else bytes(data)


def main(seconds: float, seed: int) -> int:
    source, end, count = random.Random(seed), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        data = mutate(source)
        try:
            fuzz(data)
        except BaseException:
            print(f"seed {seed}, input {count}: {data.hex()}", file=sys.stderr)
            raise
        count += 1
    print(f"{count} inputs, no trouble (seed {seed})")
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
