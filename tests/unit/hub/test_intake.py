"""What has come in and is not understood yet: who may stay, and who goes when there is too much."""

from __future__ import annotations

import logging

import pytest

from headrace.config import Limits
from headrace.errors import LimitExceeded
from headrace.hub.intake import SLOWEST_BYTES_PER_S, TELL_S, Arrival, Intake
from headrace.telemetry.metrics import Metrics

KIB = 1024


class Scene:
    """An intake with a clock, and the connections that it has ended."""

    def __init__(self, **limits: float) -> None:
        self.now_s = 1000.0
        self.metrics = Metrics()
        self.ended: list[tuple[str, str]] = []
        self.intake = Intake(Limits(**limits), self.metrics.intake, lambda: self.now_s)  # type: ignore[arg-type]

    def open(self, name: str, listener: str = "ockam", strangers_max: int | None = None) -> Arrival:
        return self.intake.open(listener, lambda why: self.ended.append((name, why)), strangers_max)

    def known(self, name: str) -> Arrival:
        arrival = self.open(name)
        arrival.known()
        return arrival

    def after(self, seconds: float) -> list[str]:
        self.now_s += seconds
        self.intake.sweep()
        return self.names()

    def names(self) -> list[str]:
        return [name for name, _ in self.ended]

    def counted(self, reason: str, listener: str = "ockam") -> float:
        value: float = self.metrics.intake.ended.labels(protocol=listener, reason=reason)._value.get()
        return value


async def test_a_stranger_has_time_to_sign_in_and_then_goes() -> None:
    scene = Scene(sign_in_s=60)
    scene.open("silent")
    scene.known("known")
    assert scene.after(60) == []
    assert scene.after(0.1) == ["silent"]
    assert scene.after(10_000) == ["silent"]  # who is known may be silent for ever
    assert "limits.sign_in_s" in scene.ended[0][1]
    assert scene.counted("silent") == 1


async def test_a_stranger_gains_no_time_by_sending_byte_after_byte() -> None:
    scene = Scene(sign_in_s=60)
    slow = scene.open("slow")
    for held in range(1, 61):
        slow.holds(held, 1)
        scene.after(1)
    assert scene.names() == []
    assert scene.after(1) == ["slow"]


async def test_half_a_message_has_its_time_and_more_by_its_size() -> None:
    scene = Scene(message_s=30)
    half, large = scene.known("half"), scene.known("large")
    half.holds(1, 1)
    large.holds(100 * SLOWEST_BYTES_PER_S, 100 * SLOWEST_BYTES_PER_S)
    assert scene.after(30) == []
    assert scene.after(1) == ["half"]
    assert scene.after(98) == ["half"]
    assert scene.after(2) == ["half", "large"]
    assert "limits.message_s" in scene.ended[0][1]
    assert scene.counted("slow") == 2


async def test_each_whole_message_begins_the_time_anew() -> None:
    scene = Scene(message_s=30)
    peer = scene.known("peer")
    for _ in range(20):
        peer.holds(10, 500)  # 490 of them were whole messages
        assert scene.after(29) == []
    peer.holds(11, 1)  # one byte more is not
    assert scene.after(2) == ["peer"]


async def test_whom_we_do_not_read_cannot_be_late() -> None:
    scene = Scene(message_s=30, sign_in_s=30)
    held, stranger = scene.known("held"), scene.open("stranger")
    held.holds(5, 5)
    held.is_read = stranger.is_read = False
    assert scene.after(500) == []
    held.is_read = stranger.is_read = True
    assert scene.after(29) == []
    assert scene.after(2) == ["held", "stranger"] or scene.names() == ["stranger", "held"]


async def test_the_total_of_all_listeners_is_bounded_and_the_largest_goes() -> None:
    scene = Scene(unread_bytes_max=100 * KIB)
    small, large = scene.known("small"), scene.open("large", "http")
    large.known()
    small.holds(40 * KIB, 40 * KIB)
    large.holds(60 * KIB, 60 * KIB)
    assert scene.names() == []  # as much as may be
    small.holds(41 * KIB, KIB)
    assert scene.names() == ["large"]
    assert "limits.unread_bytes_max" in scene.ended[0][1]
    assert scene.counted("bytes", "http") == 1
    assert scene.intake.held_bytes == 41 * KIB
    large.close()  # the connection learns it, too
    large.holds(5, 5)  # more may come before it is gone
    assert scene.intake.held_bytes == 41 * KIB


async def test_strangers_go_before_those_with_a_name() -> None:
    scene = Scene(unread_bytes_max=100 * KIB)
    stranger, known, silent = scene.open("stranger"), scene.known("known"), scene.open("silent")
    stranger.holds(KIB, KIB)
    known.holds(100 * KIB, 100 * KIB)
    assert scene.names() == ["stranger"]
    known.holds(101 * KIB, KIB)
    assert scene.names() == ["stranger", "known"]  # to end one that holds nothing would help nobody
    silent.close()
    assert len(scene.intake) == 0
    assert scene.intake.held_bytes == 0


async def test_one_stranger_too_many_ends_the_oldest() -> None:
    scene = Scene(strangers_max=2)
    scene.known("known")
    scene.open("first")
    scene.after(1)
    scene.open("second", "http")
    scene.after(1)
    assert scene.intake.strangers == 2
    assert scene.names() == []
    scene.open("third", "http")
    assert scene.names() == ["first"]
    scene.open("fourth", "http")
    assert scene.names() == ["first", "second"]
    assert (scene.counted("strangers"), scene.counted("strangers", "http")) == (1, 1)
    assert len(scene.intake) == 3


async def test_a_listener_with_less_room_ends_its_own() -> None:
    scene = Scene(strangers_max=100)
    scene.open("elsewhere")
    scene.open("first", "http", 1)
    assert scene.names() == []
    scene.open("second", "http", 1)
    assert scene.names() == ["first"]


async def test_the_last_descriptors_are_not_for_connections() -> None:
    scene = Scene()
    scene.intake.connections_max = 2
    scene.known("one")
    scene.open("stranger")
    scene.known("two")
    assert scene.names() == ["stranger"]
    with pytest.raises(LimitExceeded, match="limits.files_reserved"):
        scene.open("three")
    assert scene.counted("files") == 2
    assert len(scene.intake) == 2


async def test_a_flood_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "headrace.server")
    scene = Scene(strangers_max=1)
    for number in range(1000):
        scene.open(str(number))
    assert len(caplog.records) == 1
    scene.now_s += TELL_S
    scene.intake._tick()
    assert len(caplog.records) == 2
    assert caplog.records[1].headrace_fields == {"reason": "strangers", "count": 998}  # type: ignore[attr-defined]
