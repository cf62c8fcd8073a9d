"""The admin verbs that belong to no protocol: the hub itself, its sessions, settings and users."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace import __version__
from headrace.admin import asyncapi
from headrace.admin.requests import Asked, first_number, is_shown
from headrace.config import User
from headrace.config.load import Loaded, Setting
from headrace.errors import BadRequest, HeadraceError
from headrace.hub.health import HealthReport
from headrace.hub.sessions import SessionInfo
from headrace.hub.verbs import Nothing, Verbs
from headrace.log.backup import BackupInfo
from headrace.pages import Listed, Place, take
from headrace.security import current, hash_secret, new_token
from headrace.security.places import place_below

if TYPE_CHECKING:
    from headrace.serving.runtime import Runtime


class UnknownUser(HeadraceError):
    """No user of that name."""

    code = "unknown-user"
    status = 404


class HubInfo(msgspec.Struct, frozen=True):
    """The hub at a glance. `listeners` is name → address; `missing` are parts this installation does not hold.
    `data`, where its files are, is for admins; others see it empty."""

    version: str
    data: str
    process_id: int
    time_us: int
    uptime_s: float
    listeners: dict[str, str]
    missing: list[str]
    sessions: dict[str, int]
    warnings: list[str]
    health: HealthReport


class VerbInfo(msgspec.Struct, frozen=True):
    """One verb of the API."""

    name: str
    right: str
    summary: str


class SessionListRequest(Listed, frozen=True):
    """`protocol` narrows the list; `ended` shows the last ended sessions instead of the open ones."""

    protocol: str | None = None
    ended: bool = False


class AsyncApiRequest(Listed, frozen=True):
    """`all`: also the streams that the hub keeps for itself. A document has at most `limit` streams; where more follow,
    it has `x-next`, to be asked for with `after`."""

    all: bool = False


class BackupRequest(Asked, frozen=True):
    """`path` is a new or empty directory on the hub's machine, below `log.backup_root`; a relative one is taken from
    there."""

    path: str


class UserName(Asked, frozen=True):
    """Names a user."""

    user: str


class UserAddRequest(Asked, frozen=True):
    """A new user, or new roles and a new password for one."""

    user: str
    secret: str | None = None
    roles: list[str] = msgspec.field(default_factory=lambda: ["reader"])


class UserInfo(msgspec.Struct, frozen=True):
    """One user without secrets. `editable`: kept in the users file and not in the settings."""

    user: str
    roles: list[str]
    password: bool
    tokens: int
    editable: bool


class NewToken(msgspec.Struct, frozen=True):
    """A token, shown this once: only a hash of it is kept."""

    user: str
    token: str


def _place_of_session(info: SessionInfo) -> Place:
    """Open ones oldest first, ended ones newest first."""
    return [info.id] if info.closed_us is None else [-info.closed_us, -info.id]


class Admin:
    """The handlers, around one runtime."""

    def __init__(self, runtime: Runtime, loaded: Loaded) -> None:
        self._runtime = runtime
        self._loaded = loaded
        self._hub = runtime.hub
        self._data = str(Path(runtime.config.log.data).absolute())
        self._started = time.monotonic()

    def register(self, verbs: Verbs) -> None:
        """Add the verbs."""
        add = verbs.register
        add("hub.info", Nothing, self.info, right="read", summary="Version, listeners, health, warnings", filters=True)
        add("hub.asyncapi", AsyncApiRequest, self.asyncapi, right="read", summary="AsyncAPI 3.0 document", filters=True)
        add("hub.backup", BackupRequest, self.back_up, right="admin", summary="Copy the data directory, and check it")
        add("verb.list", Nothing, self.verbs, right="read", summary="The verbs of this hub", filters=True)
        add(
            "session.list",
            SessionListRequest,
            self.sessions,
            right="read",
            summary="Open or ended sessions",
            listed_by=_place_of_session,
        )
        add("config.show", Nothing, self.config, right="admin", summary="Every setting and where it came from")
        add("user.whoami", Nothing, self.whoami, right="read", summary="Who the hub takes you for", filters=True)
        add(
            "user.list",
            Listed,
            self.users,
            right="admin",
            summary="Users and their roles",
            listed_by=lambda each: [each.user],
        )
        add("user.add", UserAddRequest, self.add_user, right="admin", summary="Add or change a user")
        add("user.remove", UserName, self.remove_user, right="admin", summary="Remove a user")
        add("user.token", UserName, self.new_token, right="admin", summary="Give a user a new token")

    async def info(self, request: Nothing) -> HubInfo:
        """Everything the first page of a console needs."""
        return HubInfo(
            version=__version__,
            data=self._data if current().may("admin") else "",
            process_id=os.getpid(),
            time_us=self._hub.sessions.now_us(),
            uptime_s=round(time.monotonic() - self._started, 3),
            listeners=self._listeners(),
            missing=self._runtime.missing,
            sessions=self._hub.sessions.counts() if current().may("read") else {},
            warnings=self._hub.security.warnings(),
            health=self._hub.health.report(current()),
        )

    def _listeners(self) -> dict[str, str]:
        """Name → address. Ports of what a protocol serves by name, as an immortal, tell that name: for admins."""
        everything = current().may("admin")
        return {name: at for name, at in self._runtime.addresses.items() if everything or "." not in name}

    async def asyncapi(self, request: AsyncApiRequest) -> dict[str, Any]:
        """The listeners, and the streams that the caller may read."""
        found = self._hub.streams_after(first_number(request))
        shown = (info for info in found if is_shown(info.name, "*", request.all))
        page = take(request, shown, lambda info: [info.id], self._hub.verbs.limit_of(request))
        streams = [(info.name, info.partitions) for info in page.items]
        document = asyncapi.document(self._listeners(), streams)
        return document if page.next is None else document | {"x-next": page.next}

    async def back_up(self, request: BackupRequest) -> BackupInfo:
        """Takes as long as copying and reading everything takes; appends go on meanwhile."""
        root = self._loaded.config.log.backup_root
        place = await asyncio.to_thread(place_below, self._data, root, request.path, "log.backup_root")
        return await self._hub.back_up(place)

    async def verbs(self, request: Nothing) -> list[VerbInfo]:
        """All verbs, by name."""
        return [VerbInfo(verb.name, verb.right, verb.summary) for verb in self._hub.verbs]

    async def sessions(self, request: SessionListRequest) -> Iterable[SessionInfo]:
        """Open sessions, or the last ended ones."""
        return sorted(self._hub.sessions.list(request.protocol, ended=request.ended), key=_place_of_session)

    async def config(self, request: Nothing) -> list[Setting]:
        """Every setting; secrets are masked."""
        return list(self._loaded.settings())

    async def whoami(self, request: Nothing) -> UserInfo:
        """The caller."""
        principal = current()
        return self._info(principal.name, User(roles=list(principal.roles)))

    async def users(self, request: Listed) -> Iterable[UserInfo]:
        """All users."""
        return [self._info(name, user) for name, user in sorted(self._hub.security.users().items())]

    async def add_user(self, request: UserAddRequest) -> UserInfo:
        """Write the user to the users file."""
        if request.secret is not None:
            self._hub.security.check_password(request.secret)
        secret = None if request.secret is None else await asyncio.to_thread(hash_secret, request.secret)
        user = self._hub.security.add_user(request.user, secret, request.roles)
        return self._info(request.user, user)

    async def remove_user(self, request: UserName) -> Nothing:
        """Take the user out of the users file."""
        self._known(request.user)
        self._hub.security.remove_user(request.user)
        return Nothing()

    async def new_token(self, request: UserName) -> NewToken:
        """A new token for a user of the users file."""
        self._known(request.user)
        token, digest = new_token()
        self._hub.security.add_token(request.user, digest)
        return NewToken(request.user, token)

    def _known(self, name: str) -> None:
        if name in self._loaded.config.security.users:
            raise BadRequest(f"user {name!r} is defined in the settings; change it there")
        if name not in self._hub.security.users():
            raise UnknownUser(f"there is no user {name!r}; user.list names them")

    def _info(self, name: str, user: User) -> UserInfo:
        editable = name in self._hub.security.users_file.users()
        return UserInfo(name, user.roles, user.secret is not None, len(user.tokens), editable)
