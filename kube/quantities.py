"""Kubernetes quantities (`16Gi`, `500m`, `2e3`), read exactly and written in canonical form.

Invariants: no value is rounded as a float; negative, infinite and unbounded numbers are refused; only `QuantityError`
is raised. Grammar: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Final

RawQuantity = str | int | float

LARGEST: Final = 2**63 - 1
"""The largest quantity Kubernetes itself keeps exactly."""

_LONGEST_TEXT: Final = 64
_LARGEST_EXPONENT: Final = 64
_BINARY: Final = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_NUMBER: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:(?P<point>\.)(?P<part>[0-9]*))?(?P<suffix>.*)", re.DOTALL
)
_EXPONENT: Final = re.compile(r"[eE](?P<value>[+-]?[0-9]+)")
_BYTE_UNIT: Final = re.compile(r"(?P<prefix>[kKmMgGtTpPeE])(?P<binary>i?)[bB]")


class QuantityError(ValueError):
    """The value is not a quantity, or out of bounds; the text says what to write instead."""


def parse_quantity(value: RawQuantity) -> int:
    """Whole units (bytes for memory) of a quantity, 0..2^63-1; fractions of a unit are rounded down.

    Raises `QuantityError`, also for a value above 0 that would round down to 0, which means "not requested".
    """
    units, remainder = _exact(value)
    if remainder and not units:
        raise QuantityError(f"{_shown(value)} is less than one whole unit")
    return units


def parse_whole(value: RawQuantity) -> int:
    """An exact count, 0..2^63-1: `2`, `"2"`, `1k` and `1000m` are counts, `0.5` and `500m` are not.

    Raises `QuantityError`.
    """
    units, remainder = _exact(value)
    if remainder:
        raise QuantityError(f"{_shown(value)} is not a whole number")
    return units


def parse_milli(value: RawQuantity) -> int:
    """Thousandths of a unit, rounded up: 100 for `100m`, 500 for `0.5`, 2000 for `2`. Raises `QuantityError`."""
    text = repr(value) if isinstance(value, float) else str(value)
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    if match is None or match["sign"] == "-" or not (match["whole"] or match["part"]):
        raise QuantityError(f"{_shown(value)} is not an amount; write for example 2, 500m or 0.5")
    base, power = _scale(text, match["suffix"])
    exact = Fraction(int(match["whole"] + (match["part"] or "")), 10 ** len(match["part"] or ""))
    return math.ceil(exact * Fraction(base) ** power * 1000)


def format_bytes(units: int) -> str:
    """The exact canonical text: the largest binary suffix that divides it (`16Gi`, `1536Mi`), else plain digits."""
    if units < 0:
        raise QuantityError("a quantity must not be negative")
    if units == 0:
        return "0"
    for suffix, power in reversed(_BINARY.items()):
        if units % 1024**power == 0:
            return f"{units // 1024**power}{suffix}"
    return str(units)


def _exact(value: object) -> tuple[int, bool]:
    """(whole units, whether a fraction of a unit is left over)."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise QuantityError(f"a quantity is a number or text such as 16Gi, not {type(value).__name__}")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise QuantityError(f"{value} is not a finite number")
        value = repr(value)
    if isinstance(value, int):
        return _bounded(value, remainder=False)
    return _parse_text(value)


def _parse_text(text: str) -> tuple[int, bool]:
    if len(text) > _LONGEST_TEXT:
        raise QuantityError(f"a quantity has at most {_LONGEST_TEXT} characters, this one has {len(text)}")
    match = _NUMBER.fullmatch(text)
    digits = "" if match is None else match["whole"] + (match["part"] or "")
    if match is None or not digits:
        raise QuantityError(f"{_shown(text)} is not a quantity; write for example 2, 500m or 16Gi")
    base, power = _scale(text, match["suffix"])
    mantissa = int(digits)
    if match["sign"] == "-" and mantissa:
        raise QuantityError(f"{_shown(text)} is negative; a quantity must not be")
    below = 10 ** len(match["part"] or "")
    if power < 0:
        below *= base**-power
    else:
        mantissa *= base**power
    units, remainder = divmod(mantissa, below)
    return _bounded(units, remainder=remainder > 0)


def _scale(text: str, suffix: str) -> tuple[int, int]:
    """(base, power) that a suffix multiplies by."""
    if suffix in _BINARY:
        return 1024, _BINARY[suffix]
    if suffix in _DECIMAL:
        return 10, _DECIMAL[suffix]
    exponent = _EXPONENT.fullmatch(suffix)
    if exponent is not None:
        power = int(exponent["value"])
        if abs(power) > _LARGEST_EXPONENT:
            raise QuantityError(f"{_shown(text)} is out of range; a quantity is at most 2^63-1")
        return 10, power
    raise QuantityError(f"{_shown(text)} is not a quantity; {_advice(text, suffix)}")


def _advice(text: str, suffix: str) -> str:
    """A hint for an unknown suffix."""
    number = text.removesuffix(suffix)
    unit = _BYTE_UNIT.fullmatch(suffix)
    if unit is not None:
        prefix = unit["prefix"].upper()
        binary = f"{number}{prefix}i"
        decimal = f"{number}{'k' if prefix == 'K' else prefix}"
        return f"did you mean {binary}?" if unit["binary"] else f"did you mean {decimal} or {binary}?"
    for known in (*_BINARY, *_DECIMAL):
        if known and known.lower() == suffix.lower():
            return f"did you mean {number}{known}?"
    return "write for example 2, 500m or 16Gi"


def _bounded(units: int, *, remainder: bool) -> tuple[int, bool]:
    if units < 0:
        raise QuantityError("a quantity must not be negative")
    if units > LARGEST or (units == LARGEST and remainder):
        raise QuantityError("the quantity is out of range; it is at most 2^63-1")
    return units, remainder


def _shown(value: object) -> str:
    """The value for a message, bounded in length."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
