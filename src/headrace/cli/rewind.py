"""`headrace stream rewind`: send a Wallaroo connector's stream back to a point of reference.

The command is a plain function; the noun `stream` takes it in with one line:
`app.command("rewind")(rewind)`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Answer, sharing
from headrace.cli.output import fail
from headrace.protocols.wallaroo.worker import Rewound


@sharing(answer=Answer)
def rewind(
    answer: Answer,
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    to: Annotated[int | None, typer.Option("--to", min=0, help="The last message id that counts as stored.")] = None,
    to_start: Annotated[bool, typer.Option("--to-start", help="Assume that nothing has been stored yet.")] = False,
    close: Annotated[
        bool, typer.Option("--close", help="v3: close the connection instead of sending RESTART.")
    ] = False,
) -> None:
    """Make the connector of a stream resend everything after a message id (NACK in the draft, RESTART in v3).

    Records stay where they are: what is sent again is appended again.
    """
    if (to is None) != to_start:
        fail("say where to: --to MESSAGE_ID, or --to-start", code="bad-request", exit_code=2)
    request = {"stream": stream, "point": to, "how": "close" if close else "restart"}
    done = answer.request("stream.rewind", request, Rewound)
    where = "the beginning" if done.point is None else f"message id {done.point}"
    answer.line(done, f"{done.stream}: from {done.before} back to {where}; {done.connections} connections told")
