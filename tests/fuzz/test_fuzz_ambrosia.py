"""A short run of the fuzz target: random bytes, and vectors with a few bytes changed."""

from __future__ import annotations

import json
import random
from pathlib import Path

from fuzz.fuzz_ambrosia import fuzz
from hypothesis import given, settings
from hypothesis import strategies as st

VECTORS = json.loads((Path(__file__).parents[1] / "conformance" / "vectors" / "ambrosia.json").read_text())
SEEDS = [bytes.fromhex(vector["hex"]) for vector in VECTORS if len(vector["hex"]) < 400]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    fuzz(data)


def test_changed_vectors() -> None:
    chance = random.Random(7)
    for _ in range(4000):
        data = bytearray(b"".join(chance.choices(SEEDS, k=chance.randint(1, 4))))
        for _ in range(chance.randint(0, 3)):
            if data:
                data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data) + 1) :]
        fuzz(bytes(data))
