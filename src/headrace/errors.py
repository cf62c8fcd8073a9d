"""Every error that Headrace raises on purpose.

An error says what happened, where, and what to do. `code` is stable and machine readable: it is what the CLI
prints with `--json`, what Flight and the admin API send, and what protocols translate into their own words. `status` is
the HTTP status of the answer. `retriable` says that the same request may succeed later, without anybody changing it;
all such errors are in this module, so that every client knows them.
"""

from __future__ import annotations

from typing import Any, Self

_class_of_code: dict[str, type[HeadraceError]] = {}


class HeadraceError(Exception):
    """The base of all errors below. Anything else that escapes is a bug in Headrace."""

    code = "error"
    status = 400
    retriable = False

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "code" in vars(cls):
            _class_of_code.setdefault(cls.code, cls)

    def to_keep(self) -> Self:
        """Without the frames that it came through. Whoever keeps an error as an answer would keep all that these know,
        such as the batch that was refused, and often in a circle that only the garbage collector ends."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


def error_classes() -> dict[str, type[HeadraceError]]:
    """Code → class, of every module imported so far. A class without a code of its own travels as its base."""
    return _class_of_code


class BadRequest(HeadraceError):
    """The caller asked for something that makes no sense."""

    code = "bad-request"


class BadConfig(HeadraceError):
    """A setting is unknown, has a wrong value, or asks for something that does not exist."""

    code = "bad-config"


class BadSql(HeadraceError):
    """A SQL statement cannot be parsed, names something that does not exist, or asks for what queries may not do."""

    code = "bad-sql"


class Cancelled(HeadraceError):
    """It has been cancelled by its user or an admin."""

    code = "cancelled"
    status = 409


class UnknownStream(HeadraceError):
    """No stream, table or partition of that name."""

    code = "unknown-stream"
    status = 404

    def __init__(self, stream: str, partition: int | None = None, partitions: int | None = None) -> None:
        self.stream = stream
        self.partition = partition
        if partition is None:
            text = f"stream {stream!r} does not exist; create it first, or list streams to see the names"
        else:
            text = f"stream {stream!r} has no partition {partition}; it has {partitions} (0 to {(partitions or 1) - 1})"
        super().__init__(text)


class UnknownCheckpoint(HeadraceError):
    """No checkpoint of that number."""

    code = "unknown-checkpoint"
    status = 404


class StreamExists(HeadraceError):
    """A stream or table of that name exists and the caller asked for a new one, or for another shape."""

    code = "stream-exists"
    status = 409


class NameTaken(HeadraceError):
    """A stream has the name of one of the hub's own tables: it existed before the name was reserved."""

    code = "name-taken"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name!r} is the name of one of the hub's own tables, and a stream has it: read what you need of it, "
            f"delete it (`headrace stream delete {name}`) and start the hub again"
        )


class LimitExceeded(HeadraceError):
    """A named limit was reached. The message names the limit, the value, the maximum and the key that changes it."""

    code = "limit-exceeded"
    status = 422

    def __init__(self, limit: str, value: int, maximum: int, key: str) -> None:
        self.limit = limit
        self.value = value
        self.maximum = maximum
        self.key = key
        super().__init__(f"{limit} is {value}, above the maximum of {maximum}; the limit is set by {key!r}")


class Trimmed(HeadraceError):
    """The records asked for were removed by retention or trimming."""

    code = "trimmed"
    status = 410

    def __init__(self, stream: str, partition: int, asked: int, first: int) -> None:
        self.stream = stream
        self.partition = partition
        self.asked = asked
        self.first = first
        super().__init__(
            f"stream {stream!r} partition {partition}: indexes {asked} to {first - 1} are no longer kept; "
            f"the first is {first}"
        )


class Damaged(HeadraceError):
    """Stored records failed their checksum. They are never served; the range is inclusive."""

    code = "damaged"
    status = 410

    def __init__(self, stream: str, partition: int, first: int, last: int, where: str = "", advice: str = "") -> None:
        self.stream = stream
        self.partition = partition
        self.first = first
        self.last = last
        self.where = where
        place = f" in {where}" if where else ""
        super().__init__(
            f"stream {stream!r} partition {partition}: indexes {first} to {last} are damaged on disk{place}; "
            + (advice or f"restore them from a backup or continue at index {last + 1}")
        )


class LogFailed(HeadraceError):
    """A write could not be made durable. The log accepts nothing more until the process is started again."""

    code = "log-failed"
    status = 503
    retriable = True


class DiskFull(HeadraceError):
    """No room. Nothing was stored; reads continue, and appends resume once there is room."""

    code = "disk-full"
    status = 507
    retriable = True


class StoreUnavailable(HeadraceError):
    """The store of segments, snapshots and checkpoints cannot be reached. Nothing is lost; reads of what is not in the
    cache, and what has to be put there, succeed when it can be reached again."""

    code = "store-unavailable"
    status = 503
    retriable = True


class DataDirectoryLocked(HeadraceError):
    """Another process has the data directory open."""

    code = "data-directory-locked"


class ConditionFailed(HeadraceError):
    """An expectation of a transaction did not hold; nothing of the transaction was applied."""

    code = "condition-failed"
    status = 409

    def __init__(self, op_index: int, what: str, previous: bytes | None = None) -> None:
        self.op_index = op_index
        self.previous = previous
        super().__init__(f"operation {op_index} of the transaction: {what}; nothing was applied")


class Fenced(HeadraceError):
    """Someone else has taken over: what this one sends builds on a state that is no longer the latest."""

    code = "fenced"
    status = 409


class Busy(HeadraceError):
    """Too much is going on. Try again."""

    code = "busy"
    status = 503
    retriable = True


class Closed(HeadraceError):
    """The hub or log has been closed."""

    code = "closed"
    status = 503
    retriable = True


class NotHere(HeadraceError):
    """This hub does not own the log, or cannot be sure that it still does. Any hub leads to the one that does."""

    code = "not-here"
    status = 503
    retriable = True


class Unreachable(HeadraceError):
    """The hub does not answer at that address, or the connection to it broke."""

    code = "unreachable"
    status = 503
    retriable = True


class TlsTrouble(HeadraceError):
    """The hub answers, but TLS keeps this client out: one uses it and the other does not, or the certificate is
    not trusted. The message says what to change."""

    code = "tls"


class MethodRaised(HeadraceError):
    """A method of an immortal was called and raised. Its call is in the log, and is not made again."""

    code = "method-raised"
    status = 422


class StillRunning(HeadraceError):
    """A call is not answered yet. The same call with the same idempotency key waits for it again."""

    code = "still-running"
    status = 503
    retriable = True


class Forbidden(HeadraceError):
    """The caller is known and lacks the right."""

    code = "forbidden"
    status = 403


class Unauthenticated(HeadraceError):
    """The caller is not known, or the secret is wrong."""

    code = "unauthenticated"
    status = 401
