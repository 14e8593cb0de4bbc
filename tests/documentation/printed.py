"""Holds what a page shows as printed to what its commands printed."""

from __future__ import annotations

import re

from tests.documentation.stage import Stage, StepFailed


def same_words(text: str) -> str:
    """Return a text with every run of white space as one blank."""
    return re.sub(r"\s+", " ", text).strip()


def check_printed(stage: Stage, text: str) -> None:
    """Hold what a page shows as printed to what its commands printed, line by line and in order.

    ``...`` stands for anything, on a line of its own for any lines. Numbers need not be those of this run where noise
    or the time of day is in them.

    Raises
    ------
    StepFailed
        A line was not printed.
    """
    place = 0
    for line in map(same_words, text.splitlines()):
        if not line or line in {"...", "…"}:
            continue
        place = next((at + 1 for at in range(place, len(stage.lines)) if _alike(line, *stage.lines[at])), 0)
        if not place:
            raise StepFailed(f"this line was not printed: {line}\nprinted:\n{stage.printed[-1500:]}")


def _alike(shown: str, printed: str, noisy: bool) -> bool:
    printed = same_words(printed)
    if noisy:
        shown, printed = _NUMBER.sub("0", shown), _NUMBER.sub("0", printed)
    return re.fullmatch(re.escape(shown).replace(r"\.\.\.", ".*").replace("…", ".*"), printed) is not None


_NUMBER = re.compile(r"\d+(?:[.:]\d+)*")
