"""The planner's precision and recall against simulations of the real mechanism, on 100 random workloads.

A workload is a monitor's specification, a number of queries, a share of positives, and how the margins of positives
and negatives are distributed: lognormal, Weibull, gamma, uniform, Lomax, half-normal, or mixtures with two modes. The
planner gets 200 quantiles of each, never the family. Streams with one test, drifting series with a retry queue, and
finite sets under a falling bar; one branch, two, and ladders; both noise families; monotonic and general queries.
Workloads on which a run has fewer than 10 alerts are left out.

The simulation steps `SparseVector` through every query with fresh grid noise, and keeps the retry queue as
`stream_svt.monitor.retry` does. Some workloads are also played through the monitor's engine with its own keyed noise.
Both errors are over precision (true alerts / alerts) and recall (true alerts / positives), each over all runs.

Then, on the real data sets: a plan from three numbers (share of positives, median margins), its error, and how often
the truth lies in the range that users are shown.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import show
from benchmarks.datasets import DATASETS
from benchmarks.simulation import quantile
from stream_svt.mechanisms import Annealed, Exposure, Noise, Run, SparseVector, sparse_vector
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import Alert
from stream_svt.planning import Belief, Drift, Retries, Workload, forecast, recommend
from stream_svt.settings.application_document import load_spec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.options import Retry

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Labels = NDArray[np.bool_]
Draw = Callable[[np.random.Generator, int], Floats]

TOPIC = "counts"
LEAST_ALERTS = 10
EPSILONS = ("0.05", "0.1", "0.2", "0.5", "1")
CUTOFF = 50
FACTORS = (1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    workloads: int = 100
    runs: int = 100
    choices: int = 15
    choice_runs: int = 60
    engine: int = 8
    engine_runs: int = 40
    real_runs: int = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A workload as the simulation knows it, and as the planner is told."""

    name: str
    monitor: str
    above: Draw
    below: Draw
    workload: Workload
    retries: Retries | None

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

    def weibull(shape: float) -> Draw:
        return lambda g, n: np.asarray(g.weibull(shape, n) / np.log(2) ** (1 / shape))

    def lognormal(sigma: float) -> Draw:
        return lambda g, n: g.lognormal(0, sigma, n)

    def gamma(shape: float) -> Draw:
        return lambda g, n: np.asarray(g.gamma(shape, 1 / shape, n))

    def uniform(low: float, high: float) -> Draw:
        return lambda g, n: g.uniform(low, high, n)

    def lomax(tail: float) -> Draw:
        return lambda g, n: np.asarray(g.pareto(tail, n) / (2 ** (1 / tail) - 1))

    def half_normal() -> Draw:
        return lambda g, n: np.asarray(np.abs(g.standard_normal(n)) / 0.6745)

    def two_modes(low: float, share: float) -> Draw:
        def draw(g: np.random.Generator, n: int) -> Floats:
            return np.asarray(np.where(g.random(n) < share, low, 1.5) * g.lognormal(0, 0.3, n))

        return draw

    start = rng.uniform(0, 0.5)
    return [
        lognormal(rng.uniform(0.3, 1.5)),
        weibull(rng.uniform(0.5, 4)),
        gamma(rng.uniform(0.5, 5)),
        uniform(start, 2 - start),
        lomax(rng.uniform(1.2, 4)),
        half_normal(),
        two_modes(rng.uniform(0.1, 0.6), rng.uniform(0.1, 0.6)),
    ][rng.integers(7)]


def cases(seed: int) -> Iterator[Case]:
    """Yield random workloads without end."""
    number = 0
    while True:
        yield random_case(np.random.default_rng([seed, number]), ("stream", "retry", "set")[number % 3])
        number += 1


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
        fields["append"] = f"{{sweep: {{tops_per_set: 1000000, max_set_size: {queries}}}}}"
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
        retries=Retries(attempts=attempts, every=every, lifetime=life) if tau else None,
    )


def _scaled(draw: Draw, scale: float) -> Draw:
    return lambda rng, count: scale * draw(rng, count)


