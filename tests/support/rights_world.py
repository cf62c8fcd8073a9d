"""A running hub with users for the matrix of rights: who there is, what lies in it, and how its users change."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx
import msgspec
from support.fake_cluster import FakeCluster
from support.forked_hub import ForkedHub
from support.until import DEADLINE_S

import headrace
from headrace.cli.tls import make_self_signed
from headrace.config import Config, Log, User
from headrace.config.address import split_address
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.security import Security, hash_secret, new_token

OWN, OTHER, RESERVED = "orders.eu", "payroll.eu", "wallaroo.streams"
HIDDEN = "hidden.zebra"
"""A stream that nobody ever names: who hears of it was told by the hub."""
HIDDEN_IMMORTAL = "hidden-yak"
"""An immortal of the same kind."""
BYSTANDER = "bystander"
OWN_CACHE, OTHER_CACHE = "orders.cache", "payroll.cache"
STREAMS = (OWN, OTHER, HIDDEN, "prices.eu")
PASSWORD = "a password for all of them"

PERSONAS = {
    "stranger": "without a name",
    "viewer": "`read` on `orders.*`",
    "writer": "`read` and `write` on `orders.*`",
    "removed": "a writer, removed while connected",
    "narrowed": "a writer, cut down to `read` on `prices.*` while connected",
    "admin": "the role `admin`",
}
CHANGED = ("removed", "narrowed")
ROLES_BEFORE = {"viewer": "viewer", "writer": "clerk", "removed": "clerk", "narrowed": "clerk", "admin": "admin"}
SETTINGS = """
[security]
farewell_s = 600

[[security.roles.viewer]]
rights = ["read"]
streams = ["orders.*", "immortal/orders-*"]

[[security.roles.clerk]]
rights = ["read", "write"]
streams = ["orders.*", "immortal/orders-*"]

[[security.roles.elsewhere]]
rights = ["read"]
streams = ["prices.*"]

[perper]
missing_stream = "fail"

[ambrosia]
trust_local = false
"""
IMMORTALS = [
    f"{kind}-{who}-{use}" for kind in ("orders", "payroll") for who in PERSONAS for use in ("open", "write", "feed")
]


class Who(NamedTuple):
    """Someone, with everything that can be shown."""

    name: str
    token: str = ""

    @property
    def is_named(self) -> bool:
        return self.name != "stranger"

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.name}:{PASSWORD}".encode()).decode()

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"} if self.is_named else {}


class HubLike(Protocol):
    """What runs while it is entered, and where its listeners are."""

    @property
    def addresses(self) -> dict[str, str]: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: Any) -> None: ...


def alone(folder: Path, settings: Path) -> HubLike:
    return ForkedHub(folder, config=settings)


class BehindAFollower:
    """Two hubs over Kafka in memory: peers know the one that does not own the log, and the ports of immortals, which
    are the owner's."""

    def __init__(self, folder: Path, settings: Path) -> None:
        users = f"security.users_file={folder / 'data' / 'users.json'}"
        self._cluster = FakeCluster(folder / "hubs", users, config=settings)

    @property
    def addresses(self) -> dict[str, str]:
        owner = self._cluster.hub.addresses
        return owner | self._cluster.addresses | {"owner": owner["http"]}

    def __enter__(self) -> None:
        self._cluster.__enter__()

    def __exit__(self, *_: Any) -> None:
        self._cluster.__exit__()


