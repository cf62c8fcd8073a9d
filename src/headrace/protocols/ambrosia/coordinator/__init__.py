"""The hub as Immortal Coordinator: immortals, their logs, their ports and the bindings linked to them."""
