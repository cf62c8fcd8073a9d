"""A hook of mkdocs: `[folder/]` in the navigation stands for the pages of that folder; a new page needs no entry."""

from pathlib import Path
from typing import Any

EXPLANATION = "Explanation"


def on_config(config: Any) -> Any:
    """Expand the folders, and put pages at the top level that nobody lists under Explanation."""
    docs = Path(config["docs_dir"])
    listed = set(_pages(config["nav"]))
    nav = []
    for entry in config["nav"]:
        ((title, value),) = entry.items()
        if isinstance(value, list) and value and isinstance(value[0], str) and value[0].endswith("/"):
            found = sorted(docs.glob(f"{value[0]}*.md"))
            value = [f"{value[0]}{file.name}" for file in found if file.name != "template.md"]
        elif title == EXPLANATION:
            value = value + sorted(file.name for file in docs.glob("*.md") if file.name not in listed)
        if value:
            nav.append({title: value})
    config["nav"] = nav
    return config


def _pages(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    values = nav.values() if isinstance(nav, dict) else nav
    return [page for value in values for page in _pages(value)]
