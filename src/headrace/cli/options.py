"""Options that several commands of one noun share: written once, and handed to each command as what they stand for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

Command = Callable[..., None]


def sharing(**made: Callable[..., Any]) -> Callable[[Command], Command]:
    """`@sharing(hub=connect)` gives a command all options of the function `connect`, and its result as `hub`."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        parameters = {parameter.name: parameter for parameter in own if parameter.name not in made}
        options = {name: inspect.signature(make, eval_str=True).parameters for name, make in made.items()}
        for each in options.values():
            parameters.update(each)

        @functools.wraps(command)
        def run(**given: Any) -> None:
            results = {name: make(**{option: given[option] for option in options[name]}) for name, make in made.items()}
            kept = {parameter.name: given[parameter.name] for parameter in own if parameter.name not in made}
            command(**kept, **results)

        keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters.values()]
        run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        hints = [get_type_hints(function, include_extras=True) for function in (command, *made.values())]
        run.__annotations__ = {name: hint for each in hints for name, hint in each.items() if name in parameters}
        return run

    return decorate
