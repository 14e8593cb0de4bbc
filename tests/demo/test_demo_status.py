"""The screen's knowledge, folded from released events."""

from __future__ import annotations

import pytest

from stream_svt.demo.config import ADAPTIVE, APPEND, MONITORS
from stream_svt.demo.demo_status import DemoStatus
from stream_svt.monitor.released import EventType
from tests.demo.events import alert, lifecycle

WEEK = "retail-week-2"


def board() -> DemoStatus:
    return DemoStatus({"retail-week-1": 4.0, WEEK: 1.6}, MONITORS)


def test_a_run_after_the_first_is_a_resample_and_a_halt_is_counted():
    shown = board()
    kinds = [EventType.RUN_STARTED, EventType.RUN_HALTED, EventType.RUN_STARTED]
    entries = [
        shown.tell(*lifecycle(kind, dataset=WEEK, monitor=APPEND, run=run, spent=0.1))
        for kind, run in zip(kinds, [1, 1, 2], strict=True)
    ]
    assert [entry.kind for entry in entries if entry] == ["started", "halted", "resampled"]
    assert (shown.tallies[APPEND].halts, shown.tallies[APPEND].resamples) == (1, 1)
    assert shown.tallies[ADAPTIVE].halts == 0


def test_a_dataset_is_exhausted_when_each_of_its_monitors_is():
    shown = board()
    shown.tell(*lifecycle(EventType.EXHAUSTED, dataset=WEEK, monitor=APPEND, run=1))
    assert shown.exhausted() == []
    shown.tell(*lifecycle(EventType.EXHAUSTED, dataset=WEEK, monitor=ADAPTIVE, run=1))
    assert shown.exhausted() == [WEEK]


@pytest.mark.parametrize(
    ("certified", "bound"), [(True, "bound >= 432 (95%)"), (False, "bound not certified")]
)
def test_an_alert_is_told_with_gap_estimate_and_bound(certified, bound):
    told = alert("line-00300/39", dataset=WEEK, monitor=APPEND, attempt=3, certified=certified)
    entry = board().tell(*told)
    estimate = "458.0" if certified else "not certified"
    assert f"gap 31, estimate {estimate}, {bound}" in entry.text
    assert "attempt 3" in entry.text


def test_events_without_a_line_still_keep_the_books():
    shown = board()
    assert shown.tell(*lifecycle(EventType.MUTED, dataset=WEEK, monitor=APPEND, run=1, spent=0.7)) is None
    assert shown.budgets[WEEK].spent == 0.7
