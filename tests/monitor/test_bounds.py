"""A step does a bounded amount, a commit holds a bounded amount, and neither changes what is released."""

from __future__ import annotations

import pytest

from stream_svt.monitor import operations, takeover
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import BOUNDS, Bounds
from stream_svt.monitor.takeover import change_spec, change_spec_in_slices, close_removed
from tests.golden.regenerate import journal
from tests.simulation.log import Broker, finish
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import (
    FORMS,
    MONOTONIC,
    ONE_TOP,
    TOPIC,
    counts,
    engine_state,
    spec_of,
    stream,
    transcript,
)

_MANY = f"{{names: [{', '.join(f'd{k}' for k in range(60))}], limit: 20, unit: one basket}}"
_AMPLE = "{names: [a, b, c], limit: 1000, unit: one basket}"
"""Which monitor gets the last run of a budget depends on the slices; here nobody has to go without."""


def bounded(bounds: Bounds, *forms: str, **options: str) -> Play:
    return Play(spec_of(*forms, **options), bounds=bounds)


TIGHT = (
    Bounds(runs=1),
    Bounds(runs=2, cost=7),
    Bounds(records=1),
    Bounds(size=1),
    Bounds(cost=1, rejects=1),
    Bounds(runs=3, records=4, size=6_000, cost=60),
)


@pytest.mark.parametrize(("number", "form"), list(enumerate(FORMS)))
def test_bounds_change_nothing_that_is_released(number: int, form: str) -> None:
    bounds = TIGHT[number % len(TIGHT)]
    queries = stream(5, 200, monitors=["m0", "m1"])
    other = "plain" if FORMS[form] in MONOTONIC else "general"  # declarations of one topic agree
    forms = FORMS[form], FORMS[other]
    free, tight = Play(spec_of(*forms, datasets=_AMPLE)), bounded(bounds, *forms, datasets=_AMPLE)
    free.play(TOPIC, queries)
    tight.play(TOPIC, queries)
    assert transcript(tight) == transcript(free)
    assert counts(tight)[0] == counts(free)[0]


def test_a_commit_opens_no_more_runs_than_it_may_and_writes_a_dataset_once_for_all_of_its_monitors() -> None:
    play = bounded(Bounds(runs=40), *[FORMS["plain"]] * 10, datasets=_MANY)
    play.play(TOPIC, [Query(k % 60, 0) for k in range(120)])
    opened = [sum(e.type is EventType.RUN_STARTED for e in commit.events) for commit in play.commits]
    assert sum(opened) == 600
    assert max(opened) == 40
    written = [sum(key.startswith(b"d/") for key in commit.records) for commit in play.commits]
    # Four datasets with ten runs each; tests of the ones before change no record.
    assert max(written) == 4
    assert sum(written) == 60


def test_no_commit_is_larger_than_it_may_be() -> None:
    bounds = Bounds(records=25, size=60_000)
    play = bounded(bounds, *[f"{FORMS['never muted']}, on_halt: resample"] * 3, datasets=_MANY)
    play.play(TOPIC, [Query(k % 60, 10**5) for k in range(600)])
    assert len(play.commits) > 20
    for commit in play.commits:
        assert len(commit.records) + len(commit.rejects) <= bounds.records + 3  # of the run that filled it
        assert sum(len(data or b"") for data in commit.records.values()) <= bounds.size
        assert len(commit.events) <= bounds.size // 400


def test_a_batch_of_rejects_is_reported_over_several_commits() -> None:
    play = bounded(Bounds(rejects=10), FORMS["plain"], FORMS["adaptive"])
    batch = batch_of(TOPIC, [], 0, 0)
    batch.end, batch.rejects = 95, [(offset, "not-json") for offset in range(95)]
    while not play.engine.step(batch).done:
        play.commit()
        play.crash()
    play.commit()
    assert max(len(commit.rejects) for commit in play.commits) == 10
    assert sorted(reject for commit in play.commits for reject in commit.rejects) == [
        (TOPIC, offset, "not-json") for offset in range(95)
    ]


def test_a_step_tests_no_more_queries_than_its_cost_allows() -> None:
    play = bounded(Bounds(cost=100), FORMS["plain"], FORMS["plain"])
    play.play(TOPIC, [Query(0, 0)])
    batch = batch_of(TOPIC, [Query(0, 0)] * 301, 1, 301)
    steps = 0
    while not play.engine.step(batch).done:
        steps += 1
        assert play.engine.next_offset(TOPIC) == 1 + 50 * steps
    assert steps == 5


