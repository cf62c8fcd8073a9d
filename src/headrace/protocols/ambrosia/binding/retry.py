"""How often something is tried outside, and how long between two attempts."""

from __future__ import annotations

from dataclasses import dataclass

PROGRAM_ERRORS: tuple[type[Exception], ...] = (TypeError, NameError, AttributeError, AssertionError, ImportError)


@dataclass(frozen=True, slots=True)
class Retry:
    """`Retry(attempts=5, first_s=0.2, factor=2, longest_s=60)`: five attempts, 0.2 s, 0.4 s, 0.8 s … between them."""

    attempts: int = 5
    first_s: float = 0.2
    factor: float = 2.0
    longest_s: float = 60.0
    only: tuple[type[Exception], ...] = (Exception,)
    """Errors that may pass."""
    never: tuple[type[Exception], ...] = PROGRAM_ERRORS
    """Errors that no repetition mends."""

    def pause_s(self, attempt: int, error: Exception) -> float | None:
        """How long to wait after the given attempt, the first being 1; None if it was the last one."""
        if attempt >= self.attempts or not isinstance(error, self.only) or isinstance(error, self.never):
            return None
        return min(self.longest_s, self.first_s * self.factor ** (attempt - 1))


ONCE = Retry(attempts=1)
