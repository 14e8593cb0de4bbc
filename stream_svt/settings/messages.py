"""How messages quote what a configuration file holds, and what they suggest."""

from __future__ import annotations

from decimal import Decimal
from difflib import get_close_matches
from fractions import Fraction


def quote(value: object) -> str:
    """Return how a message quotes what stands in the file."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = _number_text(value) if isinstance(value, Fraction) else str(value)
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f"'{text}'" if isinstance(value, str) else text


def _number_text(value: Fraction) -> str:
    """Return a decimal text where a short one is exact, else the ratio."""
    decimal = Decimal(value.numerator) / Decimal(value.denominator)
    return f"{decimal:f}" if Fraction(decimal) == value and abs(decimal.adjusted()) < 20 else str(value)


def did_you_mean(word: object, known: list[str]) -> str:
    """Return a suggestion to append to a message, empty where nothing is near."""
    text = str(word).lower()
    words = {one.lower(): one for one in known}
    near = get_close_matches(text, words, n=1, cutoff=0.6)
    near = near or [one for one in words if len(text) > 1 and one.startswith(text)]
    return f"; did you mean '{words[near[0]]}'?" if near else ""
