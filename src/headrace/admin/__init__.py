"""The verbs of the nouns, one module for each: streams, records, cursors, tables.

They are reached by the SDK and the command line, and by `POST /api/v1/<verb>`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.hub import Hub


async def start(hub: Hub) -> None:
    """Register the verbs; the server calls this while it starts."""
    from headrace.admin import cursors, records, streams, tables

    for noun in (streams.Streams, records.Records, cursors.Cursors, tables.Tables):
        noun(hub).register()
