"""Nothing visible distinguishes a stream from its neighbour under any configuration; broken rules are detected."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from msgspec import structs

from stream_svt.errors import ConfigError
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.monitor.batch import Segment
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.query_tester import QueryTester
from stream_svt.monitor.retry import RetryAppend
from stream_svt.monitor.runs import Plan, Runs
from stream_svt.monitor.snapshot import Waiting
from stream_svt.proving import Summary, prove
from stream_svt.proving.neighbours import check_case
from stream_svt.proving.streams import case_of, reduce_spec
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.monitors import MonitorSpec
from tests.support.monitor_forms import FORMS, spec_of

CONFIGURATIONS = 40
CASES = 2
MAX_CASES = 150
"""Number of cases within which a mutant must be detected."""


def choice(rng: random.Random, *options: str) -> str:
    return rng.choice(options)


def any_monitor(rng: random.Random, name: str) -> str:
    """A monitor with random options of every kind."""
    append = choice(
        rng,
        "",
        "",
        ", append: sweep",
        ", append: {sweep: {tops_per_set: 2, max_open_sets: 2, max_set_size: 7, close_after: 2s}}",
        ", append: {retry: {attempts: 4, lifetime: 300, capacity: 4, every: 5}}",
        ", append: {retry: {attempts: 3, lifetime: 2s, capacity: 3, every: 4}}",
    )
    sets = "sweep" in append
    return (
        f"name: {name}, topic: {choice(rng, 't', 't', 'u')}, epsilon: {choice(rng, '1', '0.3', '2.5')}, "
        f"cutoff: {choice(rng, '1', '3', '6')}, sensitivity: {choice(rng, '1', '2', '5/2')}, "
        f"monotonic: {choice(rng, 'true', 'false')}, bounds: {choice(rng, '[0, 100000]', '[-50, 700]')}, "
        f"threshold: {choice(rng, '500', '0', '20.5')}, granularity: {choice(rng, '1', '1/4', '0.01', '5/2')}"
        + choice(rng, "", ", mechanism: adaptive", ", mechanism: ladder")
        + choice(rng, "", "", ", query_noise: laplace", ", threshold_noise: laplace")
        + (", correction: {annealed: {start: 4, end: 0}}" if sets else ", expected_queries: 50")
        + choice(rng, "", ", mute: none", ", mute: run", ", mute: 2s", ", mute: 1s, max_mutes: 2")
        + choice(rng, "", "", ", resample_every: 4s")
        + choice(rng, "", "", "", ", on_halt: stop")
        + choice(rng, "", "", ", datasets: [a, b]")
        + append
    )


def any_spec(rng: random.Random) -> ApplicationSpec:
    """An application with random monitors and budgets."""
    while True:
        limit = choice(rng, "9", "30", "2.4", "{rho: 6}")
        monitors = "".join(f"  - {{{any_monitor(rng, f'm{k}')}}}\n" for k in range(1 + rng.randrange(2)))
        text = f"application: app\ndatasets:\n  - {{names: [a, b, c], limit: {limit}, unit: one basket}}\nmonitors:\n"
        try:
            return load_spec(text + monitors)
        except ConfigError:
            continue


def changed(spec: ApplicationSpec, rng: random.Random) -> list[ApplicationSpec]:
    """Specifications that may be applied one after another."""
    later = []
    for _ in range(rng.randrange(3)):
        updates = (
            {"threshold": Fraction(rng.randrange(600))},
            {"cutoff": 1 + rng.randrange(5)},
            {"max_mutes": 1 + rng.randrange(4)},
            {"monotonic": False},
            {"sensitivity": Fraction(5)},
            {"granularity": Fraction(1, 2)},
        )
        update = rng.choice(updates)
        monitors = tuple(
            m.model_copy(update={name: max(getattr(m, name), new) if name == "sensitivity" else new})
            for m in spec.monitors
            for name, new in update.items()
        )
        spec = replace(spec, monitors=monitors)
        later.append(spec)
    return later


def sources(seed: str, cases: int) -> Iterator[random.Random]:
    return (random.Random(f"{seed} {number}") for number in range(cases))


@pytest.mark.parametrize("seed", range(CONFIGURATIONS))
def test_neighbouring_streams_cannot_be_distinguished_under_a_random_configuration(seed):
    spec = any_spec(random.Random(seed))
    for rng in sources(f"random {seed}", CASES):
        small = reduce_spec(spec, rng)
        counterexample = check_case(case_of(small, rng, changed(small, rng)), rng, Summary())
        assert counterexample is None, counterexample


@pytest.mark.parametrize("form", FORMS)
def test_neighbouring_streams_cannot_be_distinguished_in_any_form(form):
    summary = prove(spec_of(FORMS[form]), sources(form, 3))
    assert summary.counterexample is None, summary.counterexample
    assert summary.alerts > 0
    assert summary.largest_cost <= 1


def test_some_alignment_costs_all_that_was_charged():
    """Otherwise the comparison of costs could miss a charge that is slightly too low."""
    assert prove(spec_of(FORMS["plain"]), sources("tight", 10)).largest_cost == 1


def test_an_answer_that_moves_further_than_declared_is_a_counterexample():
    spec = spec_of(FORMS["plain"])
    moved = replace(
        spec, monitors=tuple(m.model_copy(update={"sensitivity": Fraction(3)}) for m in spec.monitors)
    )
    assert any(
        check_case(replace(case_of(moved, rng), spec=spec), rng, Summary())
        for rng in sources("further", MAX_CASES)
    )


# Mutants: each breaks one rule of the engine.


def _value(entry: Waiting) -> int:
    return int.from_bytes(entry.value, "little", signed=True)


def evicts_the_smallest(patch: pytest.MonkeyPatch) -> None:
    original = RetryAppend._arrive

    def arrive(self: RetryAppend, dataset: int, queue: object, *rest: object, **options: object) -> bool:
        if len(queue.entries) >= self.rules.capacity:
            least = min(queue.entries, key=lambda name: _value(queue.entries[name]))
            queue.entries = {least: queue.entries[least]} | queue.entries
        return original(self, dataset, queue, *rest, **options)

    patch.setattr(RetryAppend, "_arrive", arrive)


def retries_the_largest_first(patch: pytest.MonkeyPatch) -> None:
    original = RetryAppend._sweep

    def sweep(self: RetryAppend, dataset: int, queue: object, *rest: object) -> None:
        queue.entries = dict(sorted(queue.entries.items(), key=lambda item: -_value(item[1])))
        original(self, dataset, queue, *rest)

    patch.setattr(RetryAppend, "_sweep", sweep)


def is_urgent_for_an_odd_number_of_high_values(patch: pytest.MonkeyPatch) -> None:
    original = Engine.step

    def step(self: Engine, batch: object) -> object:
        done = original(self, batch)
        return replace(done, urgent=done.urgent or bool((batch.whole >= 500).sum() % 2))

    patch.setattr(Engine, "step", step)


def stores_values_in_as_few_bytes_as_they_need(patch: pytest.MonkeyPatch) -> None:
    original = Engine.take_commit

    def take_commit(self: Engine) -> object:
        commit = original(self)
        waiting = [
            _value(entry)
            for runner in self.runners.values()
            for queue in runner.runs.queues.values()
            for entry in queue.entries.values()
        ]
        commit.records[b"z/values"] = bytes(sum((value.bit_length() + 7) // 8 for value in waiting))
        return commit

    patch.setattr(Engine, "take_commit", take_commit)


def mutes_what_is_high(patch: pytest.MonkeyPatch) -> None:
    original = QueryTester._mute_rows

    def mute_rows(self: QueryTester, segment: Segment, rows: object) -> None:
        original(self, segment, rows)
        whole = segment.view.batch.whole[segment.start : segment.stop]
        segment.mute(np.flatnonzero(segment.live & (whole >= 500)) + segment.start)

    patch.setattr(QueryTester, "_mute_rows", mute_rows)


def refuses_what_is_negative(patch: pytest.MonkeyPatch) -> None:
    original = Engine.step

    def step(self: Engine, batch: object) -> object:
        done = original(self, batch)
        if done.done:
            self.accounts.next.rejects.extend(
                (batch.topic, int(at), "bad") for at in batch.offset[batch.whole < 0]
            )
        return done

    patch.setattr(Engine, "step", step)


def takes_the_monotonic_rate_for_all(patch: pytest.MonkeyPatch) -> None:
    original = MonitorSpec.mechanism
    patch.setattr(
        MonitorSpec, "mechanism", lambda self: original(self.model_copy(update={"monotonic": True}))
    )


def forgets_the_charge_of_a_top(patch: pytest.MonkeyPatch) -> None:
    original = Runs.report

    def report(self: Runs, *top: object) -> object:
        events = self.accounts.next.events
        number = len(events)
        woken = original(self, *top)
        alert = events[number].data
        free = structs.replace(alert.account, charge=0.0)
        events[number] = structs.replace(events[number], data=structs.replace(alert, account=free))
        return woken

    patch.setattr(Runs, "report", report)


GENERAL = FORMS["general"].replace("cutoff: 3", "cutoff: 6")
RETRY = FORMS["retry"].replace("epsilon: 1", "epsilon: 20")
"""With a large epsilon values lie close together, so a neighbour changes their order."""
MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    evicts_the_smallest: RETRY,
    retries_the_largest_first: RETRY,
    is_urgent_for_an_odd_number_of_high_values: FORMS["plain"],
    stores_values_in_as_few_bytes_as_they_need: RETRY,
    mutes_what_is_high: FORMS["plain"],
    refuses_what_is_negative: FORMS["plain"],
    takes_the_monotonic_rate_for_all: GENERAL,
    forgets_the_charge_of_a_top: FORMS["plain"],
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_rule_is_detected(mutant, monkeypatch):
    monkeypatch.setattr(Plan, "of", Plan.of.__wrapped__.__get__(Plan))
    mutant(monkeypatch)
    limit = "{names: [a, b, c], limit: 300, unit: one basket}"
    summary = prove(spec_of(MUTANTS[mutant], datasets=limit), sources(mutant.__name__, MAX_CASES))
    assert summary.counterexample is not None


def test_cases_cover_directions_of_all_kinds():
    seen = set()
    for number in range(20):
        rng = random.Random(number)
        seen.update(case_of(spec_of(FORMS["general"]), rng).directions)
    assert seen == set(Neighbours)
