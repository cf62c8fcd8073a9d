"""How a connector's stream is called in Headrace: the rule `wallaroo.stream_name`, as a pure function.

The default `{instance}.{stream}` gives `warehouse.orders` for the stream `orders` of the instance `warehouse`. An empty
`{instance}` or `{program}` goes away together with one separator behind it, so that the same rule gives `orders` when
there is no instance. Bytes that are not UTF-8, control characters and `%` become `%XX`: different names stay different.
"""

from __future__ import annotations

import re

from headrace.errors import BadRequest
from headrace.protocols.wallaroo.frames import PeerFault

FIELD = re.compile(r"\{(\w+)\}([./:_-]?)")
ESCAPED = re.compile(r"[\x00-\x1f%\x7f-\x9f\ud800-\udfff]")
FIELDS = frozenset({"program", "instance", "stream"})


def check_rule(rule: str) -> None:
    """Refuse a rule that cannot name streams, when the listener starts and not when a connector comes."""
    unknown = {name for name, _ in FIELD.findall(rule)} - FIELDS
    if unknown or "{stream}" not in rule:
        raise BadRequest(
            f"wallaroo.stream_name {rule!r} needs {{stream}} and knows {{program}} and {{instance}} besides"
        )


def stream_name(rule: str, program: bytes, instance: bytes, stream: bytes) -> str:
    """The Headrace stream for a NOTIFY."""
    if not stream:
        raise PeerFault("A stream needs a name")
    values = {"program": printable(program), "instance": printable(instance), "stream": printable(stream)}

    def fill(match: re.Match[str]) -> str:
        value = values[match[1]]
        return value + match[2] if value else ""

    return FIELD.sub(fill, rule)


def printable(name: bytes) -> str:
    return ESCAPED.sub(_escape, name.decode("utf-8", "surrogateescape"))


def _escape(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogateescape"))
