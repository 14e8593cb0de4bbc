"""Applications that the simulator runs, and streams that make them alert, halt, retry and run dry."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np

from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.sources.counts import CountsRecord, records_of, records_of_question
from stream_svt.sources.questions import Values

DATASETS = ("a", "b")
TOPIC, OTHER = "t", "u"

COMMON = "epsilon: 1, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500"
_LIMITED = f"{COMMON}, cutoff: 3, expected_queries: 1000, max_runs: 2 per 3s"
STREAM = f"{COMMON}, cutoff: 3, expected_queries: 1000, max_runs: off"
RETRY = "append: {retry: {attempts: 3, lifetime: 60, capacity: 4, every: 5}}"
_SWEEP = "correction: {annealed: {start: 8, end: 2}}, append: {sweep: {alerts_per_set: 2, max_open_sets: 2}}"

APPLICATIONS = (
    (f"topic: t, {STREAM}, mute: none",),
    (f"topic: t, {STREAM}, mechanism: adaptive, mute: run", f"topic: t, {_LIMITED}, {RETRY}, mute: none"),
    (
        f"topic: t, {COMMON}, max_runs: off, cutoff: 3, {_SWEEP}",
        f"topic: u, {_LIMITED}, resample_every: 2s, mute: 1s",
    ),
    (f"topic: t, {STREAM}, mechanism: ladder, mute: none", f"topic: u, {STREAM}, on_halt: stop, mute: none"),
)

CADENCES = (None, None, None, "250ms")

COUNTED = len(APPLICATIONS)
"""Number of the application whose monitors test counts of a source, for ends of incidents and for silences."""
_SOURCE = (
    "name: s, topic: raw, unit: user, window: 1s, every: 1s, lateness: 1s, settle: 0s, time: {field: ts, in: ms}, "
    'dataset: {pattern: "{name}", field: shop, names: [a, b]}, series: {field: page, names: [i0, i1, i2]}, '
    "measures: [{name: all}]"
)
_COUNTS = (
    "source: s, measure: all, epsilon: 1, cutoff: 3, threshold: 500, expected_queries: 1000, max_runs: off"
)
_WITH_END = f"{{name: m0, {_COUNTS}, end: {{below: 400, longest: 4s}}}}"
_WATCHING = f"{{name: m1, {_COUNTS}, mute: 1s, not_renewed: 1}}"


@dataclass(frozen=True)
class Application:
    """What runs, key and content of a query by its number, and what an operator may configure instead.

    ``counts`` returns a record of counts instead, at a time (ms).
    ``others`` have another threshold, another price and noise, a monitor more on another topic, or one less; or one
    dataset only, which retires the other.
    """

    spec: ApplicationSpec
    query: Callable[[random.Random, int], tuple[bytes, bytes]]
    counts: Callable[[random.Random, int, int], CountsRecord] | None = None
    cadence: str | None = None
    others: tuple[ApplicationSpec, ...] = ()


@cache
def application(number: int) -> Application:
    """Return an application with two datasets of limit 5, enough for five runs."""
    if number == COUNTED:
        return _counted()
    monitors = monitors_of(number)
    more = [*monitors, f"{{name: more, topic: {OTHER}, {STREAM}, mute: none}}"]
    changed = [monitors[0].replace("threshold: 500", "threshold: 510"), *monitors[1:]]
    priced = [monitors[0].replace("epsilon: 1", "epsilon: 2"), *monitors[1:]]
    others = [changed, priced, more, *([monitors[:-1]] if len(monitors) > 1 else [])]
    specs = [declared(*other, names="a, b") for other in others]
    specs += [declared(*other, names="a") for other in (monitors, more)]
    return Application(
        declared(*monitors, names="a, b"), query, cadence=CADENCES[number], others=tuple(specs)
    )


def _counted() -> Application:
    """Return the application `COUNTED`; others differ in a threshold, a price, ends or watches."""
    changed = _WITH_END.replace("threshold: 500", "threshold: 510").replace("400", "390")
    priced = _WITH_END.replace("epsilon: 1,", "epsilon: 2,")
    unended = _WITH_END.replace("end: {below: 400, longest: 4s}", "mute: 4s")
    unwatched = _WATCHING.replace(", not_renewed: 1", "")
    both = [(_WITH_END, _WATCHING), (changed, _WATCHING), (priced, _WATCHING), (unended, _WATCHING)]
    first, *others = (
        declared(*one, names="a, b", sources=_SOURCE) for one in (*both, (_WITH_END, unwatched))
    )
    (source,) = first.sources
    listed = first.window_list(source)
    shape = len(listed.datasets), len(listed.series)

    def counts(chance: random.Random, number: int, now_ms: int) -> CountsRecord:
        tick = now_ms // 1000 * 1000
        window = tick - 2000
        values = np.array([chance.choice((0, 300, 480, 90_000)) for _ in range(shape[0] * shape[1])])
        found = [*records_of(source, listed, window, tick, values)]
        answers = Values(-values.reshape(shape), np.ones(shape, np.bool_))
        found += records_of_question(source, listed, listed.questions[0], window, tick, answers)
        return found[number % len(found)]

    return Application(first, query, counts, others=tuple(others))


def monitors_of(number: int) -> list[str]:
    return [f"{{name: m{k}, {text}}}" for k, text in enumerate(APPLICATIONS[number])]


def declared(*monitors: str, names: str = "d0", limit: float = 5, sources: str = "") -> ApplicationSpec:
    """Return an application with these monitors on these datasets, and a source where it has one."""
    datasets = f"{{names: [{names}], limit: {limit}{'' if sources else ', unit: one basket'}}}"
    listed = "".join(f"  - {monitor}\n" for monitor in monitors)
    counted = f"sources: [{{{sources}}}]\n" if sources else ""
    return load_spec(f"application: app\n{counted}datasets:\n  - {datasets}\nmonitors:\n{listed}")


def query(chance: random.Random, number: int) -> tuple[bytes, bytes]:
    """Return key and JSON of a query; some mark the end of a set, some are malformed."""
    dataset = chance.choice(DATASETS).encode()
    kind = chance.random()
    if kind < 0.04:
        return dataset, b'{"id": broken'
    name = f"s{number // 12}"
    if kind < 0.12:
        return dataset, msgspec.json.encode({"set": name, "closed": True, "id": f"q{number}"})
    value = chance.choice((0, 480, 500, 520, 90_000, 90_000))
    body: dict[str, object] = {"id": f"q{number}", "value": value, "series": f"i{chance.randrange(6)}"}
    if chance.random() < 0.8:
        body["set"] = name
    return dataset, msgspec.json.encode(body)
