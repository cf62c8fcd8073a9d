"""A short, seeded run of the Perper fuzz targets."""

from __future__ import annotations

import random

import pytest
from fuzz.fuzz_perper import SEEDS, fuzz, mutate
from hypothesis import given
from hypothesis import strategies as st


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    fuzz(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_seeds(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(250):
        fuzz(mutate(source))


def test_the_seeds_themselves() -> None:
    for data in SEEDS:
        fuzz(data)
