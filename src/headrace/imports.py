"""Pandas, left out: with its first array pyarrow looks for it, which takes half a second, or ten under load."""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Iterator


class _WithoutPandas(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out")


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    """Whoever looks for pandas inside does not find it, and does not look again."""
    without = _WithoutPandas()
    sys.meta_path.insert(0, without)
    try:
        yield
    finally:
        sys.meta_path.remove(without)
