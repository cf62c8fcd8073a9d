"""A transaction between the one who hands it in and the log."""

from __future__ import annotations

from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.slices import Removals

OPERATION_BYTES: Final = 512
"""What an operation weighs besides its bytes, and each key of one that has many: the writer spends its time on them."""


class Pending:
    """A transaction on its way to the disk."""

    __slots__ = ("done", "error", "nbytes", "operations", "prepared", "result", "token", "weight")

    def __init__(self, operations: list[ops.Op], nbytes: int, weight: int, token: Any = None) -> None:
        self.operations = operations
        self.nbytes = nbytes
        self.weight = weight
        """Its share of a commit: its bytes, and `OPERATION_BYTES` for each operation and key."""
        self.token = token
        """Whatever the submitter wants back with the outcome."""
        self.prepared: Removals | Batch | None = None
        """What the writer has found out or made before the commit: which keys it removes, or the records that its
        only put stores."""
        self.result: list[Any] = []
        self.error: HeadraceError | None = None
        self.done = False

    @property
    def touches(self) -> set[str]:
        """The names of its streams and tables; an empty one stands for operations that have only a number."""
        return {
            getattr(op, "stream", "") or getattr(op, "table", "") or getattr(op, "name", "") for op in self.operations
        }

    def refuse(self, error: HeadraceError) -> None:
        """It does not happen, and neither does what stands behind it in its line."""
        self.error = error
        for op in self.operations:
            if isinstance(op, ops.Append) and op.line is not None:
                op.line.refused = True
