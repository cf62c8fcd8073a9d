"""The verb `immortal.import`: an instance of the published coordinator, from a directory on the hub's machine."""

from __future__ import annotations

import asyncio

import msgspec

from headrace.errors import BadRequest
from headrace.hub.verbs import Verbs
from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator
from headrace.protocols.ambrosia.coordinator.importing import find, import_found, missing_calls, refuse_known
from headrace.protocols.ambrosia.files.instance import FoundInstance
from headrace.protocols.ambrosia.settings import ImmortalSection
from headrace.protocols.ambrosia.verbs import NameRequest, Peer


class ImportRequest(NameRequest, frozen=True):
    """Import what the published coordinator wrote into `directory`, on the hub's machine below `ambrosia.import_root`;
    a relative one is taken from there. With `dry_run` nothing is written; with `accept_damage` what comes before the
    damage is imported. Committer, version and delivery are taken from the files, whatever the options say."""

    directory: str
    dry_run: bool = False
    accept_damage: bool = False
    options: ImmortalSection = ImmortalSection()


class CallsTo(msgspec.Struct, frozen=True):
    """What an instance had said to one destination when its checkpoint was taken."""

    name: str
    calls: int
    waiting: int
    """Calls that were not acknowledged; they are delivered now, unless the destination has them."""
    impulses_left_out: int
    """Impulses that were not acknowledged: the published coordinator forgets them in a recovery."""


class ImportInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, and whether it was imported."""

    name: str
    imported: bool
    instance: str
    version: int
    committer: int
    checkpoint: str
    state_bytes: int
    first: int
    """The sequence id of the first record after the checkpoint."""
    next: int
    messages: int
    senders: list[Peer]
    calls: list[CallsTo]
    notes: list[str]
    """What does not matter, such as half a record after a kill."""
    damage: list[str]


class ImportVerbs:
    """The handler."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def register(self, verbs: Verbs) -> None:
        """Add the verb to a hub."""
        verbs.register(
            "immortal.import",
            ImportRequest,
            self.import_instance,
            right="admin",
            summary="Import an instance of the published coordinator",
        )

    async def import_instance(self, request: ImportRequest) -> ImportInfo:
        """Look at it, and import it."""
        refuse_known(self._coordinator, request.name)
        found = await asyncio.to_thread(find, self._coordinator, request.directory)
        damage = found.damage + await missing_calls(self._coordinator, request.name, found)
        if not request.dry_run:
            if damage and not request.accept_damage:
                raise BadRequest(
                    f"{request.name!r} is not imported, because it would not be whole: {'; '.join(damage)}. With "
                    "accept_damage, what precedes the damage is imported"
                )
            await import_found(self._coordinator, request.name, found, request.options)
        return _info(request, found, damage)


def _info(request: ImportRequest, found: FoundInstance, damage: list[str]) -> ImportInfo:
    def named(name: bytes) -> str:
        return name.decode(errors="replace") or request.name

    return ImportInfo(
        name=request.name,
        imported=not request.dry_run,
        instance=found.name,
        version=found.version,
        committer=found.checkpoint.committer,
        checkpoint=found.checkpoint_path.name,
        state_bytes=found.checkpoint.checkpoint.size,
        first=found.checkpoint.next_sequence,
        next=found.next_sequence,
        messages=found.messages,
        senders=[
            Peer(named(mark.source), mark.last_replayable, mark.last - mark.last_replayable)
            for _, mark in sorted(found.processed.items())
        ],
        calls=[
            CallsTo(named(destination), said.replayable, len(said.waiting), said.impulses)
            for destination, said in sorted(found.said.items())
        ],
        notes=found.notes,
        damage=damage,
    )
