"""The fuzz target for seconds: the published vectors, mutations of them, and whatever Hypothesis thinks of."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("fuzz_ockam", HERE / "fuzz_ockam.py")
assert _spec is not None
assert _spec.loader is not None
target = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(target)

VECTORS = json.loads((HERE.parent / "conformance" / "vectors" / "ockam.json").read_text())
SEEDS = [bytes.fromhex(vector["hex"]) for vector in VECTORS]


@pytest.mark.parametrize("seed", SEEDS, ids=[vector["name"] for vector in VECTORS])
def test_vectors(seed: bytes) -> None:
    target.fuzz(seed)
    target.fuzz(seed * 3)


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes(data: bytes) -> None:
    target.fuzz(data)


def mutate(source: random.Random) -> bytes:
    """Some vectors one after the other, with bytes changed, doubled and cut out."""
    data = bytearray(b"".join(source.choices(SEEDS, k=source.randint(1, 4))))
    for _ in range(source.randint(0, 6)):
        at = source.randrange(len(data) + 1)
        match source.randrange(4):
            case 0 if at < len(data):
                data[at] = source.choice([0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)])
            case 1:
                del data[at : at + source.randint(1, 4)]
            case 2:
                data[at:at] = source.randbytes(source.randint(1, 4))
            case 3:
                data[at:at] = data[at : at + source.randint(1, 30)]
    return bytes(data)


def test_mutated_vectors() -> None:
    source = random.Random(20210420)
    for _ in range(15_000):
        target.fuzz(mutate(source))
