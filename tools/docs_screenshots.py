"""A hook of mkdocs: pictures of the console, taken while the documentation is built, since none are kept in the tree.

A page shows one as `![words](../images/console/overview.png)`. The pictures are taken of the running demo
(screenshots.py) and kept under build/ until the console changes. Where Chromium or Playwright is missing the page says
so instead; on a machine that builds for others (`CI` is set) that is an error.
"""

import hashlib
import importlib.util
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "screenshots.py"
PICTURES = "images/console/"
IMAGE = re.compile(r"!\[[^\]]*\]\((?:\.\./)*images/console/([\w-]+)\.png\)(?:\{[^}]*\})?")
MISSING = "*(A picture of the page “{name}” is here when the documentation is built where Chromium is installed.)*"

logger = logging.getLogger("mkdocs.hooks.screenshots")


def on_files(files: Any, config: Any) -> Any:
    """Add the pictures to what is built."""
    for file in _pictures():
        files.append(File.generated(config, f"{PICTURES}{file.name}", abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Words in place of the pictures that could not be taken."""

    def shown(found: re.Match[str]) -> str:
        there = files.get_file_from_path(f"{PICTURES}{found[1]}.png") is not None
        return found[0] if there else MISSING.format(name=found[1])

    return IMAGE.sub(shown, markdown)


def _pictures() -> list[Path]:
    lacking = _lacking()
    if lacking and os.environ.get("CI"):
        raise PluginError(f"no pictures of the console can be taken: {lacking}")
    if lacking:
        # Not by the log: a warning would fail a strict build, and less is not shown by a quiet one.
        print(f"the pages about the console have no pictures: {lacking}", file=sys.stderr)
        return []
    target = ROOT / "build" / "screenshots" / _digest()
    done = target / "complete"
    if not done.exists():
        logger.info("taking pictures of the console; this takes a minute")
        try:
            _tool().make(target, with_spark=importlib.util.find_spec("pyspark") is not None)
        except Exception as error:  # a slow machine, a browser that crashes: the words are worth having without them
            if os.environ.get("CI"):
                raise PluginError(f"no pictures of the console could be taken: {error}") from error
            print(f"the pages about the console have no pictures: {error}", file=sys.stderr)
            return []
        done.touch()
    return sorted(target.glob("*.png"))


def _tool() -> Any:
    """screenshots.py, which stands beside this file: mkdocs does not keep its folder among those to import from."""
    if TOOL.stem not in sys.modules:
        found = importlib.util.spec_from_file_location(TOOL.stem, TOOL)
        assert found is not None
        assert found.loader is not None
        sys.modules[TOOL.stem] = importlib.util.module_from_spec(found)
        found.loader.exec_module(sys.modules[TOOL.stem])
    return sys.modules[TOOL.stem]


def _lacking() -> str:
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (pip install playwright)"
    return "" if _tool().chromium() else "Chromium is not installed (Debian package: chromium)"


def _digest() -> str:
    """Names what the pictures show: the console, and how they are taken."""
    names = [*(ROOT / "src" / "headrace" / "console").rglob("*.*"), TOOL]
    sources = sorted(file for file in names if file.suffix in (".py", ".js", ".css", ".html", ".svg"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in sources)).hexdigest()[:16]
