"""Fuzz target: any bytes, from any state, end in frames or in a `PeerFault`; never in anything else.

By hand, for longer: `python tests/fuzz/fuzz_wallaroo.py [seconds] [seed]`, or point atheris at `fuzz`.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from pathlib import Path

from headrace.protocols.wallaroo import two_phase
from headrace.protocols.wallaroo.codec import DRAFT, V3
from headrace.protocols.wallaroo.codec_v2 import V2_2018_12, V2_2019_03
from headrace.protocols.wallaroo.frames import PeerFault
from headrace.protocols.wallaroo.requests import Greet, Open, Store
from headrace.protocols.wallaroo.scan import FrameBuffer, Rows
from headrace.protocols.wallaroo.session import ServerSession

VECTORS = Path(__file__).parents[1] / "conformance" / "vectors" / "wallaroo.json"


def fuzz(data: bytes) -> None:
    """One input through every parser and through a whole session, split where its first byte says."""
    for dialect in (DRAFT, V3, V2_2018_12, V2_2019_03):
        try:
            frame = dialect.decode(data)
        except PeerFault:
            continue
        # What decodes can be encoded, and then means the same.
        assert dialect.decode(dialect.encode(frame)[4:]) == frame
    with contextlib.suppress(PeerFault):
        assert two_phase.decode(two_phase.encode(two_phase.decode(data))) == two_phase.decode(data)
    cut = data[0] if data else 0
    for buffer in (FrameBuffer(), FrameBuffer(dialect=DRAFT), FrameBuffer(dialect=V3)):
        try:
            for part in (data[:cut], data[cut:]):
                buffer.feed(part)
                while (item := buffer.next()) is not None:
                    if isinstance(item, Rows):
                        assert len(item.payloads()) == item.count
                        item.keys()
                        item.times(1, 1)
        except PeerFault:
            pass
    for hello in HELLOS:
        run_session(hello + data, cut)


def run_session(data: bytes, cut: int) -> None:
    """A session whose hub says yes to everything at once."""
    session = ServerSession()
    waiting = session.receive(data[:cut]) + session.receive(data[cut:])
    while waiting:
        request = waiting.pop(0)
        if isinstance(request, Greet):
            waiting += session.greeted([(1, 5)])
        elif isinstance(request, Open):
            waiting += session.opened(request.stream_id, request.point)
        elif isinstance(request, Store):
            waiting += session.stored(request.ticket)
        session.take_output()
    assert session.credits.used >= session.credits.due >= 0


def seeds() -> list[bytes]:
    return [bytes.fromhex(vector["hex"]) for vector in json.loads(VECTORS.read_text())]


HELLOS = [
    b"",
    bytes.fromhex("00000010000005302e302e310000000170000169"),
    bytes.fromhex("1000000048" + "0500302e302e31" + "0000" + "010070" + "010069"),
]


def mutate(rng: random.Random, corpus: list[bytes]) -> bytes:
    data = bytearray(b"".join(rng.choices(corpus, k=rng.randint(1, 4))))
    for _ in range(rng.randint(0, 6)):
        match rng.randint(0, 3):
            case 0 if data:
                data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
            case 1 if data:
                start = rng.randrange(len(data))
                del data[start : start + rng.randint(1, 8)]
            case 2:
                at = rng.randint(0, len(data))
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                data += rng.choice(corpus)[: rng.randint(0, 40)]
    return bytes(data[4 if rng.random() < 0.3 else 0 :])


def main(seconds: float, seed: int) -> int:
    rng = random.Random(seed)
    corpus = seeds()
    end = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < end:
        data = mutate(rng, corpus)
        try:
            fuzz(data)
        except Exception:
            print(f"seed {seed}, run {runs}: {data.hex()}", file=sys.stderr)
            raise
        runs += 1
    return runs


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "60", "1"]
    print(main(float(arguments[0]), int(arguments[1])), "inputs, no surprise")
