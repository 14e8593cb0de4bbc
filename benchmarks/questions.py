"""Questions about counts beside plain counts: what they find for the same epsilon, and what they cost a counter.

Counts of 100 series by the hour are simulated; answers and tests are the package's own. A week's run of epsilon 1 pays
for ten alerts, false ones among them. An alert mutes its series for a day.

* `true_alerts`: of 10 incidents of eight hours, how many `for: 5` finds among 60 spikes of one hour. Usual counts are
  about 300, spikes and incidents 750 to 2,000, the threshold is 500. `plain` is without a question.
* `share_distance_vs_count`: the distance reported 95 times in 100, of errors above 1 % of all, over that of a count.
* `usual_gain_over_thresholds`: bursts of an hour found by `usual` with factor 1.1, over those found by a threshold for
  each series: 100 items of the retail data, 100,000 baskets an hour at the peak, a fifth at night and 0.8 at weekends,
  another level each week (standard deviation 3 %), ten bursts a week of 0.3 to 1.0 times the weekly mean. A threshold
  is the highest usual count times a number: this and `threshold` are the best with 9 of 10 alerts true (0 if none).
* `excess_delay_550`: ten of 100 series with counts of about 475 rise to 550 for good. Windows until half of them are
  reported, by sums of up to 24 windows above 512, of units that come once in 24 windows. `.found` is the share found
  in the week, `.plain_found` the same with a threshold of 512 on the counts. An alert mutes its series for the week.
* `rolling_alerts_per_year`: of 300 alerts a year at random hours, 177 above the threshold, how many are found. Any 30
  days cost epsilon 4; a period of 15 days has one run of all its share, with the noise of epsilon 1 for ten alerts.
* `detect_error`: 10 alerts in 30 days of the hours of 5 and of 1,000 series, at a distance of 200: the largest relative
  difference of epsilon to one whose simulated tests find that distance 95 times in 100. `detect_seconds`: to solve it.
* `counter_cost`: processor time of the four questions of docs/questions.md, over that of a million events.
"""

from __future__ import annotations

import time
from fractions import Fraction
from itertools import product

import msgspec
import numpy as np

from benchmarks.command import show
from benchmarks.datasets import counts_of
from stream_svt.columns.query_batch import Integers, Mask
from stream_svt.mechanisms.arguments import reaching
from stream_svt.mechanisms.noise import quantiles
from stream_svt.mechanisms.numbers import UNITS_PER_EPSILON
from stream_svt.planning.budget import reported_margin
from stream_svt.protocol.records import Records
from stream_svt.settings.application import load_spec
from stream_svt.settings.detection import SURE, RunProblem, solve
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.periods import DAY_MS, Renewal
from stream_svt.settings.questions import Question, asked_by
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.events import EventReader
from stream_svt.sources.questions import Asked, ClosedCounts
from stream_svt.sources.tally import Tally, pack, sorted_keys
from stream_svt.sources.units import UnitHash

SERIES, WEEK, YEAR, HOUR = 100, 168, 365 * 24, 3_600_000
THRESHOLD, MUTE, SPIKES, INCIDENTS, LASTS = 500, 24, 60, 10, 8
BURSTS, PRECISION, DISTANCE, PERIOD, ALERTS = 10, 0.9, 177, 15 * 24, 300
OVER, RISING = 512, "excess: {over: 512, windows: 24, visits: {at_most: 1, in: 24}}"
FAR, ERRORS = 200, tuple(Fraction(part, 20) for part in range(18, 23))
SHARE, MOST_OF_FIVE = "share: {of: errors, above: 1%}", "for: {windows: 5, at_least: 4}"
LASTING = {"": "for: 5", ".plain": "", ".for_4_of_5": MOST_OF_FIVE, ".mean_5": "mean: 5"}
PAGES = tuple(f"/page/{number:05}" for number in range(20_000))
FACTORS = ("1", "1.05", "1.1", "1.2")
TYPICAL = ("for: 5", f"{SHARE}, over: [1h, 6h]", "usual: {factor: 1.1}", "excess: {over: 512, windows: 24}")
SPEC = """
application: shop
sources:
  - {{name: requests, topic: requests, unit: user, series: {{field: page, names: [{names}]}}, dataset: web, window: 1h,
     measures: [{{name: visitors}}, {{name: errors, where: {{status: 500}}}}]}}
datasets: [{{name: web, limit: {{epsilon: 4}}}}]
monitors: [{{name: asked, source: requests, measure: visitors, threshold: 0, {run}, {keys}}}]
"""
RUN = f"epsilon: 1, cutoff: 10, expected_queries: {SERIES * WEEK}"


