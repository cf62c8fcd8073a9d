"""pyignite 0.6.1, unmodified, against the Ignite listener: every cache operation it offers. SQL has its own file."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import ssl
import subprocess
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pyignite
import pytest
from pyignite import AioClient, Client, GenericObjectMeta
from pyignite.datatypes import (
    BoolObject,
    ByteArrayObject,
    CollectionObject,
    DecimalObject,
    IntObject,
    LongObject,
    MapObject,
    ObjectArrayObject,
    ShortObject,
    String,
    StringArrayObject,
    TimestampObject,
    UUIDObject,
)
from pyignite.datatypes.cache_config import CacheAtomicityMode
from pyignite.datatypes.cluster_state import ClusterState
from pyignite.datatypes.expiry_policy import ExpiryPolicy
from pyignite.datatypes.prop_codes import PROP_CACHE_ATOMICITY_MODE, PROP_CACHE_MODE, PROP_NAME, PROP_QUERY_ENTITIES
from pyignite.datatypes.transactions import TransactionIsolation
from pyignite.exceptions import CacheError
from support.perper_agents import HubThread
from support.until import wait_until

from headrace.config import Config, Grant, SecuritySection, Tls, User


class Person(
    metaclass=GenericObjectMeta,
    type_name="Person",
    schema=OrderedDict([("name", String), ("age", IntObject), ("tags", ObjectArrayObject)]),
):
    pass


@pytest.fixture(scope="module")
def shared() -> Iterator[HubThread]:
    with HubThread() as hub:
        yield hub


@pytest.fixture
def client(shared: HubThread) -> Iterator[Client]:
    client = Client()
    with client.connect("127.0.0.1", shared.ignite_port):
        yield client


@pytest.fixture
def cache(client: Client) -> Any:
    return client.get_or_create_cache(f"kv-{uuid.uuid4()}")


def test_version() -> None:
    assert pyignite.__version__ == "0.6.1"


def test_put_and_get(cache: Any) -> None:
    assert cache.get("a") is None
    cache.put("a", 1)
    assert cache.get("a") == 1
    cache.put("a", "two")
    assert cache.get("a") == "two"


def test_int_and_long_keys_differ(cache: Any) -> None:
    cache.put(1, "long")
    cache.put(1, "int", key_hint=IntObject)
    assert cache.get(1) == "long"
    assert cache.get(1, key_hint=IntObject) == "int"
    assert cache.get_size() == 2


def test_put_if_absent_and_replace(cache: Any) -> None:
    assert cache.put_if_absent("k", 1) is True
    assert cache.put_if_absent("k", 2) is False
    assert cache.replace("k", 3) is True
    assert cache.replace("other", 3) is False
    assert cache.get("k") == 3
    assert cache.replace_if_equals("k", 2, 4) is False
    assert cache.replace_if_equals("k", 3, 4) is True
    assert cache.get("k") == 4


def test_get_and_something(cache: Any) -> None:
    assert cache.get_and_put("k", 1) is None
    assert cache.get_and_put("k", 2) == 1
    assert cache.get_and_put_if_absent("k", 9) == 2
    assert cache.get_and_put_if_absent("new", 9) is None
    assert cache.get_and_replace("k", 3) == 2
    assert cache.get_and_replace("none", 3) is None
    assert cache.get_and_remove("k") == 3
    assert cache.get_and_remove("k") is None
    assert cache.get("new") == 9


def test_removing(cache: Any) -> None:
    cache.put_all({name: name for name in "abcdefgh"})
    assert cache.remove_key("a") is True
    assert cache.remove_key("a") is False
    assert cache.remove_if_equals("b", "x") is False
    assert cache.remove_if_equals("b", "b") is True
    cache.clear_key("c")
    cache.clear_keys(["d", "none"])
    cache.remove_keys(["e", "none"])
    assert sorted(dict(cache.scan())) == ["f", "g", "h"]
    cache.remove_all()
    assert cache.get_size() == 0
    cache.put("z", 1)
    cache.clear()
    assert cache.get_size() == 0


def test_many_at_once(cache: Any) -> None:
    cache.put_all({number: str(number) for number in range(300)})
    assert cache.get_size() == 300
    assert cache.get_all([1, 2, 1000]) == {1: "1", 2: "2"}
    assert cache.contains_key(7)
    assert not cache.contains_key(700)
    assert cache.contains_keys([1, 2, 3])
    assert not cache.contains_keys([1, 2, 3000])


@pytest.mark.parametrize("page_size", [1, 7, 100, 1000])
def test_scan_by_pages(cache: Any, page_size: int) -> None:
    cache.put_all({number: str(number) for number in range(100)})
    with cache.scan(page_size=page_size) as cursor:
        assert dict(cursor) == {number: str(number) for number in range(100)}


def test_a_scan_leaves_out_what_is_removed_meanwhile_and_can_be_given_up(cache: Any) -> None:
    cache.put_all({number: number for number in range(10)})
    with cache.scan(page_size=3) as cursor:
        first = next(cursor)
        cache.remove_all()
        rest = list(cursor)
    read = dict([first, *rest])
    assert len(read) == len(rest) + 1 < 10
    assert read.items() <= {number: number for number in range(10)}.items()
    cache.put_all({number: number for number in range(10)})
    for _ in range(200):  # more than a connection may have open: leaving the block closes each
        with cache.scan(page_size=3) as cursor:
            next(cursor)


VALUES = [
    (-2, ShortObject),
    (2**40, LongObject),
    (1.5, None),
    ("héllo \U0001f600", None),
    (True, BoolObject),
    (uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), UUIDObject),
    (datetime.datetime(2024, 1, 2), None),
    ((datetime.datetime(2024, 1, 2), 7), TimestampObject),
    (datetime.timedelta(seconds=61), None),
    (decimal.Decimal("-12.345"), DecimalObject),
    (b"\x00\x01\xff", ByteArrayObject),
    (["a", None, "b"], StringArrayObject),
    ((ObjectArrayObject.OBJECT, [1, "a", None]), ObjectArrayObject),
    ((CollectionObject.ARR_LIST, [1, "a", None]), CollectionObject),
    ((MapObject.HASH_MAP, {"a": 1, "b": "z"}), MapObject),
]


@pytest.mark.parametrize(
    ("value", "hint"), VALUES, ids=[type(value).__name__ + str(n) for n, (value, _) in enumerate(VALUES)]
)
def test_every_kind_of_value_comes_back(cache: Any, value: Any, hint: Any) -> None:
    cache.put("v", value, value_hint=hint)
    found = cache.get("v")
    assert (list(found) if isinstance(value, list) else bytes(found) if isinstance(value, bytes) else found) == value
    assert cache.replace_if_equals("v", value, "next", sample_hint=hint) is True


def test_complex_objects_alone_and_in_collections(shared: HubThread, cache: Any) -> None:
    bob = Person(name="Bob", age=3, tags=(ObjectArrayObject.OBJECT, ["x", 1]))
    cache.put("p", bob)
    cache.put("array", (ObjectArrayObject.OBJECT, [bob, 7]), value_hint=ObjectArrayObject)
    cache.put("map", (MapObject.HASH_MAP, {"bob": bob}), value_hint=MapObject)
    cache.put("list", (CollectionObject.ARR_LIST, [bob, bob]), value_hint=CollectionObject)
    fresh = Client()
    with fresh.connect("127.0.0.1", shared.ignite_port):
        other = fresh.get_cache(cache.name)
        assert other.get("p").name == "Bob"
        assert other.get("array")[1][0].age == 3
        assert other.get("map")[1]["bob"].tags[1] == ["x", 1]
        assert [person.name for person in other.get("list")[1]] == ["Bob", "Bob"]
        assert {key for key, _ in other.scan()} == {"p", "array", "map", "list"}
        assert other.get_all(["p"])["p"].name == "Bob"


def test_a_type_that_changes_against_itself_is_refused(client: Client, cache: Any) -> None:
    class First(metaclass=GenericObjectMeta, type_name="Changing", schema=OrderedDict([("a", IntObject)])):
        pass

    class Second(
        metaclass=GenericObjectMeta, type_name="Changing", schema=OrderedDict([("a", String), ("b", IntObject)])
    ):
        pass

    cache.put("one", First(a=1))
    with pytest.raises(Exception, match="conflicts with the registered one"):
        other_client_put(client, cache.name, Second(a="x", b=1))


def other_client_put(client: Client, name: str, value: Any) -> None:
    fresh = Client()
    with fresh.connect(client.random_node.host, client.random_node.port):
        fresh.get_cache(name).put("two", value)


def test_creating_finding_and_destroying(client: Client) -> None:
    name = f"made-{uuid.uuid4()}"
    made = client.create_cache(name)
    with pytest.raises(CacheError, match="already started"):
        client.create_cache(name)
    assert name in client.get_cache_names()
    client.get_or_create_cache(name)
    configured = client.get_or_create_cache({PROP_NAME: f"{name}-2", PROP_CACHE_MODE: 1})
    assert configured.settings[PROP_CACHE_MODE] == 1
    assert configured.settings[PROP_NAME] == f"{name}-2"
    made.put(1, 1)
    made.destroy()
    assert name not in client.get_cache_names()
    with pytest.raises(CacheError, match="does not exist"):
        made.get(1)
    again = client.create_cache(name)
    assert again.get(1) is None


def test_names_with_the_same_number_are_refused(client: Client) -> None:
    client.create_cache("Aa-collision")
    with pytest.raises(CacheError, match="same id"):
        client.create_cache("BB-collision")


def test_names_beyond_the_basic_plane(client: Client) -> None:
    cache = client.create_cache("kv-\U0001f600")
    cache.put("a", 1)
    assert cache.get("a") == 1


def test_null_and_unknown(client: Client, cache: Any) -> None:
    with pytest.raises(CacheError, match="does not exist"):
        client.get_cache("never made").get(1)
    with pytest.raises(CacheError, match="may not be null"):
        cache.put("a", None)


def test_time_to_live(client: Client, cache: Any) -> None:
    short = cache.with_expire_policy(
        create=datetime.timedelta(milliseconds=150), update=datetime.timedelta(seconds=100)
    )
    short.put("gone", 1)
    cache.put("stays", 1)
    short.put("updated", 1)
    short.put("updated", 2)
    assert cache.get("gone") == 1
    wait_until(lambda: cache.get("gone") is None)
    assert cache.put_if_absent("gone", 2) is True
    wait_until(lambda: cache.get_size() == 3)
    assert (cache.get("stays"), cache.get("updated"), cache.get("gone")) == (1, 2, 2)
    configured = client.create_cache(
        {PROP_NAME: f"{cache.name}-ttl", pyignite.datatypes.prop_codes.PROP_EXPIRY_POLICY: ExpiryPolicy(create=100)}
    )
    configured.put("a", 1)
    wait_until(lambda: configured.get_size() == 0)


def transactional(client: Client) -> Any:
    return client.create_cache(
        {PROP_NAME: f"tx-{uuid.uuid4()}", PROP_CACHE_ATOMICITY_MODE: CacheAtomicityMode.TRANSACTIONAL}
    )


def test_atomic_caches_are_not_for_transactions(client: Client, cache: Any) -> None:
    with client.tx_start(), pytest.raises(CacheError, match="Transaction spans operations on atomic cache"):
        cache.put("a", 1)
    assert cache.get("a") is None


def test_transactions(shared: HubThread, client: Client) -> None:
    cache = transactional(client)
    cache.put("a", 1)
    with client.tx_start(label="first") as transaction:
        cache.put("a", 2)
        cache.put_all({"b": 1, "c": 1})
        assert cache.get_and_put("b", 2) == 1
        assert cache.get("a") == 2
        assert cache.remove_key("c") is True
        assert cache.put_if_absent("d", 4) is True
        seen = elsewhere(shared, lambda other: other.get_cache(cache.name).get("a"))
        assert seen == 1  # not before the commit
        transaction.commit()
    assert dict(cache.scan()) == {"a": 2, "b": 2, "d": 4}
    with client.tx_start() as transaction:
        cache.put("a", 99)
        cache.clear_keys(["b", "d"])
        transaction.rollback()
    with client.tx_start():
        cache.put("a", 98)  # the end of the block without a commit
    assert dict(cache.scan()) == {"a": 2, "b": 2, "d": 4}


def test_transactions_that_conflict(shared: HubThread, client: Client) -> None:
    cache = transactional(client)
    cache.put("balance", 100)
    with client.tx_start(isolation=TransactionIsolation.SERIALIZABLE) as transaction:
        assert cache.get("balance") == 100
        elsewhere(shared, lambda other: other.get_cache(cache.name).put("balance", 50))
        cache.put("balance", 90)
        with pytest.raises(Exception, match="rolled back"):
            transaction.commit()
    assert cache.get("balance") == 50
    with client.tx_start(timeout=50) as transaction:
        cache.put("balance", 1)
        wait_until(lambda: raises(lambda: cache.get("balance")))
        with pytest.raises(Exception, match="not found"):
            transaction.commit()
    assert cache.get("balance") == 50


def elsewhere(shared: HubThread, work: Any) -> Any:
    """Another client on another thread: pyignite keeps the transaction in the thread's context."""

    def run() -> Any:
        other = Client()
        with other.connect("127.0.0.1", shared.ignite_port):
            return work(other)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def raises(function: Any) -> bool:
    try:
        function()
    except CacheError:
        return True
    return False


