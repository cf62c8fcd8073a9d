import pytest

from headrace.units import format_bytes, format_seconds, natural, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1B", 1),
        ("64KiB", 65536),
        ("32MiB", 32 << 20),
        ("1.5 GiB", 3 << 29),
        ("2MB", 2_000_000),
    ],
)
def test_sizes_as_people_write_them(text: str, count: int) -> None:
    assert parse_bytes(text) == count
    assert parse_bytes(text.lower()) == count


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1XB", "1 2", "1e3", "fast"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5m", 300), ("5min", 300), ("12h", 43200), ("7d", 604800), ("3", 3)],
)
def test_durations_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 week", "1y"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (32 << 20, "32.0 MiB"), (5 << 40, "5.0 TiB")]
)
def test_sizes_are_shown_with_their_unit(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "12.3 ms"), (59, "59.0 s"), (90, "1.5 min"), (7200, "2.0 h"), (172800, "2.0 d")]
)
def test_durations_are_shown_with_their_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("text", "number"), [("0", 0), (b"17", 17), ("0080", 80), ("9" * 18, 10**18 - 1)])
def test_natural_numbers(text: str | bytes, number: int) -> None:
    assert natural(text) == number


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1_0", " 1", "1.0", "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT ONE}", "9" * 19]
)
def test_what_python_would_take_for_a_number_or_fail_on_is_none(text: str) -> None:
    assert natural(text) is None
