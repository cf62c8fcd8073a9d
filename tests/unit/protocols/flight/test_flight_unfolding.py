"""Arrow's default pool has an end in a hub's process, and only there."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.protocols.flight import unfolding

SCRIPT = """
import os
from headrace.protocols.flight import unfolding
print(unfolding.bound(int(os.environ["WANTED"])))
import pyarrow as pa
flight = pa.mimalloc_memory_pool()
for pool in (flight, pa.default_memory_pool()):
    for size in (100, 300):
        try:
            pa.allocate_buffer(size << 20, memory_pool=pool)
            print("ok")
        except pa.ArrowMemoryError:
            print("no room")
print([name for name in os.environ if "MIMALLOC" in name or "ARROW_DEFAULT" in name])
"""


def run(wanted: int, **more: str) -> list[str]:
    environment = {**os.environ, "WANTED": str(wanted), **more}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True)
    return done.stdout.split("\n")[:-1]


def test_what_flight_unfolds_has_an_end_and_the_rest_of_the_process_has_not() -> None:
    pytest.importorskip("pyarrow").mimalloc_memory_pool()
    assert run(256 << 20) == ["True", "ok", "no room", "ok", "ok", "[]"]


def test_it_is_left_alone_where_someone_else_has_chosen() -> None:
    assert run(0)[0] == "False"
    assert run(256 << 20, ARROW_DEFAULT_MEMORY_POOL="system")[0] == "False"
    assert unfolding.bound(256 << 20) is False  # pyarrow is here already


def test_the_command_that_starts_a_hub_leaves_arrow_to_be_bounded() -> None:
    """What imports pyarrow before `bound` makes it bound nothing."""
    program = "import sys, headrace.cli.main, headrace.cli.up; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
