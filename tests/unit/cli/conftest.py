import io
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from headrace.cli.main import run


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
