"""Whoever reads the events knows the books and the states that the engine has, whatever happened to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from stream_svt.monitor import operations
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.released import EventType, decode, encode
from stream_svt.monitor.released_status import CHARGES_KEPT, Budget, ReleasedStatus
from stream_svt.privacy.loss import to_float
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, spec_of
from tests.support.released import account_of, alert, lifecycle

DATASETS = {
    "epsilon": "{names: [a, b, c], limit: 3, unit: one basket}",
    "rho": "{names: [a, b, c], limit: {rho: 1.2}, unit: one basket}",
}
HIGH, LOW = 900, 0

queries = st.tuples(
    st.just("queries"),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([HIGH, HIGH, LOW])), max_size=12),
)
commands = st.tuples(
    st.sampled_from(["pause", "resume", "close", "resample", "raise-budget"]),
    st.tuples(st.sampled_from("abc"), st.sampled_from(["", "m0", "m1"]), st.integers(4, 9)),
)


def agrees(status: ReleasedStatus, play: Play) -> None:
    """Hold what was folded against the engine's views."""
    for view in play.views():
        budget = status.budgets[view.dataset]
        for name in ("measure", "limit", "spent", "reserved"):
            assert getattr(budget, name) == getattr(view, name)
        assert budget.left == max(view.limit - view.spent, 0.0)
        statuses = status.of_dataset(view.dataset)
        for one in view.monitors:
            found = statuses[one.monitor]
            shown = (found.shown, found.run, found.tops, found.halts)
            assert shown == (one.state, one.run, one.tops, one.halts), (view.dataset, one.monitor)


def do(play: Play, step: tuple[str, object]) -> None:
    kind, what = step
    if kind == "queries":
        play.more(*[Query(dataset, value) for dataset, value in what])
        return
    dataset, monitor, limit = what
    raised = {"limit": str(limit)} if kind == "raise-budget" else {"monitor": monitor}
    operations.apply(play.engine, Command(id="c", action=Action(kind), dataset=dataset, **raised))
    play.commit()


@pytest.mark.parametrize("measure", list(DATASETS))
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.one_of(queries, queries, commands), max_size=25))
def test_books_and_states_are_the_engines_after_every_commit(measure: str, steps: list) -> None:
    play, read = Play(spec_of(FORMS["never muted"], FORMS["plain"], datasets=DATASETS[measure])), 0
    declared = {
        one.name: Budget(to_float(one.limit, one.kind), one.kind.measure) for one in play.spec.datasets
    }
    status = ReleasedStatus(declared, {monitor.name: list(declared) for monitor in play.spec.monitors})
    for step in steps:
        do(play, step)
        for event in play.events[read:]:
            status.take(
                *decode(encode(event, application="a", shard=0, time="2026-01-01T00:00:00Z", origin="1-a"))
            )
        read = len(play.events)
        agrees(status, play)


# What the engine does not show

WEEK, OTHER = "week-1", "week-2"


@pytest.fixture
def status() -> ReleasedStatus:
    return ReleasedStatus({WEEK: Budget(4.0), OTHER: Budget(2.0)}, {"hot": [WEEK, OTHER], "rare": [WEEK]})


def take(status: ReleasedStatus, *records: bytes) -> None:
    for record in records:
        status.take(*decode(record))


def test_a_dataset_nobody_spoke_of_is_untouched_and_its_monitors_wait(status: ReleasedStatus) -> None:
    assert (status.budgets[WEEK].left, status.budgets[WEEK].told) == (4.0, False)
    assert {name: status.shown for name, status in status.of_dataset(WEEK).items()} == {
        "hot": "idle",
        "rare": "idle",
    }


def test_charges_are_kept_with_their_time_and_the_oldest_are_forgotten(status: ReleasedStatus) -> None:
    take(
        status, *[alert(WEEK, at=float(second), account=account_of(0.01 * second)) for second in range(1, 81)]
    )
    take(status, lifecycle(EventType.MUTED, WEEK, at=99.0, account=account_of(0.8, charge=0.0)))
    charges = status.budgets[WEEK].charges
    assert len(charges) == CHARGES_KEPT
    assert charges[-1] == (80.0, 0.1)


def test_what_is_not_declared_is_not_kept(status: ReleasedStatus) -> None:
    take(status, alert("unheard-of"), lifecycle(EventType.SPEC_CHANGED, "", monitor="hot"))
    assert set(status.budgets) == {WEEK, OTHER}
    assert set(status.of_dataset(WEEK)) == {"hot", "rare"}


def test_an_event_of_a_kind_yet_unknown_keeps_the_books_and_changes_no_state(status: ReleasedStatus) -> None:
    envelope, data = decode(lifecycle(EventType.RUN_STARTED, WEEK, account=account_of(0.7)))
    status.take(replace(envelope, type="io.stream-svt.something.new.v1"), data)
    assert status.budgets[WEEK].spent == 0.7
    assert status.of_dataset(WEEK)["hot"].shown == "idle"
