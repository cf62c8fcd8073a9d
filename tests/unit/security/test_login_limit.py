import asyncio
import logging
from pathlib import Path

import pytest

from headrace.config import Config, SecuritySection, User
from headrace.errors import Unauthenticated
from headrace.security import EVERYTHING, Security, hash_secret, new_token
from headrace.security.admission import Admission, Password, Quick, Token
from headrace.security.login_limit import ADDRESS_FACTOR, LoginLimiter, TooManyLogins, network_of
from headrace.telemetry.metrics import Metrics

HERE, THERE = "198.51.100.7:5000", "203.0.113.9:5000"
HASHED = hash_secret("wonderland")


class Held:
    """A limiter with a clock that stands still, and how often it held someone back."""

    def __init__(self, failures_max: int = 3, window_s: float = 60) -> None:
        self.now_s = 1000.0
        self.times = 0
        self.limiter = LoginLimiter(failures_max, window_s, self._held, lambda: self.now_s)

    def _held(self) -> None:
        self.times += 1

    def fails(self, times: int, peer: str = HERE, user: str | None = "alice") -> None:
        for _ in range(times):
            self.limiter.begin(peer, user)


def test_after_so_many_failures_the_next_is_not_looked_at() -> None:
    held = Held()
    held.fails(3)
    with pytest.raises(TooManyLogins, match="try again in 60 s") as refused:
        held.limiter.begin(HERE, "alice")
    assert (refused.value.code, refused.value.wait_s, held.times) == ("too-many-logins", 60, 1)


def test_others_are_not_held_back() -> None:
    held = Held()
    held.fails(3)
    held.limiter.begin(THERE, "alice")
    held.limiter.begin(HERE, "bob")
    held.limiter.begin(HERE, None)
    assert held.times == 0


def test_time_forgives() -> None:
    held = Held()
    held.fails(3)
    held.now_s += 59.5
    with pytest.raises(TooManyLogins, match="in 1 s"):
        held.limiter.begin(HERE, "alice")
    held.now_s += 0.6
    held.fails(3)


def test_a_success_forgives_slips() -> None:
    held = Held()
    held.fails(3)
    held.limiter.succeeded(HERE, "alice")
    held.fails(3)
    with pytest.raises(TooManyLogins):
        held.limiter.begin(HERE, "alice")


def test_one_password_cannot_be_tried_on_everyone() -> None:
    held = Held()
    for number in range(3 * ADDRESS_FACTOR):
        held.limiter.begin(HERE, f"user {number}")
    for user in ("someone", None):
        with pytest.raises(TooManyLogins):
            held.limiter.begin(HERE, user)
    held.limiter.begin(THERE, "someone")


def test_someone_who_logs_in_pays_only_for_that() -> None:
    """A success gives back one attempt of the address, not those of a guesser beside it."""
    held = Held()
    for number in range(3 * ADDRESS_FACTOR - 1):
        held.limiter.begin(HERE, f"user {number}")
    held.limiter.begin(HERE, None)
    held.limiter.succeeded(HERE, None)
    held.limiter.begin(HERE, None)
    with pytest.raises(TooManyLogins):
        held.limiter.begin(HERE, None)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.security.login_limit.KEYS_MAX", 4)
    held = Held()
    for number in range(100):
        held.limiter.begin(f"198.51.100.{number}:1", "alice")
    assert len(held.limiter._failures) == 4


def test_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    held = Held()
    with caplog.at_level(logging.WARNING, "headrace.security"):
        held.fails(3)
        for _ in range(5):
            with pytest.raises(TooManyLogins):
                held.limiter.begin(HERE, "alice")
    assert [record.getMessage() for record in caplog.records] == ["logins held back"]


@pytest.mark.parametrize(
    ("peer", "place"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("198.51.100.7:5000", "198.51.100.7"),
        ("::ffff:198.51.100.7", "198.51.100.7"),
        ("2001:db8::1", "2001:db8::/64"),
        ("[2001:db8::2]:5000", "2001:db8::/64"),
        ("[fe80::1%eth0]:5000", "fe80::/64"),
        ("?", "?"),
        ("", ""),
    ],
)
def test_what_counts_as_one_address(peer: str, place: str) -> None:
    assert network_of(peer) == place


def guarded(tmp_path: Path, tokens: list[str] | None = None) -> Admission:
    user = User(secret=HASHED, roles=["reader"], tokens=tokens or [])
    section = SecuritySection(users={"alice": user}, login_failures_max=2)
    return Admission(Security(Config(security=section), tmp_path), section, Metrics())


async def refused(door: Admission, shown: Quick | Password, peer: str = HERE) -> bool:
    try:
        await door.admit("http", peer, shown)
    except Unauthenticated:
        return True
    return False


async def test_even_the_right_password_must_wait_then(tmp_path: Path) -> None:
    door = guarded(tmp_path)
    for guess in ("1", "2"):
        assert await refused(door, Password("alice", guess))
    right = Password("alice", "wonderland")
    with pytest.raises(TooManyLogins):
        await door.admit("http", HERE, right)
    assert not await refused(door, right, THERE)
    # It was right once, so it is no guess any more, and a guesser at the same address locks nobody out.
    assert not await refused(door, right)


async def test_many_at_once_with_one_password_are_one_attempt(tmp_path: Path) -> None:
    door = guarded(tmp_path)
    found = await asyncio.gather(*(door.admit("http", HERE, Password("alice", "wonderland")) for _ in range(50)))
    assert {principal.name for principal in found} == {"alice"}


async def test_tokens_are_counted_by_address(tmp_path: Path) -> None:
    token, digest = new_token()
    door = guarded(tmp_path, [digest])
    for _ in range(100):
        assert door.admit_now("http", HERE, Token(token)).name == "alice"
    for _ in range(2 * ADDRESS_FACTOR):
        assert await refused(door, Token("a guess"))
    with pytest.raises(TooManyLogins):
        door.admit_now("http", HERE, Token(token))
    assert door.admit_now("http", THERE, Token(token)).name == "alice"


async def test_a_shared_secret_is_counted_as_a_token_is(tmp_path: Path) -> None:
    door = guarded(tmp_path)
    assert door.admit_now("wallaroo", HERE, Token("cookie", "cookie")).roles == EVERYTHING.roles
    assert await refused(door, Token("", ""))
    for _ in range(2 * ADDRESS_FACTOR - 1):
        assert await refused(door, Token("a guess", "cookie"))
    with pytest.raises(TooManyLogins):
        door.admit_now("wallaroo", HERE, Token("cookie", "cookie"))
