from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.connect import app
from headrace.protocols.wallaroo import two_phase
from headrace.protocols.wallaroo.codec import V3
from headrace.protocols.wallaroo.frames import Eos, Message
from headrace.protocols.wallaroo.trace import GENERATIONS, read_trace

VECTORS = Path(__file__).parents[3] / "conformance" / "vectors" / "wallaroo.json"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_vector_of_a_generation_in_one_capture(generation: str) -> None:
    vectors = [v for v in json.loads(VECTORS.read_text()) if v["dialect"] == generation and "literal" not in v["name"]]
    data = b"".join(bytes.fromhex(vector["hex"]) for vector in vectors)
    seen = list(read_trace(data, GENERATIONS[generation]))
    assert len(seen) == len(vectors)
    assert all(each.fault is None for each in seen)
    assert [each.inner is not None for each in seen] == ["two_pc" in vector["fields"] for vector in vectors]


def test_a_fault_does_not_hide_what_comes_behind_it(tmp_path: Path) -> None:
    data = b"\0\0\0\x01\xee" + V3.encode(Eos(1)) + V3.encode(Message(0, 1, b"\x01")) + b"\0\0\0\x09\x08"
    bad, good, plain, cut = read_trace(data, V3)
    assert bad.fault is not None
    assert "unknown tag 238" in bad.fault
    assert (good.offset, good.frame) == (5, Eos(1))
    assert plain.inner is None
    assert cut.fault == "the capture ends in the middle of a frame"
    path = tmp_path / "capture"
    path.write_bytes(data + b"\0")
    result = CliRunner().invoke(app, ["trace", str(path)])
    assert result.exit_code == 0
    assert "Eos(stream_id=1)" in result.output


def test_an_inner_message_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "capture"
    path.write_bytes(V3.encode(two_phase.wrap(two_phase.ListUncommitted(7))))
    assert "ListUncommitted(request=7)" in CliRunner().invoke(app, ["trace", str(path)]).output
    assert CliRunner().invoke(app, ["trace", str(path), "--generation", "v1"]).exit_code == 2