def test_cluster_state(client: Client) -> None:
    cluster = client.get_cluster()
    assert cluster.get_state() == ClusterState.ACTIVE
    cluster.set_state(ClusterState.ACTIVE)
    with pytest.raises(Exception, match="cannot be changed"):
        cluster.set_state(ClusterState.INACTIVE)


def test_a_stream_cache_is_a_stream_of_the_hub(shared: HubThread, client: Client) -> None:
    name = f"items-{uuid.uuid4()}"
    items = client.create_cache({PROP_NAME: name, PROP_QUERY_ENTITIES: []})
    for key in range(5):
        assert items.put_if_absent(key, f"item {key}") is True
    assert items.put_if_absent(3, "again") is False
    records = shared.run(shared.hub.read(name, 0))
    assert records.column("id").to_pylist() == [0, 1, 2, 3, 4]
    assert records.column("payload")[2].as_py() == b"\x09\x06\x00\x00\x00item 2"
    assert items.get(3) == "item 3"
    assert items.get_all([1, 4, 9]) == {1: "item 1", 4: "item 4"}
    assert items.get_and_put(1, "changed") == "item 1"
    assert items.get_and_replace(2, "replaced") == "item 2"
    assert items.replace_if_equals(2, "replaced", "x") is True
    assert items.remove_if_equals(2, "replaced") is False
    assert items.remove_key(0) is True
    assert items.remove_key(0) is False
    assert items.get_and_remove(4) == "item 4"
    items.put("text key", 1)
    assert dict(items.scan(page_size=2)) == {1: "changed", 2: "x", 3: "item 3", "text key": 1}
    assert items.contains_keys([1, 3])
    assert items.get_size() == 4
    items.clear()
    assert items.get_size() == 0
    bounds = shared.call(lambda: shared.hub.bounds(name))
    assert bounds.first == bounds.next


