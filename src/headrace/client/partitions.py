"""Which partition a key belongs to: the same one for the same key, in every program.

    partition = XXH64(key, seed 0) mod number of partitions

A stream that gets more partitions has other places for its keys from then on, as with every log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import xxhash

KNOWN_S = 10.0
"""So long a client takes the number of partitions for known."""


def partition_of(key: bytes, partitions: int) -> int:
    """Where records with this key are."""
    return int(xxhash.xxh64_intdigest(key)) % partitions


def by_partition(batch: pa.RecordBatch, partitions: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records of a batch by where their keys belong, in their order; those without a key are in partition 0."""
    if partitions == 1 or "key" not in batch.schema.names:
        yield 0, batch
        return
    keys = batch.column("key").to_pylist()
    places = [0 if key is None else partition_of(key, partitions) for key in keys]
    for partition in sorted(set(places)):
        rows = [row for row, place in enumerate(places) if place == partition]
        yield partition, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


class Partitions:
    """How many partitions streams have, as last seen."""

    def __init__(self, ask: Callable[[str], int]) -> None:
        self._ask = ask
        self._known: dict[str, tuple[int, float]] = {}

    def of(self, stream: str) -> int:
        """Of one; it may have more since `KNOWN_S`."""
        count, until = self._known.get(stream, (0, 0.0))
        if time.monotonic() >= until:
            count = self._ask(stream)
            self._known[stream] = (count, time.monotonic() + KNOWN_S)
        return count
