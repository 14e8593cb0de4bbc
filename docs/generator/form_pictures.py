"""The pictures of append and of branches in how-sparse-vector-works.md, drawn with the library's own mechanisms."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from typing import Final

import numpy as np

from docs.generator.drawing import Axes, Drawing
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
    axes = Axes(drawing, 56, 30, 550, 264, (0, len(bars)), (0, 180))
    axes.frame(x_ticks=range(0, len(bars) + 1, 2), y_ticks=range(0, 151, 50), x_label="pass over the set")
    for item, value in enumerate(values.tolist()):
        end = ends.get(item)
        until = passes + 1 if end is None else end + 0.5
        axes.graph(
            (0, until),
            (value, value),
            colour="soft" if end is None else "blue",
            width=1.2 if end is None else 2,
        )
        if end is not None:
            drawing.triangle(axes.at(until, value), colour="blue")
            drawing.text(
                (axes.at(until, value)[0] + 12, axes.at(until, value)[1] + 4),
                f"reported in pass {end + 1}",
                colour="blue",
                size=12,
            )
    steps = [(attempt + side, bar) for attempt, bar in enumerate(bars[: passes + 1]) for side in (0, 1)]
    rest = [(attempt + side, bar) for attempt, bar in enumerate(bars) for side in (0, 1) if attempt > passes]
    axes.graph([x for x, _ in rest], [y for _, y in rest], colour="orange", width=1, dash="2 3")
    axes.graph([x for x, _ in steps], [y for _, y in steps], colour="orange", width=2)
    drawing.text(
        (axes.at(0.2, bars[0])[0], axes.at(0, bars[0])[1] - 8),
        "bar: threshold + correction of the pass (public)",
        colour="orange",
        size=12,
    )
    axes.graph((0, len(bars)), (_THRESHOLD, _THRESHOLD), colour="grid", width=1.2, dash="6 4")
    drawing.text((axes.at(0.1, 0)[0], axes.at(0, _THRESHOLD)[1] - 4), "threshold", colour="soft", size=12)
    drawing.text((axes.left, axes.top - 8), "value of an item", colour="soft", size=12)
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
    price = [branch.charge / _UNITS for branch in (top, middle)]
    drawing = Drawing(
        720,
        350,
        "Two branches, two prices",
        "Which branch of Adaptive SVT reports a value, by how far it lies above the threshold. Values "
        "close to the threshold are not reported; further up the middle branch reports them at full "
        "price; far up the top branch does, at half of it.",
    )
    axes = Axes(drawing, 66, 30, 620, 250, (0, 700), (0, 1))
    axes.frame(
        x_ticks=range(0, 701, 100),
        y_ticks=(0, 0.25, 0.5, 0.75, 1),
        x_label="how far the value lies above the threshold",
        y_label="probability",
        y_text="{:.0%}".format,
    )
    axes.band(margins, [0.0] * len(margins), by_top, colour="blue", opacity=0.3)
    axes.band(margins, by_top, by_any, colour="green", opacity=0.3)
    axes.graph(margins, by_any, colour="green")
    axes.graph(margins, by_top, colour="blue")
    drawing.text(axes.at(560, 0.45), "top branch", colour="blue", bold=True, anchor="middle")
    drawing.text(
        (axes.at(560, 0)[0], axes.at(0, 0.45)[1] + 18),
        f"epsilon {price[0]:.3f}",
        colour="blue",
        anchor="middle",
    )
    drawing.text(axes.at(216, 0.55), "middle branch", colour="green", bold=True, anchor="middle")
    drawing.text(
        (axes.at(216, 0)[0], axes.at(0, 0.55)[1] + 18),
        f"epsilon {price[1]:.3f}",
        colour="green",
        anchor="middle",
    )
    drawing.text(axes.at(75, 0.6), "not reported", colour="soft", bold=True, anchor="middle")
    drawing.text((axes.at(75, 0)[0], axes.at(0, 0.6)[1] + 18), "free", colour="soft", anchor="middle")
    return drawing.svg()


PICTURES: Final = {"falling-bar": _falling_bar, "branches": _branches}
