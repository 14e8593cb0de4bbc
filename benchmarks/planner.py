"""The planner's precision and recall against simulations of the real mechanism, on 100 random workloads.

A workload is a monitor's specification, a number of queries, a share of positives, and how the margins of positives
and negatives are distributed: lognormal, Weibull, gamma, uniform, Lomax, half-normal, or mixtures with two modes. The
planner gets 200 quantiles of each, never the family. Streams with one test, drifting series with a retry queue, and
finite sets under a falling bar; one branch, two, and ladders; both noise families; monotonic and general queries.
Workloads on which a run has fewer than 10 alerts are left out.

The simulation steps `SparseVector` through every query with fresh grid noise, and keeps the retry queue as
`stream_svt.monitor.testing.retry` does. Some workloads are also played through the monitor's engine with its own
keyed noise.
Both errors are over precision (true alerts / alerts) and recall (true alerts / positives), each over all runs.

Then, on the real data sets: a plan from three numbers (share of positives, median margins), its error, and how often
the truth lies in the range that users are shown.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import count, product
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import say, show
from benchmarks.datasets import COUNTS, counts_of
from benchmarks.papers.grid_noise import draws
from benchmarks.play import Integers, batch, engine_of, released
from stream_svt.mechanisms import UNITS_PER_EPSILON, Annealed, Exposure, Run, SparseVector, sparse_vector
from stream_svt.mechanisms.noise import quantiles
from stream_svt.monitor.deciles import law_of
from stream_svt.monitor.released import Alert
from stream_svt.planning import Belief, Drift, Workload, forecast, recommend
from stream_svt.planning.looked import margins_after_look
from stream_svt.planning.model import MARGINS, middles
from stream_svt.settings.application import load_spec
from stream_svt.settings.fields import Retry
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.sources.deciles import ValueCounts

Floats = NDArray[np.float64]
Labels = NDArray[np.bool_]
Draw = Callable[[np.random.Generator, int], Floats]

TOPIC = "counts"
LEAST_ALERTS = 10
EPSILONS = ("0.05", "0.1", "0.2", "0.5", "1")
CUTOFF = 50
FACTORS = (1.0, 2.0)
LOOK_UNITS, LOOKS = UNITS_PER_EPSILON // 10, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload as the simulation knows it, and as the planner is told."""

    name: str
    monitor: str
    above: Draw
    below: Draw
    workload: Workload

    def spec(self) -> MonitorSpec:
        """Return the monitor's specification."""
        return load_spec(_APPLICATION.format(names="d0", monitor=self.monitor)).monitors[0]


@dataclass(slots=True)
class Tally:
    """Alerts and positives over runs."""

    true: int = 0
    false: int = 0
    positives: int = 0
    runs: int = 0
    waited: int = 0
    recalls: list[float] = field(default_factory=list)

    def add(self, true: int, false: int, positives: int) -> None:
        self.true, self.false = self.true + true, self.false + false
        self.positives, self.runs = self.positives + positives, self.runs + 1
        self.recalls.append(true / max(positives, 1))

    @property
    def precision(self) -> float:
        return self.true / max(self.true + self.false, 1)

    @property
    def recall(self) -> float:
        return self.true / max(self.positives, 1)

    @property
    def alerts(self) -> float:
        return (self.true + self.false) / max(self.runs, 1)

    @property
    def delay(self) -> float:
        return self.waited / max(self.true, 1)

    @property
    def f1(self) -> float:
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


_APPLICATION = """
application: planner
datasets: [{{names: [{names}], limit: 1000000, unit: one row}}]
monitors:
  - {{name: hot, topic: counts, threshold: 0, bounds: [-1000000000000, 1000000000000], on_halt: stop, {monitor}}}
"""


# --- random workloads


