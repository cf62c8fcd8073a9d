from headrace.hub.health import Health, HealthReport


def test_all_well() -> None:
    health = Health()
    health.check("log", lambda: None)
    assert health.report() == HealthReport(live=True, ready=True, reasons={})


def test_reasons_are_given_by_part_and_a_failing_check_is_one() -> None:
    health = Health()
    health.check("log", lambda: "the disk is full")
    health.check("odd", lambda: str(1 // 0))
    report = health.report()
    assert not report.ready
    assert report.reasons["log"] == "the disk is full"
    assert "ZeroDivisionError" in report.reasons["odd"]


def test_a_check_can_be_replaced() -> None:
    health = Health()
    health.check("log", lambda: "starting")
    health.check("log", lambda: None)
    assert health.report().ready
