"""Nothing visible distinguishes a stream from its neighbour under any configuration; broken rules are detected."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from msgspec import structs

from stream_svt.columns.query_batch import QueryBatch
from stream_svt.columns.strings import KeyedHash, TextCodes
from stream_svt.errors import ConfigError
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.mechanisms.grid import PARTS
from stream_svt.mechanisms.sampler import Blocks, Packing
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import Alert
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.state.runs import Runs
from stream_svt.monitor.state.snapshot import Waiting
from stream_svt.monitor.testing.query_tester import QueryTester
from stream_svt.monitor.testing.retry import RetryAppend
from stream_svt.proving import Summary, neighbours, prove, streams
from stream_svt.proving.neighbours import check_case
from stream_svt.proving.streams import ACTIONS, case_of, reduce_spec
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.maintenance import Maintenance
from stream_svt.settings.monitors import MonitorSpec
from tests.support.cases import MAX_CASES, sources
from tests.support.monitor_forms import FORMS, spec_of

RESTING = (
    ", maintenance: [{from: 1970-01-01T00:16:50Z, until: 1970-01-01T00:16:58Z}, {every: Thu 00:17-00:18}]"
)
"""Maintenance at the times of random streams."""
CONFIGURATIONS = 20
CASES = 2


def any_grid(rng: random.Random) -> str:
    """A random topic, grid and declaration: monitors that share them test long records together."""
    topic, bounds = rng.choice(["t", "t", "u"]), rng.choice(["[0, 100000]", "[-50, 700]"])
    declared = f"sensitivity: {rng.choice(['1', '2', '5/2'])}, monotonic: {rng.choice(['true', 'false'])}"
    return f"topic: {topic}, bounds: {bounds}, granularity: {rng.choice(['1', '1/4', '0.01', '5/2'])}, {declared}"


def any_monitor(rng: random.Random, name: str, grid: str) -> str:
    """A monitor with random options of every kind."""

    def one_of(*options: str) -> str:
        return rng.choice(options)

    append = one_of(
        "",
        "",
        ", append: sweep",
        ", append: {sweep: {alerts_per_set: 2, max_open_sets: 2, max_set_size: 7, close_after: 2s}}",
        ", append: {retry: {attempts: 4, lifetime: 300, capacity: 4, every: 5}}",
        ", append: {retry: {attempts: 3, lifetime: 2s, capacity: 3, every: 4}}",
    )
    sets = "sweep" in append
    return (
        f"name: {name}, {grid}, epsilon: {one_of('1', '0.3', '2.5')}, "
        f"cutoff: {one_of('1', '3', '6')}, threshold: {one_of('500', '0', '20.5')}"
        + one_of("", ", mechanism: adaptive", ", mechanism: ladder")
        + one_of("", "", ", query_noise: laplace", ", threshold_noise: laplace")
        + (", correction: {annealed: {start: 4, end: 0}}" if sets else ", expected_queries: 50")
        + one_of("", ", mute: none", ", mute: run", ", mute: 2s", ", mute: 1s, max_mutes: 2")
        + one_of("", "", ", resample_every: 4s")
        + one_of("", ", max_runs: off", ", max_runs: 1 per 1s", ", max_runs: 3 per 5s")
        + one_of("", "", "", ", on_halt: stop")
        + one_of("", "", RESTING)
        + one_of("", "", ", datasets: [a, b]")
        + append
    )


def any_spec(rng: random.Random) -> ApplicationSpec:
    """An application with random monitors and budgets."""
    while True:
        limit = rng.choice(["9", "30", "2.4", "{rho: 6}"])
        grids = [any_grid(rng)] * 2 if rng.random() < 0.5 else [any_grid(rng), any_grid(rng)]
        named = [any_monitor(rng, f"m{k}", grid) for k, grid in enumerate(grids)]
        monitors = "".join(f"  - {{{monitor}}}\n" for monitor in named[: 1 + rng.randrange(2)])
        text = f"application: app\ndatasets:\n  - {{names: [a, b, c], limit: {limit}, unit: one basket}}\nmonitors:\n"
        try:
            spec = load_spec(text + monitors)
        except ConfigError:
            continue
        return in_periods(spec, rng) if rng.random() < 0.3 else spec


def in_periods(spec: ApplicationSpec, rng: random.Random) -> ApplicationSpec:
    """An application whose datasets count queries from a moment to another of a random stream."""
    datasets = []
    for dataset in spec.datasets:
        begin, length = 1_000_000 + 1_000 * rng.randrange(20), 1_000 * (1 + rng.randrange(40))
        terms = replace(dataset.terms, from_ms=begin, until_ms=begin + length, lateness_ms=500)
        datasets.append(structs.replace(dataset, terms=terms))
    return replace(spec, datasets=tuple(datasets))


def changed(spec: ApplicationSpec, rng: random.Random) -> list[ApplicationSpec]:
    """Specifications that may be applied one after another."""
    later = []
    for _ in range(rng.randrange(3)):
        updates = [
            {"threshold": Fraction(rng.randrange(600))},
            {"cutoff": 1 + rng.randrange(5)},
            {"max_mutes": 1 + rng.randrange(4)},
            {"granularity": Fraction(1, 2)},
            {"maintenance": (Maintenance(1_010_000, 1_050_000),)},
            {"monotonic": False},
            {"sensitivity": Fraction(5)},  # no less than any monitor has
        ]
        update = rng.choice(updates)
        spec = replace(spec, monitors=tuple(one.model_copy(update=update) for one in spec.monitors))
        later.append(spec)
    return later


TOGETHER = [
    ("plain", "adaptive"),
    ("retry, general", "general"),
    ("sweep", "few short mutes"),
    ("resampled", "ladder", "never muted"),
]
"""Monitors of one grid and topic."""
OF_ALL = FORMS | {"retry, general": FORMS["retry"].replace("monotonic: true", "monotonic: false")}


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
def test_neighbouring_streams_cannot_be_distinguished_under_a_random_configuration(seed):
    spec = any_spec(random.Random(seed))
    for rng in sources(f"random {seed}", CASES):
        small = reduce_spec(spec, rng)
        counterexample = check_case(case_of(small, rng, changed(small, rng)), rng, Summary())
        assert counterexample is None, counterexample


@pytest.mark.parametrize("form", ["plain", "sweep by clock", "retry by clock", "resampled"])
def test_neighbouring_streams_cannot_be_distinguished_with_maintenance(form):
    summary, plain = (prove(spec_of(FORMS[form] + more), sources(form, 3)) for more in (RESTING, ""))
    assert summary.counterexample is None, summary.counterexample
    assert 0 < summary.queries < plain.queries


@pytest.mark.parametrize("form", FORMS)
def test_neighbouring_streams_cannot_be_distinguished_in_any_form(form):
    summary = prove(spec_of(FORMS[form]), sources(form, 3))
    assert summary.counterexample is None, summary.counterexample
    assert summary.alerts > 0
    assert summary.largest_cost <= 1


@pytest.mark.parametrize("forms", TOGETHER, ids=" and ".join)
def test_neighbouring_streams_cannot_be_distinguished_in_records_that_monitors_test_together(
    forms, monkeypatch
):
    reached = Counter()

    def count(owner, name, what, holds):
        original = getattr(owner, name)

        def counted(*given, **options):
            result = original(*given, **options)
            reached[what] += bool(holds(result, *given))
            return result

        monkeypatch.setattr(owner, name, counted)

    def is_within(_, engine, *__):
        return any(runner.row for runner in engine.runners.values())

    monkeypatch.setattr(streams, "_COLUMNAR", 1)
    count(QueryBatch, "packing", "packed together", lambda packing, *_: packing)
    count(TextCodes, "coded", "series by code", lambda *_: True)
    count(neighbours, "load", "a restart within a record", is_within)
    summary = prove(spec_of(*(OF_ALL[form] for form in forms)), sources("together", 8))
    assert summary.counterexample is None, summary.counterexample
    assert summary.alerts > 0
    assert summary.largest_cost <= 1
    assert all(reached.values()), reached
    assert len(reached) == 3


@pytest.mark.parametrize("forms", [*TOGETHER, ("retry",)], ids=" and ".join)
def test_neighbouring_streams_cannot_be_distinguished_where_hashes_of_series_collide(forms, monkeypatch):
    """A collision mutes a series with another one: a public fact, the same on both streams."""
    of, of_slices = KeyedHash.of, KeyedHash.of_slices
    monkeypatch.setattr(KeyedHash, "of", lambda *given: of(*given) & 3)
    monkeypatch.setattr(KeyedHash, "of_slices", lambda *given: of_slices(*given) & np.uint64(3))
    summary = prove(spec_of(*(OF_ALL[form] for form in forms)), sources("colliding", 4))
    assert summary.counterexample is None, summary.counterexample
    assert summary.alerts > 0
    assert summary.largest_cost <= 1


def test_some_alignment_costs_all_that_was_charged():
    """Otherwise the comparison of costs could miss a charge that is slightly too low."""
    assert prove(spec_of(FORMS["plain"]), sources("tight", 15)).largest_cost == 1


def test_an_answer_that_moves_further_than_declared_is_a_counterexample():
    spec = spec_of(FORMS["plain"])
    moved = replace(
        spec, monitors=tuple(m.model_copy(update={"sensitivity": Fraction(3)}) for m in spec.monitors)
    )
    assert any(
        check_case(replace(case_of(moved, rng), spec=spec), rng, Summary())
        for rng in sources("further", MAX_CASES)
    )


GENERAL = FORMS["general"].replace("cutoff: 3", "cutoff: 6")
RETRY = FORMS["retry"].replace("epsilon: 1", "epsilon: 20")
"""With a large epsilon values lie close together, so a neighbour changes their order."""
PLAIN, FINE = FORMS["plain"], FORMS["fine"]
MUTANTS: dict[str, tuple[type, str, Callable[..., object], tuple[str, ...]]] = {}
"""Class, method, what is called instead (with the original first), and the forms of the monitors."""


def mutant(owner: type, method: str, *forms: str):
    def register(changed: Callable[..., object]) -> None:
        MUTANTS[changed.__name__] = owner, method, changed, forms or (PLAIN,)

    return register


def _value(entry: Waiting) -> int:
    return int.from_bytes(entry.value, "little", signed=True)


@mutant(RetryAppend, "_arrive", RETRY)
def evicts_the_smallest(original, self, dataset, queue, *rest, **options):
    if len(queue.entries) >= self.rules.capacity:
        least = min(queue.entries, key=lambda name: _value(queue.entries[name]))
        queue.entries = {least: queue.entries[least]} | queue.entries
    return original(self, dataset, queue, *rest, **options)


@mutant(RetryAppend, "_sweep", RETRY)
def retries_the_largest_first(original, self, dataset, queue, *rest):
    queue.entries = dict(sorted(queue.entries.items(), key=lambda item: -_value(item[1])))
    original(self, dataset, queue, *rest)


@mutant(Engine, "step")
def is_urgent_for_an_odd_number_of_high_values(original, self, batch):
    done = original(self, batch)
    return done._replace(urgent=done.urgent or bool((batch.whole >= 500).sum() % 2))


@mutant(Engine, "take_commit", RETRY)
def stores_values_in_as_few_bytes_as_they_need(original, self):
    commit = original(self)
    queues = [queue for runner in self.runners.values() for queue in runner.runs.queues.values()]
    values = [_value(entry) for queue in queues for entry in queue.entries.values()]
    commit.records[b"z/values"] = bytes(sum((value.bit_length() + 7) // 8 for value in values))
    return commit


@mutant(QueryTester, "_begin")
def mutes_what_is_high(original, self, *rows):
    segment = original(self, *rows)
    whole = segment.view.batch.whole[segment.start : segment.stop]
    high = segment.live & (whole >= 500)
    segment.live[high], segment.muted[high] = False, True
    return segment


@mutant(Runner, "_eligible", PLAIN + RESTING)
def tests_what_is_high_in_maintenance(original, self, batch, *rest):
    eligible, outside, resting = original(self, batch, *rest)
    high = [row for row in resting if batch.whole[row] >= 500]
    eligible[high] = True
    return eligible, outside, [row for row in resting if row not in high]


@mutant(Engine, "step")
def refuses_what_is_negative(original, self, batch):
    done = original(self, batch)
    if done.done:
        negative = batch.offset[batch.whole < 0]
        self.accounts.next.rejects.extend((batch.topic, int(at), "bad") for at in negative)
    return done


@mutant(MonitorSpec, "mechanism", GENERAL)
def takes_the_monotonic_rate_for_all(original, self):
    return original(self.model_copy(update={"monotonic": True}))


@mutant(Runs, "report")
def forgets_the_charge_of_a_top(original, self, *top):
    events = self.accounts.next.events
    number = len(events)
    woken = original(self, *top)
    alert = events[number].data
    free = structs.replace(alert.account, charge=0.0)
    events[number] = structs.replace(events[number], data=structs.replace(alert, account=free))
    return woken


@mutant(QueryBatch, "packing", FINE, PLAIN)
def packs_for_the_grid_of_another_monitor(original, self, grid, *rows):
    grid = vars(self).setdefault("first_grid", grid)
    self.shared = {grid: 2}
    return original(self, grid, *rows)


@mutant(Packing, "__init__", PLAIN, PLAIN)
def packs_without_the_row(original, self, offset, row, value):
    original(self, np.full(len(value), offset), 0, value)
    self.columns = offset, row, 0, value


@mutant(Blocks, "_salt", PLAIN, PLAIN)
def salts_a_packing_as_for_its_first_monitor(original, self, packing, identity, part):
    if getattr(self, "packing", None) is not packing:
        self.packing, self.salt = packing, identity.salt
    original(self, packing, identity._replace(salt=self.salt), part)


@mutant(QueryTester, "reached", PLAIN, PLAIN)
def takes_the_threshold_noise_of_another_dataset(original, self, tests, *rest, **options):
    noise, secrets = self.runs.secrets["noise"], self.runs.secrets.copy()
    if tests.packing is not None:
        noise[tests.dataset] = noise[tests.dataset - 1]
    result = original(self, tests, *rest, **options)
    self.runs.secrets[:] = secrets
    return result


@mutant(QueryTester, "_find_tops", PLAIN.replace("cutoff: 3", "cutoff: 1"))
def reports_rows_behind_the_last_top_of_a_run(original, self, segment):
    rows, gaps, _ = self.candidates(segment.view, segment.start, segment.live)
    original(self, segment)
    of_record = segment.is_long and isinstance(segment.dataset, int)
    if not (of_record and segment.tops) or self.runs.is_open(segment.dataset):
        return
    events, batch = self.runs.accounts.next.events, segment.view.batch
    event = next(event for event in reversed(events) if isinstance(event.data, Alert))
    free = structs.replace(event.data.account, charge=0.0)
    for row, gap in zip(rows.tolist(), gaps[0].tolist(), strict=True):
        if row > segment.tops[-1] and gap >= 0:
            at = structs.replace(event.data.position, row=int(batch.row[row]))
            alert = structs.replace(event.data, position=at, gap=float(gap), account=free)
            events.append(structs.replace(event, data=alert))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_of_the_engine_is_detected(name, monkeypatch):
    owner, method, changed, forms = MUTANTS[name]
    original = getattr(owner, method)
    monkeypatch.setattr(Plan, "of", Plan.of.__wrapped__.__get__(Plan))
    monkeypatch.setattr(owner, method, lambda *given, **options: changed(original, *given, **options))
    limit = "{names: [a, b, c], limit: 300, unit: one basket}"
    assert prove(spec_of(*forms, datasets=limit), sources(name, MAX_CASES)).counterexample is not None


def test_the_stream_reacts_to_what_was_released(monkeypatch):
    chosen = Counter()
    original = neighbours._Execution._choice

    def counted(self, offset):
        choice = original(self, offset)
        chosen[bool(self.alerts), choice] += 1
        return choice

    monkeypatch.setattr(neighbours._Execution, "_choice", counted)
    assert prove(spec_of(PLAIN), sources("reacting", 3)).counterexample is None
    assert min(chosen[True, 0], chosen[True, 1]) > 20


def test_a_stream_that_reacts_to_true_values_is_a_counterexample(monkeypatch):
    """As where somebody acts on the raw counts: what is asked later tells of values that no alert released."""

    def high_values(self, offset):
        rows = (row for records in self.written.values() for record in records for row in record.rows)
        return sum(row.value is not None and row.value >= 500 * PARTS for row in rows) % 2

    monkeypatch.setattr(neighbours._Execution, "_choice", high_values)
    assert prove(spec_of(PLAIN), sources("raw", MAX_CASES)).counterexample is not None


def test_cases_cover_directions_of_all_kinds():
    cases = (case_of(spec_of(FORMS["general"]), rng) for rng in sources("directions", 20))
    assert {direction for case in cases for direction in case.directions} == set(Neighbours)


def test_every_command_to_datasets_is_played():
    assert {*ACTIONS} == {*Action} - {Action.ACCEPT_LOSS, Action.CLOSE_APPLICATION}
