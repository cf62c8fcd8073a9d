"""Headrace: one durable log, five published stream protocols, Spark at the wheel."""

__version__ = "0.1.0"
