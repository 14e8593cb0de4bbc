"""Standing conditions, folded from released events, are the states in which an engine skips queries."""

from __future__ import annotations

import random

import pytest

from stream_svt.forward.conditions import Conditions
from stream_svt.monitor.operations import Action, Command, apply
from stream_svt.monitor.released import encode
from stream_svt.monitor.state.snapshot import BLIND
from stream_svt.monitor.takeover import change_spec
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import ONE_TOP, spec_of

NAMES = ("a", "b")
DATASETS = "{names: [a, b], limit: 6, unit: one basket}"
MONITORS = (
    f"{ONE_TOP}, max_runs: off",
    f"{ONE_TOP}, max_runs: 1 per 10s",
    f"{ONE_TOP}, max_runs: off, on_halt: stop",
)
COVERING = ("", ", datasets: [a]", ", datasets: [b]", ", beta: 0.2")
HISTORIES, STEPS = 150, 40


class History:
    """A random history of one shard, its events folded into conditions."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._forms = list(MONITORS)
        self._folded = 0
        self._clock_ms = 0
        self.play = Play(spec_of(*self._forms, datasets=DATASETS))
        self.conditions = Conditions()
        self.seen: set[str] = set()

    def step(self) -> None:
        """Read a query, carry out a command, change the specification or lose the process; fold the events."""
        {"query": self._query, "command": self._command, "change": self._change, "crash": self.play.crash}[
            self._random.choices(("query", "command", "change", "crash"), (8, 8, 3, 1))[0]
        ]()
        self.play.commit()
        for event in self.play.events[self._folded :]:
            self._folded += 1
            self.conditions.take(
                encode(event, application="app", shard=0, time="2026-01-01T00:00:00Z", origin="1-a")
            )

    def _query(self) -> None:
        self._clock_ms += self._random.choice((0, 1000, 20_000))
        self.play.more(
            Query(self._random.randrange(2), self._random.choice((0, 10**6)), time_ms=self._clock_ms)
        )

    def _command(self) -> None:
        actions = (
            Action.PAUSE,
            Action.PAUSE,
            Action.RESUME,
            Action.CLOSE,
            Action.RESAMPLE,
            Action.RAISE_BUDGET,
        )
        dataset, action = self._random.choice(NAMES), self._random.choice(actions)
        more: dict[str, object] = {}
        if action is Action.PAUSE:
            more = {
                "now": self._random.random() < 0.5,
                "until": self._random.choice((0, self._clock_ms + 5_000)),
            }
        elif action is Action.RAISE_BUDGET:
            more = {"limit": str(self.play.views()[NAMES.index(dataset)].limit + 2)}
        if action is not Action.RAISE_BUDGET and self._random.random() < 0.5:
            more["monitor"] = f"m{self._random.randrange(len(self._forms))}"
        apply(self.play.engine, Command(id="c", action=action, dataset=dataset, **more))

    def _change(self) -> None:
        self._forms = [
            one + self._random.choice(COVERING) for one in MONITORS[: self._random.choice((1, 2, 3, 3))]
        ]
        self.play.spec = spec_of(*self._forms, datasets=DATASETS)
        change_spec(self.play.engine, self.play.spec)

    def blind(self) -> dict[tuple[str, str], str]:
        """Return the states in which the engine skips queries, by dataset and monitor."""
        found = {
            (view.dataset, one.monitor): one.state
            for view in self.play.views()
            for one in view.monitors
            if one.state in BLIND
        }
        self.seen.update(found.values())
        return found

    def standing(self) -> dict[tuple[str, str], str]:
        """Return the standing conditions, by dataset and monitor."""
        return {(one.dataset, one.monitor): status.shown for one, status in self.conditions.blind.items()}


@pytest.mark.parametrize("part", range(3))
def test_a_condition_stands_exactly_while_queries_are_skipped(part):
    seen: set[str] = set()
    for seed in range(part, HISTORIES, 3):
        history = History(seed)
        for step in range(STEPS):
            history.step()
            assert history.standing() == history.blind(), (seed, step)
        seen |= history.seen
    assert seen == BLIND
