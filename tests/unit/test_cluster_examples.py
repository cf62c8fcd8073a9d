"""The examples of a cluster agree with the program and with themselves: settings, ports, names, probes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli.main import COMMANDS
from headrace.config import Config, Listen
from headrace.config.address import split_address
from headrace.config.load import load
from headrace.serving.http import OWN_PATHS

EXAMPLES = Path(__file__).parents[2] / "examples"
COMPOSE: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text())
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text()))
HUBS = ("hub-1", "hub-2")
PORTS = {name: split_address(address)[1] for name, address in Listen().addresses().items()}


def settings_of(service: str) -> Config:
    environment = {name: str(value) for name, value in COMPOSE["services"][service]["environment"].items()}
    return load(environment=environment).config


def kind(name: str) -> dict[str, Any]:
    (found,) = [each for each in KUBERNETES if each["kind"] == name]
    return found


@pytest.mark.parametrize("name", HUBS)
def test_compose_starts_hubs_with_settings_that_load(name: str) -> None:
    config = settings_of(name)
    service = COMPOSE["services"][name]
    assert config.log.backend == "kafka"
    assert config.cluster.hub == service["hostname"] == name
    brokers = config.log.kafka.servers.split(",")
    assert [broker.split(":")[0] for broker in brokers] == [f"kafka-{number}" for number in (1, 2, 3)]
    for number, broker in enumerate(brokers, 1):
        environment = COMPOSE["services"][f"kafka-{number}"]["environment"]
        assert environment["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{broker}"
        assert environment["KAFKA_NODE_ID"] == number
        assert f"{number}@kafka-{number}:9093" in environment["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    assert {address: split_address(at)[1] for address, at in config.listen.addresses().items()} == PORTS
    assert (EXAMPLES.parent / service["build"]["dockerfile"]).exists()
    assert service["restart"] == "always", "a hub that lost the log ends, and must come back"


def test_compose_makes_the_topics_first() -> None:
    topics = COMPOSE["services"]["topics"]
    assert topics["entrypoint"] == ["headrace", "cluster", "init"]
    assert "cluster" in COMMANDS
    assert settings_of("topics").log.kafka == settings_of("hub-1").log.kafka
    assert COMPOSE["services"]["hub-1"]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}


def test_the_balancer_leads_every_listener_to_every_hub() -> None:
    text = COMPOSE["configs"]["haproxy"]["content"]
    sections = dict(re.findall(r"^listen (\w+)\n((?:  .*\n)+)", text, re.MULTILINE))
    assert sections.keys() == PORTS.keys()
    for name, lines in sections.items():
        port = PORTS[name]
        assert f"bind :{port}\n" in lines
        asked = [(hub, f"{hub}:{port}", "") for hub in HUBS]
        unasked = [(f"any-{number}", f"{hub}:{port}", " backup no-check") for number, hub in enumerate(HUBS, 1)]
        found = re.findall(r"server (\S+) (\S+)(.*)", lines)
        assert found == asked + unasked, "the owner; while there is none, any hub"
    published = {int(each.split(":")[1]) for each in COMPOSE["services"]["balancer"]["ports"]}
    assert published == set(PORTS.values())
    assert all(each.startswith("127.0.0.1:") for each in COMPOSE["services"]["balancer"]["ports"]), "there are no users"
    assert re.search(r"httpchk GET (/\w+)", text)[1] in OWN_PATHS  # type: ignore[index]


def test_every_name_that_compose_speaks_of_is_there() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        for volume in service.get("volumes", []):
            # Its image forgets its own settings, this one among them, when there are any others.
            assert service["environment"]["KAFKA_LOG_DIRS"] == volume.split(":")[1]
        assert set(service.get("depends_on", {})) <= services.keys()
        assert set(service["networks"]) <= COMPOSE["networks"].keys()
        assert {volume.split(":")[0] for volume in service.get("volumes", [])} <= COMPOSE["volumes"].keys()
        assert {each["source"] for each in service.get("configs", [])} <= COMPOSE["configs"].keys()


def test_kubernetes_starts_hubs_with_settings_that_load(tmp_path: Path) -> None:
    file = tmp_path / "hub.toml"
    file.write_text(kind("ConfigMap")["data"]["hub.toml"])
    (container,) = kind("StatefulSet")["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value", "x").replace("$(POD_IP)", "10.0.0.1") for each in container["env"]}
    config = load(file, environment=environment).config
    assert config.log.backend == "kafka"
    assert config.cluster.advertise == {name: f"10.0.0.1:{port}" for name, port in PORTS.items()}
    assert {address: split_address(at)[1] for address, at in config.listen.addresses().items()} == PORTS
    assert container["args"] == ["--config", "/etc/headrace/hub.toml"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert mounts == {"settings": "/etc/headrace", "cache": "/data"}
    assert "--data" in (EXAMPLES / "Containerfile").read_text().splitlines()[-1]
    (job,) = kind("Job")["spec"]["template"]["spec"]["containers"]
    assert job["command"] == ["headrace", "cluster", "init", "--config", "/etc/headrace/hub.toml"]


def test_kubernetes_ports_probes_and_selectors_fit() -> None:
    hubs = kind("StatefulSet")
    labels = hubs["spec"]["template"]["metadata"]["labels"]
    (container,) = hubs["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == PORTS
    services = {each["metadata"]["name"]: each["spec"] for each in KUBERNETES if each["kind"] == "Service"}
    assert services.keys() == {"headrace", hubs["spec"]["serviceName"]}
    assert {each["name"]: each["port"] for each in services["headrace"]["ports"]} == PORTS
    for service in services.values():
        assert service["selector"] == labels
        assert all(each["targetPort"] in PORTS for each in service["ports"])
    for selector in (hubs["spec"]["selector"], kind("PodDisruptionBudget")["spec"]["selector"]):
        assert selector["matchLabels"] == labels
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == "http"
        assert asked["path"].startswith(OWN_PATHS)
    ready = container["readinessProbe"]
    assert ready["periodSeconds"] * ready["failureThreshold"] > 2 * Config().cluster.session_timeout_s
    stop_s = Config().limits.stop_s
    assert hubs["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 2 * stop_s
    assert kind("Job")["spec"]["template"]["metadata"]["labels"] != labels, "it is no hub"
