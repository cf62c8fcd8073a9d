"""A transaction between the one who hands it in and the log."""

from __future__ import annotations

from typing import Any

from headrace.errors import HeadraceError
from headrace.log import ops


class Pending:
    """A transaction on its way to the disk."""

    __slots__ = ("done", "error", "nbytes", "operations", "result", "token")

    def __init__(self, operations: list[ops.Op], nbytes: int, token: Any = None) -> None:
        self.operations = operations
        self.nbytes = nbytes
        self.token = token
        """Whatever the submitter wants back with the outcome."""
        self.result: list[Any] = []
        self.error: HeadraceError | None = None
        self.done = False

    def refuse(self, error: HeadraceError) -> None:
        """It does not happen, and neither does what stands behind it in its line."""
        self.error = error
        for op in self.operations:
            if isinstance(op, ops.Append) and op.line is not None:
                op.line.refused = True
