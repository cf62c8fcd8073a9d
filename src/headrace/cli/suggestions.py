"""Did you mean: the names of a hub that are nearest to one that it does not know."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client import Client

LOOKED_AT_MAX = 5_000
MISSING = re.compile(r"^(?:stream|table) '(.+?)' does not exist")


def with_suggestion(error: HeadraceError, client: Client) -> HeadraceError:
    """The same error; where a stream or table is not known, with the name that was probably meant."""
    found = MISSING.match(str(error))
    if error.code != "unknown-stream" or found is None:
        return error
    try:
        names = [each.name for each in islice(client.iter_streams(all=True), LOOKED_AT_MAX)]
        names += [each.name for each in islice(client.iter_tables(all=True), LOOKED_AT_MAX)]
    except HeadraceError:  # the first error says more
        return error
    near = nearest(found[1], names)
    if near is None:
        return error
    better = HeadraceError(f"{found[0]}; did you mean {near!r}?")
    better.code = error.code
    return better


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that is most like another, if one is like it at all."""
    return next(iter(difflib.get_close_matches(name, list(names), 1)), None)
