"""The pictures of append and of branches in how-sparse-vector-works.md, drawn with the library's own mechanisms."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Final

import numpy as np

from docs.generator.drawing import BLUE, GREEN, GRID, ORANGE, SHARES, SOFT, Drawing, say
from stream_svt.mechanisms import Annealed, Exposure, KeyedSampler, adaptive, draw_threshold, sparse_vector
from stream_svt.mechanisms.noise import pmf, tail
from stream_svt.mechanisms.run import Integers

_UNITS: Final = 10**9
_THRESHOLD: Final = 100
_SALT: Final = (7, 11)


def _entropy(count: int) -> bytes:
    return bytes((37 * place + 5) % 251 for place in range(count))


def _given(noise: Integers, branch: int) -> Integers:
    del branch
    return noise


def _falling_bar() -> str:
    svt = sparse_vector(epsilon=_UNITS, cutoff=4, monotonic=True, correction=Annealed())
    values = np.array([149, 137, 126, 111, 93, 88, 83, 71, 64, 57, 49, 38, 26, 15])
    run = svt.open(draw_threshold(svt.threshold_noise, svt.threshold_rate, _entropy), _SALT)
    scale = float(1 / svt.branches[0].rate)
    bars = [_THRESHOLD + svt.branches[0].correction(attempt) for attempt in range(Annealed().passes)]
    waiting, ends, passes = np.arange(len(values)), dict[int, int](), 0
    for attempt in range(len(bars)):
        if svt.is_over(run) or not len(waiting):
            break
        noise = KeyedSampler(bytes(range(3, 35))).draw(
            svt.query_noise,
            svt.branches[0].rate,
            salt=_SALT,
            offset=waiting,
            row=0,
            attempt=attempt,
            branch=0,
            value=values[waiting],
        )
        run, outcomes = svt.step(run, values[waiting], _THRESHOLD, attempt, partial(_given, noise))
        ends |= {int(waiting[top.row]): attempt for top in outcomes.tops}
        waiting = np.delete(waiting, [top.row for top in outcomes.tops])
        passes = attempt
    drawing = Drawing(
        720,
        360,
        "A bar that falls pass by pass",
        "Fourteen items of a closed set wait below a high bar. The bar falls by one noise scale, "
        f"{scale:.0f}, a pass; each pass tests what was not reported yet, with fresh noise. {len(ends)} "
        f"items are reported, the first in pass {min(ends.values()) + 1}; after the last one the run is "
        "over and the bar falls no further.",
    )
    axes = drawing.field(56, 30, 550, 264, xlim=(0, len(bars)), ylim=(0, 180), xlabel="pass over the set")
    axes.set(xticks=range(0, len(bars) + 1, 2), yticks=range(0, 151, 50))
    for item, value in enumerate(values.tolist()):
        if item in ends:
            until = ends[item] + 0.5
            axes.hlines(value, 0, until, BLUE, linewidth=2)
            axes.plot(until, value, "^", color=BLUE, markersize=11)
            words = f"reported in pass {ends[item] + 1}"
            say(axes, (until, value), words, BLUE, shift=(12, -4), size=12)
        else:
            axes.hlines(value, 0, passes + 1, SOFT, linewidth=1.2)
    edges = list(range(len(bars) + 1))
    axes.stairs(bars[passes + 1 :], edges[passes + 1 :], baseline=None, color=ORANGE, linestyle=":")
    axes.stairs(bars[: passes + 1], edges[: passes + 2], baseline=None, color=ORANGE, linewidth=2)
    words = "bar: threshold + correction of the pass (public)"
    say(axes, (0.2, bars[0]), words, ORANGE, shift=(0, 8), size=12)
    axes.hlines(_THRESHOLD, 0, len(bars), GRID, linewidth=1.2, linestyle="--")
    say(axes, (0.1, _THRESHOLD), "threshold", SOFT, shift=(0, 4), size=12)
    say(axes, (0, 180), "value of an item", SOFT, shift=(0, 8), size=12)
    return drawing.svg()


def _branches() -> str:
    mechanism = adaptive(
        epsilon=_UNITS,
        cutoff=10,
        monotonic=True,
        correction=Exposure(expected_queries=100_000, false_alerts=Fraction(1), attempts=1),
    )
    top, middle = mechanism.branches
    margins = list(range(0, 701, 10))
    laws = mechanism.threshold_noise, mechanism.threshold_rate
    by_top, by_any = [], []
    for margin in margins:
        fired, passed = 0.0, 0.0
        for rho in range(400):
            weight = pmf(*laws, rho)
            first = tail(mechanism.query_noise, top.rate, top.correction(0) + rho - margin)
            second = tail(mechanism.query_noise, middle.rate, middle.correction(0) + rho - margin)
            fired += weight * first
            passed += weight * (1 - (1 - first) * (1 - second))
        by_top.append(fired)
        by_any.append(passed)
    drawing = Drawing(
        720,
        350,
        "Two branches, two prices",
        "Which branch of Adaptive SVT reports a value, by how far it lies above the threshold. Values "
        "close to the threshold are not reported; further up the middle branch reports them at full "
        "price; far up the top branch does, at half of it.",
    )
    labels = {"xlabel": "how far the value lies above the threshold", "ylabel": "probability"}
    axes = drawing.field(66, 30, 620, 250, xlim=(0, 700), xticks=range(0, 701, 100), **labels, **SHARES)
    axes.fill_between(margins, by_top, color=BLUE, alpha=0.3, linewidth=0)
    axes.fill_between(margins, by_top, by_any, color=GREEN, alpha=0.3, linewidth=0)
    axes.plot(margins, by_any, color=GREEN, linewidth=2.2)
    axes.plot(margins, by_top, color=BLUE, linewidth=2.2)
    for at, name, price, colour in (
        ((560, 0.45), "top branch", f"epsilon {top.charge / _UNITS:.3f}", BLUE),
        ((216, 0.55), "middle branch", f"epsilon {middle.charge / _UNITS:.3f}", GREEN),
        ((75, 0.6), "not reported", "free", SOFT),
    ):
        say(axes, at, name, colour, ha="center", weight="bold")
        say(axes, at, price, colour, shift=(0, -18), ha="center")
    return drawing.svg()


PICTURES: Final = {"falling-bar": _falling_bar, "branches": _branches}
