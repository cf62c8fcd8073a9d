"""Every protocol's errors are the peer's or ours; what users of a client catch, and nothing else, is listed by name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

from headrace import protocols
from headrace.errors import HeadraceError
from headrace.protocols.errors import LocalProtocolError, ProtocolError, RemoteProtocolError

PUBLIC = {
    "headrace.protocols.ambrosia.binding.engine.ImpulseRefused",
    "headrace.protocols.ambrosia.binding.engine.NotInMethod",
    "headrace.protocols.ambrosia.binding.immortal.StateError",
    "headrace.protocols.ambrosia.binding.immortal.UpgradeRefused",
    "headrace.protocols.ambrosia.binding.methods.DeclarationError",
    "headrace.protocols.ambrosia.binding.queries.QueryWrites",
    "headrace.protocols.ambrosia.binding.results.Cancelled",
    "headrace.protocols.ambrosia.binding.results.EffectError",
    "headrace.protocols.ambrosia.binding.results.NotDeterministic",
    "headrace.protocols.ambrosia.binding.results.RemoteError",
    "headrace.protocols.ockam.connection.ConnectionLost",
    "headrace.protocols.ockam.connection.NoAnswer",
    "headrace.protocols.ockam.connection.OckamError",
    "headrace.protocols.ockam.connection.Refused",
    "headrace.protocols.perper.fabric.client.RpcError",
}
"""What the clients raise for their users to catch."""

SIGNALS = {"headrace.protocols.perper.ignite.operations.NotReady"}
"""No error: the request is tried again by itself."""


def test_each_exception_of_a_protocol_is_one_of_the_pair_or_public() -> None:
    others = set()
    found: set[type[BaseException]] = set()
    for module in pkgutil.walk_packages(protocols.__path__, f"{protocols.__name__}."):
        for kind in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(kind) and issubclass(kind, BaseException) and kind.__module__ == module.name:
                found.add(kind)
                if not issubclass(kind, (LocalProtocolError, RemoteProtocolError, HeadraceError)):
                    others.add(f"{kind.__module__}.{kind.__qualname__}")
    assert others == PUBLIC | SIGNALS | {f"{ProtocolError.__module__}.{ProtocolError.__qualname__}"}
    assert not {
        kind for kind in found if issubclass(kind, LocalProtocolError) and issubclass(kind, RemoteProtocolError)
    }