def test_a_stream_of_another_protocol_is_a_cache_of_bytes(shared: HubThread, client: Client) -> None:
    from headrace.log.batch import Batch

    name = f"foreign-{uuid.uuid4()}"

    async def write() -> None:
        await shared.hub.create_stream(name)
        await shared.hub.append(name, Batch.of([b"one", b"two"]))

    shared.run(write())
    view = client.get_cache(name)
    assert bytes(view.get(1)) == b"two"
    assert view.get(2) is None
    assert view.get_size() == 2
    assert {key: bytes(value) for key, value in view.scan()} == {0: b"one", 1: b"two"}
    assert name in client.get_cache_names()
    with pytest.raises(CacheError, match="another protocol"):
        view.put(3, "x")
    with pytest.raises(CacheError, match="another protocol"):
        view.destroy()


async def test_aio_client_pipelines(shared: HubThread) -> None:
    client = AioClient()
    async with client.connect("127.0.0.1", shared.ignite_port):
        cache = await client.get_or_create_cache(f"aio-{uuid.uuid4()}")
        await asyncio.gather(*[cache.put(number, str(number)) for number in range(500)])
        assert await asyncio.gather(*[cache.get(number) for number in range(500)]) == [str(n) for n in range(500)]
        assert await cache.get_size() == 500
        assert await asyncio.gather(*[cache.put_if_absent(number % 50 + 1000, number) for number in range(200)]) == (
            [True] * 50 + [False] * 150
        )
        async with cache.scan(page_size=64) as cursor:
            assert len([key async for key, _ in cursor]) == 550
        assert await cache.get_and_put(1, "x") == "1"
        assert await cache.replace_if_equals(1, "x", "y") is True
        assert await cache.get_all([1, 2]) == {1: "y", 2: "2"}
        await cache.remove_keys([1, 2])
        assert await cache.contains_key(1) is False
        person = Person(name="Eve", age=1, tags=None)
        await cache.put("p", person)
        assert (await cache.get("p")).name == "Eve"
        await cache.clear()
        assert await cache.get_size() == 0
        await cache.destroy()


