import io

from rich.console import Console

from headrace.cli.demo import DATA, _next_steps
from headrace.demo.flows import Flow, make_flows
from headrace.demo.view import Frame, PipelineRow, View, draw, flow_line, flow_row, pipeline_line, pipeline_row
from headrace.log.ops import Bounds


def frame() -> Frame:
    flow = Flow("orders", "demo.orders", "Wallaroo", "FutoIn")
    with flow.sending():
        pass
    flow.seen(6, '{"item": "pear"}')
    row = flow_row(flow, Bounds(0, 1234), 6, 9.5, 99)
    return Frame("http://127.0.0.1:8080/", True, 12.0, [row], PipelineRow("running", 3, 50.0, 480.0, 7))


def test_the_lag_is_that_of_the_saved_position_until_something_is_read() -> None:
    flow = Flow("orders", "demo.orders", "Wallaroo", "FutoIn")
    assert flow_row(flow, Bounds(10, 50), 0, 0.0, 7).lag == 7
    flow.seen(4, "")
    assert flow_row(flow, Bounds(10, 50), 0, 0.0, 7).lag == 40


def test_a_line_tells_index_rate_lag_and_batches() -> None:
    line = flow_line(frame())
    assert "orders 1,234 (10/s, lag 1,227)" in line
    assert "batch 3, 50 records/s, 480 ms per batch, lag 7 records" in line


def test_a_terminal_gets_a_table_and_others_get_lines() -> None:
    seen = io.StringIO()
    with View(Console(file=seen, force_terminal=True, width=160)) as view:
        view.show(frame())
    assert "http://127.0.0.1:8080/" in seen.getvalue()
    assert "demo.orders" in seen.getvalue()
    plain = io.StringIO()
    with View(Console(file=plain)) as view:
        view.show(frame())
        view.show(frame())
    assert plain.getvalue().count("orders 1,234") == 1, "not oftener than now and then"
    quiet = io.StringIO()
    with View(Console(file=quiet), quiet=True) as view:
        view.say("x")
        view.show(frame())
    assert quiet.getvalue() == ""


def test_words_of_a_record_are_not_taken_for_markup() -> None:
    shown = frame()
    shown = Frame(shown.console, False, 1.0, [shown.flows[0]], PipelineRow("[red]off"))
    seen = io.StringIO()
    Console(file=seen, width=200).print(draw(shown))
    assert "[red]off" in seen.getvalue()


def test_the_pipeline_is_what_it_reports_or_what_its_process_says() -> None:
    assert pipeline_row("starting", []) == PipelineRow("starting")
    assert pipeline_row("starting", [{"state": "stopped", "report": None}]) == PipelineRow("starting")
    report = {"batch": 4, "rows_per_s": 1.0, "batch_ms": 2.0, "lag": 3}
    assert pipeline_row("x", [{"state": "running", "report": report}]) == PipelineRow("running", 4, 1.0, 2.0, 3)


def test_a_pipeline_that_has_begun_says_so() -> None:
    assert pipeline_line(PipelineRow("starting")) == "pipeline window-counts: starting"
    assert pipeline_line(PipelineRow("running")).endswith("running, its first batch is under way")


def test_no_number_is_cut_on_a_narrow_terminal() -> None:
    seen = io.StringIO()
    Console(file=seen, width=100).print(draw(frame()))
    row = next(line for line in seen.getvalue().splitlines() if "demo.orders" in line)
    assert row.split()[3:6] == ["1,234", "6", "9.5"]
    assert "1,227" in row


def test_nothing_is_read_by_the_protocol_it_came_in_by() -> None:
    flows = make_flows().values()
    assert {"Wallaroo", "Ockam", "FutoIn", "Perper", "AMBROSIA", "Spark"} == {flow.writer for flow in flows}
    assert all(flow.writer != flow.reader for flow in flows)


def test_the_closing_words_name_the_environment_of_a_command_that_is_not_on_the_path(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "activate`, which puts headrace on your path" in "\n".join(_next_steps(DATA))
    (tmp_path / "headrace").touch(0o755)
    assert "activate" not in "\n".join(_next_steps(DATA))
    assert f"headrace up --data {tmp_path}" in "\n".join(_next_steps(tmp_path))
