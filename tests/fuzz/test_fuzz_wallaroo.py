"""A short seeded run of the fuzz target, for CI."""

from __future__ import annotations

import random

from fuzz.fuzz_wallaroo import fuzz, mutate, seeds
from hypothesis import given, settings
from hypothesis import strategies as st


def test_seeds_as_they_are() -> None:
    for data in seeds():
        fuzz(data)
        fuzz(data[4:])


def test_mutated_seeds() -> None:
    rng = random.Random(20181025)
    corpus = seeds()
    for _ in range(300):
        fuzz(mutate(rng, corpus))


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes(data: bytes) -> None:
    fuzz(data)
