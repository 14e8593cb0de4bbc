"""Precision, recall and delay on streams at equal exposure, by the real engine, beside a simulation's.

The stream never ends: queries come one by one, few of them positive, and a run pays for 250 alerts. Everything
depends on margins in units of the query-noise scale s alone. Two workloads: ``sep``, whose positives lie 4 s and
more above the threshold and whose negatives 6 s and more below; ``cont``, where many lie near it. The exposure H is
the probability with which a query exactly on the noisy threshold is reported by chance, over all its tests: rows
"H" have the same one, so retries are paid for; the published append keeps its correction while it retries, and so
multiplies its exposure. In drifting series a positive starts 6 s below the threshold and rises to its plateau
within 2000 queries; newer queries of a waiting series bring the value at the time of its retry.

The references come from an independent simulation of the same process in floating point, 30 to 60 runs a row.
`worst_standard_errors` is the largest difference to any of them, in standard errors of the difference.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import say, show
from benchmarks.play import Integers, batch, engine_of, released
from stream_svt.monitor.released import Alert

TOPIC = "queries"
CUTOFF = 250
SCALE = 1000  # s in grid steps; the threshold noise has half of it
POSITIVES = 0.001
FALSE_ALERTS, LASTS = 200, 200_000
EXPOSURE = FALSE_ALERTS / LASTS
DRIFT, START = 2000, -6.0
BATCH = 20_000
REFERENCE_RUNS = 60
RUNS = 30
"""Of each row; of the slow ones a half or third."""

# c / eps2 = 1000 = s and 1 / eps1 = 500 = s / 2
SPEC = """
application: stream
datasets:
  - {{name: all, limit: 1, unit: one row}}
monitors:
  - {{name: monitor, mechanism: svt, topic: {topic}, epsilon: 0.252, split: 125, cutoff: {cutoff}, sensitivity: 1,
     monotonic: true, bounds: [-1000000, 1000000], threshold: 0, on_halt: stop, append: {append},
     correction: {{table: {table}}}}}
