"""Damage to the file of users, which has no checksum: it lets nobody in, and gives nobody more than they had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.config import Config
from headrace.errors import HeadraceError
from headrace.security.passwords import token_digest
from headrace.security.policy import Security

TOKENS = {"ada": "token of ada", "bob": "token of bob"}
ROLES = {"ada": ["admin"], "bob": ["reader"]}


def harmed(data: bytes) -> Iterator[bytes]:
    yield from (data[:size] for size in range(len(data)))
    yield from (bytes(len(data)), bytes(512) + data[512:])
    for bit in range(8 * len(data)):
        yield data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def roles_of(security: Security, user: str) -> list[str]:
    principal = security.authenticate_token(TOKENS[user])
    return [] if principal is None else list(principal.roles)


@pytest.mark.parametrize("name", ["users.json", "users.required"])
def test_damage_lets_nobody_in_and_gives_nobody_more(name: str, tmp_path: Path) -> None:
    security = Security(Config(), tmp_path, remembers=True)
    for user, roles in ROLES.items():
        security.add_user(user, None, roles)
        security.add_token(user, token_digest(TOKENS[user]))
    assert [roles_of(security, user) for user in ROLES] == list(ROLES.values())
    data = (tmp_path / name).read_bytes()
    answers = {"truth": 0, "error": 0}
    for left in harmed(data):
        (tmp_path / name).write_bytes(left)
        try:
            again = Security(Config(), tmp_path, remembers=True)
            assert again.anonymous() is None, "the hub fell open"
            assert again.authenticate_token("another") is None
            found = {user: roles_of(again, user) for user in ROLES}
        except HeadraceError:
            answers["error"] += 1
            continue
        assert all(roles in ([], ROLES[user]) for user, roles in found.items())
        answers["truth" if found == ROLES else "error"] += 1
    assert answers["truth"] > 0
    assert (answers["error"] > 0) is (name == "users.json")
