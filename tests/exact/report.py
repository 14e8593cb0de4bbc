"""What the proofs found, printed at the end of a test run: losses beside charges, and who caught what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

_TABLES = {
    "losses": (
        "Exact enumeration: the largest log-ratio over all outputs, in parts of the output's charge",
        ("instance", "outputs", "ratios", "charge of a whole run", "largest / charge"),
    ),
    "audits": (
        "Audit of the real samplers: lower bound of epsilon (99.9 % confidence) beside the charge",
        ("instance", "draws", "charge", "measured", "verdict"),
    ),
    "caught": ("Controls: which check caught which", ("rule broken", "caught by")),
}


@dataclass
class Report:
    """Rows of the three tables; a row is the same wherever the tests ran, so that runs can be compared."""

    losses: list[tuple[str, ...]] = field(default_factory=list)
    audits: list[tuple[str, ...]] = field(default_factory=list)
    caught: list[tuple[str, ...]] = field(default_factory=list)

    def loss(self, instance: str, *, outputs: int, ratios: int, charge: str, largest: float) -> None:
        """Note the largest exact log-ratio of an instance, in parts of its output's charge."""
        self.losses.append((instance, f"{outputs:,}", f"{ratios:,}", charge, f"{largest:.4f}"))

    def audit(self, instance: str, *, draws: int, charge: float, measured: float, verdict: str) -> None:
        """Note a lower confidence bound of epsilon that was measured on the real samplers."""
        self.audits.append((instance, f"{draws:,}", f"{charge:.4f}", f"{measured:.4f}", verdict))

    def catch(self, mutant: str, checks: Sequence[str]) -> None:
        """Note which checks caught a mutant (or a published variant); none for those that are private."""
        self.caught.append((mutant, "; ".join(checks) or "nothing: it is private"))

    def rows(self) -> dict[str, Any]:
        """Everything noted, as plain values that another process can take."""
        return asdict(self)

    def take(self, rows: dict[str, Any]) -> None:
        """Add what another process noted."""
        for name, noted in rows.items():
            getattr(self, name).extend(tuple(row) for row in noted)

    def tables(self) -> Iterator[str]:
        """Lines of all tables that have rows, with columns of even width."""
        for name, (title, head) in _TABLES.items():
            if rows := sorted(getattr(self, name)):
                widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
                yield title
                for row in (head, *rows):
                    cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
                    yield "  " + "  ".join(cells).rstrip()
                yield ""


REPORT = pytest.StashKey[Report]()
