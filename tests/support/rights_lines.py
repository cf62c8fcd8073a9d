"""The driver of the matrix of rights for lines: a bare peer. The SDK would make calls of what it is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import msgspec
from support.rights_drivers import FlightLine, HttpLine, Refused

from headrace.admin.records import NewRecord, StreamAppend
from headrace.config.address import split_address
from headrace.protocols.flight.requests import (
    LENGTH_BYTES,
    OFFER_ACTION,
    PATH,
    PROOF_HEADER,
    TICKET_HEADER,
    UPGRADE,
    LineOffer,
    Request,
    client_proof,
    decode_answer,
    framed,
    hub_proof,
)


class LinesLine(HttpLine):
    """A line that the Flight endpoint offered: the verbs of the admin API, and appends."""

    async def open(self) -> None:
        offering = FlightLine(self.world, self.who, self.use)
        try:
            await offering.open()
            told = await offering._run(lambda: list(offering._client.do_action(OFFER_ACTION, offering._options)))
        finally:
            self.heard += offering.heard
            offering._client.close()
        offer = msgspec.json.decode(told[0].body.to_pybytes(), type=LineOffer)
        assert offer.address is not None
        with self.words(word=str):
            self._reader, self._writer = await asyncio.open_connection(
                *split_address(offer.address), ssl=self.world.tls(), server_hostname="localhost"
            )
            head = f"GET {PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: {UPGRADE}\r\n"
            self._writer.write(f"{head}{TICKET_HEADER}: {offer.ticket}\r\n\r\n".encode())
            answer = await self._reader.readuntil(b"\r\n\r\n")
            assert f"{PROOF_HEADER}: {hub_proof(offer.secret).decode()}" in answer.decode().lower(), answer
            self._writer.write(client_proof(offer.secret))
        await self._ask(Request("user.whoami"))

    async def _ask(self, request: Request) -> None:
        with self.words(word=str):
            self._writer.write(framed(request))
            size = int.from_bytes(await self._reader.readexactly(LENGTH_BYTES), "big")
            body = await self._reader.readexactly(size)
        self.heard.append(body.decode())
        answer = decode_answer(body)
        if answer.error is not None:
            raise Refused(answer.error.code + (", and closed" if answer.last else ""))

    async def _call(self, verb: str, **params: Any) -> None:
        await self._ask(Request(verb, msgspec.Raw(json.dumps(params).encode())))

    async def write(self, name: str) -> None:
        await self._ask(Request(append=StreamAppend(name, [NewRecord(text='{"count": 2}')])))

    async def look_around(self) -> None:
        for verb in ("hub.info", "hub.asyncapi", "verb.list", "session.list", "user.list", "cursor.list"):
            with contextlib.suppress(Refused):
                await self._call(verb)

    async def close(self) -> None:
        self._writer.transport.abort()