class World:
    """The hub, and what its peers need to reach it."""

    def __init__(self, folder: Path, hub: Callable[[Path, Path], HubLike] = alone) -> None:
        """`hub` makes one of a folder and a file of settings."""
        self.folder = folder
        self.people: dict[str, Who] = {"stranger": Who("stranger")}
        self._security = Security(Config(log=Log(data=str(folder / "data"))))
        self._add_users()
        for name in ("localhost", *PERSONAS):
            key, certificate = make_self_signed([name, "127.0.0.1"])
            (folder / f"{name}.pem").write_bytes(certificate)
            (folder / f"{name}-key.pem").write_bytes(key)
        clients = b"".join((folder / f"{name}.pem").read_bytes() for name in PERSONAS if name != "stranger")
        (folder / "clients.pem").write_bytes(clients)
        settings = folder / "settings.toml"
        immortals = [f'[ambrosia.immortals."{name}"]\ncheckpoints_kept = 2\n' for name in (*IMMORTALS, HIDDEN_IMMORTAL)]
        settings.write_text(SETTINGS + self._tls() + "".join(immortals))
        self.hub = hub(folder, settings)

    def _add_users(self) -> None:
        secret = hash_secret(PASSWORD)
        with self._security.users_file.changing() as users:
            for name, role in ROLES_BEFORE.items():
                token, digest = new_token()
                self.people[name] = Who(name, token)
                users[name] = User(secret=secret, tokens=[digest], roles=[role])
            users[BYSTANDER] = User(secret=secret, roles=["reader"])

    def _tls(self) -> str:
        files = f'certificate = "{self.folder}/localhost.pem"\nkey = "{self.folder}/localhost-key.pem"\n'
        text = f"[tls.listeners.http]\n{files}"
        for listener in ("ockam", "ambrosia"):
            text += f'[tls.listeners.{listener}]\n{files}client_ca = "{self.folder}/clients.pem"\n'
        return text

    def tls(self, who: Who | None = None) -> ssl.SSLContext:
        """Whom to trust; with the client certificate of someone who has one."""
        context = ssl.create_default_context(cafile=str(self.folder / "localhost.pem"))
        if who is not None and who.is_named:
            context.load_cert_chain(self.folder / f"{who.name}.pem", self.folder / f"{who.name}-key.pem")
        return context

    def place(self, listener: str) -> tuple[str, int]:
        return split_address(self.hub.addresses[listener])

    @property
    def owner(self) -> str:
        """Of the hub that checks who is who."""
        return f"https://localhost:{split_address(self.hub.addresses.get('owner', self.hub.addresses['http']))[1]}"

    def http(self, who: Who) -> httpx.AsyncClient:
        url = f"https://localhost:{self.place('http')[1]}"
        return httpx.AsyncClient(base_url=url, headers=who.headers, verify=self.tls(), timeout=DEADLINE_S)

    async def fill(self) -> None:
        """What there is to read, and to destroy."""
        await asyncio.to_thread(self._fill_streams)
        admin = await IgniteClient.connect(*self.place("ignite"), user="admin", password=PASSWORD)
        for name in (OWN_CACHE, OTHER_CACHE, *(f"scratch.{who}" for who in PERSONAS)):
            await admin.request(1054, Configuration({0: name}))
            for number in range(5):
                await admin.request(1001, encode_string(f"key {number}"), encode_string("value"), cache=name)
        await admin.close()

    def _fill_streams(self) -> None:
        with headrace.connect(self.hub.addresses["flight"], user="admin", password=PASSWORD) as hub:
            for name in STREAMS:
                hub.create(name)
                hub.append(name, b'{"count": 1}', type="ORDER")

    async def change(self) -> None:
        """Remove one user and narrow another, in one step, as a command beside the hub does; until the hub knows."""
        known = await IgniteClient.connect(*self.place("ignite"), user="removed", password=PASSWORD)
        with self._security.users_file.changing() as users:
            users.pop("removed")
            users["narrowed"] = msgspec.structs.replace(users["narrowed"], roles=["elsewhere"])
        async with self.http(self.people["admin"]) as client, asyncio.timeout(DEADLINE_S):
            while "headrace_signins_ended_total 0.0" in (await client.get(f"{self.owner}/metrics")).text:
                await asyncio.sleep(0.02)
        await known.close()

    def secrets(self) -> dict[str, str]:
        """What a peer can learn beyond what it was granted, and how that looks on a wire."""
        return {
            "names of other streams": HIDDEN,
            "names of other immortals": HIDDEN_IMMORTAL,
            "where the data is": str(self.folder),
            "version": headrace.__version__,
            "other users": BYSTANDER,
        }
