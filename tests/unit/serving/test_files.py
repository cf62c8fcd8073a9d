"""File descriptors: some are kept for the log, and running out of them is one line."""

from __future__ import annotations

import asyncio
import logging
import resource

import pytest

from headrace.serving import files


def test_as_many_as_the_system_gives_are_asked_for() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        allowed = files.raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == allowed == min(before[1], files.FILES_MAX)
        assert files.raise_limit() == allowed
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_some_are_kept_for_the_log() -> None:
    assert files.for_connections(20_000, 512) == 19_488
    assert files.for_connections(600, 512) == 300


async def test_running_out_is_one_line_a_period_and_other_errors_are_shown_as_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.new_event_loop()
    shown: list[str] = []
    loop.set_exception_handler(lambda loop, context: shown.append(context["message"]))
    now = [0.0]
    files.tell_once(loop, lambda: now[0])
    try:
        caplog.set_level(logging.ERROR, "headrace.server")
        out = {"message": files.OUT_OF_FILES, "exception": OSError(24, "Too many open files")}
        for _ in range(2048):
            loop.call_exception_handler(out)
        assert len(caplog.records) == 1
        assert caplog.records[0].exc_info is None
        now[0] += files.TELL_S
        loop.call_exception_handler(out)
        assert len(caplog.records) == 2
        loop.call_exception_handler({"message": "something else"})
        assert shown == ["something else"]
    finally:
        loop.close()


async def test_asyncio_still_says_it_in_these_words() -> None:
    """What `tell_once` listens for."""
    import inspect
    from asyncio import selector_events

    assert files.OUT_OF_FILES in inspect.getsource(selector_events)
