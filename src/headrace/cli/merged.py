"""Records of all partitions of a stream, in the order in which the hub accepted them."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from headrace.cli.output import notes

if TYPE_CHECKING:
    from headrace.client import Client, Record

MERGED_MAX = 64
"""With more partitions than this, one is read after the other: each of those that are merged is a read of its own."""


def read_all(client: Client, stream: str, partitions: int, limit: int | None, **options: Any) -> Iterator[Record]:
    """Records by time; of more partitions than can be merged, by partition and index."""
    if partitions > MERGED_MAX:
        notes().print(f"{partitions} partitions, one after the other; --partition reads one of them", style="dim")
        yield from client.read(stream, partition=None, limit=limit, **options)
        return
    with ExitStack() as open_readers:
        readers = [
            open_readers.enter_context(client.read([stream], partition=number, limit=limit, **options))
            for number in range(partitions)
        ]
        merged = heapq.merge(*readers, key=lambda record: (record.time, record.partition, record.index))
        yield from itertools.islice(merged, limit)
