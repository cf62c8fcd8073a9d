import json

import pytest

from headrace.cli import output
from headrace.errors import BadRequest, DataDirectoryLocked, HeadraceError, UnknownStream


def test_a_table_keeps_long_cells_whole_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["stream", "#records"], [["orders", 12], ["x" * 300, 3], ["[bold]no markup[/bold]", None]])
    out = capsys.readouterr().out
    assert "x" * 300 in out
    assert "[bold]no markup[/bold]" in out
    assert "–" in out
    assert out.splitlines()[0].split() == ["stream", "records"]


def test_an_empty_table_says_so_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["stream"], [], empty="no streams")
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", "no streams\n")


def test_json_goes_to_standard_output(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    output.show({"a": 1}, True, lambda value: pytest.fail("rendered for people"))
    output.print_json_line([1, 2])
    assert capsysbinary.readouterr().out == b'{\n  "a": 1\n}\n[1,2]\n'


def test_for_people_the_renderer_is_called(capsys: pytest.CaptureFixture[str]) -> None:
    output.show(3, False, lambda value: print(value + 1))
    assert capsys.readouterr().out == "4\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [(HeadraceError("x"), 1), (BadRequest("x"), 2), (DataDirectoryLocked("x"), 3), (UnknownStream("orders"), 1)],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: HeadraceError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output.report(error, as_json=False) == code
    told = capsys.readouterr().err
    assert told.startswith(f"error: {str(error).partition(';')[0]}")
    assert told.count("\n") == 1
    assert output.report(error, as_json=True) == code
    assert json.loads(capsys.readouterr().err) == {"error": {"code": error.code, "message": str(error)}}
