"""The values of a batch as numbers."""

from __future__ import annotations

from fractions import Fraction

from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT
from stream_svt.monitor.batch import QueryBatch


def numbers(batch: QueryBatch) -> list[Fraction | None]:
    """Return the value of each row as far as a batch holds it; None for what is no number, or below all grids."""
    assert batch.fraction is not None
    assert ((batch.fraction >= 0) & (batch.fraction < PARTS)).all()
    pairs = zip(batch.whole.tolist(), batch.fraction.tolist(), strict=True)
    return [None if whole == -WHOLE_LIMIT else whole + Fraction(part, PARTS) for whole, part in pairs]
