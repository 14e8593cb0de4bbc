"""50 persons in a group within a week: our band of doubt beside that of a published k-anonymity server.

The task: tell once 50 different persons joined a group within a calendar week, asked every hour, right in 99 % of weeks
on both sides. The *band* goes from the largest constant size about which 99 % of weeks say nothing to the smallest that
is told at its first hour in 99 %. Its width is what noise costs; where it lies is a choice of the threshold.

The peer is the server of Chrome's Protected Audience (FLEDGE): Epasto, Graney, Mao, Munoz Medina, Pal and Sotakova,
*Differentially Private Algorithms for k-Anonymity Server*, January 2023, section 5 (`DP_kanon_server.pdf` in
github.com/WICG/turtledove; its parameters in `FLEDGE_k_anonymity_differential_privacy.md`, in the version of 1 March
2023). For k = 50, 168 hours and (3, 10^-5) it is silent up to k - 15 and certain from k + 8 on, read off a figure: a
width of 23. `published_again` is the width computed from noise that fits the figure and its Corollary 3.1: two
truncated Laplace draws of rate 3/4 within 25.

Ours is pure epsilon 3: the mechanism of the monitor below, its band summed exactly over its noise, and simulated at
both edges. What differs:

* **Ours is one ledger for all groups that a person joins in a week**, in any number. Theirs protects one joining of
  one group: a person in m groups loses 3 m.
* **Ours tells `ALERTS` groups for that epsilon**, each once a week; more of them cost more. Theirs tells every group.
  `width_one_alert` is for one.
* **False alerts of ours use up that number together.** `width_1000_groups` is the width if 1,000 groups that are all at
  the lower edge are to be silent, every one of them, in 99 % of weeks.
* Ours counts calendar weeks, of which a joining touches one. Theirs looks back over seven days and starts again each
  week, so a joining touches two runs of epsilon 1.5. `published_calendar_weeks` is its width with runs of epsilon 3:
  the peer of `width_one_alert`.
* Theirs allows a probability of 10^-5 in which nothing is promised.
* Both count exactly here. Their server counts persons by a short identifier, which its figures leave out.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import show
from stream_svt.mechanisms import SparseVector
from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.noise import Law, quantiles, tails
from stream_svt.settings.application import load_spec

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

K = 50
HOURS = 168
WRONG = 0.01
ALERTS = 3
PUBLISHED_BELOW, PUBLISHED_ABOVE = 15, 8
PUBLISHED_RATE, PUBLISHED_BOUND = 0.75, 25.0

SPEC = """
application: groups
sources:
  - {{name: joins, topic: joins, unit: person, series: {{field: group, names: [a, b]}}, dataset: "joins-{{iso_week}}",
     window: 7d, every: 1h, ask: tick}}
datasets:
  - {{generate: "joins-{{iso_week}}", from: 2026-11-23, lateness: 1d, limit: {{epsilon: 3}}}}
monitors:
  - {{name: crowds, source: joins, epsilon: 3, cutoff: {alerts}, split: {split}, threshold: {k}, mute: 7d,
     expected_queries: {hours}, correction: {{kind: exposure, false_alerts: {wrong}}}}}
