"""What is made of one paper's tables: figures, tables of the page, and verdicts on the paper's claims.

The words of the page are written by hand, except for the blocks between comments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from benchmarks.papers.table import Table

Tables = Mapping[str, Table]


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
