import io
import json
import logging
from collections.abc import Iterator

import pytest

from headrace.config import LoggingSection
from headrace.telemetry import log_lines


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    root = logging.getLogger("headrace")
    before = root.handlers[:], root.level, root.propagate
    yield logging.getLogger("headrace.test")
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def test_json_is_one_object_per_line(logger: logging.Logger) -> None:
    stream = io.StringIO()
    log_lines.set_up(LoggingSection(), stream)
    logger.info("two\nlines", extra=log_lines.fields(stream="orders", count=3))
    logger.debug("not shown")
    (line,) = stream.getvalue().splitlines()
    entry = json.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "headrace.test",
        "message": "two\nlines",
        "stream": "orders",
        "count": 3,
    }


def test_text_is_for_people(logger: logging.Logger) -> None:
    stream = io.StringIO()
    log_lines.set_up(LoggingSection(format="text", level="warning"), stream)
    logger.info("not shown")
    logger.warning("disk is nearly full", extra=log_lines.fields(free_bytes=10))
    assert stream.getvalue()[12:] == " WARNING test: disk is nearly full free_bytes=10\n"


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_keeps_its_traceback(logger: logging.Logger, form: str) -> None:
    stream = io.StringIO()
    log_lines.set_up(LoggingSection(format=form), stream)  # type: ignore[arg-type]
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("failed")
    assert "ValueError: why" in stream.getvalue()


def test_secrets_do_not_reach_the_log(logger: logging.Logger) -> None:
    stream = io.StringIO()
    log_lines.set_up(LoggingSection(), stream)
    logger.info(
        "login", extra=log_lines.fields(user="alice", secret="wonderland", token="hr_x", authorization="Basic x")
    )
    assert "wonderland" not in stream.getvalue()
    assert "hr_x" not in stream.getvalue()
    assert "Basic" not in stream.getvalue()
    assert "alice" in stream.getvalue()


def test_a_name_cannot_pretend_to_be_another_entry(logger: logging.Logger) -> None:
    out = io.StringIO()
    log_lines.set_up(LoggingSection(format="text"), out)
    logger.warning("login refused", extra=log_lines.fields(user="x\n12:00:00.000 INFO security: all is well\x1b[2K"))
    (line,) = out.getvalue().splitlines()
    assert "x\\n12:00" in line
    assert "\x1b" not in line
