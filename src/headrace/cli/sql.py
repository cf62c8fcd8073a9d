"""`headrace sql`: ask streams a question in SQL and get the answer now."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headrace.cli.options import sharing
from headrace.cli.output import JsonFlag, fail, notes, print_json_line, print_table
from headrace.cli.spark_options import SparkOptions

app = typer.Typer()
ROWS_DEFAULT = 1000


@app.command()
@sharing(how=SparkOptions)
def sql(
    text: Annotated[str, typer.Argument(help="SQL over stream('name', option => 'value'), or @FILE.")],
    limit: Annotated[int, typer.Option("--limit", help="At most so many rows; 0 for all.")] = ROWS_DEFAULT,
    output: Annotated[Literal["table", "csv"], typer.Option("--output", help="How to print.")] = "table",
    as_json: JsonFlag = False,
    *,
    how: SparkOptions,
) -> None:
    """An answer now, over everything the streams hold.

    headrace sql "SELECT type, count(*) FROM stream('orders') GROUP BY type"
    """
    from headrace.spark.pipelines.failures import explain
    from headrace.spark.query import bind

    asked = Path(text[1:]).read_text() if text.startswith("@") else text
    spark = how.session(move_cursors=False)
    try:
        result = bind(spark, asked, hubWaitSeconds=10)
        rows = (result.limit(limit + 1) if limit else result).collect()
        columns = result.columns
    except Exception as error:
        failure = explain(error)
        fail(failure.headline, code="sql")
    finally:
        spark.stop()
    shown = rows[:limit] if limit else rows
    _print(columns, shown, output, as_json)
    if len(rows) > len(shown):
        notes().print(f"only the first {limit} rows; --limit 0 shows all", style="dim")


def _print(columns: list[str], rows: list[Any], output: str, as_json: bool) -> None:
    if as_json:
        for row in rows:
            print_json_line(dict(zip(columns, map(_plain, row), strict=True)))
    elif output == "csv":
        writer = csv.writer(sys.stdout)
        writer.writerow(columns)
        writer.writerows([_plain(cell) for cell in row] for row in rows)
    else:
        print_table(columns, [[_plain(cell) for cell in row] for row in rows], empty="no rows")


def _plain(cell: Any) -> Any:
    """Bytes as text where they are text; rows as mappings."""
    if isinstance(cell, (bytes, bytearray)):
        try:
            return bytes(cell).decode()
        except UnicodeDecodeError:
            return bytes(cell).hex()
    if hasattr(cell, "asDict"):
        return {name: _plain(value) for name, value in cell.asDict().items()}
    return cell
