"""What an operator believes about the queries to come: how many, how many positive, and how far from the threshold.

A margin is the distance of a value from the public threshold, in real units. Margins are prior knowledge: bought
with budget, known from public data, or guessed. Taken from the monitored data themselves they would leak it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stream_svt.errors import MisuseError

Floats = NDArray[np.float64]

MARGINS = 200
"""Quantiles that stand for a distribution of margins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """How the value of a positive rises after the first query of its series.

    Attributes
    ----------
    queries
        Queries of the stream until it has reached its margin; it rises evenly.
    start
        Distance below the threshold at its first query, in real units.
    """

    queries: float
    start: float

    def __post_init__(self) -> None:
        """Refuse a value that is not a rise."""
        if not (self.queries > 0 and math.isfinite(self.queries) and math.isfinite(self.start)):
            raise MisuseError("a drift takes more than 0 queries and starts at a finite distance")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one run of a monitor meets.

    Attributes
    ----------
    queries
        Of a stream: queries to look ahead, news of series that already wait left out. Of a finite set: its items.
    positives
        Expected share of them at or above the threshold, above 0 and below 1.
    above
        Margins of the positives: how far at or above the threshold they lie, in real units. Equally likely values
        of any distribution: quantiles, or a sample from public data.
    below
        The same for the negatives: how far below the threshold.
    finite
        Whether the queries are one closed set, tested pass after pass, rather than a stream.
    drift
        How positives rise; None where values stay as they are. Streams only.
    rate
        Queries a second, to tell times; None where unknown.

    Raises
    ------
    MisuseError
        For numbers without a meaning.
    """

    queries: int
    positives: float
    above: Floats
    below: Floats
    finite: bool = False
    drift: Drift | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        """Check the numbers and sort the margins."""
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

    A median says nothing of the values near the threshold, which decide. So one number in gives a range out:
    margins with a median alone are taken to be Weibull distributed with shapes from 1/2 (many values near the
    threshold, some far away) over 1 (exponential; the central one) to 4 (nearly all of them at the median). Medians
    and quantiles alike may be up to `factor` times smaller and larger.

    Attributes
    ----------
    positives
        Expected share of positives.
    above, below
        Margins of positives and negatives in real units: a median, or quantiles as in `Workload`.
    factor
        At least 1.
    """

    positives: float
    above: float | Floats
    below: float | Floats
    factor: float = 2.0

    def __post_init__(self) -> None:
        """Refuse numbers without a meaning."""
        medians = [margin for margin in (self.above, self.below) if not isinstance(margin, np.ndarray)]
        if not all(0 < median < math.inf for median in medians) or not 1 <= self.factor < math.inf:
            raise MisuseError(
                "median margins are greater than 0, and the factor of uncertainty is at least 1"
            )

    def central(
        self, queries: int, *, finite: bool = False, drift: Drift | None = None, rate: float | None = None
    ) -> Workload:
        """Return the workload as believed; arguments are those of `Workload`."""
        return self._workload(1.0, 1.0, queries, finite=finite, drift=drift, rate=rate)

    def spread(
        self, queries: int, *, finite: bool = False, drift: Drift | None = None, rate: float | None = None
    ) -> tuple[Workload, ...]:
        """Return what the workload may be as well: pessimistic, optimistic, and mixed."""
        known = isinstance(self.above, np.ndarray) and isinstance(self.below, np.ndarray)
        scales = sorted({1 / self.factor, 1.0, self.factor})
        return tuple(
            self._workload(scale, shape, queries, finite=finite, drift=drift, rate=rate)
            for scale in scales
            for shape in ((1.0,) if known else _SHAPES)
            if (scale, shape) != (1.0, 1.0)
        )

    def _workload(
        self,
        scale: float,
        shape: float,
        queries: int,
        *,
        finite: bool,
        drift: Drift | None,
        rate: float | None,
    ) -> Workload:
        above, below = (
            scale * margin if isinstance(margin, np.ndarray) else weibull(scale * margin, shape)
            for margin in (self.above, self.below)
        )
        return Workload(
            queries=queries,
            positives=self.positives,
            above=above,
            below=below,
            finite=finite,
            drift=drift,
            rate=rate,
        )


_SHAPES = (0.5, 1.0, 4.0)


def weibull(median: float, shape: float) -> Floats:
    """Return the quantiles of a Weibull distribution at the middles of `MARGINS` equal shares."""
    levels = (np.arange(MARGINS) + 0.5) / MARGINS
    return np.asarray(median * (-np.log2(1 - levels)) ** (1 / shape))


def from_percentiles(points: Sequence[tuple[float, float]]) -> Floats:
    """Return margins whose distribution runs straight between given percentiles, and is at 0 at percentile 0.

    Parameters
    ----------
    points
        Percentages (above 0, at most 100, rising) with the margin below which so many lie. Beyond the last one
        the distribution goes on like an exponential one.

    Raises
    ------
    MisuseError
        Percentages or margins do not rise.

    Examples
    --------
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
    wanted = (np.arange(MARGINS) + 0.5) / MARGINS
    found = np.interp(wanted, levels, margins)
    beyond = wanted > levels[-1]
    if beyond.any():
        scale = margins[-1] / -math.log1p(-levels[-1])
        found[beyond] = -scale * np.log1p(-wanted[beyond])
    return np.asarray(found)


def thinned(margins: Floats, count: int = 2 * MARGINS) -> Floats:
    """Return at most so many margins of the same distribution: quantiles at the middles of equal shares."""
    if len(margins) <= count:
        return margins
    return np.asarray(np.quantile(margins, (np.arange(count) + 0.5) / count))
