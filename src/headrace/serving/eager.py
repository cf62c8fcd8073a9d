"""A coroutine that begins at once, and becomes a task only where it waits: a round of the event loop is saved for what
mostly hands something in and waits for the answer. (asyncio has eager tasks from Python 3.12 on.)

Until it waits for the first time it is not in a task of its own, which `asyncio.timeout` and the like would need.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import types
from collections.abc import Coroutine, Generator
from typing import Any


def begin(work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run it up to where it waits; the task does the rest, if there is any. What it raises before is raised here."""
    context = contextvars.copy_context()
    try:
        awaited = context.run(work.send, None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_finish(work, awaited), context=context)


async def _finish(work: Coroutine[Any, Any, None], awaited: object) -> None:
    await _steps(work, awaited)


@types.coroutine
def _steps(work: Coroutine[Any, Any, None], awaited: object) -> Generator[object, object, None]:
    """Hand on what it waits for and what it gets, beginning with what it waits for already."""
    while True:
        try:
            got = yield awaited
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # cancelled: it is for the work to say what that means
            step = functools.partial(work.throw, error)
        else:
            step = functools.partial(work.send, got)
        try:
            awaited = step()
        except StopIteration:
            return