def _quantiles(draw: Draw, rng: np.random.Generator) -> Floats:
    """Return what the planner is told of a distribution."""
    return np.asarray(np.quantile(draw(rng, 100_000), (np.arange(200) + 0.5) / 200))


# --- simulation


class Noises:
    """Fresh noise on the grid for one mechanism."""

    def __init__(self, mechanism: SparseVector, rng: np.random.Generator) -> None:
        self.mechanism, self.rng = mechanism, rng

    def of(self, count: int) -> Callable[[int], Integers]:
        """Return the query noise of so many tests, by branch."""
        return lambda branch: self._draw(float(self.mechanism.branches[branch].rate), count)

    def _draw(self, rate: float, count: int) -> Integers:
        first = self._geometric(rate, count)
        if self.mechanism.query_noise is Noise.LAPLACE:
            first -= self._geometric(rate, count)
        return first

    def _geometric(self, rate: float, count: int) -> Integers:
        return np.floor(self.rng.standard_exponential(count) / rate).astype(np.int64)

    def thresholds(self, runs: int) -> Integers:
        """Return a threshold noise for each run, one from each of as many equal shares of its law."""
        levels = (self.rng.permutation(runs) + 1 - self.rng.random(runs)) / runs
        return quantile(self.mechanism.threshold_noise, self.mechanism.threshold_rate, levels)


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
        risen = np.minimum(1.0, age / drift.queries)
        drifting = np.floor(-drift.start + (margins[rows] + drift.start) * risen).astype(np.int64)
        return np.where(positive[rows], drifting, margins[rows])

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


@dataclass(slots=True)
class Rows:
    """Queries of one dataset in order; the marker that closes a set is one of them."""

    value: list[int] = field(default_factory=list)
    series: list[int] = field(default_factory=list)


def play(case: Case, runs: int, rng: np.random.Generator) -> Tally:
    """Return what the monitor's engine did: one dataset for each run, with noise from the engine's own sampler."""
    names = [f"d{number}" for number in range(runs)]
    spec = load_spec(_APPLICATION.format(names=", ".join(names), monitor=case.monitor))
    engine = Engine(spec, shard=0, datasets=names, key=rng.bytes(32), entropy=os.urandom)
    engine.begin(TOPIC, 0)
    tally, offset = Tally(), 0
    for dataset in range(runs):
        positive, margins = draw_queries(case, rng)
        rows = _rows(case, positive, margins)
        batch = _batch(rows, dataset, offset, sets=case.workload.finite)
        offset = batch.end
        true = false = 0
        while True:
            step = engine.step(batch)
            events = engine.take_commit().events
            engine.committed()
            for event in events:
                if isinstance(event.data, Alert):
                    found = bool(positive[int((event.data.series or "s0")[1:])])
                    true, false = true + found, false + (not found)
            if step.done:
                break
        tally.add(true, false, int(positive.sum()))
    return tally


def _rows(case: Case, positive: Labels, margins: Integers) -> Rows:
    """Return the queries of a run; before each round of retries the positives that may still wait send news."""
    rules = case.spec().append
    if not isinstance(rules, Retry):
        return Rows(margins.tolist(), list(range(len(margins))))
    drift = case.workload.drift
    assert drift is not None
    rows, periods, row = Rows(), list[list[int]](), 0
    while row < len(margins):
        # A place has rounds at the end of its own period and of attempts - 2 more.
        older = [old for period in periods[len(periods) - rules.attempts + 2 :] for old in period]
        stop = row + 1
        while stop < len(margins) and stop - row + int(positive[row:stop].sum()) + len(older) < rules.every:
            stop += 1
        fresh = list(range(row, stop))
        periods.append([new for new in fresh[:-1] if positive[new]])
        arrivals = np.where(positive[fresh], math.floor(-drift.start), margins[fresh])
        rows.value += arrivals.tolist()
        rows.series += fresh
        waiting, row = [*older, *periods[-1]], stop
        risen = [
            int(
                np.floor(
                    -drift.start + (margins[old] + drift.start) * min(1.0, (stop - 1 - old) / drift.queries)
                )
            )
            for old in waiting
        ]
        # The last query of the period runs the round: the news come just before it.
        rows.value[-1:-1], rows.series[-1:-1] = risen, waiting
    return rows


