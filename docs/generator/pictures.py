"""The pictures of the pages, drawn with the library's own mechanisms.

The noise is that of fixed keys, so that a picture is the same each time it is drawn. The values are made up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.papers.drawing import BLACK, BLUE, GREEN, GREY, ORANGE, VERMILION, figure
from docs.generator import backtests, costs
from stream_svt.mechanisms import (
    Annealed,
    Exposure,
    Identity,
    KeyedSampler,
    adaptive,
    draw_threshold,
    sparse_vector,
)
from stream_svt.mechanisms.estimates import estimate, lower_bound, survival
from stream_svt.mechanisms.grid import Integers
from stream_svt.mechanisms.noise import tail
from stream_svt.mechanisms.sparse_vector import SparseVector

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_THRESHOLD: Final = 100
_SALT: Final = (7, 11)
_QUERIES: Final = 60
_PEAKS: Final = {9: 151, 10: 118, 23: 164, 37: 97, 41: 147, 52: 190}
_ITEMS: Final = np.array([149, 137, 126, 111, 93, 88, 83, 71, 64, 57, 49, 38, 26, 15])


def shown_mechanism() -> SparseVector:
    """Return the mechanism of the pictures of one run: epsilon 1, three tops, sixty queries."""
    correction = Exposure(expected_queries=_QUERIES, false_alerts=Fraction(3, 10), attempts=1)
    return sparse_vector(epsilon=1, cutoff=3, monotonic=True, correction=correction)


def _values() -> Integers:
    """Return quiet values with a few peaks."""
    quiet = (round(52 + 14 * math.sin(at / 3.1) + 9 * math.sin(at * 1.7)) for at in range(_QUERIES))
    return np.array([_PEAKS.get(at, value) for at, value in enumerate(quiet)])


def _threshold_noise(mechanism: SparseVector) -> int:
    def entropy(count: int) -> bytes:
        return bytes((37 * place + 5) % 251 for place in range(count))

    return draw_threshold(mechanism.threshold_law, entropy)


def _query_noise(key: int, svt: SparseVector, values: Integers, rows: Integers, attempt: int = 0) -> Integers:
    identity = Identity(_SALT, offset=rows, row=0, attempt=attempt, branch=0, value=values)
    return KeyedSampler(bytes(range(key, key + 32))).draw(svt.branch_laws[0], identity)


def _given(noise: Integers, branch: int) -> Integers:
    del branch
    return noise


def _played() -> tuple[SparseVector, int, Integers, dict[int, int]]:
    """Return a run: its mechanism, threshold noise, the noise of each test, and the gap of each top."""
    svt, values = shown_mechanism(), _values()
    secret, noise = _threshold_noise(svt), _query_noise(1, svt, values, np.arange(_QUERIES))
    _, outcomes = svt.step(svt.open(secret, _SALT), values, _THRESHOLD, 0, partial(_given, noise))
    return svt, secret, noise, {top.row: top.gap for top in outcomes.tops if top.gap is not None}


def _one_run(path: Path) -> None:
    svt, secret, noise, tops = _played()
    values, last = _values(), max(tops)
    bar = _THRESHOLD + svt.branches[0].correction(0)
    with figure(path, (1, 1), (7.2, 3.9)) as (drawn, [axes]):
        axes.set(xlim=(-1, _QUERIES), ylim=(0, 210), xlabel="queries, in order of arrival", ylabel="value")
        axes.axhline(_THRESHOLD, color=GREY, label=f"threshold {_THRESHOLD} (public)")
        axes.axhline(bar, color=GREY, linestyle="--", label=f"with correction {bar - _THRESHOLD} (public)")
        axes.axhline(bar + secret, color=ORANGE, linestyle=":", label="noisy bar (secret)")
        tested = np.arange(last + 1)
        noisy = (values + noise)[tested]
        axes.vlines(tested, values[tested], noisy, ORANGE, linewidth=1, label="noise of a test (secret)")
        axes.scatter(range(_QUERIES), values, 12, BLACK, zorder=3, label="true value (secret)")
        axes.plot(list(tops), noisy[list(tops)], "^", color=BLUE, markersize=9, label="top (released)")
        axes.axvspan(last + 0.5, _QUERIES, color=GREY, alpha=0.2, label="run over: not tested")
        for row, gap in tops.items():
            axes.vlines(row, bar + secret, noisy[row], BLUE, linewidth=3)
            _say(axes, (row + 1, noisy[row] - 3), f"gap {gap}", BLUE)
        drawn.legend(loc="outside lower center", ncols=4, columnspacing=1, handletextpad=0.5)


def _gap(path: Path) -> None:
    svt, secret, noise, tops = _played()
    row, gap = next(iter(tops.items()))
    value, branch = int(_values()[row]), svt.branches[0]
    corrected = _THRESHOLD + branch.correction(0)
    laws = {"query": svt.branch_laws[0], "threshold": svt.threshold_law}
    bound = lower_bound(corrected, gap, **laws, beta=Fraction(1, 20))
    guess = estimate(corrected, gap, **laws)
    if bound is None:
        raise ValueError("the picture wants a top whose bound is certified")
    parts: list[tuple[int, int, int, str, str]] = [
        (4, _THRESHOLD, corrected, GREY, f"threshold {_THRESHOLD} + correction {corrected - _THRESHOLD}"),
        (4, corrected, corrected + secret, ORANGE, f"threshold noise {secret}"),
        (3, value, value + int(noise[row]), ORANGE, f"true value {value} + query noise {noise[row]}"),
        (2, corrected + secret, corrected + secret + gap, BLUE, f"gap {gap}: released"),
        (1, _THRESHOLD, corrected + gap, BLUE, "threshold + correction + gap: what a reader knows"),
    ]
    with figure(path, (1, 1), (7.2, 3.2)) as (_, [axes]):
        axes.set(xlim=(95, 190), ylim=(0.2, 4.8), xlabel="value")
        axes.set_yticks([4, 3, 2, 1], ["noisy bar (secret)", "noisy value (secret)", "gap", "reader"])
        for place, start, end, colour, words in parts:
            axes.hlines(place, start, end, colour, linewidth=7)
            _say(axes, (start, place - 0.4 if start == corrected else place + 0.2), words, colour)
        axes.plot(bound, 1, "|", color=VERMILION, markersize=14, markeredgewidth=2)
        axes.plot(guess, 1, "o", color=VERMILION, markerfacecolor="white", markersize=9)
        words = f"bound: at least {bound} (95 %);  estimate {guess:.0f}"
        _say(axes, (bound, 0.5), words, VERMILION)


def odds(mechanism: SparseVector, margins: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return with which probability values are reported, by their distance, and the same values one step lower."""
    branch = mechanism.branches[0]
    laws = mechanism.branch_laws[0], mechanism.threshold_law
    with_one = [survival(*laws, branch.correction(0) - margin) for margin in margins]
    without = [survival(*laws, branch.correction(0) - margin + 1) for margin in margins]
    return with_one, without


