"""What is made of one paper's tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.papers.claims import Claim, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures, tables of the page and claims.

    Attributes
    ----------
    draw
        Writes the figures into a directory.
    parts
        Returns the tables of the page by the names of their places.
    claims
        In the order of the page.
    """

    draw: Callable[[Tables, Path], None]
    parts: Callable[[Tables], dict[str, str]]
    claims: tuple[Claim, ...]