def families(rng: np.random.Generator) -> Draw:
    """Return a random distribution of margins whose median is of the order of 1."""
    start = rng.uniform(0, 0.5)
    sigma, weibull = rng.uniform(0.3, 1.5), rng.uniform(0.5, 4)
    gamma, tail = rng.uniform(0.5, 5), rng.uniform(1.2, 4)
    low, share = rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.6)
    kinds: list[Draw] = [
        lambda g, n: g.lognormal(0, sigma, n),
        lambda g, n: np.asarray(g.weibull(weibull, n) / np.log(2) ** (1 / weibull)),
        lambda g, n: np.asarray(g.gamma(gamma, 1 / gamma, n)),
        lambda g, n: g.uniform(start, 2 - start, n),
        lambda g, n: np.asarray(g.pareto(tail, n) / (2 ** (1 / tail) - 1)),
        lambda g, n: np.asarray(np.abs(g.standard_normal(n)) / 0.6745),  # half-normal
        lambda g, n: np.where(g.random(n) < share, low, 1.5) * g.lognormal(0, 0.3, n),
    ]
    return kinds[rng.integers(7)]


def cases(seed: int) -> Iterator[Case]:
    """Yield random workloads without end."""
    for number in count():
        yield random_case(np.random.default_rng([seed, number]), ("stream", "retry", "set")[number % 3])


