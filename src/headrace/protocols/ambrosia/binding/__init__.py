"""The Python language binding: the base class of immortals, their methods, calls and results."""