def monitor(keys: str = "", run: str = RUN, series: int = 2) -> tuple[MonitorSpec, Question, SourceSpec]:
    """Return a monitor with the keys of a question and of a run, its question and its source."""
    spec = load_spec(SPEC.format(names=", ".join(PAGES[:series]), run=run, keys=keys))
    [asked], [source] = spec.monitors, spec.sources
    return asked, asked_by("asked", asked, "visitors", source), source


def asked_about(question: Question, counts: Integers) -> Asked:
    """Return a question about counts of shape (windows, series)."""
    names, closed = PAGES[: counts.shape[1]], ClosedCounts(measures=question.measures)
    for window, measure in product(range(len(counts)), question.measures):
        closed.add(window * HOUR, "web", measure, names, counts[window])
    return Asked(question, closed, lambda _: ("web",), names, HOUR)


def answers(question: Question, counts: Integers, first: int) -> Integers:
    """Return the answers about the windows from one on, shape (windows, series)."""
    asked = asked_about(question, counts)
    values = [asked.about(window * HOUR) for window in range(first, len(counts))]
    assert all(one.known.all() for one in values), "every window is asked"
    return np.concatenate([one.steps for one in values])


def alerts(
    spec: MonitorSpec,
    values: Integers,
    bar: int,
    hours: int,
    random: np.random.Generator,
    mute: int = MUTE,
) -> Mask:
    """Return which answers are reported above a threshold, by consecutive runs of so many hours."""
    mechanism, steps, told = spec.mechanism(), int(bar / spec.granularity), np.zeros(values.shape, np.bool_)
    for first in range(0, len(values), hours):
        tested = values[first : first + hours]
        chances = 1.0 - random.random(tested.size + 1)  # in (0, 1]
        [rho] = quantiles(mechanism.threshold_noise, mechanism.threshold_rate, chances[:1])
        noise = quantiles(mechanism.query_noise, mechanism.branches[0].rate, chances[1:])
        left, muted = mechanism.top_units, np.zeros(values.shape[1], np.int64)
        reached, _ = mechanism.reached(tested.ravel(), steps, rho, left, 0, reaching([noise].__getitem__))
        for window, series in zip(*np.unravel_index(reached, tested.shape), strict=True):
            if window >= muted[series] and not mechanism.is_spent(left):
                left -= mechanism.branches[0].charge_units
                muted[series] = window + mute
                told[first + window, series] = True
    return told


def incidents_found(keys: str, weeks: int, random: np.random.Generator) -> float:
    """Return how many incidents of a week are found, on average."""
    (spec, question, _), found = monitor(keys), 0
    for _ in range(weeks):
        counts, series = random.poisson(300, (question.look_back + WEEK, SERIES)), random.permutation(SERIES)
        for number, one in enumerate(series[: SPIKES + INCIDENTS]):
            begin = random.integers(question.look_back, len(counts) - LASTS)
            counts[begin : begin + (LASTS if number < INCIDENTS else 1), one] = random.integers(750, 2000)
        told = alerts(spec, answers(question, counts, question.look_back), THRESHOLD, WEEK, random)
        found += told[:, series[:INCIDENTS]].any(axis=0).sum()
    return found / weeks


