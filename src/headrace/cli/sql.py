"""`headrace sql`: ask streams and tables a question in SQL and get the answer now."""

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
    text: Annotated[str, typer.Argument(help="SQL over streams and tables by their names, or @FILE.")],
    limit: Annotated[int, typer.Option("--limit", help="Print at most this many rows; 0 for all.")] = ROWS_DEFAULT,
    output: Annotated[Literal["table", "csv"], typer.Option("--output", help="Output format.")] = "table",
    engine: Annotated[
        Literal["hub", "spark"], typer.Option("--engine", help="The hub itself, or Spark: its own SQL, no limits.")
    ] = "hub",
    as_json: JsonFlag = False,
    *,
    how: SparkOptions,
) -> None:
    """Run a SQL query over everything in streams and tables.

    headrace sql "SELECT type, count(*) FROM orders GROUP BY type"

    headrace sql "SELECT value.fruit, sum(value.count) FROM orders GROUP BY 1"
    """
    asked = Path(text[1:]).read_text() if text.startswith("@") else text
    ask = _ask_spark if engine == "spark" else _ask_hub
    columns, rows = ask(asked, limit, how)
    shown = rows[:limit] if limit else rows
    _print(columns, shown, output, as_json)
    if len(rows) > len(shown):
        notes().print(f"only the first {limit} rows; --limit 0 shows all", style="dim")


def _ask_hub(asked: str, limit: int, how: SparkOptions) -> tuple[list[str], list[Any]]:
    with how.connect() as client, client.sql(asked, limit=limit + 1 if limit else None) as result:
        return result.columns, [tuple(row.values()) for row in result]


def _ask_spark(asked: str, limit: int, how: SparkOptions) -> tuple[list[str], list[Any]]:
    from headrace.spark.pipelines.failures import explain
    from headrace.spark.query import bind

    spark = how.session(move_cursors=False)
    try:
        result = bind(spark, asked, hubWaitSeconds=10)
        rows = (result.limit(limit + 1) if limit else result).collect()
        return result.columns, rows
    except Exception as error:
        failure = explain(error)
        fail(failure.headline, code="sql")
    finally:
        spark.stop()


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
        cell = cell.asDict()
    if isinstance(cell, dict):
        return {name: _plain(value) for name, value in cell.items()}
    return cell
