"""Another build of Headrace beside this one, so that one run compares both."""

from __future__ import annotations

import argparse
import io
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--previous`: what to compare with."""
    parser.add_argument("--previous", default="HEAD~1", metavar="REVISION", help="compare with this one; '' for none")


def builds(previous: str, folder: Path) -> dict[str, Path]:
    """Name → source directory: the previous build, taken from git, and this one."""
    found = {"this build": ROOT / "src"}
    if previous:
        command = ["git", "-C", str(ROOT), "archive", previous, "src"]
        archive = subprocess.run(command, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder / "previous", filter="data")
        found = {previous: folder / "previous" / "src"} | found
    return found
