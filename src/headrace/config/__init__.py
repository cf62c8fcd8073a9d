"""Settings: what there are (`sections`, `settings` of each protocol, `config`), and where values come from (`load`).

Names come when they are first asked for: a protocol makes its settings with `sections`, and the whole is made of all
protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.config.config import *  # noqa: F403
    from headrace.config.sections import *  # noqa: F403


def __getattr__(name: str) -> Any:
    if name[0].isupper():
        from importlib import import_module

        from headrace.protocols.descriptor import protocols

        settings = (protocol.settings.__module__ for protocol in protocols())
        for module in ("headrace.config.sections", "headrace.config.config", *settings):
            if hasattr(import_module(module), name):
                return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
