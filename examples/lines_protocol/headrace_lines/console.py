"""How the console shows the protocol."""

from headrace.protocols.descriptor import Console, Field, SeenRecord, WireForm, state_place
from headrace_lines.session import CONNECTION, record_line


def wire_form(record: SeenRecord) -> WireForm | None:
    """The answer to a read. A text with a line's end in it would be two lines."""
    if b"\n" in record.payload:
        return None
    index = str(record.index)
    fields = [
        Field("answer", 7, "record and a space"),
        Field("index", len(index), index),
        Field("space", 1, ""),
        Field("text", len(record.payload), ""),
        Field("end", 1, "of the line"),
    ]
    return WireForm("record", record_line(record.index, record.payload), fields)


CONSOLE = Console(machines=(CONNECTION,), wire_form=wire_form, places=state_place)
