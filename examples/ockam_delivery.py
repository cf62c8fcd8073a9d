"""One-directional, reliable delivery over an Ockam stream: publisher → stream → consumer with a saved index.

    headrace up                                        # in another terminal
    python examples/ockam_delivery.py 127.0.0.1:4000

Without an address the example brings its own hub in memory. It is the recipe of the specification's section "Putting
it all together", step by step, with the plain connection; `Publisher` and `Consumer` of
`headrace.protocols.ockam.client` do the same and also survive lost connections.
"""

from __future__ import annotations

import asyncio
import sys

from headrace.protocols.ockam.client import connect

STREAM = "example.orders"
CLIENT_ID = "billing"  # every consumer that reads on its own needs a client id of its own


async def publisher(address: str, records: list[bytes]) -> None:
    """CREATE → INIT, then PUSH → PushConfirm. A confirm means: on disk."""
    async with await connect(address) as connection:
        stream = await connection.create(STREAM)
        indexes = await connection.push_all(stream, records)
        print(f"publisher: {len(indexes)} records confirmed, indexes {indexes[0]} to {indexes[-1]}")


async def consumer(address: str, at_most: int) -> int:
    """CREATE → INIT, GetIndex → Index(I), then PULL(I, 3) → PullResponse, SaveIndex, and again."""
    async with await connect(address) as connection:
        stream = await connection.create(STREAM)
        index = await connection.get_index(CLIENT_ID, stream) or 0
        print(f"consumer:  goes on at index {index}")
        seen = 0
        while seen < at_most:
            messages = await connection.pull(stream, index, limit=3)
            if not messages:
                break
            for message in messages:
                if message.index != index:
                    print(f"consumer:  indexes {index} to {message.index - 1} are gone")
                print(f"consumer:  {message.index}: {message.data.decode()}")
                index = message.index + 1
            # Saved only after the records are dealt with: a crash before this line shows them again, never loses them.
            connection.save_index(CLIENT_ID, stream, index)
            seen += len(messages)
        # A Save has no reply. A Get behind it on the same connection does, and tells that the Save has been done.
        await connection.get_index(CLIENT_ID, stream)
        return seen


async def run(address: str) -> int:
    await publisher(address, [f"order {number}".encode() for number in range(7)])
    seen = await consumer(address, at_most=4)
    print("consumer:  stopped, for an hour or a year; the stream keeps what comes")
    await publisher(address, [b"order 7", b"order 8"])
    return seen + await consumer(address, at_most=100)


async def with_own_hub() -> int:
    from headrace.protocols.ockam.server import serve
    from headrace.testing import memory_hub

    async with memory_hub() as hub:
        listener = await serve(hub, "127.0.0.1:0")
        try:
            return await run(listener.address)
        finally:
            await listener.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]) if len(sys.argv) > 1 else with_own_hub())
