"""The pictures of one run in how-sparse-vector-works.md, drawn with the library's own mechanisms and samplers.

The noise is that of fixed keys, so that a picture is the same each time it is drawn. The values are made up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from docs.generator.drawing import (
    BLUE,
    GREEN,
    GRID,
    INK,
    ORANGE,
    PAPER,
    PURPLE,
    SHARES,
    SOFT,
    Drawing,
    arrow,
    say,
)
from stream_svt.mechanisms import Exposure, KeyedSampler, draw_threshold, sparse_vector
from stream_svt.mechanisms.estimates import certain_gap, estimate, lower_bound, survival
from stream_svt.mechanisms.noise import Noise, pmf
from stream_svt.mechanisms.sparse_vector import SparseVector

_UNITS: Final = 10**9
_BETA: Final = Fraction(1, 20)
_THRESHOLD: Final = 100
_SALT: Final = (7, 11)
_QUERIES: Final = 60
_PEAKS: Final = {9: 151, 10: 118, 23: 164, 37: 97, 41: 147, 52: 190}


def _noise() -> str:
    drawing = Drawing(
        720,
        270,
        "Two laws of noise",
        "Exponential noise is never below 0 and falls from its highest bar at 0; Laplace noise of the "
        "same scale lies on both sides of 0.",
    )
    numbers = range(-26, 27)
    for left, noise, colour, words in (
        (60, Noise.EXPONENTIAL, BLUE, "exponential: never below 0"),
        (400, Noise.LAPLACE, ORANGE, "laplace: on both sides"),
    ):
        axes = drawing.field(left, 40, 300, 160, xlim=(-26, 26), ylim=(0, 0.19), xticks=range(-20, 21, 10))
        axes.set(xlabel="noise, in grid steps", yticks=())
        if noise is Noise.EXPONENTIAL:
            ticks = (0, 0.05, 0.1, 0.15)
            axes.set(ylabel="probability", yticks=ticks, yticklabels=map(str, ticks))
        say(axes, (-26, 0.19), words, shift=(2, 14), weight="bold")
        odds_of = [pmf(noise, Fraction(1, 6), number) for number in numbers]
        axes.bar(numbers, odds_of, 0.7, color=colour, alpha=0.85, linewidth=0)
    return drawing.svg()


def shown_mechanism() -> SparseVector:
    """Return the mechanism of the pictures: epsilon 1, three tops, sixty queries."""
    return sparse_vector(
        epsilon=_UNITS,
        cutoff=3,
        monotonic=True,
        correction=Exposure(expected_queries=_QUERIES, false_alerts=Fraction(3, 10), attempts=1),
    )


def _values() -> list[int]:
    """Return quiet values with a few peaks."""
    return [
        _PEAKS.get(number, round(52 + 14 * math.sin(number / 3.1) + 9 * math.sin(number * 1.7)))
        for number in range(_QUERIES)
    ]


def _entropy(count: int) -> bytes:
    return bytes((37 * place + 5) % 251 for place in range(count))


def _played() -> tuple[SparseVector, list[int], int, np.ndarray, dict[int, int]]:
    """Return a run: its mechanism, true values, threshold noise, the noise of each test, and the gap of each top."""
    mechanism, values = shown_mechanism(), _values()
    secret = draw_threshold(mechanism.threshold_noise, mechanism.threshold_rate, _entropy)
    noise = KeyedSampler(bytes(range(1, 33))).draw(
        mechanism.query_noise,
        mechanism.branches[0].rate,
        salt=_SALT,
        offset=np.arange(len(values)),
        row=0,
        attempt=0,
        branch=0,
        value=np.array(values),
    )
    _, outcomes = mechanism.step(
        mechanism.open(secret, _SALT), np.array(values), _THRESHOLD, 0, lambda _: noise
    )
    return mechanism, values, secret, noise, {top.row: top.gap for top in outcomes.tops}


def _run() -> str:
    mechanism, values, secret, noise, tops = _played()
    last = max(tops)
    public = _THRESHOLD + mechanism.branches[0].correction(0)
    drawing = Drawing(
        720,
        410,
        "One run over sixty queries",
        f"True values lie mostly far below the threshold of {_THRESHOLD}. Each gets fresh noise and is "
        "compared with a bar that is the threshold, a public correction and secret noise. Three values "
        "reach it and are reported with their gaps; the third ends the run, and later values are not "
        "tested.",
    )
    axes = drawing.field(56, 24, 640, 280, xlim=(-1, _QUERIES), ylim=(0, 210))
    axes.set(xticks=range(0, _QUERIES + 1, 10), yticks=range(0, 201, 50))
    axes.set_xlabel("queries, in the order in which they come")
    axes.axvspan(last + 0.5, _QUERIES, color=GRID, alpha=0.35, linewidth=0)
    say(axes, (last + 0.5, 210), "run over: not tested", SOFT, shift=(8, -16), size=12)
    for level, colour, look in (
        (_THRESHOLD, SOFT, "-"),
        (public, SOFT, "--"),
        (public + secret, ORANGE, ":"),
    ):
        axes.hlines(level, -1, _QUERIES, colour, linewidth=1.5, linestyle=look)
    tested = np.arange(last + 1)
    noisy = np.array(values) + noise
    axes.vlines(tested, np.array(values)[tested], noisy[tested], ORANGE, linewidth=1)
    for number, gap in tops.items():
        axes.vlines(number, public + secret, noisy[number], BLUE, linewidth=4)
        axes.plot(number, noisy[number], "^", color=BLUE, markersize=12)
        say(axes, (number, noisy[number]), f"gap {gap}", BLUE, shift=(11, -4), weight="bold")
    axes.scatter(
        range(_QUERIES),
        values,
        27,
        [INK] * (last + 1) + [SOFT] * (_QUERIES - last - 1),
        zorder=3,
        linewidth=0,
    )
    say(axes, (-1, _THRESHOLD), f"threshold {_THRESHOLD} (public)", SOFT, shift=(6, -15), size=12)
    say(axes, (25.5, public + secret), "noisy bar (secret)", ORANGE, shift=(0, 7), size=12)
    words = f"+ correction {public - _THRESHOLD} (public)"
    say(axes, (_QUERIES, public), words, SOFT, shift=(-4, -14), size=12, ha="right")
    sheet = drawing.sheet()
    for left, mark, colour, size, words in (
        (62, "o", INK, 7, "true value (secret)"),
        (228, "_", ORANGE, 24, "noise of the test (secret)"),
        (424, "^", BLUE, 12, "top: released, with its gap"),
    ):
        sheet.plot(left, 380, mark, color=colour, markersize=size)
        say(sheet, (left, 384), words, shift=(6 + size / 2, 0), size=12)
    return drawing.svg()


def _gap() -> str:
    mechanism, values, secret, noise, tops = _played()
    row, gap = next(iter(tops.items()))
    value, own = values[row], int(noise[row])
    branch = mechanism.branches[0]
    correction = branch.correction(0)
    public: dict[str, Any] = {
        "threshold": _THRESHOLD,
        "correction": correction,
        "gap": gap,
        "query_noise": mechanism.query_noise,
        "query_rate": branch.rate,
        "threshold_noise": mechanism.threshold_noise,
    }
    bound = lower_bound(**public, beta=_BETA)
    guess = estimate(**public, threshold_rate=mechanism.threshold_rate)
    if bound is None:
        raise ValueError("the picture wants a top whose bound is certified")
    drawing = Drawing(
        720,
        330,
        "What a gap is made of",
        f"Above, what happened in secret: the value {value} plus noise {own} is compared with the "
        f"threshold {_THRESHOLD} plus correction {correction} plus noise {secret}; the difference is the "
        f"gap, {gap}. Below, what a reader computes from it: an estimate of {guess:.0f} and a bound of "
        f"{bound}. The true value, {value}, is not known.",
    )
    sheet = drawing.sheet()
    left, pixel = 90, 90 / 650
    sheet.set_xlim(left - 40 * pixel, left + 680 * pixel)  # numbers across, pixels down
    corrected = _THRESHOLD + correction
    noisy_bar, noisy_value, published = corrected + secret, value + own, corrected + gap

    def line(start: float, end: float, row: float, colour: str, width: float, **look: Any) -> None:
        sheet.plot((start, end), (row, row), color=colour, linewidth=width, solid_capstyle="butt", **look)

    say(sheet, (left, 24), "In secret", weight="bold")
    arrow(sheet, (_THRESHOLD, 62), (corrected, 62), colour=SOFT)
    say(sheet, (_THRESHOLD + correction / 2, 54), f"correction {correction}", SOFT, size=12, ha="center")
    arrow(sheet, (corrected, 62), (noisy_bar, 62), colour=ORANGE)
    say(sheet, (noisy_bar, 54), f"threshold noise {secret}", ORANGE, size=12)
    sheet.plot(_THRESHOLD, 62, "o", color=SOFT, markersize=7)
    say(sheet, (_THRESHOLD, 82), f"threshold {_THRESHOLD}", SOFT, size=12, ha="center")
    arrow(sheet, (value, 112), (noisy_value, 112), colour=ORANGE)
    sheet.plot(value, 112, "o", color=INK, markersize=7)
    say(sheet, (value, 132), f"true value {value}", size=12, ha="right")
    words = f"noise of the test {own}"
    say(sheet, ((value + noisy_value) / 2, 104), words, ORANGE, size=12, ha="center")
    sheet.vlines((noisy_bar, noisy_value), (62, 112), 152, GRID, linewidth=1.5, linestyle="--")
    line(noisy_bar, noisy_value, 152, BLUE, 6)
    words = f"gap {gap}: released"
    say(sheet, ((noisy_bar + noisy_value) / 2, 172), words, BLUE, ha="center", weight="bold")
    say(sheet, (left, 214), "What a reader makes of it", weight="bold")
    line(published - certain_gap(branch.rate, _BETA) + 1, 176, 244, BLUE, 2, linestyle=":")
    line(_THRESHOLD, corrected, 244, SOFT, 2)
    line(corrected, published, 244, BLUE, 6)
    sheet.vlines(bound, 230, 258, BLUE, linewidth=2.5)
    say(sheet, (bound, 276), f"bound: at least {bound} (95 %)", BLUE, ha="right", weight="bold")
    sheet.plot(
        guess, 244, "o", markerfacecolor=PAPER, markeredgecolor=BLUE, markeredgewidth=1.5, markersize=12
    )
    say(sheet, (guess + 1.5, 276), f"estimate {guess:.0f}", BLUE, weight="bold")
    say(sheet, (_THRESHOLD, 264), f"{_THRESHOLD}", SOFT, size=12, ha="center")
    say(sheet, (left, 312), "threshold + correction + gap, less what noise may have added", SOFT, size=12)
    return drawing.svg()


def odds(mechanism: SparseVector, margins: Sequence[int]) -> tuple[list[float], list[float]]:
    """Return with which probability values are reported, by their distance, and the same values one step lower."""
    branch = mechanism.branches[0]
    laws = mechanism.query_noise, branch.rate, mechanism.threshold_noise, mechanism.threshold_rate
    with_one = [survival(*laws, branch.correction(0) - margin) for margin in margins]
    without = [survival(*laws, branch.correction(0) - margin + 1) for margin in margins]
    return with_one, without


def evidence(with_one: Sequence[float], without: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return how much a report, and no report, speak for either side: the logarithm of the ratio."""
    pairs = list(zip(with_one, without, strict=True))
    return [math.log(a / b) for a, b in pairs], [math.log((1 - b) / (1 - a)) for a, b in pairs]