def shop(weeks: int, random: np.random.Generator) -> tuple[Integers, Integers, Mask]:
    """Return counts of four weeks and so many more, the series' highest usual counts, and where bursts are."""
    hours = np.arange((4 + weeks) * WEEK)
    curve = (0.6 - 0.4 * np.cos(2 * np.pi * hours / 24)) * np.where(hours % WEEK < 120, 1, 0.8)
    peaks = 100_000 * counts_of("retail")[:SERIES] / 88_162  # the data are of so many baskets
    levels = 1 + 0.03 * random.standard_normal((4 + weeks, SERIES))
    usual = curve[:, np.newaxis] * peaks * levels.repeat(WEEK, axis=0)
    sizes = random.uniform(0.3, 1, usual.shape) * peaks * curve[:WEEK].mean()
    bursts = np.zeros(usual.shape, np.bool_)
    for first in range(4 * WEEK, len(hours), WEEK):
        bursts[first : first + WEEK].flat[random.choice(WEEK * SERIES, BURSTS, replace=False)] = True
    return random.poisson(usual + bursts * sizes), (peaks * curve.max()).astype(int), bursts


def usual_found(weeks: int, random: np.random.Generator) -> dict[str, float]:
    """Return the share of bursts that are found at best, by the thresholds of series and by `usual`."""
    counts, highest, bursts = shop(weeks, random)

    def found(keys: str, bars: list[tuple[int, ...]]) -> float:
        (spec, question, _), best = monitor(keys), 0
        for bar in bars:
            values = answers(msgspec.structs.replace(question, thresholds=bar), counts, 4 * WEEK)
            for threshold in range(0, 1501, 100):
                told = alerts(spec, values, threshold, WEEK, random)
                true = int((told & bursts[4 * WEEK :]).sum())
                best = max(best, true if true >= PRECISION * told.sum() else 0)
        return best / int(bursts.sum())

    by_factor = {f"factor_{factor}": found(f"usual: {{factor: {factor}}}", [()]) for factor in FACTORS}
    bars = [tuple((highest * part // 20).tolist()) for part in range(10, 31)]
    return {"thresholds": found("", bars)} | by_factor


def rises_found(keys: str, level: int, weeks: int, random: np.random.Generator) -> tuple[float, float]:
    """Return the median of windows until a rise is reported, of those that are, and the share of them."""
    (spec, question, _), delays = monitor(keys), list[float]()
    bar = 0 if keys else OVER
    for _ in range(weeks):
        counts, series = random.poisson(475, (question.look_back + WEEK, SERIES)), random.permutation(SERIES)
        begins = random.integers(0, WEEK // 2, INCIDENTS)
        for begin, one in zip(begins.tolist(), series[:INCIDENTS].tolist(), strict=True):
            rest = counts[question.look_back + begin :, one]
            rest[:] = random.poisson(level, len(rest))
        told = alerts(spec, answers(question, counts, question.look_back), bar, WEEK, random, WEEK)
        of_rises = [told[begin:, one] for begin, one in zip(begins, series[:INCIDENTS], strict=True)]
        delays += [1 + float(one.argmax()) if one.any() else np.inf for one in of_rises]
    found = np.isfinite(delays)
    return float(np.median(np.array(delays)[found])) if found.any() else np.inf, float(found.mean())


def found_in_a_year(years: int, random: np.random.Generator) -> float:
    """Return how many of the alerts of a year are found, on average."""
    share = Renewal(4 * UNITS_PER_EPSILON, 30 * DAY_MS, 0, PERIOD * HOUR).share
    like, found = monitor()[0].mechanism(), 0
    cutoff = (share - like.threshold_units) // like.largest_units
    run = f"epsilon: {share / UNITS_PER_EPSILON:.9f}, cutoff: {cutoff}, expected_queries: {SERIES * PERIOD}"
    spec, _, _ = monitor(f"split: {cutoff * like.largest_units / like.threshold_units:.9f}", run)
    for _ in range(years):
        counts = np.zeros((YEAR, SERIES), np.int64)
        counts.flat[random.choice(counts.size, ALERTS, replace=False)] = THRESHOLD + DISTANCE
        found += int((alerts(spec, counts, THRESHOLD, PERIOD, random) & (counts > 0)).sum())
    return found / years


def detect_error(tests: int, random: np.random.Generator) -> tuple[float, float]:
    """Return the largest relative error of the epsilon of `detect`, and the longest processor time of solving."""
    errors, seconds = list[float](), list[float]()
    for series in (8, 1024):  # the next power of two
        problem, began = RunProblem(FAR, 1, 10, series * 30 * 24), time.process_time()
        epsilon, split = solve.__wrapped__(problem) or (Fraction(0), Fraction(0))
        seconds.append(time.process_time() - began)
        chances, counts = list[float](), np.full((tests, 1), THRESHOLD + FAR)
        for part in ERRORS:
            run = f"epsilon: '{epsilon * part}', cutoff: 10, expected_queries: {problem.queries}, split: '{split}'"
            chances.append(float(alerts(monitor(run=run)[0], counts, THRESHOLD, 1, random).mean()))
        found = np.interp(SURE, chances, [float(part) for part in ERRORS])
        errors.append(abs(float(found) - 1))
    return max(errors), max(seconds)


def counter_cost(events: int, series: int, random: np.random.Generator) -> float:
    """Return the time of four questions, over reading and counting events of 60 bytes, without the counter's log."""
    reader, key = EventReader(monitor(series=series)[2]), UnitHash(bytes(16))
    value = b'{"user":"u%06d","page":"/page/%05d","status":200,"ms":10}'
    offset, none, length = np.arange(events), np.full(events, -1), len(value % (0, 0))
    values = b"".join([value % (number, number % series) for number in range(events)])
    records = Records(values, offset, none, none, none, offset * length, none * -length)
    counts = random.poisson(300, (4 * WEEK + 1, series))
    questions = [asked_about(monitor(keys)[1], counts) for keys in TYPICAL]
    turns = list[float]()
    for _ in range(5):
        began, tally = time.process_time(), Tally(np.ones(series, np.int64))
        assert all(one.about(4 * WEEK * HOUR).known.all() for one in questions)
        asked = time.process_time()
        for first in range(0, events, 50_000):
            batch = records[first : first + 50_000]
            tally.add(sorted_keys(pack(batch.offset % series, key.of(*reader.read(batch).unit))))
        assert tally.counts().sum() == events
        turns.append((asked - began) / (time.process_time() - asked))
    return float(np.median(turns))


def figures(weeks: int = 200, years: int = 100, events: int = 1_000_000, seed: int = 1) -> dict[str, float]:
    """Return what questions find and cost."""
    random = np.random.default_rng(seed)
    shown = {f"true_alerts{name}": incidents_found(keys, weeks, random) for name, keys in LASTING.items()}
    distance, of_share = (reported_margin(monitor(keys)[0], 0.95) for keys in ("", SHARE))
    shown["share_distance_vs_count"] = float(of_share / distance)
    found = usual_found(weeks // 4, random)
    shown["usual_gain_over_thresholds"] = found["factor_1.1"] / found["thresholds"]
    shown |= {f"usual_found.{name}": part for name, part in found.items()}
    for level in (525, 600, 550):
        shown[f"excess_delay_{level}"], share = rises_found(RISING, level, weeks // 4, random)
    shown["excess_delay_550.found"] = share
    _, shown["excess_delay_550.plain_found"] = rises_found("", 550, weeks // 4, random)
    shown["rolling_alerts_per_year"] = found_in_a_year(years, random)
    shown["detect_error"], shown["detect_seconds"] = detect_error(events // 50, random)
    return shown | {"counter_cost": counter_cost(events, events // 50, random)}


if __name__ == "__main__":
    show(figures)
