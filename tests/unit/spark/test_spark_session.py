import pytest

from headrace.spark.spark_session import LOG_SETTINGS, logging_option


def test_spark_is_quiet_unless_someone_has_settings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    assert logging_option({}) == f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    assert logging_option({"spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=mine"}) == ""
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert logging_option({}) == ""


def test_the_settings_of_its_log_are_in_the_package() -> None:
    assert "rootLogger.level = error" in LOG_SETTINGS.read_text()