"""
RETRY = "{{retry: {{attempts: {attempts}, capacity: {places}, every: {every}, lifetime: {lifetime}}}}}"


class Margins(NamedTuple):
    """Margins in s: positives lie ``above`` and more, negatives ``below`` and more, both with exponential tails."""

    above: float
    above_tail: float
    below: float
    below_tail: float


MARGINS = {"sep": Margins(4, 6, 6, 10), "cont": Margins(0, 6, 0, 8)}


class Reference(NamedTuple):
    """A number as it was noted, such as 0.688±0.008: the standard error is left out where it was not noted."""

    text: str
    error: str

    def error_with(self, deviation: float) -> float:
        """Return the standard error, rounding included; ``deviation`` is that of one run."""
        unit = 10.0 ** -len(self.text.partition(".")[2])
        noise = float(self.error) if self.error else deviation / math.sqrt(REFERENCE_RUNS)
        return math.hypot(noise, unit / math.sqrt(12))


@dataclass(frozen=True, slots=True)
class Row:
    """A way to test a stream: ``bars`` in s by attempt, retried over about ``lifetime`` queries.

    References are those that were noted of precision, recall (among the positives that came while the run
    lasted), delay (queries from arrival, or from the rise above the threshold, to the report) and wasted (false
    alerts a run).
    """

    name: str
    workload: str
    bars: tuple[float, ...]
    lifetime: int = 0
    drifts: bool = False
    noted: str = ""

    @property
    def references(self) -> dict[str, Reference]:
        pairs = (word.partition(" ")[::2] for word in self.noted.split(", ") if word)
        return {name: Reference(*number.partition("±")[::2]) for name, number in pairs}

    @property
    def attempts(self) -> int:
        return len(self.bars)

    @property
    def every(self) -> int:
        """Queries between two sweeps; those that bring news of drifting series come on top."""
        new = self.lifetime / (self.attempts - 1)
        return round(new + POSITIVES * self.lifetime if self.drifts else new)

    def runs(self, runs: int) -> int:
        """Return how often the row is run: less often where everything is tested five times, and ten."""
        return max(2, runs // (1 + (self.attempts >= 5) + (self.attempts >= 10)))

    def spec(self) -> str:
        waiting = self.every * (self.attempts - 1) if self.lifetime else 0
        retry = RETRY.format(
            attempts=self.attempts, places=waiting, every=self.every if waiting else 0, lifetime=2 * waiting
        )
        table = [math.ceil(bar * SCALE) for bar in self.bars]
        return SPEC.format(topic=TOPIC, cutoff=CUTOFF, table=table, append=retry if waiting else "off")


def fixed(attempts: int, exposure: float = EXPOSURE) -> tuple[float, ...]:
    """Bars that are the same for all attempts and have this exposure together."""
    return (math.log(attempts / exposure),) * attempts


def annealed(attempts: int, step: float) -> tuple[float, ...]:
    """Bars that fall by ``step`` an attempt and have the common exposure together."""
    falls = step * np.arange(attempts - 1, -1, -1)
    return tuple((falls + math.log(np.exp(-falls).sum() / EXPOSURE)).tolist())


def rows() -> list[Row]:
    """Return what is measured, with the references."""
    none, few, falling = fixed(1), fixed(1, 10 * CUTOFF / LASTS), annealed(20, 0.5)
    schedule = tuple(range(12, -1, -1))
    static = {
        ("none", "sep", none): "precision 1.00, recall 0.688±0.008, wasted 0",
        ("none", "cont", none): "precision 0.837±0.010, recall 0.355±0.006, wasted 14.4",
        ("append", "sep", fixed(20)): "precision 1.00, recall 0.631, delay 117, wasted 0",
        ("append", "cont", fixed(20)): "precision 0.829, recall 0.326±0.007, delay 117, wasted 14.1",
        ("annealed", "sep", falling): "precision 1.00, recall 0.646, delay 490, wasted 0",
        ("annealed", "cont", falling): "precision 0.838, recall 0.335±0.006, delay 496, wasted 13.8",
        ("published-1", "sep", (7.2,)): "precision 1.00, recall 0.656",
        ("published-5", "sep", (7.2,) * 5): "precision 0.999, recall 0.781",
        ("published-20", "sep", (7.2,) * 20): "precision 0.998, recall 0.915",
        ("published-1", "cont", (7.2,)): "precision 0.869, recall 0.338, wasted 10",
        ("published-5", "cont", (7.2,) * 5): "precision 0.619, recall 0.412, wasted 54",
        ("published-20", "cont", (7.2,) * 20): "precision 0.350±0.015, recall 0.512, wasted 155",
        ("batch-schedule", "sep", schedule): "precision 0.773, recall 0.999, delay 241, wasted 56",
        ("batch-schedule", "cont", schedule): "precision 0.010±0.001, wasted 247",
        ("none-20c", "sep", fixed(1, 20 * CUTOFF / LASTS)): "precision 0.996, recall 0.987±0.003, wasted 0.7",
        ("none-10c", "cont", few): "precision 0.407, recall 0.547±0.007, wasted 141",
    }
    drifting = {
        ("drift-none", "sep", none, 0): "recall 0.000",
        ("drift-append-2", "sep", fixed(2), 4000): "recall 0.385, delay 2060",
        ("drift-append-5", "sep", fixed(5), 4000): "recall 0.578±0.009, delay 1432",
        ("drift-append-20", "sep", fixed(20), 4000): "recall 0.572, delay 1262",
        ("drift-short-5", "sep", fixed(5), 1000): "recall 0.03",
        ("drift-annealed-5", "sep", annealed(5, 0.5), 4000): "recall 0.626±0.009",
        ("drift-append-5", "cont", fixed(5), 4000): "recall 0.301",
        ("drift-annealed-5", "cont", annealed(5, 0.5), 4000): "recall 0.331",
    }
    return [
        *(Row(*row, 1000 if len(row[2]) > 1 else 0, noted=noted) for row, noted in static.items()),
        *(Row(*row, drifts=True, noted=noted) for row, noted in drifting.items()),
    ]


@dataclass(frozen=True, slots=True)
class Queries:
    """A stream by rows: the value tested and the new query (by number) that it belongs to or brings news of.

    ``place`` is the number of new queries before each row; ``row`` is the row of each new query, ``begins`` the
    place at which it is above the threshold, if it is positive.
    """

    value: Integers
    query: Integers
    place: Integers
    row: Integers
    begins: NDArray[np.float64]
    positive: NDArray[np.bool_]


def arrivals(margins: Margins, count: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return margins in s of new queries, and which are positive."""
    generator = np.random.default_rng(seed)
    positive = generator.random(count) < POSITIVES
    tail = generator.exponential(1.0, count)
    return (
        np.where(
            positive,
            margins.above + margins.above_tail * tail,
            -margins.below - margins.below_tail * tail,
        ),
        positive,
    )


def once(margin: NDArray[np.float64], positive: NDArray[np.bool_]) -> Queries:
    """Return a stream without news: one row a query."""
    number = np.arange(len(margin))
    value = np.floor(margin * SCALE).astype(np.int64)
    return Queries(value, number, number, number, number.astype(np.float64), positive)


