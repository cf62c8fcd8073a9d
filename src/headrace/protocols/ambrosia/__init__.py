"""AMBROSIA: the hub as Immortal Coordinator, and a Python language binding for it."""
