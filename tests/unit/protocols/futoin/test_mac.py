"""Signatures: the base, numbers as ECMAScript writes them, and the check."""

from __future__ import annotations

import math
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from headrace.protocols.futoin import mac


@pytest.mark.parametrize(
    ("message", "base"),
    [
        ({"b": 1, "a": "x", "sec": "gone"}, "a:x;b:1;"),
        ({"p": {"sec": "stays"}}, "p:sec:stays;;"),
        ({"p": {"list": list(range(11)), "none": None}}, "p:list:0:0;1:1;10:10;2:2;3:3;4:4;5:5;6:6;7:7;8:8;9:9;;;"),
        ({"p": {}, "q": []}, "p:;q:;"),
        ({"yes": True, "no": False}, "no:false;yes:true;"),
        ({"\U0001f600": 1, "\uff5e": 2}, "\U0001f600:1;\uff5e:2;"),  # UTF-16 order: surrogates come before U+FF5E
        ({"a:b;": "c;d:"}, "a:b;:c;d:;"),
        ({5: 1, "a": {None: 2}}, "5:1;a:None:2;;"),
    ],
)
def test_base(message: dict[Any, Any], base: str) -> None:
    assert mac.base(message).decode() == base


def test_base_of_bytes_and_odd_values() -> None:
    assert mac.base({"a": b"\xff\x00"}) == b"a:\xff\x00;"
    assert mac.base({"a": (1,)}) == b"a:(1,);"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"), (-0.0, "0"), (0.0, "0"), (3.0, "3"), (-7, "-7"), (1.5, "1.5"), (0.1, "0.1"), (1e21, "1e+21"),
        (1e20, "100000000000000000000"), (123456789012345680000, "123456789012345680000"), (1e-6, "0.000001"),
        (1e-7, "1e-7"), (1.5e-7, "1.5e-7"), (-1.25e30, "-1.25e+30"), (5e-324, "5e-324"), (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"), (1.7976931348623157e308, "1.7976931348623157e+308"), (100.0, "100"),
        (12345.678, "12345.678"), (10**400, "Infinity"), (-(10**400), "-Infinity"), (math.nan, "NaN"),
        (math.inf, "Infinity"), (-math.inf, "-Infinity"), (1e16, "10000000000000000"), (120000.0, "120000"),
    ],
)  # fmt: skip
def test_numbers(number: float, text: str) -> None:
    assert mac.number_text(number) == text


def test_verify() -> None:
    message = {"f": "x", "p": {"a": 1}}
    signature = mac.sign(b"key", "sha256", message)
    assert mac.verify(b"key", "sha256", message, signature)
    assert mac.verify(b"key", "sha256", message, signature.rstrip("="))
    assert mac.verify(b"key", "sha256", {**message, "sec": "anything"}, signature)
    assert not mac.verify(b"key", "sha256", {**message, "rid": "C1"}, signature)
    assert not mac.verify(b"other", "sha256", message, signature)
    assert not mac.verify(b"key", "sha512", message, signature)
    for broken in ("", "*", "é", "AAAA", signature + "!"):
        assert not mac.verify(b"key", "sha256", message, broken)


@pytest.mark.parametrize("size", [16, 32, 33, 64, 100, 1_024])
def test_derived_keys_are_those_of_hkdf(size: int) -> None:
    master = bytes(range(256)) * 4
    for name, algorithm in (("HKDF256", hashes.SHA256()), ("HKDF512", hashes.SHA512())):
        hkdf = HKDF(algorithm=algorithm, length=size, salt=b"hub.example:MAC", info=b"20260101")
        made = mac.derive(master[:size], mac.KEY_STRATEGIES[name], "hub.example", "20260101")
        assert made == hkdf.derive(master[:size])


def test_a_derived_key_written_down() -> None:
    """Made by futoin-hkdf 1.5.3 for Node."""
    master = bytes(range(48))
    assert mac.derive(master, "sha256", "hub.example", "20260101") == bytes.fromhex(
        "5f327f2104878d6c25c2d70909e8fed30d9d616ec46bcdf15d22fd75f754c9b72eccbe7493509843958c4d4511807b91"
    )
    assert mac.derive(master, "sha512", "hub.example", "") == bytes.fromhex(
        "cca1245af1f26197a3a9a7facd886acb2b8df838e87fce2b084da10647486025c61adbe84648e0aa3c68bfe96fd4081b"
    )
