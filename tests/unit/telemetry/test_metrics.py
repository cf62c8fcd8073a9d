import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import headrace.telemetry.metrics
from headrace.protocols.descriptor import protocols
from headrace.telemetry.metrics import Metrics

UNITS = ("_seconds", "_bytes", "_records")


def declared() -> list[tuple[str, str, str]]:
    return [(metric.name, metric.type, metric.documentation) for metric in Metrics().registry.collect()]


def test_every_metric_has_a_help_text_and_a_name_with_its_unit() -> None:
    for name, kind, help in declared():
        full = f"{name}_total" if kind == "counter" else name
        assert re.fullmatch(r"headrace_[a-z_]+", full), full
        assert help, full
        if kind == "histogram":
            assert full.endswith(UNITS), f"{full} has no unit at its end"


def test_two_hubs_in_one_process_do_not_share_numbers() -> None:
    first, second = Metrics(), Metrics()
    first.log.records.inc(5)
    assert b"headrace_log_records_total 5.0" in first.text()
    assert b"headrace_log_records_total 0.0" in second.text()


def test_sessions_are_counted_by_protocol() -> None:
    metrics = Metrics()
    metrics.session_changed("ockam", 1)
    metrics.session_changed("ockam", 1)
    metrics.session_changed("ockam", -1)
    text = metrics.text().decode()
    assert 'headrace_sessions{protocol="ockam"} 1.0' in text
    assert 'headrace_sessions_opened_total{protocol="ockam"} 2.0' in text
    for protocol in ("http", *(label for each in protocols() for label in each.labels)):
        assert f'headrace_sessions{{protocol="{protocol}"}}' in text


def test_gauges_are_refreshed_before_each_scrape() -> None:
    metrics = Metrics()
    streams = iter([1, 2])
    metrics.before_scrape(lambda: metrics.nouns.streams.set(next(streams)))
    assert b"headrace_streams 1.0" in metrics.text()
    assert b"headrace_streams 2.0" in metrics.text()


def test_the_page_is_what_prometheus_reads() -> None:
    families = {family.name for family in text_string_to_metric_families(Metrics().text().decode())}
    assert "headrace_log_commit_seconds" in families
    assert not any(name.endswith("_created") for name in families)


def test_no_metric_is_declared_and_never_counted() -> None:
    """One that always says zero says something false."""
    source = Path(headrace.telemetry.metrics.__file__).parents[1]
    text = "\n".join(file.read_text(encoding="utf-8") for file in source.rglob("*.py"))
    unused = [
        f"{section}.{name}"
        for section, metrics in vars(Metrics()).items()
        if type(metrics).__name__.endswith("Metrics")
        for name in vars(metrics)
        if len(re.findall(rf"\.{name}\b", text)) < 2  # the declaration is one
    ]
    assert unused == []
