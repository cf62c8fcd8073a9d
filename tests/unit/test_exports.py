"""The public API: what these lists name stays, what they do not name is ours to change."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
import headrace.client
import headrace.immortals
import headrace.testing

PUBLIC = [
    "Appended",
    "AsyncClient",
    "AsyncReader",
    "AsyncWriter",
    "Client",
    "HeadraceError",
    "Reader",
    "Record",
    "StreamOptions",
    "Writer",
    "__version__",
    "connect",
    "connect_async",
]

CLIENT = {
    "address",
    "append",
    "bounds",
    "call",
    "close",
    "create",
    "create_table",
    "cursor",
    "cursors",
    "delete",
    "describe",
    "entries",
    "follow",
    "group",
    "grow",
    "immortal",
    "index_at_time",
    "iter_cursors",
    "iter_streams",
    "iter_tables",
    "producer_sequence",
    "read",
    "request",
    "segments",
    "set_options",
    "sql",
    "streams",
    "table",
    "tables",
    "trim",
    "writer",
}

IMMORTALS = [
    "Cancelled",
    "DeclarationError",
    "EffectError",
    "Immortal",
    "NotDeterministic",
    "RemoteError",
    "Result",
    "Retry",
    "Saga",
    "StateError",
    "Token",
    "as_completed",
    "gather",
    "immortal",
    "method",
    "query",
    "run",
    "select",
    "serve",
]


def test_the_package_exports_exactly_this():
    assert headrace.__all__ == PUBLIC
    for name in PUBLIC:
        assert getattr(headrace, name) is not None
    assert set(PUBLIC) <= set(dir(headrace))
    with pytest.raises(AttributeError, match="no attribute 'connnect'"):
        headrace.connnect  # noqa: B018


def test_the_client_has_exactly_these_methods():
    assert {name for name in dir(headrace.Client) if not name.startswith("_")} == CLIENT
    assert {name for name in dir(headrace.AsyncClient) if not name.startswith("_")} == CLIENT - {"request"}


def test_the_front_door_of_immortals_is_exactly_this():
    assert headrace.immortals.__all__ == IMMORTALS
    assert all(getattr(headrace.immortals, name) is not None for name in IMMORTALS)


def test_importing_headrace_does_not_import_arrow():
    code = "import sys, headrace; sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parent.parent)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0
