"""Whose a stream is. Names that differ never meet, though the rule may give them the same name.

With `{instance}.{stream}` both the stream `w.orders` of a connector without an instance and the stream `orders` of the
instance `w` would be `w.orders`, and one of them would resume at the other's point and skip its own records. So the
first to introduce a name owns it, durably, and the other's stream gets a name that no rule gives.

In v3 a stream has one id for everybody: another id is another stream, and is refused as long as there is a point that
it could take for its own.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from headrace.log.ops import ABSENT, Put
from headrace.protocols.wallaroo import naming
from headrace.protocols.wallaroo.codec import DRAFT
from headrace.protocols.wallaroo.frames import PeerFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.hub import Hub
    from headrace.protocols.wallaroo.session import ServerSession

logger = logging.getLogger("headrace.wallaroo")

TABLE = "wallaroo.names"
"""Stream name → `Claim`."""


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """Whose a stream is. Program and instance are empty where the rule does not use them."""

    program: str
    instance: str
    stream_id: int | None
    """The id by which v3 knows it; `None` while only draft connectors do, whose ids are their own."""
    catalog_id: int
    """The very stream: one that was deleted and created again is nobody's."""

    @property
    def owner(self) -> tuple[str, str]:
        return self.program, self.instance


class Claims:
    """The table of names."""

    def __init__(self, hub: Hub, rule: str) -> None:
        naming.check_rule(rule)
        self._hub = hub
        self._rule = rule
        self._fields = naming.fields(rule)

    async def open(self, introduced: Iterable[tuple[str, str, str]]) -> None:
        """Streams from before there were claims belong to who introduced them: program, instance, stream."""
        await self._hub.create_table(TABLE)
        self._hub.set_aside.read(TABLE, self._hub.items(TABLE), read_claim)
        claims: dict[bytes, bytes] = {}
        for program, instance, name in introduced:
            key = name.encode()
            if key not in claims and self._hub.get(TABLE, key) is None and self._hub.has_stream(name):
                owner = self._owner(program, instance)
                claims[key] = msgspec.json.encode(Claim(*owner, None, self._hub.stream(name).id))
        if claims:
            await self._hub.put_many(TABLE, list(claims), list(claims.values()))

    def _owner(self, program: str, instance: str) -> tuple[str, str]:
        return program if "program" in self._fields else "", instance if "instance" in self._fields else ""

    def _owner_of(self, session: ServerSession) -> tuple[str, str]:
        return self._owner(naming.printable(session.program), naming.printable(session.instance))

    def _stored(self, name: str) -> tuple[bytes | None, Claim | None]:
        """What the table says, and the claim if it is on the stream that there is now."""
        stored = self._hub.get(TABLE, name.encode())
        if stored is None or not self._hub.has_stream(name):
            return stored, None
        try:
            claim = msgspec.json.decode(stored, type=Claim)
        except msgspec.DecodeError as error:
            self._hub.set_aside.note(TABLE, name.encode(), stored, error)
            return stored, None
        return stored, claim if claim.catalog_id == self._hub.stream(name).id else None

    def stream_name(self, session: ServerSession, stream: bytes) -> str:
        """The Headrace stream for a connector's: by the rule, unless that one is somebody else's."""
        parts = (session.program, session.instance, stream)
        name = naming.stream_name(self._rule, *parts)
        _, claim = self._stored(name)
        is_free = claim is None or claim.owner == self._owner_of(session)
        return name if is_free else naming.name_apart(self._rule, *parts)

    async def take(self, session: ServerSession, stream_id: int, name: str, point: int | None) -> None:
        """Make an existing stream this connector's, or refuse it."""
        owner = self._owner_of(session)
        shares_id = session.dialect is not DRAFT
        while True:
            stored, claim = self._stored(name)
            if claim is not None and claim.owner != owner:
                raise PeerFault(f"Stream {name!r} has just been taken by another instance")
            known = None if claim is None else claim.stream_id
            if shares_id and known not in (None, stream_id) and point is not None:
                raise PeerFault(
                    f"Bad stream_id {stream_id}: stream {name!r} has the messages of stream_id {known}; "
                    "use that one, another name, or have the stream rewound to its beginning"
                )
            wanted = Claim(*owner, stream_id if shares_id else known, self._hub.stream(name).id)
            if wanted == claim:
                return
            put = Put(TABLE, name.encode(), msgspec.json.encode(wanted), ABSENT if stored is None else stored)
            (result,) = await self._hub.transact([put])
            if result.applied:
                if claim is None and naming.APART in name:
                    logger.warning("a connector's stream is called %r: another instance has the plain name", name)
                return


def read_claim(key: bytes, value: bytes) -> tuple[str, Claim]:
    """A row of the table."""
    return key.decode(), msgspec.json.decode(value, type=Claim)
