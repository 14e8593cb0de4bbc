"""Every test that any owner computed: computed again, it has the same outcome; if not, its run is paid in full.

Retries are compared by their tops only (see `rules`): here are the tests on arrival.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from stream_svt.monitor.batch import QueryBatch, Segment
from stream_svt.monitor.engine import Engine, Step
from stream_svt.monitor.retry import RetryAppend
from stream_svt.monitor.runner import Runner

Run = tuple[str, str, int]
Place = tuple[int, int]


class Computed:
    """Tests by run and place, with their outcomes.

    A test is *owed* once an owner took over whose state does not reach it: it has to be computed again. What an owner
    computes after another one took over is lost whatever comes out, and owed to nobody; its outcome is compared, too.

    Args:
        say: Told what broke a rule.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._outcomes: dict[tuple[Run, Place], bool] = {}
        self._unsettled: set[tuple[Run, Place]] = set()
        self._owed: set[tuple[Run, Place]] = set()
        self._newest: Engine | None = None

    def watch(self, engine: Engine) -> None:
        """Take note of what an engine computes from now on, and of where it takes over."""
        add, step = engine.add, engine.step
        self._newest = engine

        def added(*args: Any, **options: Any) -> Runner:
            runner = add(*args, **options)
            self._watch_runner(engine, runner)
            if options.get(
                "journal", True
            ):  # added with another version: it was removed after a replay, or never there
                self._unsettled = {test for test in self._unsettled if test[0][1] != runner.name}
            return runner

        def first_step(batch: QueryBatch) -> Step:
            if engine is self._newest:
                self._taken_over(engine)
            engine.step = step  # type: ignore[method-assign]
            return step(batch)

        for runner in engine.runners.values():
            self._watch_runner(engine, runner)
        engine.add, engine.step = added, first_step  # type: ignore[method-assign]

    def fork(self, say: Callable[[str], None]) -> Computed:
        other = Computed(say)
        other._outcomes, other._unsettled, other._owed = (
            dict(self._outcomes),
            set(self._unsettled),
            set(self._owed),
        )
        return other

    def forget(self) -> None:
        """Begin anew: queries or budgets are gone, and what was computed with them."""
        self._outcomes, self._unsettled, self._owed = {}, set(), set()

    def judge(self, paid: set[Run]) -> None:
        """Demand that nothing is owed but in runs that were closed at their full price."""
        if lost := {test for test in self._owed if test[0] not in paid}:
            self._say(f"{len(lost)} tests were computed, lost, and neither computed again nor paid for")

    def _taken_over(self, engine: Engine) -> None:
        positions = {
            name: (runner.offset, runner.row) for name, runner in engine.runners.items() if runner.started
        }
        for test in self._unsettled:
            (_, monitor, _), place = test
            if monitor in positions and place >= positions[monitor]:
                self._owed.add(test)
        self._unsettled = set()

    def _watch_runner(self, engine: Engine, runner: Runner) -> None:
        append = runner
        if isinstance(append, RetryAppend):
            arrive = append._arrive

            def arrived(dataset: int, queue: Any, arrival: Any, *rest: Any) -> bool:
                run = engine.accounts.run_state(runner.name, dataset).run
                top = arrive(dataset, queue, arrival, *rest)
                self._add(engine, runner, dataset, run, (arrival.offset, arrival.row), top)
                return top

            append._arrive = arrived  # type: ignore[method-assign]
            return
        test_arrivals = append.test_arrivals

        def noted(view: Any, start: int, stop: int) -> Segment:
            segment = test_arrivals(view, start, stop)
            found = set(segment.tops)
            for row in (np.flatnonzero(segment.live) + start).tolist():
                dataset = int(view.batch.dataset[row])
                place = int(view.batch.offset[row]), int(view.batch.row[row])
                run = engine.accounts.run_state(runner.name, dataset).run
                self._add(engine, runner, dataset, run, place, row in found)
            return segment

        append.test_arrivals = noted  # type: ignore[method-assign]

    def _add(self, engine: Engine, runner: Runner, dataset: int, run: int, place: Place, top: bool) -> None:
        test = (engine.datasets[dataset].name, runner.name, run), place
        if self._outcomes.setdefault(test, top) != top:
            self._say(f"test {test} was computed twice, with different outcomes")
        if engine is self._newest:
            self._unsettled.add(test)
            self._owed.discard(test)