def test_runs_that_a_new_specification_ends_are_closed_in_slices() -> None:
    play = bounded(Bounds(records=7), FORMS["plain"], FORMS["plain"], datasets=_MANY)
    play.play(TOPIC, [Query(k, 0) for k in range(60)])
    smaller = spec_of(FORMS["plain"], datasets=_MANY)
    slices = 0
    for _ in close_removed(play.engine, smaller):
        if play.engine.full:
            assert len(play.commit().records) <= 8
            slices += 1
    assert slices == 8
    change_spec(play.engine, smaller)
    commit = play.commit()
    assert list(play.engine.runners) == ["m0"]
    assert sum(e.type is EventType.RUN_CLOSED for c in play.commits for e in c.events) == 60
    assert len(commit.records) <= 7


def test_a_change_of_specification_in_slices_has_the_same_result_as_a_takeover(monkeypatch) -> None:
    monkeypatch.setattr(takeover, "AT_ONCE", 10)
    forms = FORMS["plain"] + ", resample_every: 1h", FORMS["retry"], FORMS["plain"]
    play = Play(spec_of(*forms, datasets=_MANY))
    play.play(TOPIC, [Query(k, 90_000 * (k % 7 == 0), f"s{k}", "set", time_ms=k) for k in range(60)])
    play.spec = spec_of(
        FORMS["plain"] + ", resample_every: 2h, datasets: [d1, d2, d3]",
        FORMS["retry"] + ", beta: 0.2",
        datasets=_MANY,
    )
    list(close_removed(play.engine, play.spec))
    assert sum(1 for _ in change_spec_in_slices(play.engine, play.spec)) > 10
    play.commit()
    assert engine_state(play.engine) == engine_state(play.loaded())


def test_refused_records_fit_a_commit_and_the_outbox_whatever_their_topic_is_called() -> None:
    topic = "q" * 249
    form = FORMS["never muted"].replace("topic: t,", f"topic: {topic},").replace("cutoff: 3", "cutoff: 300")
    play = Play(
        spec_of(
            form.replace("epsilon: 1,", "epsilon: 300,"),
            datasets="{names: [a], limit: 900, unit: one basket}",
        )
    )
    account = journal(Broker(now_ms=lambda: 0))
    finish(account.open())
    finish(account.commit(play.engine.take_commit()))
    refused = []
    long = ["\U0001f600" * 250 + f"{k:06}" for k in range(6000)]
    for first, last in ((0, 499), (499, 6000)):
        queries = [Query(0, 10**5, series=long[k]) for k in range(last)]
        batch = batch_of(topic, queries, first, min(first + 190, last))
        batch.end = last
        batch.query_id = [long[k] for k in range(len(batch))]
        batch.rejects = [(offset, "unsupported-content-type") for offset in range(first + 190, last)]
        while not (step := play.engine.step(batch)).done:
            if not step.durable_first:
                continue
            commit = play.engine.take_commit()
            assert len(commit.rejects) <= BOUNDS.rejects
            refused += commit.rejects
            finish(account.commit(commit))
            play.engine.committed()
            while account.backlog:
                finish(account.flush())
    commit = play.engine.take_commit()
    finish(account.commit(commit))
    refused += commit.rejects
    assert refused == [
        (topic, offset, "unsupported-content-type") for offset in [*range(190, 499), *range(689, 6000)]
    ]


def test_replies_to_commands_with_long_texts_fill_a_commit() -> None:
    play = bounded(BOUNDS, FORMS["plain"])
    count = 0
    while not play.engine.full:
        operations.apply(play.engine, Command(f"c{count}", Action.RAISE_BUDGET, "a", limit="9" * 60_000))
        count += 1
    assert 5 < count < 40


@pytest.mark.parametrize("form", ["retry", "sweep"])
def test_waiting_queries_count_for_the_size_of_a_commit(form: str) -> None:
    play = bounded(
        Bounds(size=60_000, cost=10_000), FORMS[form].replace("12, every: 15", "5000, every: 5000")
    )
    queries = [Query(0, 0, f"{k:04}" + "s" * 240, "set") for k in range(1000)]
    play.feed(TOPIC, queries, len(queries))
    play.commit()
    sizes = [sum(len(data or b"") for data in commit.records.values()) for commit in play.commits]
    assert len(sizes) > 4
    assert max(sizes) < 60_000
    assert play.runs().queued(0) > 200


def test_the_begins_of_runs_count_for_the_size_of_a_commit() -> None:
    names = ", ".join(f"d{number:02}" for number in range(60))
    play = Play(
        spec_of(
            f"{ONE_TOP}, max_runs: 100 per 1h", datasets=f"{{names: [{names}], limit: 900, unit: one basket}}"
        ),
        bounds=Bounds(size=90_000),
    )
    for time in range(1000, 1050):
        play.more(*[Query(dataset, 90_000, time_ms=time) for dataset in range(60)])
    play.commits.clear()
    play.more(*[Query(dataset, 0, time_ms=1050) for dataset in range(60)])
    assert len(play.run_state().begins) == 51
    (full, rest, _) = [len(commit.records) for commit in play.commits]
    assert full + rest == 60  # their records would fit into one commit without the begins
