"""Which hub is meant, and what it takes to get in: arguments, then the environment, then the profile in use.

A profile is what `headrace use` keeps in `~/.config/headrace/profiles.json` (or below XDG_CONFIG_HOME), which only its
owner may read. An address that is given by hand goes without the profile: a token is never shown to a hub that it
was not made for.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.errors import BadConfig, BadRequest

DEFAULT_ADDRESS = "127.0.0.1:7070"
LOCAL = "local"
"""The profile that is always there: the hub of this machine, at its usual address."""
TLS_SCHEME = "grpc+tls"
PLAIN_SCHEMES = ("grpc", "grpc+tcp")
PEM_BEGINS = "-----BEGIN"

Tls = bool | str | Path | bytes
"""Whether to use TLS; or whom to trust: a file of certificates, or what is in it."""


class Profile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A hub and how to get in. `ca` holds the certificates themselves, so that the file they came from may go."""

    hub: str = DEFAULT_ADDRESS
    tls: bool = False
    ca: str | None = None
    user: str | None = None
    token: str | None = None


class Profiles(msgspec.Struct, forbid_unknown_fields=True):
    """All of one user's, and which one is in use."""

    current: str = LOCAL
    profiles: dict[str, Profile] = msgspec.field(default_factory=dict)

    def named(self, name: str) -> Profile:
        """One of them."""
        if name == LOCAL and name not in self.profiles:
            return Profile()
        if name not in self.profiles:
            known = ", ".join(sorted({LOCAL, *self.profiles}))
            raise BadRequest(f"there is no profile {name!r}; there are {known}")
        return self.profiles[name]


class Target(msgspec.Struct, frozen=True):
    """A hub and how to get in, as it was decided. `address` has the scheme `grpc+tls://` where TLS is meant."""

    address: str
    tls: Tls = False
    token: str | None = None
    user: str | None = None
    password: str | None = None


def profiles_file() -> Path:
    """Where the profiles of this user are."""
    home = os.environ.get("XDG_CONFIG_HOME")
    base = Path(home) if home and Path(home).is_absolute() else Path.home() / ".config"
    return base / "headrace" / "profiles.json"


def load_profiles() -> Profiles:
    """The profiles of this user; none when there is no file."""
    file = profiles_file()
    try:
        return msgspec.json.decode(file.read_bytes(), type=Profiles)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise BadConfig(f"{file} cannot be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise BadConfig(f"{file} is damaged: {error}; repair it, or remove it and run `headrace use` again") from None


def save_profiles(profiles: Profiles) -> Path:
    """Replace the file as a whole; only its owner may read it."""
    file = profiles_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as output:
            os.fchmod(output.fileno(), 0o600)
            output.write(msgspec.json.format(msgspec.json.encode(profiles)) + b"\n")
        os.replace(beside, file)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return file


def resolve(
    address: str | None = None,
    *,
    token: str | None = None,
    user: str | None = None,
    password: str | None = None,
    tls: Tls = False,
    profile: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Target:
    """What is given, otherwise what the environment says, otherwise what the profile says."""
    variables = os.environ if environment is None else environment
    given = address or ("" if profile else variables.get("HEADRACE_HUB", ""))
    name = profile or variables.get("HEADRACE_PROFILE")
    if given:
        kept = Profile(hub=given)
    else:
        found = load_profiles()
        kept = found.named(name or found.current)
    scheme, separator, _ = kept.hub.partition("://")
    wanted = tls or (variables.get("HEADRACE_TLS", "") not in ("", "0") or kept.tls)
    if not address and not tls:
        wanted = variables.get("HEADRACE_CA") or (kept.ca.encode() if kept.ca else wanted)
    if wanted is True or (scheme == TLS_SCHEME and not wanted):
        wanted = variables.get("HEADRACE_CA") or True
    if scheme in PLAIN_SCHEMES and not tls:
        wanted = False
    where = f"{TLS_SCHEME}://{kept.hub}" if wanted and not separator else kept.hub
    if token is None and user is None:
        token = variables.get("HEADRACE_TOKEN") or None
    if token is None and user is None:
        user = variables.get("HEADRACE_USER") or None
    if user is not None and password is None:
        password = variables.get("HEADRACE_PASSWORD") or None
    if token is None and user is None:
        token, user = kept.token, None if kept.token else kept.user
    return Target(where, wanted, token, user, password)
