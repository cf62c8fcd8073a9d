"""Settings of the log on Kafka: where they come from, and that secrets are not shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.up import flags_of
from headrace.config.load import ConfigError, load
from headrace.errors import BadConfig


def test_the_short_form() -> None:
    config = load(environment={}, flags=flags_of(None, None, "kafka://a:9092,b:9092/orders")).config
    assert config.log.backend == "kafka"
    assert (config.log.kafka.servers, config.log.kafka.prefix) == ("a:9092,b:9092", "orders")
    assert load(environment={}, flags=flags_of(None, None, "kafka://a:9092")).config.log.kafka.prefix == "headrace"


def test_another_scheme_is_refused() -> None:
    with pytest.raises(BadConfig, match="expected kafka://"):
        flags_of(None, None, "redis://a")


def test_a_prefix_that_is_no_topic_name() -> None:
    with pytest.raises(ConfigError, match="log.kafka.prefix"):
        load(environment={}, flags=["log.kafka.prefix=a/b"])


def test_a_log_has_one_cell() -> None:
    assert load(environment={}, flags=["log.kafka.cells=1"]).config.log.kafka.cells == 1
    with pytest.raises(ConfigError, match="log.kafka.cells` is 3, and .* keeps a log in one cell"):
        load(environment={}, flags=["log.kafka.cells=3"])


FILE = """
[log.kafka.client]
"security.protocol" = "SASL_SSL"
"sasl.username" = "hub"
"sasl.password" = "hunter2"
"ssl.key.pem" = "-----BEGIN"
"ssl.ca.location" = "/etc/ca.pem"
"""


def test_properties_of_the_client_from_everywhere_and_secrets_are_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text(FILE)
    loaded = load(file, environment={}, flags=["log.kafka.client.ssl.key.password=hunter3"])
    client = loaded.config.log.kafka.client
    assert (client["sasl.password"], client["ssl.key.password"]) == ("hunter2", "hunter3")
    shown = {setting.key.removeprefix("log.kafka.client."): setting.value for setting in loaded.settings()}
    assert [shown[key] for key in ("sasl.password", "ssl.key.pem", "ssl.key.password")] == ["********"] * 3
    assert [shown[key] for key in ("sasl.username", "ssl.ca.location")] == ["hub", "/etc/ca.pem"]


def test_properties_of_the_client_from_the_environment() -> None:
    text = '{"sasl.mechanism" = "PLAIN"}'
    assert load(environment={"HEADRACE_LOG__KAFKA__CLIENT": text}).config.log.kafka.client["sasl.mechanism"] == "PLAIN"


def test_settings_of_spark_have_dots_too() -> None:
    config = load(environment={}, flags=["spark.conf.spark.sql.shuffle.partitions=4"]).config
    assert config.spark.conf == {"spark.sql.shuffle.partitions": "4"}


def test_keys_that_are_no_text_are_not_joined() -> None:
    with pytest.raises(ConfigError, match="there is no such setting"):
        load(environment={}, flags=["security.users.a.b.c=1"])
