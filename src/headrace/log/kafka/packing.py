"""Compression by the hub, inside its messages: to brokers and to Kafka's client they are bytes like any others.

A broker that gets a compressed batch unpacks it to look into it, and a client compresses whatever it is given, however
small. Here each body is packed by itself, if it is large enough to be worth it.

    packed := codec:u8 zero:u8 × 3 size:u32 data        little endian; the size is that of what was packed
    codec  := 1 gzip | 2 snappy | 3 lz4 (a block) | 4 zstd
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

HEAD = struct.Struct("<BxxxI")
WORTH_BYTES = 2048
"""Less is sent as it is: its acknowledgement would come later, and nobody would notice the bytes."""
SIZE_MAX = 4 * 1024 * 1024
"""Of anything that is unpacked: more was not packed by a hub."""
ZSTD_LEVEL = 1


class _Codec(NamedTuple):
    number: int
    codec: pa.Codec


_CODECS = {
    "gzip": _Codec(1, pa.Codec("gzip")),
    "snappy": _Codec(2, pa.Codec("snappy")),
    "lz4": _Codec(3, pa.Codec("lz4_raw")),
    "zstd": _Codec(4, pa.Codec("zstd", ZSTD_LEVEL)),
}
"""By the names of `log.kafka.compression`; `none` is not among them."""
_BY_NUMBER = {each.number: each.codec for each in _CODECS.values()}


class BadPacking(Exception):
    """It was not packed like this."""


def pack(data: bytes, compression: str) -> bytes | None:
    """None when it is better sent as it is."""
    found = _CODECS.get(compression)
    if found is None or len(data) < WORTH_BYTES:
        return None
    packed = found.codec.compress(data)
    if HEAD.size + packed.size >= len(data):
        return None
    return b"".join((HEAD.pack(found.number, len(data)), packed))


def unpack(data: bytes) -> bytes:
    """What was packed. Whoever has the bytes has checked them: a wrong size need not be noticed."""
    if len(data) < HEAD.size:
        raise BadPacking("it is too short")
    number, size = HEAD.unpack_from(data)
    codec = _BY_NUMBER.get(number)
    if codec is None:
        raise BadPacking(f"it has codec {number}, which this version does not know: use a newer one")
    if size > SIZE_MAX:
        raise BadPacking(f"it says that it holds {size} bytes, and {SIZE_MAX} is the most")
    try:
        found: bytes = codec.decompress(memoryview(data)[HEAD.size :], size, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise BadPacking(str(error)) from error
    return found
