"""Files of the published coordinator: round trips and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.ambrosia_files import encode_checkpoint_head, encode_disk_record, encode_page

from headrace.protocols.ambrosia.codec import Call, Checkpoint, encode
from headrace.protocols.ambrosia.files.layout import (
    CheckpointFile,
    DiskRecord,
    Output,
    Trim,
    Watermark,
    decode_checkpoint_head,
    decode_disk_record,
    read_log,
)
from headrace.protocols.errors import RemoteProtocolError

RECORD = DiskRecord(
    -7, 3, encode(Call(1, 1, b"abc")), (Watermark(b"", 4, 3), Watermark(b"peer", 9, 8)), (Trim(b"p", 2),)
)
FILE = CheckpointFile(
    committer=-7,
    next_sequence=4,
    commit_buffer=b"buffer",
    checkpoint=Checkpoint(3),
    watermarks=(Watermark(b"a", 1, 1),),
    trims=(Trim(b"b", 2),),
    inputs=(Watermark(b"c", 3, 3),),
    outputs=(Output(b"d", 5, 4, 3, (encode_page(1 << 20, b"page", 9, 8, 7, 6),)),),
)


@pytest.mark.parametrize("xor", [False, True])
def test_records_come_back(xor: bool) -> None:
    record = replace(RECORD, xor=xor)
    data = encode_disk_record(record)
    assert decode_disk_record(data) == (record, len(data))


def test_checkpoint_files_come_back() -> None:
    data = encode_checkpoint_head(FILE) + b"abc"
    file = decode_checkpoint_head(data)
    assert file == FILE
    assert data[file.blob_at :] == b"abc"


def test_a_log_ends_at_the_first_record_that_does_not_hold() -> None:
    records = [replace(RECORD, sequence=number) for number in range(3)]
    data = b"".join(map(encode_disk_record, records))
    assert read_log(data) == records
    assert read_log(data + b"junk") == records
    assert read_log(data + encode_disk_record(replace(RECORD, sequence=7))) == records
    assert read_log(data + encode_disk_record(replace(RECORD, sequence=3, committer=1))) == records
    damaged = bytearray(data)
    damaged[data.rindex(RECORD.payload)] ^= 1
    assert len(read_log(bytes(damaged))) == 2


def test_every_cut_of_a_record_and_a_file_is_refused() -> None:
    for whole, decode in (
        (encode_disk_record(RECORD), decode_disk_record),
        (encode_checkpoint_head(FILE), decode_checkpoint_head),
    ):
        for size in range(len(whole)):
            with pytest.raises(RemoteProtocolError):
                decode(whole[:size])


def test_a_file_that_ends_in_another_message_is_refused() -> None:
    data = encode_checkpoint_head(FILE)[: -len(encode(FILE.checkpoint))] + encode(Call(1, 1, b""))
    with pytest.raises(RemoteProtocolError, match="where a Checkpoint message was due"):
        decode_checkpoint_head(data)
