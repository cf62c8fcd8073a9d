"""FTN8 message signatures: what is signed, and by which algorithms.

The base of a signature is the whole decoded message without its `sec`: for each key in the order of UTF-16 code units
`key:value;`, where objects and arrays are written the same way (an array's keys are its positions, sorted as text),
strings stand as they are, numbers as ECMAScript prints them, and keys whose value is null leave no trace.

A Master Secret (FTN8.2) signs nothing itself: `derive` makes a key of it for one executor, by HKDF (RFC 5869).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import math
from typing import Any

# FTN6 1.6 names of -hmac, and FTN8 names of -smac and -mmac. FTN8 names KMAC128 and KMAC256 too, but says neither how
# long their output is nor with which customization string, so that no two sides can agree.
HMAC_ALGORITHMS = {"MD5": "md5", "SHA224": "sha224", "SHA256": "sha256", "SHA384": "sha384", "SHA512": "sha512"}
SMAC_ALGORITHMS = {"HMD5": "md5", "HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}

KEY_STRATEGIES = {"HKDF256": "sha256", "HKDF512": "sha512"}


def derive(master: bytes, strategy: str, global_id: str, parameter: str) -> bytes:
    """The key, as long as `master`, that signs messages to the executor with this global id. `strategy` is a name of
    hashlib."""
    made = hmac.digest(f"{global_id}:MAC".encode(), master, strategy)
    block = key = b""
    while len(key) < len(master):
        block = hmac.digest(made, block + parameter.encode() + bytes([len(key) // len(made) + 1]), strategy)
        key += block
    return key[: len(master)]


def base(message: dict[str, Any]) -> bytes:
    """The bytes that are signed."""
    parts: list[str | bytes] = []
    _write_map({key: value for key, value in message.items() if key != "sec"}, parts)
    return b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)


def sign(key: bytes, algorithm: str, message: dict[str, Any]) -> str:
    """The signature of a message; `algorithm` is a name of hashlib."""
    return base64.b64encode(hmac.digest(key, base(message), algorithm)).decode()


def verify(key: bytes, algorithm: str, message: dict[str, Any], signature: str) -> bool:
    """Whether `signature` (base64, padded or not) is right; the time taken does not tell how wrong it is."""
    try:
        given = base64.b64decode(signature + "=" * (-len(signature) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(given, hmac.digest(key, base(message), algorithm))


def _utf16_units(key: object) -> bytes:
    # MessagePack has keys that are no text; JavaScript makes text of them.
    return str(key).encode("utf-16-be", "surrogatepass")


def _write_map(message: dict[Any, Any], parts: list[str | bytes]) -> None:
    for key in sorted(message, key=_utf16_units):
        value = message[key]
        if value is None:
            continue
        parts.append(f"{key}:")
        _write_value(value, parts)
        parts.append(";")


def _write_value(value: Any, parts: list[str | bytes]) -> None:
    if isinstance(value, str | bytes):
        parts.append(value)
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, int | float):
        parts.append(number_text(value))
    elif isinstance(value, dict):
        _write_map(value, parts)
    elif isinstance(value, list):
        _write_map({str(at): item for at, item in enumerate(value)}, parts)
    else:
        parts.append(str(value))


def number_text(value: int | float) -> str:
    """A number as ECMAScript's Number::toString writes it; there all numbers are doubles."""
    if isinstance(value, int) and abs(value) < 2**53:
        return str(value)
    try:
        number = float(value)
    except OverflowError:
        return "Infinity" if value > 0 else "-Infinity"
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    return sign + _positive_text(abs(number))


def _positive_text(number: float) -> str:
    mantissa, _, exponent_text = f"{number!r}e0".partition("e")
    exponent = int(exponent_text.partition("e")[0])
    whole, _, fraction = mantissa.partition(".")
    if fraction == "0":
        fraction = ""
    digits = (whole + fraction).lstrip("0")
    # `point` is where the decimal point stands, counted from the first digit that is not zero.
    point = len(whole) + exponent - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        return digits + "0" * (point - count)
    if 0 < point <= 21:
        return f"{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return "0." + "0" * -point + digits
    power = f"e{point - 1:+d}"
    return digits + power if count == 1 else f"{digits[0]}.{digits[1:]}{power}"
