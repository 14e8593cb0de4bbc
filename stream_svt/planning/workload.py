"""Belief about the queries to come: their number, the share of positives, and the margins.

A margin is the distance of a value from the public threshold, in real units. Margins must be prior knowledge:
taken from the monitored data they would leak it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError

Floats = NDArray[np.float64]

MARGINS = 200
"""Quantiles that stand for a distribution of margins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the value of a positive rises: evenly, within so many queries of the stream, to its margin.

    ``start`` is its distance below the threshold at the first query of its series, in real units.
    """

    queries: float
    start: float

    def __post_init__(self) -> None:
        if not (self.queries > 0 and math.isfinite(self.queries) and math.isfinite(self.start)):
            raise MisuseError("a drift takes more than 0 queries and starts at a finite distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one run of a monitor meets.

    Attributes:
        queries: Of a stream: queries to look ahead, without news of series that wait. Of a finite set: its items.
        positives: Expected share of them at or above the threshold, above 0 and below 1.
        above: Margins of the positives: how far at or above the threshold they lie, in real units. Equally
            likely values of any distribution: quantiles, or a sample from public data.
        below: The same for the negatives: how far below the threshold.
        finite: Whether the queries are one closed set, tested pass after pass, rather than a stream.
        drift: How positives rise, on streams; None where values stay as they are.
        rate: Queries a second, to tell times; None where unknown.

    Raises:
        MisuseError: For numbers without a meaning.
    """

    queries: int
    positives: float
    above: Floats
    below: Floats
    finite: bool = False
    drift: Drift | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise MisuseError("a workload has at least one query")
        if not 0 < self.positives < 1:
            raise MisuseError("the share of positives lies strictly between 0 and 1")
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise MisuseError("the rate is queries a second and greater than 0")
        if self.finite and self.drift is not None:
            raise MisuseError("values of a finite set do not drift: leave the drift out, or plan a stream")
        for name in ("above", "below"):
            margins = np.sort(np.asarray(getattr(self, name), dtype=np.float64).ravel())
            if not len(margins) or not np.isfinite(margins).all() or margins[0] < 0:
                raise MisuseError(
                    f"margins {name} the threshold are one or more numbers, finite and not negative"
                )
            object.__setattr__(self, name, margins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed about a workload, and how far it may be off.

    A median alone stands for Weibull distributions of shapes 1/2 (many values near the threshold), 1 (exponential,
    the central one) and 4 (nearly all at the median). Medians and quantiles may be up to `factor` times smaller or
    larger.

    Attributes:
        positives: Expected share of positives.
        above, below: Margins of positives and negatives in real units: a median, or quantiles as in
            `Workload`.
        factor: At least 1.
    """

    positives: float
    above: float | Floats
    below: float | Floats
    factor: float = 2.0

    def __post_init__(self) -> None:
        medians = [margin for margin in (self.above, self.below) if not isinstance(margin, np.ndarray)]
        if not all(0 < median < math.inf for median in medians) or not 1 <= self.factor < math.inf:
            raise MisuseError(
                "median margins are greater than 0, and the factor of uncertainty is at least 1"
            )

    def central(
        self, queries: int, *, finite: bool = False, drift: Drift | None = None, rate: float | None = None
    ) -> Workload:
        """Return the workload as believed; arguments are those of `Workload`."""
        options: dict[str, Any] = {"finite": finite, "drift": drift, "rate": rate}
        return Workload(queries=queries, positives=self.positives, **self._margins(1.0, 1.0), **options)

    def spread(self, central: Workload) -> tuple[Workload, ...]:
        """Return what the workload may be as well: pessimistic, optimistic, and mixed."""
        known = isinstance(self.above, np.ndarray) and isinstance(self.below, np.ndarray)
        return tuple(
            replace(central, **self._margins(scale, shape))
            for scale in sorted({1 / self.factor, 1.0, self.factor})
            for shape in ((1.0,) if known else (0.5, 1.0, 4.0))
            if (scale, shape) != (1.0, 1.0)
        )

    def _margins(self, scale: float, shape: float) -> dict[str, Any]:
        return {
            name: scale * margin if isinstance(margin, np.ndarray) else weibull(scale * margin, shape)
            for name, margin in (("above", self.above), ("below", self.below))
        }


def weibull(median: float, shape: float) -> Floats:
    """Return the quantiles of a Weibull distribution at the middles of `MARGINS` equal shares."""
    return np.asarray(median * (-np.log2(1 - middles(MARGINS))) ** (1 / shape))


def from_percentiles(points: Sequence[tuple[float, float]]) -> Floats:
    """Return margins whose distribution runs straight between given percentiles, and is at 0 at percentile 0.

    Args:
        points: Percentages (above 0, at most 100, rising) with the margin below which so many lie. Beyond the
            last one the distribution goes on like an exponential one.

    Raises:
        MisuseError: Percentages or margins do not rise.

    Examples:
        >>> from_percentiles([(50, 10), (100, 20)])[[0, 99, 100, 199]]
        array([ 0.05,  9.95, 10.05, 19.95])
    """
    levels = np.array([0.0, *(level for level, _ in points)]) / 100
    margins = np.array([0.0, *(margin for _, margin in points)])
    if len(points) == 0 or (np.diff(levels) <= 0).any() or levels[-1] > 1 or (np.diff(margins) < 0).any():
        raise MisuseError(
            "percentiles are pairs such as 10:20, 50:150, 90:400: percentages above 0 and up to 100 that rise, "
            "each with a margin at least as large as the one before"
        )
    wanted = middles(MARGINS)
    found = np.interp(wanted, levels, margins)
    beyond = wanted > levels[-1]
    if beyond.any():
        found[beyond] = margins[-1] * np.log1p(-wanted[beyond]) / math.log1p(-levels[-1])
    return np.asarray(found)


def thinned(margins: Floats, count: int = 2 * MARGINS) -> Floats:
    """Return at most so many margins of the same distribution: quantiles at the middles of equal shares."""
    return margins if len(margins) <= count else np.asarray(np.quantile(margins, middles(count)))


def middles(count: int) -> Floats:
    """Return the probabilities at the middles of equal shares, shape (count,)."""
    return (np.arange(count) + 0.5) / count
