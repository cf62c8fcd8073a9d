from headrace.config import Grant
from headrace.hub.health import NOT_FOR_ALL, Health, HealthReport
from headrace.security import Principal


def test_all_well() -> None:
    health = Health()
    health.check("log", lambda: None)
    assert health.report() == HealthReport(live=True, ready=True, reasons={})


def test_whoever_may_not_read_every_stream_is_told_less() -> None:
    health = Health()
    health.check("damage", lambda: "secret and orders", lambda principal: "orders" if principal.name == "ann" else None)
    health.check("log", lambda: "/data/journal/1 is gone")
    health.check("disk", lambda: None)
    grants = (Grant(rights=["read"], streams=["orders"]),)
    assert health.report(Principal("ann", (), grants)).reasons == {"damage": "orders", "log": NOT_FOR_ALL}
    assert health.report(Principal("bob", (), grants)).reasons == {"damage": NOT_FOR_ALL, "log": NOT_FOR_ALL}
    assert health.report().reasons == {"damage": "secret and orders", "log": "/data/journal/1 is gone"}


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


def test_notes_keep_nobody_from_being_ready() -> None:
    health = Health()
    health.note("tables", lambda: "look at this")
    assert health.report() == HealthReport(live=True, ready=True, reasons={}, notes={"tables": "look at this"})