def random_case(rng: np.random.Generator, kind: str) -> Case:
    """Return one random workload."""
    cutoff = int(np.exp(rng.uniform(np.log(12), np.log(150))))
    positives = int(cutoff * rng.uniform(0.5, 2.5))
    queries = int(np.exp(rng.uniform(np.log(2_000), np.log(30_000))))
    share = min(positives / queries, 0.3)
    form = rng.choice(["svt", "svt", "svt", "adaptive", "ladder"]) if kind != "retry" else "svt"
    monotonic = bool(rng.random() < 0.6)
    # The noise of a case is as wide as its epsilon makes it; margins follow in scales of that noise.
    fields = {
        "mechanism": form,
        "epsilon": f"{rng.choice([0.2, 1, 4, 20]) * (cutoff / 10):.6f}",
        "cutoff": cutoff,
        "sensitivity": int(rng.choice([1, 20, 500])),
        "monotonic": str(monotonic).lower(),
        "query_noise": rng.choice(["exponential", "exponential", "laplace"]),
        "threshold_noise": rng.choice(["exponential", "exponential", "laplace"]),
        "expected_queries": queries,
    }
    if form != "adaptive":
        fields["split"] = f"{cutoff * rng.choice([0.25, 0.5, 1]) * (1 if monotonic else 2):.4f}"
    tolerated = f"{cutoff * rng.choice([0.1, 1, 5]):.4f}"
    if kind == "set":
        fields["correction"] = f"{{annealed: {{start: 12, end: {rng.choice([-3, 0, 3, 6])}}}}}"
        fields["append"] = f"{{sweep: {{alerts_per_set: 1000000, max_set_size: {queries}}}}}"
        del fields["expected_queries"]
    else:
        fields["correction"] = f"{{exposure: {{false_alerts: {tolerated}}}}}"
    tau = 0
    if kind == "retry":
        attempts = int(rng.choice([2, 3, 5, 8]))
        tau = int(queries * rng.uniform(0.02, 0.1))
        life = int(tau * rng.choice([1, 2, 3]))
        every = max(1, life // (attempts - 1))
        fields["append"] = (
            f"{{retry: {{attempts: {attempts}, lifetime: {life}, capacity: {life}, every: {every}}}}}"
        )
    monitor = ", ".join(f"{name}: {value}" for name, value in fields.items())
    spec = load_spec(_APPLICATION.format(names="d0", monitor=monitor)).monitors[0]
    mechanism = spec.mechanism()
    scale = float(1 / mechanism.branches[-1].rate)
    above = _scaled(families(rng), scale * np.exp(rng.uniform(np.log(3), np.log(25))))
    below = _scaled(families(rng), scale * np.exp(rng.uniform(np.log(4), np.log(40))))
    quantiles = np.random.default_rng(rng.integers(2**32))
    start = float(scale * rng.uniform(2, 8))
    return Case(
        name=f"{kind} {form}",
        monitor=monitor,
        above=above,
        below=below,
        workload=Workload(
            queries=queries,
            positives=share,
            above=_quantiles(above, quantiles),
            below=_quantiles(below, quantiles),
            finite=kind == "set",
            drift=Drift(queries=tau, start=start) if tau else None,
        ),
    )


def _scaled(draw: Draw, scale: float) -> Draw:
    return lambda rng, count: scale * draw(rng, count)


def _quantiles(draw: Draw, rng: np.random.Generator) -> Floats:
    """Return what the planner is told of a distribution."""
    return np.asarray(np.quantile(draw(rng, 100_000), middles(MARGINS)))


# --- simulation


class Noises:
    """Fresh noise on the grid for one mechanism."""

    def __init__(self, mechanism: SparseVector, rng: np.random.Generator) -> None:
        self.mechanism, self.rng = mechanism, rng

    def of(self, count: int) -> Callable[[int], Integers]:
        """Return the query noise of so many tests, by branch."""
        family, branches = self.mechanism.query_noise, self.mechanism.branches
        return lambda branch: draws(family, branches[branch].rate, count, self.rng)

    def thresholds(self, runs: int) -> Integers:
        """Return a threshold noise for each run, one from each of as many equal shares of its law."""
        levels = (self.rng.permutation(runs) + 1 - self.rng.random(runs)) / runs
        return quantiles(self.mechanism.threshold_noise, self.mechanism.threshold_rate, levels)


def simulate(case: Case, runs: int, rng: np.random.Generator, monitor: MonitorSpec | None = None) -> Tally:
    """Return what the mechanism did over so many runs; with other settings than the case's, if given."""
    monitor = monitor or case.spec()
    mechanism = monitor.mechanism()
    noises, tally = Noises(mechanism, rng), Tally()
    for rho in noises.thresholds(runs):
        run = mechanism.open(int(rho), (0, 0))
        positive, margins = draw_queries(case, rng)
        drift = case.workload.drift
        if isinstance(monitor.append, Retry):
            tops, ages = with_retries(monitor.append, drift, run, noises, positive, margins)
            tally.waited += int(ages[positive[tops]].sum())
        else:
            if drift is not None:
                margins = np.where(positive, math.floor(-drift.start), margins)
            passes = max(len(branch.corrections) for branch in mechanism.branches)
            tops = passes_over(mechanism, run, noises, margins, passes if case.workload.finite else 1)
        true = int(positive[tops].sum())
        tally.add(true, len(tops) - true, int(positive.sum()))
    return tally


def draw_queries(case: Case, rng: np.random.Generator) -> tuple[Labels, Integers]:
    """Return which queries of a run are positive, and their final margins in grid steps, negative below."""
    load = case.workload
    if load.finite:
        positive = np.zeros(load.queries, dtype=np.bool_)
        positive[rng.permutation(load.queries)[: round(load.queries * load.positives)]] = True
    else:
        positive = rng.random(load.queries) < load.positives
    margins = np.empty(load.queries)
    count = int(positive.sum())
    margins[positive] = case.above(rng, count)
    margins[~positive] = -np.maximum(case.below(rng, load.queries - count), 1.0)
    return positive, np.floor(np.clip(margins, -1e12, 1e12)).astype(np.int64)


def passes_over(
    mechanism: SparseVector, run: Run, noises: Noises, margins: Integers, passes: int
) -> Integers:
    """Return the rows reported by as many passes over a set, each over its bottoms."""
    rest, tops = np.arange(len(margins)), list[int]()
    for attempt in range(passes):
        if mechanism.is_over(run) or not len(rest):
            break
        run, outcomes = mechanism.step(run, margins[rest], 0, attempt, noises.of(len(rest)))
        rows = [top.row for top in outcomes.tops]
        tops += rest[rows].tolist()
        rest = np.delete(rest, rows)
    return np.array(tops, dtype=np.int64)


def with_retries(
    rules: Retry, drift: Drift | None, run: Run, noises: Noises, positive: Labels, margins: Integers
) -> tuple[Integers, Integers]:
    """Return the rows reported with a retry queue and their ages: arrivals up to a round, the round, and so on."""
    mechanism = noises.mechanism
    queue, attempts = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    tops, ages = list[int](), list[int]()

    def values(rows: Integers, age: Integers | int) -> Integers:
        if drift is None:
            return margins[rows]
        return np.where(positive[rows], risen(drift, margins[rows], age), margins[rows])

    for first in range(0, len(margins), rules.every):
        rows = np.arange(first, min(first + rules.every, len(margins)))
        if mechanism.is_over(run):
            break
        run, outcomes = mechanism.step(run, values(rows, 0), 0, 0, noises.of(len(rows)))
        hits = [top.row for top in outcomes.tops]
        tops += rows[hits].tolist()
        ages += [0] * len(hits)
        bottoms = np.delete(rows, hits)
        queue = np.concatenate([queue, bottoms])[-rules.capacity :]
        attempts = np.concatenate([attempts, np.ones(len(bottoms), dtype=np.int64)])[-rules.capacity :]
        now = int(rows[-1])
        if len(rows) < rules.every or mechanism.is_over(run):
            break
        young = now - queue <= (rules.lifetime.offsets or 0)
        queue, attempts = queue[young], attempts[young]
        if not len(queue):
            continue
        run, outcomes = mechanism.step(run, values(queue, now - queue), 0, attempts, noises.of(len(queue)))
        attempts += 1
        keep = attempts < rules.attempts
        hits = [top.row for top in outcomes.tops]
        keep[hits] = False
        tops += queue[hits].tolist()
        ages += (now - queue[hits]).tolist()
        queue, attempts = queue[keep], attempts[keep]
    return np.array(tops, dtype=np.int64), np.array(ages, dtype=np.int64)


# --- the engine


def play(case: Case, runs: int, rng: np.random.Generator) -> Tally:
    """Return what the monitor's engine did: one dataset for each run, with noise from the engine's own sampler."""
    names = ", ".join(f"d{number}" for number in range(runs))
    engine = engine_of(_APPLICATION.format(names=names, monitor=case.monitor), rng.bytes(32), os.urandom)
    tally, offset = Tally(), 0
    for dataset in range(runs):
        positive, margins = draw_queries(case, rng)
        values, series = _rows(case, positive, margins)
        named: dict[str, Any] = {"series": [f"s{number}" for number in series]}
        if case.workload.finite:  # the last row closes the set
            named = {"series": [*named["series"], None], "set_id": ["set"] * (len(values) + 1)}
            named["markers"] = {len(values): "set"}
            values = [*values, 0]
        queries = batch(TOPIC, offset, np.array(values, dtype=np.int64), dataset, **named)
        offset = queries.end
        alerts = [event.data for event in released(engine, queries) if isinstance(event.data, Alert)]
        true = sum(int(positive[int((alert.series or "s0")[1:])]) for alert in alerts)
        tally.add(true, len(alerts) - true, int(positive.sum()))
    return tally


def _rows(case: Case, positive: Labels, margins: Integers) -> tuple[list[int], list[int]]:
    """Return values and series of a run; before each round of retries the positives that may still wait send news."""
    rules = case.spec().append
    if not isinstance(rules, Retry):
        return margins.tolist(), list(range(len(margins)))
    drift = case.workload.drift
    assert drift is not None
    values, series = list[int](), list[int]()
    periods, row = list[list[int]](), 0
    while row < len(margins):
        # A place has rounds at the end of its own period and of attempts - 2 more.
        older = [old for period in periods[len(periods) - rules.attempts + 2 :] for old in period]
        stop = row + 1
        while stop < len(margins) and stop - row + int(positive[row:stop].sum()) + len(older) < rules.every:
            stop += 1
        fresh = np.arange(row, stop)
        periods.append(fresh[:-1][positive[fresh[:-1]]].tolist())
        values += np.where(positive[fresh], math.floor(-drift.start), margins[fresh]).tolist()
        series += fresh.tolist()
        waiting, row = np.array([*older, *periods[-1]], dtype=np.int64), stop
        # The last query of the period runs the round: the news come just before it.
        values[-1:-1] = risen(drift, margins[waiting], stop - 1 - waiting).tolist()
        series[-1:-1] = waiting.tolist()
    return values, series


def risen(drift: Drift, margins: Integers, age: Integers | int) -> Integers:
    """Return the margins of positives so many queries after the first of their series."""
    share = np.minimum(1.0, age / drift.queries)
    grown: Integers = np.floor(-drift.start + (margins + drift.start) * share).astype(np.int64)
    return grown


# --- figures


def figures(
    workloads: int = 100,
    runs: int = 100,
    choices: int = 15,
    choice_runs: int = 60,
    engine: int = 8,
    engine_runs: int = 40,
    real_runs: int = 40,
) -> dict[str, float]:
    """Return `mean_absolute_error` and `worst_error`; the rest goes to standard error."""
    errors, alerts, delays = list[float](), list[float](), list[float]()
    checked: list[Case] = []
    for number, case in enumerate(cases(seed=4)):
        tally = simulate(case, runs, np.random.default_rng([5, number]))
        if tally.alerts < LEAST_ALERTS:
            continue
        planned = forecast(case.spec(), case.workload)
        errors += [abs(planned.precision - tally.precision), abs(planned.recall - tally.recall)]
        alerts.append(abs(planned.alerts / tally.alerts - 1))
        if isinstance(case.spec().append, Retry):
            delays.append(abs(planned.delay / tally.delay - 1))
        say(
            f"{number:3d} {case.name:14} precision {planned.precision:.3f} ({tally.precision:.3f}) "
            f"recall {planned.recall:.3f} ({tally.recall:.3f}) alerts {planned.alerts:.1f} "
            f"({tally.alerts:.1f})"
        )
        checked.append(case)
        if len(checked) == workloads:
            break
    say(
        f"{workloads} workloads with at least {LEAST_ALERTS} alerts a run of {number + 1}: {_spread(errors)}; "
        f"relative error of alerts: {_spread(alerts)}; of the delay of retries: {_spread(delays or [0.0])}"
    )
    _choices(checked[:choices], choice_runs)
    _through_the_engine(checked[:engine], engine_runs)
    return {
        "mean_absolute_error": statistics.mean(errors),
        "worst_error": max(errors),
        "after_look_mean_error": _on_real_data(real_runs),
    }


def _spread(errors: Sequence[float]) -> str:
    ordered = sorted(errors)
    return (
        f"mean {statistics.mean(ordered):.4f}, nine in ten below {ordered[int(0.9 * len(ordered))]:.4f}, "
        f"worst {ordered[-1]:.4f}"
    )


def _choices(checked: Sequence[Case], runs: int) -> None:
    """Print what choosing by the planner costs: F1 of its choice against the best of its candidates, simulated."""
    regrets, errors = list[float](), list[float]()
    for number, case in enumerate(checked):
        found = recommend(case.spec(), case.workload)
        measured = [
            simulate(case, runs, np.random.default_rng([8, number]), candidate.monitor).f1
            for candidate in found.candidates
        ]
        regrets.append(max(measured) - measured[0])
        errors += [
            abs(f1 - candidate.forecast.f1) for f1, candidate in zip(measured, found.candidates, strict=True)
        ]
    if regrets:
        say(
            f"choices: F1 of the recommended settings below the best candidate's in {len(regrets)} workloads: "
            f"{_spread(regrets)}; error of F1 over all candidates: {_spread(errors)}"
        )


def _through_the_engine(checked: Sequence[Case], runs: int) -> None:
    """Play workloads through the monitor's engine and print both sides with the standard error of the recall."""
    for number, case in enumerate(checked):
        tally = play(case, runs, np.random.default_rng([6, number]))
        planned = forecast(case.spec(), case.workload)
        error = statistics.stdev(tally.recalls) / runs**0.5 if runs > 1 else float("nan")
        say(
            f"engine {case.name:14} precision {planned.precision:.3f} ({tally.precision:.3f}) "
            f"recall {planned.recall:.3f} ({tally.recall:.3f} +- {error:.3f})"
        )


def _on_real_data(runs: int) -> float:
    """Print the error of a plan from three numbers on the data sets, and how often its range holds.

    Returns the mean error of a plan after a look.
    """
    errors: dict[str, list[float]] = {"three numbers": [], "after a look": [], "all margins": []}
    inside: dict[float, list[bool]] = {factor: [] for factor in FACTORS}
    widths: dict[float, list[float]] = {factor: [] for factor in FACTORS}
    for name in COUNTS:
        margins = counts_of(name) - counts_of(name)[CUTOFF - 1]
        positive = margins >= 0
        items, share = len(margins), float(positive.mean())
        above, below = margins[positive].astype(float), -margins[~positive].astype(float)
        medians = {"above": float(np.median(above)), "below": float(np.median(below))}
        truth = Workload(queries=items, positives=share, above=above, below=below)
        looks = [_looked(name, margins, share, medians["above"], seed) for seed in range(LOOKS)]
        for epsilon, finite in product(EPSILONS, (True, False)):
            tolerated = Exposure(expected_queries=items, false_alerts=Fraction(CUTOFF))
            mechanism = sparse_vector(
                epsilon=epsilon,
                cutoff=CUTOFF,
                monotonic=True,
                correction=Annealed() if finite else tolerated,
            )
            tally = _simulated(mechanism, margins, runs)
            plans = {}
            for factor in FACTORS:
                belief = Belief(positives=share, **medians, factor=factor)
                central = belief.central(items, finite=finite)
                loads = (central, *belief.spread(central))
                plans[factor] = [forecast(mechanism, load) for load in loads]
            exact = forecast(mechanism, replace(truth, finite=finite))
            looked = [
                forecast(mechanism, replace(truth, above=one, below=other, finite=finite))
                for one, other in looks
            ]
            parts = []
            for figure in map(attrgetter, ("precision", "recall")):
                real = figure(tally)
                for factor, found in plans.items():
                    values = list(map(figure, found))
                    low, high = min(values), max(values)
                    inside[factor].append(low - 0.02 <= real <= high + 0.02)
                    widths[factor].append(high - low)
                errors["three numbers"].append(abs(values[0] - real))
                errors["after a look"] += [abs(figure(one) - real) for one in looked]
                errors["all margins"].append(abs(figure(exact) - real))
                parts.append(f"{low:.2f} to {high:.2f}, central {values[0]:.2f} ({real:.2f})")
            say(
                f"{name:11} {'set' if finite else 'stream':6} {epsilon:>4} precision, recall: {'; '.join(parts)}"
            )
    for kind, wrong in errors.items():
        say(f"real data, {kind}: {_spread(wrong)}")
    for factor in FACTORS:
        say(
            f"real data: truth within 0.02 of the range with factor {factor:g} in {sum(inside[factor])} of "
            f"{len(inside[factor])}; mean width {statistics.mean(widths[factor]):.2f}"
        )
    return statistics.mean(errors["after a look"])


def _looked(name: str, margins: Integers, share: float, above: float, seed: int) -> tuple[Floats, Floats]:
    """Return the margins that a plan takes from a look with fresh noise; counts move by one step."""
    values, rng = ValueCounts(), np.random.default_rng([9, seed])
    values.add(margins)
    law = law_of(LOOK_UNITS, 1)
    noisy = sorted((np.array([*values.deciles()]) + draws(law.noise, law.rate, 9, rng)).tolist())
    return margins_after_look(noisy, share, above, float(counts_of(name)[CUTOFF - 1]))


def _simulated(mechanism: SparseVector, margins: Integers, runs: int) -> Tally:
    """Return what a mechanism did over so many runs on values in random order."""
    rng = np.random.default_rng(7)
    noises, tally = Noises(mechanism, rng), Tally()
    for rho in noises.thresholds(runs):
        order = rng.permutation(len(margins))
        passes = len(mechanism.branches[0].corrections)
        tops = passes_over(mechanism, mechanism.open(int(rho), (0, 0)), noises, margins[order], passes)
        true = int((margins[order[tops]] >= 0).sum())
        tally.add(true, len(tops) - true, int((margins >= 0).sum()))
    return tally


if __name__ == "__main__":
    show(figures, digits=4)