@pytest.mark.parametrize("minor", range(2, 8))
def test_every_protocol_version(shared: HubThread, minor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyignite.connection.connection.PROTOCOLS", {(1, minor, 0)})
    client = Client()
    with client.connect("127.0.0.1", shared.ignite_port):
        assert client.protocol_context.version == (1, minor, 0)
        cache = client.get_or_create_cache(f"v{minor}")
        cache.put("a", minor)
        assert cache.get("a") == minor
        with pytest.raises(CacheError, match="does not exist"):
            client.get_cache("none at all").get(1)


SECURED = Config(
    security=SecuritySection(
        users={"writer": User(secret="pw", roles=["all"]), "guest": User(secret="pw", roles=["some"])},
        roles={"all": [Grant(rights=["read", "write", "admin"])], "some": [Grant(rights=["read"], streams=["open-*"])]},
    )
)


def test_users_and_rights() -> None:
    with HubThread(SECURED) as hub:
        for user, password in ((None, None), ("writer", "wrong"), ("nobody", "pw")):
            with (
                pytest.raises(Exception, match="who you are|incorrect"),
                Client(username=user, password=password, use_ssl=False).connect("127.0.0.1", hub.ignite_port),
            ):
                pass
        writer = Client(username="writer", password="pw", use_ssl=False)
        guest = Client(username="guest", password="pw", use_ssl=False)
        with writer.connect("127.0.0.1", hub.ignite_port), guest.connect("127.0.0.1", hub.ignite_port):
            writer.create_cache("open-1").put("a", 1)
            writer.create_cache("closed").put("a", 1)
            assert guest.get_cache("open-1").get("a") == 1
            assert guest.get_cache_names() == ["open-1"]
            for refused in (
                lambda: guest.get_cache("open-1").put("a", 2),
                lambda: guest.get_cache("closed").get("a"),
                lambda: guest.create_cache("open-2"),
                lambda: guest.get_cache("open-1").destroy(),
            ):
                with pytest.raises(CacheError, match="needs the right"):
                    refused()


@pytest.mark.needs("openssl")
@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS:DeprecationWarning")
def test_tls_and_login_together(tmp_path: Path) -> None:
    """pyignite and grpcio over TLS, with a user name in the handshake."""
    certificate, private = tmp_path / "c.pem", tmp_path / "k.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
    ]
    about = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *about, "-keyout", private, "-out", certificate], check=True, capture_output=True)
    tls = Tls(certificate=str(certificate), key=str(private))
    with HubThread(Config(security=SECURED.security, tls=tls)) as hub:
        client = Client(
            username="writer",
            password="pw",
            use_ssl=True,
            ssl_cert_reqs=ssl.CERT_REQUIRED,
            ssl_ca_certfile=str(certificate),
        )
        with client.connect("127.0.0.1", hub.ignite_port):
            cache = client.create_cache("open-tls")
            cache.put("a", 1)
            assert cache.get("a") == 1
        credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
        with grpc.secure_channel(hub.fabric, credentials) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert check(b"", timeout=60) == b"\x08\x01"
