"""How a connector's stream is called in Headrace: the rule `wallaroo.stream_name`, as a pure function.

The default `{instance}.{stream}` gives `warehouse.orders` for the stream `orders` of the instance `warehouse`. An empty
`{instance}` or `{program}` goes away together with one separator behind it, so that the same rule gives `orders` when
there is no instance. Bytes that are not UTF-8, control characters and `%` become `%XX`: different names stay different.

Joined they may not: `w` and `orders` give the name that `w.orders` has by itself. `claims` sees to it that such two
never share a stream; `name_apart` is what the second is called.
"""

from __future__ import annotations

import re

from headrace.errors import BadRequest
from headrace.protocols.wallaroo.frames import PeerFault

FIELD = re.compile(r"\{(\w+)\}([./:_-]?)")
ESCAPED = re.compile(r"[\x00-\x1f%\x7f-\x9f\ud800-\udfff]")
FIELDS = frozenset({"program", "instance", "stream"})
APART = "%."
"""What parts the fields in a name that no rule gives: there two digits follow a `%`."""


def check_rule(rule: str) -> None:
    """Refuse a rule that cannot name streams, when the listener starts and not when a connector comes."""
    unknown = fields(rule) - FIELDS
    if unknown or "{stream}" not in rule:
        raise BadRequest(
            f"wallaroo.stream_name {rule!r} needs {{stream}} and knows {{program}} and {{instance}} besides"
        )


def fields(rule: str) -> set[str]:
    """What a rule makes names of."""
    return {name for name, _ in FIELD.findall(rule)}


def stream_name(rule: str, program: bytes, instance: bytes, stream: bytes) -> str:
    """The Headrace stream for a NOTIFY."""
    if not stream:
        raise PeerFault("A stream needs a name")
    values = {"program": printable(program), "instance": printable(instance), "stream": printable(stream)}

    def fill(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value + match[2] if value else ""

    return FIELD.sub(fill, rule)


def name_apart(rule: str, program: bytes, instance: bytes, stream: bytes) -> str:
    """A name for the same that nobody else's stream has, neither by the rule nor by this."""
    values = {"program": program, "instance": instance, "stream": stream}
    used = [printable(value) for name, value in values.items() if name in fields(rule)]
    return APART.join(used if len(used) > 1 else ["", *used])


def printable(name: bytes) -> str:
    return ESCAPED.sub(_escape, name.decode("utf-8", "surrogateescape"))


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))
