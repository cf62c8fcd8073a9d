"""Pages of the answers to SQL."""

from __future__ import annotations

import threading
from typing import Any, cast

import pyarrow as pa
import pytest

from headrace.protocols.perper.ignite.binary import encode_long
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.results import AT_ONCE_MAX, Answer


async def test_many_rows_are_written_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer(cast(Any, None), cast(Any, None))
    answer.names = ["n"]
    answer._kinds = [kinds.by_result(pa.int64(), "BIGINT")]
    answer._is_whole = True
    answer._kept.append(pa.record_batch({"n": pa.array(range(2 * AT_ONCE_MAX), pa.int64())}))
    rows, threads = answer._rows, []

    def noted(batch: pa.RecordBatch) -> Any:
        threads.append(threading.current_thread())
        return rows(batch)

    monkeypatch.setattr(answer, "_rows", noted)
    few = await answer.page(5)
    many = await answer.page(2**31)
    assert few.more
    assert not many.more
    assert few.rows + many.rows == [(encode_long(number),) for number in range(2 * AT_ONCE_MAX)]
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()
