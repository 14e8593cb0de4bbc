"""The sums over a shard's datasets always equal those of its committed views."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.projection import STATES, sums_of
from stream_svt.monitor.released import DatasetView, Totals
from stream_svt.monitor.takeover import change_spec
from stream_svt.settings.application import ApplicationSpec
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, MONOTONIC, TOPIC, spec_of, stream

DATASETS = "{names: [a, b, c], limit: 90, unit: one basket}"
MIXED = "{names: [a, b], limit: 90, unit: one basket}\n  - {name: c, limit: {rho: 40}, unit: one basket}"


@pytest.fixture(autouse=True)
def one_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream_svt.settings.application.DATASETS_SHOWN", 1)


def _check(
    totals: Totals, views: Sequence[DatasetView], spec: ApplicationSpec, *, removed: bool = False
) -> None:
    """Hold sums against views of every dataset; these lack the charges of monitors that were removed."""
    rest = [view for view in views if view.dataset not in spec.names_shown]
    for measure, sums in totals.others.items():
        mine = [view for view in rest if view.measure == measure]
        assert sums.datasets == len(mine)
        assert sums.limit == pytest.approx(sum(view.limit for view in mine))
        assert sums.spent == pytest.approx(sum(view.spent for view in mine))
        assert sums.reserved == pytest.approx(sum(view.reserved for view in mine))
        tops_cost = measure == "epsilon"
        charges = [one.runs + tops_cost * one.alerts for view in mine for one in view.monitors]
        assert sums.charges > sum(charges) if removed else sums.charges == sum(charges)
    assert totals.others.keys() == {view.measure for view in rest}
    names = {one.monitor for view in views for one in view.monitors}
    assert totals.monitors.keys() == names
    for name in names:
        sums_of_one = totals.monitors[name]
        here = [(view, one) for view in views for one in view.monitors if one.monitor == name]
        assert {state: n for state, n in sums_of_one.states.items() if n} == Counter(o.state for _, o in here)
        assert sums_of_one.muted == sum(one.muted for _, one in here)
        assert sums_of_one.queued == sum(one.queued for _, one in here)
        for measure in totals.others:
            mine_now = [one for view, one in here if view in rest and view.measure == measure]
            assert sums_of_one.spent[measure] == pytest.approx(sum(one.spent for one in mine_now))
            assert sums_of_one.run_left[measure] == pytest.approx(sum(one.run_left for one in mine_now))


@pytest.mark.parametrize("datasets", [DATASETS, MIXED])
@pytest.mark.parametrize("seed", range(2))
def test_sums_follow_every_commit(seed: int, datasets: str) -> None:
    forms = [FORMS["plain"], FORMS["adaptive"]] if datasets == MIXED else [*MONOTONIC]
    play = Play(spec_of(*forms, datasets=datasets))
    queries = stream(seed, 240)
    for last in range(20, 241, 20):
        play.feed(TOPIC, queries, last)
        commit = play.commit()
        _check(commit.totals, play.views(), play.spec)
        assert {view.dataset for view in commit.views} <= play.spec.names_shown
    assert commit.totals.monitors["m0"].muted > 0


def test_a_takeover_sums_up_what_it_loads() -> None:
    play = Play(spec_of(*MONOTONIC, datasets=DATASETS))
    play.play(TOPIC, stream(3, 200))
    before = play.commits[-1].totals
    play.crash()
    assert play.engine.projection.totals() == before
    _check(before, play.views(), play.spec)
    assert play.commit().totals == before


def test_sums_follow_commands_and_a_changed_specification() -> None:
    play = Play(spec_of(FORMS["plain"], FORMS["adaptive"], datasets=DATASETS))
    play.play(TOPIC, stream(5, 150))
    for number, action in enumerate((Action.PAUSE, Action.CLOSE, Action.RAISE_BUDGET)):
        limit = "95" if action is Action.RAISE_BUDGET else ""
        operations.apply(play.engine, Command(str(number), action, dataset="b", limit=limit))
        _check(play.commit().totals, play.views(), play.spec)
    few, plain = f"{FORMS['plain']}, datasets: [a, c]", FORMS["plain"]
    for forms in ((few, FORMS["adaptive"]), (plain, FORMS["adaptive"]), (plain,), (few,)):
        change_spec(play.engine, spec_of(*forms, datasets=DATASETS))
        commit = play.commit()
        _check(commit.totals, play.views(), play.spec, removed=forms != (plain, FORMS["adaptive"]))
        assert [view.dataset for view in commit.views] == ["a"]  # its monitors are others now


def test_sums_follow_a_specification_that_changes_before_the_first_query() -> None:
    plain, adaptive = FORMS["plain"], FORMS["adaptive"]
    play = Play(spec_of(plain, adaptive, datasets=DATASETS))
    for forms in ((plain, adaptive), (plain,), (f"{plain}, datasets: [a, c]",), (plain, adaptive)):
        change_spec(play.engine, spec_of(*forms, datasets=DATASETS))
        _check(play.commit().totals, play.views(), play.spec)


def test_views_do_not_grow_with_the_datasets() -> None:
    """A commit that opens a run on each of many datasets carries one view, and its sums are as large as for two."""
    names = ", ".join(f"d{number}" for number in range(300))
    play = Play(spec_of(FORMS["plain"], datasets=f"{{names: [{names}], limit: 90, unit: one basket}}"))
    play.play(TOPIC, [Query(number, 1) for number in range(300)])
    assert sum(len(commit.views) for commit in play.commits) <= len(play.commits)
    totals = play.commits[-1].totals
    assert totals.monitors["m0"].states["running"] == 300
    assert totals.others["epsilon"].datasets == 299
    assert sum(map(sys.getsizeof, (totals.monitors, totals.others))) < 1_000


def test_sums_of_shards_add_up() -> None:
    play = Play(spec_of(*MONOTONIC, datasets=DATASETS))
    play.play(TOPIC, stream(3, 200))
    one = play.commits[-1].totals
    both = sums_of([one, one])
    for name, monitor in one.monitors.items():
        assert both.monitors[name].muted == 2 * monitor.muted
        assert both.monitors[name].states == {state: 2 * monitor.states[state] for state in STATES}
    assert both.others["epsilon"].limit == 2 * one.others["epsilon"].limit
    assert sums_of([]) == Totals()
