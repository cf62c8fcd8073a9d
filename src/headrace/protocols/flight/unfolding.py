"""Arrow unfolds what a client has compressed before anybody here sees it: 33 KB may become a gigabyte.

The Flight server is Arrow's own, and offers no place to look at a batch first. What it unfolds comes from Arrow's
default pool, and that pool can be given an end: mimalloc takes no memory but what it has reserved. So the default pool
is bounded and left to Flight, and everything that Headrace itself does with Arrow uses another. A batch that finds no
room is refused; nothing else is harmed.

To be called before pyarrow is imported: mimalloc reads its settings when it is loaded.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from headrace.units import KIB

POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
POOL_MIN_BYTES: Final = 64 * KIB * KIB
"""With less than an arena of its own mimalloc does not start."""


def bound(bytes_max: int) -> bool:
    """Give Arrow's default pool an end. False where that cannot be: whoever chose a pool keeps it, and so does whoever
    has imported pyarrow already."""
    if not bytes_max or "pyarrow" in sys.modules or POOL in os.environ:
        return False
    settings = {
        POOL: "mimalloc",
        "MIMALLOC_DISALLOW_OS_ALLOC": "1",
        "MIMALLOC_RESERVE_OS_MEMORY": f"{max(bytes_max, POOL_MIN_BYTES) // KIB}KiB",
    }
    os.environ.update(settings)
    try:
        import pyarrow as pa

        backend = pa.default_memory_pool().backend_name  # and asked for, since Arrow chooses when it is first asked
    finally:
        for name in settings:  # processes that are started from here, such as Spark's, have pools of their own
            del os.environ[name]
    if backend != "mimalloc":
        return False
    has_jemalloc = "jemalloc" in pa.supported_memory_backends()
    pa.set_memory_pool(pa.jemalloc_memory_pool() if has_jemalloc else pa.system_memory_pool())
    return True
