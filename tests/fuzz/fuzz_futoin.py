"""Fuzz target: any bytes end in a request, an answer, or an error of FTN3; never in anything else.

By hand, for longer: `python tests/fuzz/fuzz_futoin.py [seconds] [seed]`, or point atheris at `fuzz`.
"""

from __future__ import annotations

import contextlib
import json
import random
import sys
import time
from pathlib import Path

from headrace.protocols.futoin import codec, credentials, events, mac
from headrace.protocols.futoin.codec import Coding, Deviation
from headrace.protocols.futoin.errors import FutoinError, PeerError
from headrace.protocols.futoin.interface import AddEvent

VECTORS = Path(__file__).parents[1] / "conformance" / "vectors" / "futoin.json"
STANDARD_ERRORS = {
    "UnknownInterface", "NotSupportedVersion", "NotImplemented", "InvalidRequest", "SecurityError",
}  # fmt: skip


def fuzz(data: bytes) -> None:
    """One input as a message in every coding, and as stored payloads."""
    for coding in Coding:
        fuzz_message(codec.PREFIXES[coding] + data, coding)
    fuzz_message(data, codec.coding_of(data))
    cut = data[0] if data else 0
    for payloads in ([data], [data[:cut], data[cut:], b"1"]):
        for coding in Coding:
            found = events.event_data(payloads, coding)[0]
            assert len(found) == len(payloads)
            # Whatever was stored, the event can be encoded, and a consumer can decode it.
            for value in found:
                event = codec.Event("1", "A", value, "2026-01-01T00:00:00Z")
                codec.decode_object(codec.encode_object(event, coding), coding)


def fuzz_message(data: bytes, coding: Coding) -> None:
    try:
        message = codec.decode(data, coding)
    except codec.Undecodable:
        return
    fields = None
    with contextlib.suppress(codec.Undecodable):  # an event's data is looked at later than the rest
        fields = codec.decode_object(data, coding)
    if isinstance(fields, dict):
        try:
            mac.base(fields)
            credentials.parse(fields.get("sec") if isinstance(fields.get("sec"), str | dict) else None)
        except (FutoinError, RecursionError) as error:
            check_name(error)
    if isinstance(message, Deviation):
        if message.is_answer:
            codec.answer(message.fields)
        error = codec.explain(message.fields, authenticated=len(data) % 2 == 0, check=lambda interface: None)
        check_name(error)
        codec.decode_object(codec.failure(error, message.rid, coding), coding)
    elif isinstance(message.p, AddEvent):
        try:
            payload = codec.event_payload(message.p.data, coding, 10_000)
        except PeerError as error:
            check_name(error)
        else:
            json.loads(payload)


def check_name(error: Exception) -> None:
    """What is refused is refused by a name that FTN3 knows."""
    assert isinstance(error, RecursionError) or error.name in STANDARD_ERRORS  # type: ignore[attr-defined]


def seeds() -> list[bytes]:
    """The captured messages."""
    found = []
    for vector in json.loads(VECTORS.read_text()):
        raw = bytes.fromhex(vector["hex"]) if "hex" in vector else vector["text"].encode()
        found.append(raw.partition(b"\r\n\r\n")[2] if vector["kind"].startswith("http-re") else raw)
    return found


def mutated(seed: bytes, randomness: random.Random) -> bytes:
    data = bytearray(seed)
    for _ in range(randomness.randrange(1, 6)):
        at = randomness.randrange(len(data) + 1)
        what = randomness.randrange(4)
        if what == 0 and at < len(data):
            data[at] = randomness.randrange(256)
        elif what == 1:
            data[at:at] = randomness.choice([b"[", b"{", b'"', b",", b":", b"null", b"\\u", b"\xff", b"1e999", b"\xdf"])
        elif what == 2:
            del data[at : at + randomness.randrange(1, 8)]
        else:
            data[at:at] = data[: randomness.randrange(16)]
    return bytes(data)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    randomness = random.Random(seed)
    known = seeds()
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline:
        data = mutated(randomness.choice(known), randomness)
        try:
            fuzz(data)
        except BaseException:
            print(f"seed {seed}, input {count}: {data!r}")
            raise
        count += 1
    print(f"{count} inputs, seed {seed}")


if __name__ == "__main__":
    main()
