"""`headrace stream rewind`: send a Wallaroo connector's stream back to a point of reference.

The command is a plain function; the noun `stream` takes it in with one line:
`app.command("rewind")(rewind)`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from headrace.cli.output import DEFAULT_HUB, HubOption, JsonFlag, TokenOption, call, fail, people, print_json
from headrace.protocols.wallaroo.worker import Rewound


def rewind(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    to: Annotated[int | None, typer.Option("--to", min=0, help="The last message id that counts as stored.")] = None,
    to_start: Annotated[bool, typer.Option("--to-start", help="Nothing counts as stored.")] = False,
    close: Annotated[
        bool, typer.Option("--close", help="v3: close the connection instead of sending RESTART.")
    ] = False,
    hub: HubOption = DEFAULT_HUB,
    token: TokenOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Have the connector of a stream send again what comes after a message id (NACK in the draft, RESTART in v3).

    Records stay where they are: what is sent again is appended again.
    """
    if (to is None) != to_start:
        fail("say where to: --to MESSAGE_ID, or --to-start", code="bad-request", exit_code=2)
    request = {"stream": stream, "point": to, "how": "close" if close else "restart"}
    done = msgspec.convert(call(hub, token, "stream.rewind", request), Rewound)
    if as_json:
        print_json(done)
        return
    where = "the beginning" if done.point is None else f"message id {done.point}"
    people().print(f"{done.stream}: from {done.before} back to {where}; {done.connections} connections told")
