"""A query whose outcome is not released takes the same steps whether it would have been a top or not.

Lines of Python and drawn noises are counted: time itself is measured by `benchmarks/run timing`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

import stream_svt
from stream_svt.mechanisms.sampler import Sampler
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import TOPIC, spec_of

_PACKAGE = str(Path(stream_svt.__file__).parent)
_FORM = (
    "topic: t, epsilon: 400, cutoff: 40, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500, "
    "expected_queries: 50"
)
_DATASETS = "{names: [a], limit: 4000, unit: one basket}"
_HIGH, _LOW = 90_000, 0


def _steps(action: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Return how many lines of the package an action runs, and how many noises each call draws.

    Collections of garbage run lines of other packages at any moment; those are not counted.
    """
    lines, drawn = 0, []
    floors = Sampler._floors

    def trace(frame: FrameType, event: str, _argument: object) -> object:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return None
        lines += event == "line"
        return trace

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "_floors", lambda *given: (drawn.append(len(given[-1])), floors(*given)))
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            action()
        finally:
            sys.settrace(before)
    return lines, drawn


def _of_last(play: Play, queries: list[Query], monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Return the steps of these queries, read as one batch after those that were played before."""
    first = play.engine.next_offset(TOPIC) or 0
    batch = batch_of(TOPIC, [Query(0, 0)] * first + queries, first, first + len(queries))
    alerts = len(play.alerts())
    steps = _steps(lambda: play.step(batch), monkeypatch)
    play.commit()
    assert len(play.alerts()) == alerts
    return steps


@pytest.mark.parametrize("form", ["svt", "adaptive"])
@pytest.mark.parametrize("rows", [1, 40])
def test_a_query_of_a_waiting_series_takes_the_same_steps_whatever_its_value(rows, form, monkeypatch):
    rules = f"append: {{retry: {{attempts: 9, capacity: 99, every: 100000}}}}, mechanism: {form}"
    play = Play(spec_of(f"{_FORM}, {rules}", datasets=_DATASETS))
    play.play(TOPIC, [Query(0, _LOW, f"s{k}") for k in range(rows)])
    steps = [
        _of_last(play, [Query(0, value, f"s{k}") for k in range(rows)], monkeypatch)
        for value in (_LOW, _HIGH, _LOW, _HIGH)
    ]
    assert steps[2] == steps[3]
    assert sum(steps[3][1]) == rows * len(play.runs().plan.mechanism.branches)


def test_a_query_that_reaches_only_a_branch_that_is_not_payable_takes_the_same_steps(monkeypatch):
    form = _FORM.replace("epsilon: 400, cutoff: 40", "epsilon: 1, cutoff: 3, mechanism: adaptive, mute: none")
    play = Play(spec_of(form, datasets=_DATASETS))
    play.play(TOPIC, [Query(0, _LOW)])
    (top, middle), runs = play.runs().plan.mechanism.branches, play.runs()
    runs.left[0] = top.charge_units
    bar = 500 + int(runs.secrets["noise"][0])
    between = bar + (top.corrections[0] + middle.corrections[0]) // 2
    steps = [_of_last(play, [Query(0, value)], monkeypatch) for value in (_LOW, between, _LOW, between)]
    assert steps[2] == steps[3]


@pytest.mark.parametrize("rule", ["cutoff: 40, mute: run", "cutoff: 1, mute: none, on_halt: stop"])
def test_rows_that_an_earlier_top_of_their_batch_ends_run_the_same_lines_whatever_their_values(
    rule, monkeypatch
):
    lines = []
    for rows in ([], [], range(50), range(3, 5), [25], range(20, 40, 7)):  # the first one fills caches
        play = Play(spec_of(_FORM.replace("cutoff: 40", rule), datasets=_DATASETS))
        play.play(TOPIC, [Query(0, _LOW, "x")])
        later = [Query(0, _HIGH if row in rows else _LOW, "x") for row in range(50)]
        batch = batch_of(TOPIC, [Query(0, 0), Query(0, _HIGH, "x"), *later, Query(0, _LOW, "y")], 1, 53)
        lines.append(_steps(lambda play=play, batch=batch: play.step(batch), monkeypatch)[0])
        play.commit()
        assert len(play.alerts()) == 1
    assert len({*lines[1:]}) == 1
