import io
import logging
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from headrace.cli.main import run


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command sends the logs of its process to its standard error, which is gone after the test."""
    logs = logging.getLogger("headrace")
    handlers, level, propagate = logs.handlers[:], logs.level, logs.propagate
    yield
    logs.handlers[:], logs.level, logs.propagate = handlers, level, propagate


@pytest.fixture
def headrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Run the command as a shell would, in this process: `headrace("user", "ls").out`."""

    def command(*arguments: object, stdin: str = "") -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            run()
        seen = capsys.readouterr()
        return SimpleNamespace(code=end.value.code or 0, out=seen.out, err=seen.err)

    return command
