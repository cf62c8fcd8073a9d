"""Consumer groups: several programs share the partitions of a stream, each partition read by one of them at a time.

A table beside the stream, `STREAM.groups`, says who reads what. Its rows are claims, changed only if they are as they
were last seen, so of two members that want the same thing one gets it:

    GROUP/member/NAME       a count that the member raises every `beat_s`
    GROUP/partition/N       the name of the member that reads it

A `/` in the name of a group is `%2F` there, so that no row of one group is a row of another, and rows that mean nothing
are left alone.

A member whose count has stood still for `expire_s`, by the clock of whoever looks, is gone: no two clocks are compared.
The others take its partitions over and go on where its cursor stands. Positions are cursors named as the group, one in
each partition. A record may come twice after a hand-over, and is never left out.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from msgspec import structs

from headrace.client.reader import Reader
from headrace.client.records import Record
from headrace.errors import Busy, HeadraceError, Unreachable

if TYPE_CHECKING:
    from headrace.client.client import Client

BEAT_S = 1.0
EXPIRE_S = 5.0
WAIT_S = 0.05


class GroupTable:
    """The rows of one group."""

    def __init__(self, client: Client, stream: str, group: str) -> None:
        self._table = client.create_table(f"{stream}.groups")
        self._group = group.replace("%", "%25").replace("/", "%2F")

    def rows(self, kind: str) -> dict[str, bytes]:
        """Of members, or of partitions."""
        prefix = f"{self._group}/{kind}/".encode()
        rows = {key[len(prefix) :]: value for key, value in self._table.items() if key.startswith(prefix)}
        return {name.decode(): value for name, value in rows.items() if _is_text(name)}

    def owners(self) -> dict[int, bytes]:
        """The member that reads a partition, of those that have one."""
        return {int(number): owner for number, owner in self.rows("partition").items() if number.isdecimal()}

    def put(self, kind: str, name: str, value: bytes, expect: bytes | None = None, *, is_new: bool = False) -> bool:
        """Set a row if it is as expected."""
        wanted: Any = "absent" if is_new else "any" if expect is None else expect
        return bool(self._table.put(f"{self._group}/{kind}/{name}", value, expect=wanted).applied)

    def delete(self, kind: str, name: str, expect: bytes | None = None) -> None:
        """Remove a row if it is as expected."""
        self._table.delete(f"{self._group}/{kind}/{name}", expect="any" if expect is None else expect)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class Group:
    """One member of a consumer group. Iterate over it for records of the partitions that are this member's now, as they
    come; `save()` after what was dealt with. Made by `Client.group`; use it in a `with` block, so that the others need
    not wait until it is missed."""

    def __init__(
        self,
        client: Client,
        stream: str,
        name: str,
        *,
        member: str | None = None,
        beat_s: float = BEAT_S,
        expire_s: float = EXPIRE_S,
    ) -> None:
        self.stream = stream
        self.name = name
        self.member = member or secrets.token_hex(6)
        self._client = client
        self._beat_s = beat_s
        self._expire_s = expire_s
        self._table = GroupTable(client, stream, name)
        self._counts: dict[str, tuple[bytes, float]] = {}
        self._mine: set[int] = set()
        self._readers: dict[int, Reader] = {}
        self._positions: dict[int, int] = {}
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._failure: HeadraceError | None = None
        self._beat(0)
        self._thread = threading.Thread(target=self._run, name=f"headrace-group-{name}", daemon=True)
        self._thread.start()

    @property
    def partitions(self) -> list[int]:
        """Those that are this member's now."""
        with self._lock:
            return sorted(self._mine)

    def __repr__(self) -> str:
        return f"<Group {self.name} of {self.stream}, member {self.member}: partitions {self.partitions}>"

    # Membership, in a thread of its own -------------------------------------------------------------------------------

    def _run(self) -> None:
        beat = 0
        while not self._closing.wait(self._beat_s):
            beat += 1
            try:
                self._beat(beat)
                self._failure = None
            except Unreachable as error:  # the hub may come back; until then nobody else can take over either
                self._failure = error
            except HeadraceError as error:
                self._failure = error
                return

    def _beat(self, beat: int) -> None:
        """Say that we are there, see who else is, and take or give partitions."""
        self._table.put("member", self.member, str(beat).encode())
        members = self._alive()
        owners = self._table.owners()
        partitions = self._client.describe(self.stream).partitions
        share = -(-partitions // len(members))
        mine = {number for number, owner in owners.items() if owner == self.member.encode() and number < partitions}
        there = {member.encode() for member in members}
        free = [number for number in range(partitions) if owners.get(number) not in there]
        for number in free[: max(0, share - len(mine))]:
            if self._claim(number, owners.get(number)):
                mine.add(number)
        for number in sorted(mine)[share:]:
            mine.discard(number)
            self._release(number)
        with self._lock:
            self._mine = mine

    def _alive(self) -> set[str]:
        """The members whose count has changed lately, as seen from here; ourselves for certain."""
        now = time.monotonic()
        rows = self._table.rows("member")
        for name, count in rows.items():
            seen, since = self._counts.get(name, (b"", now))
            self._counts[name] = (count, now if seen != count else since)
        for name in [name for name in self._counts if name not in rows]:
            del self._counts[name]
        alive = {name for name, (_, since) in self._counts.items() if now - since < self._expire_s}
        for name in set(rows) - alive - {self.member}:
            self._table.delete("member", name, rows[name])
        return alive | {self.member}

    def _claim(self, number: int, owner: bytes | None) -> bool:
        return self._table.put("partition", str(number), self.member.encode(), owner, is_new=owner is None)

    def _release(self, number: int) -> None:
        with self._lock:
            self._mine.discard(number)
        self._table.delete("partition", str(number), self.member.encode())

    # Records ----------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Record]:
        while not self._closing.is_set():
            came = False
            for number in self.partitions:
                for record in self._next(number):
                    came = True
                    yield record
            self._drop_lost()
            if self._failure is not None:
                raise self._failure
            if not came:
                self._closing.wait(WAIT_S)

    def _next(self, number: int) -> Iterator[Record]:
        """A batch of a partition, if one is there; not what is left of it once the partition is another's."""
        if number not in self._readers:
            self._readers[number] = self._client.follow(
                self.stream, partition=number, cursor=self.name, on_trimmed="skip"
            )
            self._positions.pop(number, None)
        reader = self._readers[number]
        try:
            batch = reader.next_batch(timeout_s=0)
        except Busy:
            return
        for record in reader._each(batch) if batch is not None else ():
            if number not in self._mine:
                return
            self._positions[number] = record.index + 1
            yield structs.replace(record, stream=self.stream, partition=number)

    def _drop_lost(self) -> None:
        for number in [number for number in self._readers if number not in self._mine]:
            self._readers.pop(number).close()
            self._positions.pop(number, None)

    def save(self) -> None:
        """Make durable that all records so far have been dealt with."""
        for number, index in list(self._positions.items()):
            self._client.cursor(self.name, self.stream, partition=number).save(index)

    def close(self) -> None:
        """Leave: the others take over at their next look."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._thread.join()
        for reader in self._readers.values():
            reader.close()
        with contextlib.suppress(HeadraceError):  # a hub that is gone: the others will miss us
            for number in self.partitions:
                self._release(number)
            self._table.delete("member", self.member)

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
