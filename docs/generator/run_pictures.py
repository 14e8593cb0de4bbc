"""The pictures of one run in how-sparse-vector-works.md, drawn with the library's own mechanisms and samplers.

The noise is that of fixed keys, so that a picture is the same each time it is drawn. The values are made up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

import numpy as np

from docs.generator.drawing import Axes, Drawing
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
    for number, (noise, colour, words) in enumerate(
        (
            (Noise.EXPONENTIAL, "blue", "exponential: never below 0"),
            (Noise.LAPLACE, "orange", "laplace: on both sides"),
        )
    ):
        axes = Axes(drawing, 60 + 340 * number, 40, 300, 160, (-26, 26), (0, 0.19))
        axes.frame(
            x_ticks=range(-20, 21, 10),
            y_ticks=(0, 0.05, 0.1, 0.15) if number == 0 else (),
            x_label="noise, in grid steps",
        )
        drawing.text((axes.left + 2, 26), words, bold=True)
        for k in range(-26, 27):
            x, y = axes.at(k, pmf(noise, Fraction(1, 6), k))
            if y < axes.top + axes.height - 0.05:
                drawing.box((x - 2, y), 4, axes.top + axes.height - y, fill=colour, opacity=0.85)  # type: ignore[arg-type]
    drawing.text((14, 120), "probability", anchor="middle", turned=True)
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


def _threshold_noise(mechanism: SparseVector) -> int:
    return draw_threshold(mechanism.threshold_noise, mechanism.threshold_rate, _entropy)


def _entropy(count: int) -> bytes:
    return bytes((37 * place + 5) % 251 for place in range(count))


def _draw(mechanism: SparseVector, values: list[int], attempt: int = 0) -> np.ndarray:
    return KeyedSampler(bytes(range(1, 33))).draw(
        mechanism.query_noise,
        mechanism.branches[0].rate,
        salt=_SALT,
        offset=np.arange(len(values)),
        row=0,
        attempt=attempt,
        branch=0,
        value=np.array(values),
    )


def _run() -> str:
    mechanism, values = shown_mechanism(), _values()
    secret = _threshold_noise(mechanism)
    noise = _draw(mechanism, values)
    _, outcomes = mechanism.step(
        mechanism.open(secret, _SALT), np.array(values), _THRESHOLD, 0, lambda _: noise
    )
    tops = {top.row: top.gap for top in outcomes.tops}
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
    axes = Axes(drawing, 56, 24, 640, 280, (-1, _QUERIES), (0, 210))
    axes.frame(
        x_ticks=range(0, _QUERIES + 1, 10),
        y_ticks=range(0, 201, 50),
        x_label="queries, in the order in which they come",
    )
    end = axes.at(last + 0.5, 0)[0]
    drawing.box((end, axes.top), axes.left + axes.width - end, axes.height, fill="grid", opacity=0.35)
    drawing.text((end + 8, axes.top + 16), "run over: not tested", colour="soft", size=12)
    for level, colour, dash in (
        (_THRESHOLD, "soft", ""),
        (public, "soft", "7 4"),
        (public + secret, "orange", "3 3"),
    ):
        axes.graph((-1, _QUERIES), (level, level), colour=colour, width=1.5, dash=dash)  # type: ignore[arg-type]
    for number, value in enumerate(values):
        place = axes.at(number, value)
        if number <= last:
            noisy = axes.at(number, value + int(noise[number]))
            drawing.line(place, noisy, colour="orange", width=1)
            if number in tops:
                drawing.line(noisy, axes.at(number, public + secret), colour="blue", width=4)
                drawing.triangle(noisy, colour="blue")
                drawing.text((noisy[0] + 11, noisy[1] + 4), f"gap {tops[number]}", colour="blue", bold=True)
        drawing.dot(place, colour="ink" if number <= last else "soft", radius=2.6)
    drawing.text(
        (62, axes.at(0, _THRESHOLD)[1] + 15), f"threshold {_THRESHOLD} (public)", colour="soft", size=12
    )
    drawing.text(
        (axes.at(25.5, 0)[0], axes.at(0, public + secret)[1] - 7),
        "noisy bar (secret)",
        colour="orange",
        size=12,
    )
    drawing.text(
        (axes.left + axes.width - 4, axes.at(0, public)[1] + 14),
        f"+ correction {public - _THRESHOLD} (public)",
        colour="soft",
        size=12,
        anchor="end",
    )
    legend = 384
    drawing.dot((62, legend - 4), colour="ink")
    drawing.text((72, legend), "true value (secret)", size=12)
    drawing.line((216, legend - 4), (240, legend - 4), colour="orange", width=1.5)
    drawing.text((246, legend), "noise of the test (secret)", size=12)
    drawing.triangle((424, legend - 4), colour="blue")
    drawing.text((436, legend), "top: released, with its gap", size=12)
    return drawing.svg()


def _gap() -> str:
    mechanism, values = shown_mechanism(), _values()
    secret, noise = _threshold_noise(mechanism), _draw(mechanism, values)
    _, outcomes = mechanism.step(
        mechanism.open(secret, _SALT), np.array(values), _THRESHOLD, 0, lambda _: noise
    )
    top = outcomes.tops[0]
    value, own = values[top.row], int(noise[top.row])
    branch = mechanism.branches[0]
    correction = branch.correction(0)
    public = {
        "threshold": _THRESHOLD,
        "correction": correction,
        "gap": top.gap,
        "query_noise": mechanism.query_noise,
        "query_rate": branch.rate,
        "threshold_noise": mechanism.threshold_noise,
    }
    bound = lower_bound(**public, beta=_BETA)  # type: ignore[arg-type]
    guess = estimate(**public, threshold_rate=mechanism.threshold_rate)  # type: ignore[arg-type]
    if bound is None:
        raise ValueError("the picture wants a top whose bound is certified")
    drawing = Drawing(
        720,
        330,
        "What a gap is made of",
        f"Above, what happened in secret: the value {value} plus noise {own} is compared with the "
        f"threshold {_THRESHOLD} plus correction {correction} plus noise {secret}; the difference is the "
        f"gap, {top.gap}. Below, what a reader computes from it: an estimate of {guess:.0f} and a bound of "
        f"{bound}. The true value, {value}, is not known.",
    )
    axes = Axes(drawing, 40, 30, 650, 260, (90, 180), (0, 1))

    def place(number: float, row: float) -> tuple[float, float]:
        return axes.at(number, 0)[0], row

    noisy_bar, noisy_value = _THRESHOLD + correction + secret, value + own
    drawing.text((40, 24), "In secret", bold=True)
    drawing.arrow(place(_THRESHOLD, 62), place(_THRESHOLD + correction, 62), colour="soft")
    drawing.text(
        place(_THRESHOLD + correction / 2, 54),
        f"correction {correction}",
        colour="soft",
        anchor="middle",
        size=12,
    )
    drawing.arrow(place(_THRESHOLD + correction, 62), place(noisy_bar, 62), colour="orange")
    drawing.text(place(noisy_bar, 54), f"threshold noise {secret}", colour="orange", anchor="start", size=12)
    drawing.dot(place(_THRESHOLD, 62), colour="soft")
    drawing.text(place(_THRESHOLD, 82), f"threshold {_THRESHOLD}", colour="soft", anchor="middle", size=12)
    drawing.dot(place(value, 112), colour="ink")
    drawing.text(place(value, 132), f"true value {value}", anchor="end", size=12)
    drawing.arrow(place(value, 112), place(noisy_value, 112), colour="orange")
    drawing.text(
        place((value + noisy_value) / 2, 104),
        f"noise of the test {own}",
        colour="orange",
        anchor="middle",
        size=12,
    )
    drawing.line(place(noisy_bar, 62), place(noisy_bar, 152), colour="grid", dash="3 3")
    drawing.line(place(noisy_value, 112), place(noisy_value, 152), colour="grid", dash="3 3")
    drawing.line(place(noisy_bar, 152), place(noisy_value, 152), colour="blue", width=6)
    drawing.text(
        place((noisy_bar + noisy_value) / 2, 172),
        f"gap {top.gap}: released",
        colour="blue",
        anchor="middle",
        bold=True,
    )
    drawing.text((40, 214), "What a reader makes of it", bold=True)
    corrected = _THRESHOLD + correction + top.gap
    drawing.line(
        place(corrected - certain_gap(branch.rate, _BETA) + 1, 244),
        place(176, 244),
        colour="blue",
        width=2,
        dash="2 3",
    )
    drawing.line(place(_THRESHOLD, 244), place(_THRESHOLD + correction, 244), colour="soft", width=2)
    drawing.line(place(_THRESHOLD + correction, 244), place(corrected, 244), colour="blue", width=6)
    drawing.line(place(bound, 230), place(bound, 258), colour="blue", width=2.5)
    drawing.text(place(bound, 276), f"bound: at least {bound} (95 %)", colour="blue", anchor="end", bold=True)
    drawing.dot(place(guess, 244), colour="blue", radius=6, hollow=True)
    drawing.text(place(guess + 1.5, 276), f"estimate {guess:.0f}", colour="blue", anchor="start", bold=True)
    drawing.text(place(_THRESHOLD, 264), f"{_THRESHOLD}", colour="soft", anchor="middle", size=12)
    drawing.text(
        (40, 312), "threshold + correction + gap, less what noise may have added", colour="soft", size=12
    )
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
    axes = Axes(drawing, 66, 30, 620, 170, (-20, 60), (0, 1))
    axes.frame(x_ticks=(), y_ticks=(0, 0.5, 1), y_label="reported", y_text="{:.0%}".format)
    axes.graph(margins, with_one, colour="blue")
    axes.graph(margins, without, colour="orange", dash="6 3")
    drawing.text(axes.at(24, 0.87), "with the person", colour="blue", anchor="end", bold=True)
    drawing.text(axes.at(37, 0.45), "without", colour="orange", anchor="start", bold=True)
    below = Axes(drawing, 66, 230, 620, 110, (-20, 60), (0, 0.78))
    below.frame(
        x_ticks=range(-20, 61, 20),
        y_ticks=(0, 0.2, 0.4, 0.6),
        x_label="how far the value lies above the threshold",
        y_label="evidence (ln)",
    )
    below.graph(margins, of_report, colour="green")
    below.graph(margins, of_none, colour="purple", dash="6 3")
    below.graph((-20, 60), (price, price), colour="ink", width=1.5, dash="2 3")
    drawing.text(
        (below.left + below.width, below.at(0, price)[1] - 6),
        f"price of a report: threshold and top, epsilon {price:.1f}",
        size=12,
        anchor="end",
    )
    drawing.text(
        (below.at(-19, 0)[0], below.at(0, 0.2)[1] - 6), "of a report", colour="green", size=12, bold=True
    )
    drawing.text(
        (below.at(59, 0)[0], below.at(0, 0.4)[1] - 6),
        "of no report",
        colour="purple",
        size=12,
        bold=True,
        anchor="end",
    )
    return drawing.svg()


PICTURES: Final = {"noise": _noise, "one-run": _run, "gap": _gap, "neighbours": _neighbours}