def _batch(rows: Rows, dataset: int, first: int, *, sets: bool) -> QueryBatch:
    count = len(rows.value)
    total = count + sets
    return QueryBatch(
        topic=TOPIC,
        first=first,
        end=first + total,
        offset=np.arange(first, first + total, dtype=np.int64),
        row=np.zeros(total, np.int64),
        timestamp_ms=np.zeros(total, np.int64),
        dataset=np.full(total, dataset, dtype=np.int64),
        whole=np.array(rows.value + [0] * sets, dtype=np.int64),
        series=[f"s{number}" for number in rows.series] + [None] * sets,
        set_id=["set"] * total if sets else None,
        markers={count: "set"} if sets else {},
        query_id=["q"] * total,
    )


# --- figures


def figures(size: Size = Size()) -> dict[str, float]:
    """Return `mean_absolute_error` and `worst_error`; the rest goes to standard error."""
    errors = list[tuple[float, str]]()
    alerts, delays = list[float](), list[float]()
    checked: list[Case] = []
    left_out = measured = 0
    for number, case in enumerate(cases(seed=4)):
        tally = simulate(case, size.runs, np.random.default_rng([5, number]))
        if tally.alerts < LEAST_ALERTS:
            left_out += 1
            continue
        planned = forecast(case.spec().mechanism(), case.workload, case.retries)
        errors.append((abs(planned.precision - tally.precision), f"precision {number}"))
        errors.append((abs(planned.recall - tally.recall), f"recall {number}"))
        alerts.append(abs(planned.alerts / tally.alerts - 1))
        if case.retries is not None:
            delays.append(abs(planned.delay / tally.delay - 1))
        _say(
            f"{number:3d} {case.name:14} precision {planned.precision:.3f} ({tally.precision:.3f}) "
            f"recall {planned.recall:.3f} ({tally.recall:.3f}) alerts {planned.alerts:.1f} "
            f"({tally.alerts:.1f})"
        )
        checked.append(case)
        measured += 1
        if measured == size.workloads:
            break
    sizes = sorted(error for error, _ in errors)
    _say(
        f"{measured} workloads with at least {LEAST_ALERTS} alerts a run, {left_out} left out; median error "
        f"{statistics.median(sizes):.4f}, nine in ten below {sizes[int(0.9 * len(sizes))]:.4f}, "
        f"worst at {max(errors)[1]}"
    )
    _say(
        f"relative error of alerts: mean {statistics.mean(alerts):.3f}, worst {max(alerts):.3f}; of the delay of "
        f"retries: mean {statistics.mean(delays or [0.0]):.3f}, worst {max(delays, default=0.0):.3f}"
    )
    _choices(checked[: size.choices], size.choice_runs)
    _through_the_engine(checked[: size.engine], size.engine_runs)
    _on_real_data(size.real_runs)
    return {"mean_absolute_error": statistics.mean(sizes), "worst_error": sizes[-1]}


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
        _say(
            f"choices: in {len(regrets)} workloads the recommended settings have an F1 {statistics.mean(regrets):.3f} "
            f"below the best candidate's, worst {max(regrets):.3f}; error of F1 over all candidates "
            f"{statistics.mean(errors):.3f}, worst {max(errors):.3f}"
        )


def _through_the_engine(checked: Sequence[Case], runs: int) -> None:
    """Play workloads through the monitor's engine and print both sides with the standard error of the recall."""
    for number, case in enumerate(checked):
        tally = play(case, runs, np.random.default_rng([6, number]))
        planned = forecast(case.spec().mechanism(), case.workload, case.retries)
        error = statistics.stdev(tally.recalls) / runs**0.5 if runs > 1 else float("nan")
        _say(
            f"engine {case.name:14} precision {planned.precision:.3f} ({tally.precision:.3f}) "
            f"recall {planned.recall:.3f} ({tally.recall:.3f} +- {error:.3f})"
        )