def _neighbours() -> str:
    mechanism = shown_mechanism()
    margins = list(range(-20, 61))
    with_one, without = odds(mechanism, margins)
    of_report, of_none = evidence(with_one, without)
    price = (mechanism.threshold_charge + mechanism.branches[0].charge) / _UNITS
    drawing = Drawing(
        720,
        400,
        "The same query with one person more and one less",
        "Above: the probability that a value is reported, with a certain person in the data and without; "
        "the two curves lie one step apart. Below: how much a report, or its absence, speaks for one over "
        "the other; it never passes the price.",
    )
    axes = drawing.field(66, 30, 620, 170, xlim=(-20, 60), xticks=(), ylabel="reported", **SHARES)
    axes.plot(margins, with_one, color=BLUE, linewidth=2.2)
    axes.plot(margins, without, color=ORANGE, linewidth=2.2, linestyle="--")
    say(axes, (24, 0.87), "with the person", BLUE, ha="right", weight="bold")
    say(axes, (37, 0.45), "without", ORANGE, weight="bold")
    labels = {"xlabel": "how far the value lies above the threshold", "ylabel": "evidence (ln)"}
    axes = drawing.field(66, 230, 620, 110, xlim=(-20, 60), ylim=(0, 0.78), **labels)
    axes.set(xticks=range(-20, 61, 20), yticks=(0, 0.2, 0.4, 0.6))
    axes.plot(margins, of_report, color=GREEN, linewidth=2.2)
    axes.plot(margins, of_none, color=PURPLE, linewidth=2.2, linestyle="--")
    axes.hlines(price, -20, 60, INK, linewidth=1.5, linestyle=":")
    words = f"price of a report: threshold and top, epsilon {price:.1f}"
    say(axes, (60, price), words, shift=(0, 6), size=12, ha="right")
    say(axes, (-19, 0.2), "of a report", GREEN, shift=(0, 6), size=12, weight="bold")
    say(axes, (59, 0.4), "of no report", PURPLE, shift=(0, 6), size=12, ha="right", weight="bold")
    return drawing.svg()


PICTURES: Final = {"noise": _noise, "one-run": _run, "gap": _gap, "neighbours": _neighbours}
