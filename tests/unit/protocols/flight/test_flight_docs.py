"""The pages say what the code does, and their programs run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.protocols.flight import codec, puts
from headrace.protocols.flight.settings import Flight
from headrace.testing import served_hub

ROOT = Path(__file__).parents[4]
PROTOCOL = ROOT / "docs" / "protocols" / "flight.md"
PYTHON = ROOT / "docs" / "how-to" / "python.md"
TEXT = PROTOCOL.read_text(encoding="utf-8")


def test_every_test_that_is_named_exists():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    assert len(named) > 15
    assert {name for name in named if f"def {name}(" not in sources} == set()


@pytest.mark.parametrize("kind", [codec.ReadTicket, codec.SqlTicket, codec.PutCommand])
def test_every_field_is_explained(kind):
    explained = set(re.findall(r"`(\w+)`", TEXT))
    assert set(kind.__struct_fields__) <= explained


def test_every_verb_of_the_nouns_is_listed():
    with served_hub() as served:
        names = {verb.name for verb in served.hub.verbs}
    assert names == set(re.findall(r"`((?:stream|cursor|table|producer|checkpoint|sql)\.[a-z-]+)`", TEXT))


def test_the_limits_stand_as_they_are():
    assert codec.BATCH_BYTES_DEFAULT == 2 << 20
    assert codec.BATCH_BYTES_MAX == 64 << 20
    assert Flight().action_bytes_max == 32 << 20
    assert codec.MESSAGE_BYTES_MAX == 4 << 20
    assert puts.UNDER_WAY_BYTES_MAX == 32 << 20
    assert Flight().puts_bytes_max == 64 << 20
    for number in (puts.ACKS_WAITING_MAX, codec.RANGES_MAX):
        assert f"{number:,}" in TEXT


@pytest.mark.slow
@pytest.mark.parametrize("page", [PROTOCOL, PYTHON], ids=lambda page: page.stem)
def test_the_programs_of_a_page_run(page):
    programs = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert programs
    with served_hub() as served:
        whole = "\n".join(program.replace("127.0.0.1:7070", served.address) for program in programs)
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", whole],
            env={"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
