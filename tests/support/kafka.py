"""Real Kafka brokers for tests, started once for all tests of a process that want them: it takes half a minute."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_brokers import START_QUICKLY, Brokers, Listener, NoJars, fetch, share_classes, sharing
from support.programs import leave_out, needs
from support.proxy import Proxy

from headrace.cli.tls import make_self_signed
from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.kafka.client import KafkaPort, connect
from headrace.log.kafka.topics import create_missing

USER = "headrace"
PASSWORD = "the password of a test"


class SharedBrokers(Brokers):
    """Three brokers that can also be reached through proxies, and with a password over TLS. Who has a password may do
    what access lists let it; who comes without one may do everything."""

    def __init__(self, directory: Path) -> None:
        self.proxies = [Proxy() for _ in range(3)]
        key, certificate = make_self_signed(["127.0.0.1"])
        self.certificate = directory / "certificate.pem"
        self.certificate.write_bytes(certificate)
        listeners = [
            Listener("FAR", "PLAINTEXT", [proxy.port for proxy in self.proxies]),
            Listener("SECURE", "SASL_SSL"),
        ]
        options = (*START_QUICKLY, *sharing())
        super().__init__(directory, extra=_secure(key, certificate), options=options, listeners=listeners)
        for proxy, broker in zip(self.proxies, self.brokers, strict=True):
            proxy.target = ("127.0.0.1", broker.ports["FAR"])

    def secure(self, password: str = PASSWORD) -> dict[str, str]:
        """How a client signs in, in the words of librdkafka."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificate),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": password,
        }

    def stop(self) -> None:
        super().stop()
        for proxy in self.proxies:
            proxy.close()


def _secure(key: bytes, certificate: bytes) -> str:
    """Lines of server.properties."""
    start = "listener.name.secure"
    login = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return f"""\
{start}.sasl.enabled.mechanisms=PLAIN
{start}.plain.sasl.jaas.config={login} required user_{USER}="{PASSWORD}";
{start}.ssl.keystore.type=PEM
{start}.ssl.keystore.key={_one_line(key)}
{start}.ssl.keystore.certificate.chain={_one_line(certificate)}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
"""


def _one_line(pem: bytes) -> str:
    return pem.decode().strip().replace("\n", "\\n\\\n")


def need_jars() -> None:
    """What brokers need to be started, or the test is left out."""
    needs("kafka")
    try:
        fetch()
        share_classes()
    except NoJars as error:
        leave_out(f"the log on real Kafka brokers: {error}")


@pytest.fixture(scope="session")
def broker_cluster() -> Iterator[SharedBrokers]:
    need_jars()
    with tempfile.TemporaryDirectory(prefix="headrace-kafka-") as directory:
        cluster = SharedBrokers(Path(directory))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def brokers(broker_cluster: SharedBrokers) -> SharedBrokers:
    """Three brokers. Those that the test before has killed are up again."""
    for broker in broker_cluster.brokers:
        if broker.process is None or broker.process.poll() is not None:
            broker.kill()
            broker.start()
    broker_cluster.wait_ready()
    return broker_cluster


def new_cell(servers: str, **settings: object) -> tuple[KafkaSettings, KafkaPort]:
    """Topics of their own, made, and a connection."""
    chosen = KafkaSettings(
        **{"servers": servers, "prefix": f"test-{uuid.uuid4().hex[:12]}", "timeout_s": 60, **settings}
    )
    kafka = connect(chosen)
    create_missing(kafka, chosen)
    return chosen, kafka
