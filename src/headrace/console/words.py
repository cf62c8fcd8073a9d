"""Keys, values and payloads for people: bytes that are no text are read by the protocol whose data objects they are.

The bytes are always told too. Verbs: `console.entries`, a page of a table, and `record.words`, one record.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import msgspec

from headrace.admin.tables import TableName
from headrace.console.views import FramesRequest, one_record
from headrace.protocols.descriptor import Words, protocols

if TYPE_CHECKING:
    from headrace.hub import Hub

ROWS_MAX = 500
NOT_TEXT = re.compile("[\0-\x08\x0e-\x1f]")


class EntriesRequest(TableName, frozen=True):
    """The entries of a table, from number `offset` on."""

    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=ROWS_MAX)] = 100


class Entry(msgspec.Struct, frozen=True):
    """One entry, and what its key and value say if they are no text and a protocol can read them."""

    key: bytes
    value: bytes
    key_words: Words | None
    value_words: Words | None


class RecordWords(msgspec.Struct, frozen=True):
    """What a record's key and payload say."""

    key: Words | None
    payload: Words | None


class Reading:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        add = self._hub.verbs.register
        add(
            "console.entries",
            EntriesRequest,
            self.entries,
            right="read",
            summary="A page of a table, for people",
            stream_field="table",
        )
        add("record.words", FramesRequest, self.record, right="read", summary="What a record says, for people")

    async def entries(self, asked: EntriesRequest) -> list[Entry]:
        """In the order in which the keys were first put."""
        page = list(self._hub.page(asked.table, asked.offset, asked.limit))
        said = self._words([each for entry in page for each in entry])
        return [Entry(*entry, *said[2 * at : 2 * at + 2]) for at, entry in enumerate(page)]

    async def record(self, asked: FramesRequest) -> RecordWords:
        """Of a table these are a key and its value."""
        record = await one_record(self._hub, asked)
        return RecordWords(*self._words([record.key or b"", record.payload]))

    def _words(self, objects: list[bytes]) -> list[Words | None]:
        found: list[Words | None] = [None] * len(objects)
        for protocol in protocols():
            left = [at for at, data in enumerate(objects) if found[at] is None and data and not _is_text(data)]
            for at, said in zip(left, protocol.shown().words(self._hub, [objects[at] for at in left]), strict=True):
                found[at] = said
        return found


def _is_text(data: bytes) -> bool:
    try:
        return NOT_TEXT.search(data.decode()) is None
    except UnicodeDecodeError:
        return False