def _on_real_data(runs: int) -> None:
    """Print the error of a plan from three numbers on the real data sets, and how often its range holds."""
    errors: dict[str, list[float]] = {"three numbers": [], "all margins": []}
    inside: dict[float, list[bool]] = {factor: [] for factor in FACTORS}
    widths: dict[float, list[float]] = {factor: [] for factor in FACTORS}
    for name, load in DATASETS.items():
        data = load()
        margins = (data.counts - data.threshold(CUTOFF)).astype(np.int64)
        positive = margins >= 0
        above, below = margins[positive].astype(float), -margins[~positive].astype(float)
        told = {
            factor: Belief(
                positives=float(positive.mean()),
                above=float(np.median(above)),
                below=float(np.median(below)),
                factor=factor,
            )
            for factor in FACTORS
        }
        truth = Workload(
            queries=len(margins), positives=float(positive.mean()), above=above, below=below, finite=True
        )
        for epsilon in EPSILONS:
            for finite in (True, False):
                correction = (
                    Annealed()
                    if finite
                    else Exposure(expected_queries=len(margins), false_alerts=Fraction(CUTOFF))
                )
                mechanism = sparse_vector(
                    epsilon=int(Fraction(epsilon) * 10**9),
                    cutoff=CUTOFF,
                    monotonic=True,
                    correction=correction,
                )
                rng = np.random.default_rng(7)
                noises, tally = Noises(mechanism, rng), Tally()
                for rho in noises.thresholds(runs):
                    order = rng.permutation(len(margins))
                    passes = len(mechanism.branches[0].corrections)
                    run = mechanism.open(int(rho), (0, 0))
                    tops = order[passes_over(mechanism, run, noises, margins[order], passes)]
                    true = int(positive[tops].sum())
                    tally.add(true, len(tops) - true, int(positive.sum()))
                exact = forecast(mechanism, _as(truth, finite=finite))
                central = forecast(mechanism, told[FACTORS[0]].central(len(margins), finite=finite))
                plans = {
                    factor: [
                        central,
                        *(forecast(mechanism, load) for load in belief.spread(len(margins), finite=finite)),
                    ]
                    for factor, belief in told.items()
                }
                parts = []
                for figure in ("precision", "recall"):
                    real, believed = float(getattr(tally, figure)), float(getattr(central, figure))
                    errors["three numbers"].append(abs(believed - real))
                    errors["all margins"].append(abs(float(getattr(exact, figure)) - real))
                    for factor in FACTORS:
                        values = [float(getattr(plan, figure)) for plan in plans[factor]]
                        inside[factor].append(min(values) - 0.02 <= real <= max(values) + 0.02)
                        widths[factor].append(max(values) - min(values))
                    parts.append(
                        f"{figure} {min(values):.2f} to {max(values):.2f}, central {believed:.2f} ({real:.2f})"
                    )
                _say(f"{name:11} {'set' if finite else 'stream':6} {epsilon:>4} {'; '.join(parts)}")
    for kind, found in errors.items():
        found.sort()
        _say(
            f"real data, {kind}: mean error {statistics.mean(found):.3f}, nine in ten below "
            f"{found[int(0.9 * len(found))]:.3f}, worst {found[-1]:.3f}"
        )
    for factor in FACTORS:
        _say(
            f"real data: truth within 0.02 of the range with factor {factor:g} in {sum(inside[factor])} of "
            f"{len(inside[factor])}; mean width {statistics.mean(widths[factor]):.2f}"
        )


def _as(workload: Workload, *, finite: bool) -> Workload:
    return Workload(
        queries=workload.queries,
        positives=workload.positives,
        above=workload.above,
        below=workload.below,
        finite=finite,
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    show("planner", __doc__, lambda **size: figures(Size(**size)), asdict(Size()), arguments, digits=4)


if __name__ == "__main__":
    main()
