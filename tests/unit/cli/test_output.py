import json

import pytest

from headrace.cli import output
from headrace.cli.options import Answer
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
    answer = Answer(as_json=True)
    answer.table({"a": 1}, ["people"], [["see this"]])
    answer.line({"b": 2}, "people read this")
    output.print_json_line([1, 2])
    assert capsysbinary.readouterr().out == b'{\n  "a": 1\n}\n{\n  "b": 2\n}\n[1,2]\n'


def test_people_see_a_table_or_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    Answer().table({"a": 1}, ["name"], [["orders"]])
    Answer().line({"a": 1}, "[done]")
    assert capsys.readouterr().out.split() == ["name", "orders", "[done]"]


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


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5])
def test_a_long_list_is_printed_as_it_comes(count, capsysbinary, monkeypatch):
    monkeypatch.setattr(output, "PART_ROWS", 2)
    printed = []

    def items():
        for number in range(count):
            printed.append(capsysbinary.readouterr().out)
            yield {"n": number}

    output.print_list(items(), ["n"], lambda item: [item["n"]], as_json=True)
    whole = b"".join(printed) + capsysbinary.readouterr().out
    assert json.loads(whole) == [{"n": number} for number in range(count)]
    if count > 2:
        assert b'"n": 1' in printed[2]  # before the third was asked for
    output.print_list(({"n": number} for number in range(count)), ["n"], lambda item: [item["n"]], as_json=False)
    out, err = capsysbinary.readouterr()
    lines = out.decode().split()
    assert lines == (["n", *map(str, range(count))] if count else [])
    assert ("nothing to show" in err.decode()) == (count == 0)
