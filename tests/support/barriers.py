"""What keeps people from using a page, as axe sees it."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page


def barriers(page: Page, place: str, theme: str = "light") -> dict[str, list[object]]:
    """What axe finds on a page as it is now. In the dark only colours are different."""
    options = {"runOnly": ["color-contrast"]} if theme == "dark" else None
    violations = Axe().run(page, options=options).response["violations"]
    return {f"{place}: {one['id']}": [node["target"] for node in one["nodes"]][:3] for one in violations}
