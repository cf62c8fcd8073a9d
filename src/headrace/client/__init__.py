"""The Python SDK: `headrace.connect("host:port")` for programs, `headrace.connect_async` for event loops."""

from __future__ import annotations

from headrace.client.asynchronous import AsyncClient, AsyncCursor, AsyncReader, AsyncTable, AsyncWriter
from headrace.client.client import Client
from headrace.client.handles import Cursor, Table
from headrace.client.reader import Reader
from headrace.client.records import Record
from headrace.client.writer import Writer
from headrace.log.ops import Appended

__all__ = [
    "Appended",
    "AsyncClient",
    "AsyncCursor",
    "AsyncReader",
    "AsyncTable",
    "AsyncWriter",
    "Client",
    "Cursor",
    "Reader",
    "Record",
    "Table",
    "Writer",
    "connect",
    "connect_async",
]

connect = Client
connect_async = AsyncClient
