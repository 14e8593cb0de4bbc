"""Claims of the papers and what the measurements say of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.papers.table import Table

Tables = Mapping[str, Table]


class Verdict(StrEnum):
    """What became of a claim."""

    CONFIRMED = "confirmed"
    IN_PART = "in part"
    REFUTED = "not confirmed"


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a paper.

    Attributes
    ----------
    statement
        What the paper says, in our words.
    verdict
        What the page was written for. The tables have the last word: see `finding`.
    judge
        Returns the verdict that the tables support, and the figures it rests on.
    why
        Reason, in words.
    """

    statement: str
    verdict: Verdict
    judge: Callable[[Tables], tuple[Verdict, str]]
    why: str


def graded(*holds: bool) -> Verdict:
    """Return confirmed where all parts of a claim hold, not confirmed where none does."""
    if all(holds):
        return Verdict.CONFIRMED
    return Verdict.IN_PART if any(holds) else Verdict.REFUTED


def listed(claims: Sequence[Claim], tables: Tables) -> str:
    """Return the claims as a table in Markdown; a verdict the words were not written for is marked."""
    lines = ["| claim | verdict | figures | why |", "|---|---|---|---|"]
    for claim in claims:
        verdict, figures = claim.judge(tables)
        mark = "" if verdict is claim.verdict else f" (was {claim.verdict})"
        lines.append(f"| {claim.statement} | **{verdict}**{mark} | {figures} | {claim.why} |")
    return "\n".join(lines)


def surprises(claims: Sequence[Claim], tables: Tables) -> list[str]:
    """Return the statements whose verdict in the tables is not the one that the page was written for."""
    return [claim.statement for claim in claims if claim.judge(tables)[0] is not claim.verdict]