"""


class Band(NamedTuple):
    """The largest size that is silent and the smallest that is told."""

    silent: int
    told: int

    @property
    def width(self) -> int:
        return self.told - self.silent


def monitor(alerts: int) -> SparseVector:
    """Return the mechanism of a monitor that pays for so many alerts from epsilon 3."""
    split = {1: Fraction(3, 2), ALERTS: Fraction(3)}[alerts]
    text = SPEC.format(alerts=alerts, split=split, k=K, hours=HOURS, wrong=WRONG)
    return load_spec(text).monitors[0].mechanism()


def chance(mechanism: SparseVector, size: int, hours: int) -> float:
    """Return the probability that a group of constant size is told within so many hours, by a sum over all noise."""
    branch = mechanism.branches[0]
    rho = np.arange(round(40 / mechanism.threshold_rate))  # what lies beyond has a probability of e^-40
    weights = -np.diff(
        tails(mechanism.threshold_noise, mechanism.threshold_rate, np.append(rho, rho[-1] + 1))
    )
    reach = tails(mechanism.query_noise, branch.rate, K + branch.correction(0) + rho - size)
    with np.errstate(divide="ignore"):
        return float(weights @ -np.expm1(hours * np.log1p(-reach)))


def band(mechanism: SparseVector, hours: int = HOURS) -> Band:
    """Return the band, for silence through so many hours."""
    sizes = range(K - 100, K + 100)
    silent = max(size for size in sizes if chance(mechanism, size, hours) <= WRONG)
    return Band(silent, min(size for size in sizes if chance(mechanism, size, 1) >= 1 - WRONG))


def simulated(
    mechanism: SparseVector, size: int, hours: int, runs: int, generator: np.random.Generator
) -> float:
    """Return the share of runs in which the mechanism tells a group of constant size within so many hours."""
    at_once, told = 1000, 0
    for first in range(0, runs, at_once):
        count = min(at_once, runs - first)
        rho = _drawn(mechanism.threshold_law, count, generator)
        noise = _drawn(mechanism.branch_laws[0], count * hours, generator)
        reached, _ = mechanism.reached(
            np.full(count * hours, size),
            K,
            np.repeat(rho, hours),
            mechanism.top_units,
            0,
            reaching([noise].__getitem__),
        )
        told += len(np.unique(reached // hours))
    return told / runs


def _drawn(law: Law, count: int, generator: np.random.Generator) -> Integers:
    return quantiles(law.noise, law.rate, 1.0 - generator.random(count))  # a chance is in (0, 1]


def published(rate: float, points: int = 20_001) -> float:
    """Return the width of the published algorithm, from the rate of its noise."""
    noise = np.linspace(-PUBLISHED_BOUND, PUBLISHED_BOUND, points)
    weights = np.exp(-rate * np.abs(noise))
    weights /= weights.sum()
    below = np.cumsum(weights)

    def quantile(level: float, hours: int) -> float:
        """Return what the largest of the hours' noises and the threshold's add up to at a level."""
        low, high = -2 * PUBLISHED_BOUND, 2 * PUBLISHED_BOUND
        while high - low > 1e-3:
            middle = (low + high) / 2
            reached = weights @ np.interp(middle - noise, noise, below, left=0, right=1) ** hours
            low, high = (low, middle) if reached >= level else (middle, high)
        return high

    return quantile(1 - WRONG, HOURS) - quantile(WRONG, 1)


def figures(runs: int = 20_000, seed: int = 1) -> dict[str, float]:
    """Return the widths, the edges of our band, and how often simulated runs were wrong at them."""
    generator, mechanism = np.random.default_rng(seed), monitor(ALERTS)
    found = band(mechanism)
    said = simulated(mechanism, found.silent, HOURS, runs, generator)
    missed = 1 - simulated(mechanism, found.told, 1, runs, generator)
    for share, size, hours in ((said, found.silent, HOURS), (1 - missed, found.told, 1)):
        expected = chance(mechanism, size, hours)
        assert abs(share - expected) <= 5 * np.sqrt(expected * (1 - expected) / runs), (
            "the sum and runs differ"
        )
    return {
        "width": found.width,
        "published_width": PUBLISHED_BELOW + PUBLISHED_ABOVE,
        "published_again": published(PUBLISHED_RATE),
        "width_one_alert": band(monitor(1)).width,
        "published_calendar_weeks": published(2 * PUBLISHED_RATE),
        "width_1000_groups": band(mechanism, 1000 * HOURS).width,
        "silent_up_to": found.silent,
        "told_from": found.told,
        "wrongly_told": said,
        "wrongly_silent": missed,
    }


if __name__ == "__main__":
    show(figures)
