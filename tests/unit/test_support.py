"""The helpers of tests/support, where a mistake would make tests pass."""

from pathlib import Path

import pytest
from support.hub_process import HubProcess
from support.until import until, wait_until


async def test_waiting_ends_with_what_was_found() -> None:
    answers = iter([None, 0, "found", "more"])
    assert await until(lambda: next(answers)) == "found"
    answers = iter([[], ["found"]])
    assert wait_until(lambda: next(answers)) == ["found"]


async def test_waiting_in_vain_says_for_what() -> None:
    with pytest.raises(AssertionError, match="within 0 s this did not happen: the end"):
        wait_until(lambda: False, "the end", 0)
    never_true = 0
    with pytest.raises(AssertionError, match="never_true"):
        await until(lambda: never_true, deadline_s=0)


@pytest.mark.slow
def test_a_hub_that_does_not_start_shows_its_log(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there is no such setting"), HubProcess(tmp_path, "listen.htpt=off"):
        pass


@pytest.mark.slow
def test_a_hub_that_ends_by_itself_fails_the_test(tmp_path: Path) -> None:
    hub = HubProcess(tmp_path, only=())

    def kill_inside() -> None:
        with hub:
            assert hub.process is not None
            hub.process.kill()

    with pytest.raises(AssertionError):
        kill_inside()
