"""Who may do what: users, passwords, tokens, roles and TLS, the same for every protocol."""

from __future__ import annotations

from headrace.security.passwords import (
    SECRET_LENGTH_MIN,
    SecurityError,
    check_secret,
    hash_secret,
    new_token,
    token_digest,
)
from headrace.security.policy import Security
from headrace.security.principal import BUILT_IN_ROLES, EVERYTHING, Principal, Right, acting_as, current
from headrace.security.reserved import check_producer, is_listed, is_own_cursor, is_reserved

__all__ = [
    "BUILT_IN_ROLES",
    "EVERYTHING",
    "SECRET_LENGTH_MIN",
    "Principal",
    "Right",
    "Security",
    "SecurityError",
    "acting_as",
    "check_producer",
    "check_secret",
    "current",
    "hash_secret",
    "is_listed",
    "is_own_cursor",
    "is_reserved",
    "new_token",
    "token_digest",
]
