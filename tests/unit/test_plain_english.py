"""Phrases that no native speaker would write, by the list in CONTRIBUTING.md, in everything that users read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = "CONTRIBUTING.md"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
PAGES = [page for page in PAGES if "reference" not in page.parts]  # made from the code, whose words are looked at
COMMANDS = sorted((ROOT / "src" / "headrace" / "cli").glob("*.py"))
CONSOLE = sorted((ROOT / "src" / "headrace" / "console" / "static").glob("*.[jh]*"))
CODE = sorted((ROOT / "src" / "headrace").rglob("*.py"))


def phrases() -> list[str]:
    """The left column of the table."""
    section = (ROOT / LIST).read_text(encoding="utf-8").partition("## Words")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", section, re.MULTILINE)
    return [row for row in rows if row not in ("not", "---")]


def pattern() -> re.Pattern[str]:
    """Any of them."""
    odd = phrases()
    assert len(odd) > 5
    return re.compile("|".join(map(re.escape, odd)))


def test_no_page_command_or_script_of_the_console_has_one_of_them() -> None:
    odd = pattern()
    assert len(CONSOLE) > 20
    found = [
        f"{page.relative_to(ROOT)}: {phrase}"
        for page in [*PAGES, *COMMANDS, *CONSOLE]
        for phrase in odd.findall(" ".join(page.read_text(encoding="utf-8").split()))
    ]
    assert not found


def texts(code: str) -> Iterator[str]:
    """The strings of a module but its docstrings: messages, descriptions, lines of the log."""
    nodes = list(ast.walk(ast.parse(code)))
    documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


def test_no_message_has_one_of_them() -> None:
    odd = pattern()
    found = [
        f"{path.relative_to(ROOT)}: {phrase}"
        for path in CODE
        for text in texts(path.read_text(encoding="utf-8"))
        for phrase in odd.findall(text)
    ]
    assert not found
