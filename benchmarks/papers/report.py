"""What is made of one paper's tables: figures, tables of the page, and verdicts on the paper's claims.

The words of the page are written by hand; a part between `<!-- begin NAME -->` and `<!-- end NAME -->` is generated.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.papers.table import Table

Tables = Mapping[str, Table]

_PART = re.compile(r"(<!-- begin (?P<name>[a-z0-9-]+) -->\n).*?(<!-- end (?P=name) -->)", re.DOTALL)


class Verdict(StrEnum):
    """What became of a claim."""

    CONFIRMED = "confirmed"
    IN_PART = "in part"
    REFUTED = "not confirmed"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a paper, in our words.

    Attributes:
        verdict: What the page was written for; `judge` has the last word.
        judge: Returns the verdict that the tables support, and the figures it rests on.
    """

    statement: str
    verdict: Verdict
    judge: Callable[[Tables], tuple[Verdict, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How the figures of a paper are drawn, and its claims in order."""

    draw: Callable[[Tables, Path], None]
    claims: tuple[Claim, ...]


def graded(*holds: bool) -> Verdict:
    """Return confirmed where all parts of a claim hold, not confirmed where none does."""
    if all(holds):
        return Verdict.CONFIRMED
    return Verdict.IN_PART if any(holds) else Verdict.REFUTED


def listed(claims: Sequence[Claim], tables: Tables) -> str:
    """Return the claims as a list in Markdown; a verdict the words were not written for is marked."""
    lines = []
    for claim in claims:
        verdict, figures = claim.judge(tables)
        mark = "" if verdict is claim.verdict else f" (was {claim.verdict})"
        lines.append(f"- **{verdict}**{mark}: {claim.statement} {figures}")
    return "\n".join(lines)


def surprises(claims: Sequence[Claim], tables: Tables) -> list[str]:
    """Return the statements whose verdict in the tables is not the one that the page was written for."""
    return [claim.statement for claim in claims if claim.judge(tables)[0] is not claim.verdict]


def filled(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with each part in its place.

    Raises:
        LookupError: When the page lacks a part's place, or has a place for which there is no part.
    """
    places = [found["name"] for found in _PART.finditer(page)]
    if sorted(places) != sorted(parts):
        raise LookupError(f"the page has places for {sorted(places)}, the parts are {sorted(parts)}")
    return _PART.sub(lambda found: f"{found[1]}\n{parts[found['name']].strip()}\n\n{found[3]}", page)
