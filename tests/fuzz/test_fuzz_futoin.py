"""A short run of the fuzz target, and the same inputs against the whole application."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import Config, Futoin
from headrace.protocols.futoin.server import Application
from headrace.testing import memory_hub


def load() -> ModuleType:
    path = Path(__file__).with_name("fuzz_futoin.py")
    spec = importlib.util.spec_from_file_location("fuzz_futoin", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


target = load()


def test_seeds() -> None:
    for seed in target.seeds():
        target.fuzz(seed)


def test_mutated_seeds() -> None:
    randomness = random.Random(18)
    known = target.seeds()
    for _ in range(1500):
        target.fuzz(target.mutated(randomness.choice(known), randomness))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    target.fuzz(data)


async def test_application_answers_everything() -> None:
    """Whatever the body, HTTP answers with a message, and a WebSocket stays open."""
    randomness = random.Random(19)
    known = target.seeds()
    inputs = [target.mutated(randomness.choice(known), randomness) for _ in range(400)]
    config = Config(futoin=Futoin(insecure=True))
    async with memory_hub(config) as hub:
        app = Application(hub)
        scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": "/s", "scheme": "http", "client": None, "headers": [],
        }  # fmt: skip
        for data in inputs:
            incoming = [{"type": "http.request", "body": data}]
            sent: list[Any] = []

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            async def receive(incoming: list[Any] = incoming) -> Any:
                return incoming.pop()

            await app(scope, receive, send)
            assert sent[0]["status"] == 200
        await check_websocket(app, {**scope, "type": "websocket"}, inputs)
        app.close()


async def check_websocket(app: Application, scope: dict[str, Any], inputs: list[bytes]) -> None:
    incoming: list[Any] = [{"type": "websocket.receive", "bytes": data} for data in inputs]
    incoming = [{"type": "websocket.connect"}, *incoming, {"type": "websocket.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return incoming.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert incoming == []
    assert sent[0]["type"] == "websocket.accept"
    assert all(message["type"] == "websocket.send" for message in sent[1:])