def drifting(row: Row, count: int, seed: int) -> Queries:
    """Return a stream whose positives rise, with news of each that waits just before every sweep."""
    plateau, positive = arrivals(MARGINS[row.workload], count, seed)
    margin = np.where(positive, START, plateau)
    if row.attempts == 1:
        return once(margin, positive)
    queries: list[Integers] = []
    values: list[NDArray[np.float64]] = []
    places: list[Integers] = []
    rising = np.flatnonzero(positive)
    firsts = [0]  # first new query of each stretch between two sweeps
    first = 0
    while first < count:
        oldest = firsts[max(0, len(firsts) - (row.attempts - 1))]
        last = first + row.every
        while last - first + np.searchsorted(rising, last) - np.searchsorted(rising, oldest) > row.every:
            last -= 1
        last = min(last, count)
        news = rising[np.searchsorted(rising, oldest) : np.searchsorted(rising, last)]
        short = 0 if last == count else row.every - (last - first) - len(news)
        news = np.concatenate([news, news[len(news) - short :]])
        age = last - news
        fresh = np.arange(first, last)
        queries += [fresh, news]
        values += [margin[first:last], START + (plateau[news] - START) * np.minimum(age / DRIFT, 1)]
        places += [fresh, np.full(len(news), last)]
        firsts.append(last)
        first = last
    query, place = np.concatenate(queries), np.concatenate(places)
    return Queries(
        np.floor(np.concatenate(values) * SCALE).astype(np.int64),
        query,
        place,
        np.unique(query, return_index=True)[1],
        np.arange(count) + DRIFT * START / (START - np.maximum(plateau, 0)),
        positive,
    )


def alerts(row: Row, stream: Queries, seed: int) -> Iterator[Alert]:
    """Play a stream through an engine of its own and yield what it releases.

    Rows share streams but not noise: few thresholds common to all would move all rows the same way.
    """
    generator = random.Random(f"{row.workload}.{row.name} {seed}")
    engine = engine_of(row.spec(), generator.randbytes(32), generator.randbytes)
    for first in range(0, len(stream.value), BATCH):
        part = slice(first, first + BATCH)
        names = [str(query) for query in stream.query[part].tolist()]
        series = list(names) if row.drifts else []
        queries = batch(TOPIC, first, stream.value[part], series=series, query_id=names)
        yield from (event.data for event in released(engine, queries) if isinstance(event.data, Alert))


def play(row: Row, count: int, seed: int) -> dict[str, float]:
    """Return precision, recall, delay and wasted alerts of one run; nan where there is none."""
    margins = MARGINS[row.workload]
    stream = drifting(row, count, seed) if row.drifts else once(*arrivals(margins, count, seed))
    wasted, delays, end = 0, list[float](), count
    for number, alert in enumerate(alerts(row, stream, seed), start=1):
        query = reported = int(alert.query_id)
        if alert.attempt > 1:
            sweep = (int(stream.row[query]) // row.every + alert.attempt - 1) * row.every
            reported = int(stream.place[sweep - 1])
        if stream.positive[query]:
            delays.append(reported - stream.begins[query])
        else:
            wasted += 1
        if number == CUTOFF:
            end = reported + 1
            break
    positives = int(stream.positive[:end].sum())
    return {
        "precision": len(delays) / (len(delays) + wasted) if delays or wasted else math.nan,
        "recall": len(delays) / positives if positives else math.nan,
        "delay": statistics.fmean(delays) if delays and row.attempts > 1 else math.nan,
        "wasted": float(wasted),
    }


def figures(runs: int = RUNS, queries: int = LASTS) -> dict[str, float]:
    """Return every row's figures and how far the farthest is from its reference; the table goes to standard error."""
    measured: dict[str, float] = {}
    worst = 0.0
    say(
        f"{'row':22} {'figure':10} {'measured':>9} {'s.e.':>7} {'reference':>9} {'s.e.':>7} {'s.e. apart':>10}"
    )
    for row in rows():
        played = [play(row, queries, seed) for seed in range(row.runs(runs))]
        for name in played[0]:
            numbers = np.array([run[name] for run in played])
            numbers = numbers[~np.isnan(numbers)]
            if not len(numbers):
                continue
            mean = float(numbers.mean())
            deviation = float(numbers.std(ddof=1)) if len(numbers) > 1 else 0.0
            error = deviation / math.sqrt(len(numbers))
            line = f"{row.workload + '.' + row.name:22} {name:10} {mean:9.3f} {error:7.3f}"
            reference = row.references.get(name)
            if reference is not None:
                theirs = reference.error_with(deviation)
                apart = abs(mean - float(reference.text)) / math.hypot(error, theirs)
                worst = max(worst, apart)
                line += f" {reference.text:>9} {theirs:7.3f} {apart:10.1f}"
            say(line)
            measured[f"{row.workload}.{row.name}.{name}"] = mean
    gains = {
        "retries_gain_static": measured["sep.append.recall"] - measured["sep.none.recall"],
        "retries_gain_drifting": measured["sep.drift-append-5.recall"] - measured["sep.drift-none.recall"],
    }
    return measured | gains | {"worst_standard_errors": worst}


if __name__ == "__main__":
    show(figures)