def evidence(with_one: Sequence[float], without: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return how much a report, and no report, speak for either side: the logarithm of the ratio."""
    pairs = list(zip(with_one, without, strict=True))
    return [math.log(a / b) for a, b in pairs], [math.log((1 - b) / (1 - a)) for a, b in pairs]


def _neighbours(path: Path) -> None:
    svt, margins = shown_mechanism(), range(-20, 61)
    with_one, without = odds(svt, margins)
    of_report, of_none = evidence(with_one, without)
    price = float(svt.threshold_charge + svt.branches[0].charge)
    with figure(path, (2, 1), (7.2, 4.6), sharex=True) as (_, [above, below]):
        above.set(ylabel="probability of a report")
        above.plot(margins, with_one, color=BLUE, label="with the person")
        above.plot(margins, without, color=VERMILION, linestyle="--", label="without")
        below.set(xlabel="distance above the threshold", ylabel="evidence (ln)", ylim=(0, price + 0.1))
        below.plot(margins, of_report, color=GREEN, label="of a report")
        below.plot(margins, of_none, color=ORANGE, linestyle="--", label="of no report")
        below.axhline(
            price, color=BLACK, linestyle=":", label=f"price: threshold and top, epsilon {price:.1f}"
        )
        for axes in (above, below):
            axes.legend()


def _falling_bar(path: Path) -> None:
    svt = sparse_vector(epsilon=1, cutoff=4, monotonic=True, correction=Annealed())
    run = svt.open(_threshold_noise(svt), _SALT)
    bars = [_THRESHOLD + svt.branches[0].correction(attempt) for attempt in range(Annealed().passes)]
    waiting, ends, attempt = np.arange(len(_ITEMS)), dict[int, int](), 0
    while not svt.is_over(run) and attempt < len(bars):
        noise = _query_noise(3, svt, _ITEMS[waiting], waiting, attempt)
        run, outcomes = svt.step(run, _ITEMS[waiting], _THRESHOLD, attempt, partial(_given, noise))
        rows = [top.row for top in outcomes.tops]
        attempt += 1
        ends |= dict.fromkeys(waiting[rows].tolist(), attempt)
        waiting = np.delete(waiting, rows)
    with figure(path, (1, 1), (7.2, 3.8)) as (drawn, [axes]):
        axes.set(xlabel="pass over the set", ylabel="value of an item", ylim=(0, 185))
        axes.stairs(bars, baseline=None, color=ORANGE, linewidth=2, label="bar (public)")
        axes.axhline(_THRESHOLD, color=GREY, linestyle="--", label="threshold")
        axes.hlines(_ITEMS[waiting], 0, attempt, GREY, linewidth=1, label="not reported")
        axes.hlines(_ITEMS[list(ends)], 0, list(ends.values()), BLUE, label="reported")
        axes.plot(list(ends.values()), _ITEMS[list(ends)], "^", color=BLUE, markersize=9)
        for item, last in ends.items():
            _say(axes, (last + 0.25, _ITEMS[item] - 3), f"pass {last}", BLUE)
        drawn.legend(loc="outside lower center", ncols=4, columnspacing=1, handletextpad=0.5)


def _branches(path: Path) -> None:
    correction = Exposure(expected_queries=100_000, false_alerts=Fraction(1), attempts=1)
    svt = adaptive(epsilon=1, cutoff=10, monotonic=True, correction=correction)
    margins = range(0, 701, 10)
    reported = np.zeros((2, len(margins)))
    for secret in range(400):
        missed = np.ones(len(margins))
        for at, branch in enumerate(svt.branches):
            bar = branch.correction(0) + secret
            missed *= [1 - tail(svt.query_noise, branch.rate, bar - margin) for margin in margins]
            chance, beyond = (
                tail(svt.threshold_noise, svt.threshold_rate, one) for one in (secret, secret + 1)
            )
            reported[at] += (chance - beyond) * (1 - missed)
    prices = [f"epsilon {float(branch.charge):.3f}" for branch in svt.branches]
    with figure(path, (1, 1), (7.2, 3.4)) as (drawn, [axes]):
        axes.set(xlabel="distance above the threshold", ylabel="probability", xlim=(0, 700), ylim=(0, 1))
        axes.fill_between(margins, reported[0], color=BLUE, alpha=0.5, label=f"top branch: {prices[0]}")
        axes.fill_between(margins, *reported, color=GREEN, alpha=0.5, label=f"middle branch: {prices[1]}")
        axes.fill_between(margins, reported[1], 1, color=GREY, alpha=0.15, label="not reported: free")
        drawn.legend(loc="outside lower center", ncols=3)


def _say(axes: Axes, at: tuple[float, float], words: str, colour: str) -> None:
    axes.annotate(words, at, color=colour, weight="bold")


PICTURES: Final[Mapping[str, Callable[[Path], None]]] = {
    "backtest": backtests.draw,
    "branches": _branches,
    "costs": costs.draw,
    "falling-bar": _falling_bar,
    "gap": _gap,
    "neighbours": _neighbours,
    "one-run": _one_run,
}
