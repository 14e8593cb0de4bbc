"""Thousands of histories of the commit protocol, and broken protocols that must not get through them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import pytest

from stream_svt.monitor import takeover
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state import queue_journal
from stream_svt.monitor.state.series_mutes import SeriesMutes
from stream_svt.protocol import session
from tests.simulation.applications import APPLICATIONS, COUNTED
from tests.simulation.log import ModelLog
from tests.simulation.script import Fault, Script
from tests.simulation.soak import COUNTED_EACH, history, played
from tests.simulation.world import ModelWorkload, Variant, play
from tests.support import broken_protocol as broken


def _workload(**parts: Any) -> Variant:
    return Variant(workload=partial(ModelWorkload, **parts))


_EARLY, _UNPAID, _OLD = (
    "before its charge",
    "neither computed again nor paid for",
    "that the alerts contradict",
)
_JOURNALS = {
    broken.SameTransaction: _EARLY,
    broken.ForgetsOutbox: "charged and never published",
    broken.TakesAnyState: _OLD,
}
_ENGINES = {
    broken.RedrawsNoise: "changed",
    broken.ChargesHalf: "its price is",
    broken.DoublesLimits: "not the one declared, and no command",
    broken.TestsBeforeDurable: "computed",
    broken.ForgetsBegins: "began than 2 per 3s",
}
_SESSIONS = {
    broken.PausesBeforeReplay: _UNPAID,
    broken.ComparesNoNumbers: "nobody had sent it for this number",
    broken.GoesOnWithAnyVersion: "older than the one before",
    broken.RetiresTooEarly: "was retired",
    broken.NeverExpires: "out of its time",
    broken.StepsUnbounded: "before their bound was durable",
    broken.UsesNumbersLate: "its number was not used up",
}
_UNFENCED = Variant(log=lambda broker, number: ModelLog(broker, f"app-0-{number}"))
BROKEN: dict[str, tuple[Variant, str]] = {
    **{kind.__name__: (Variant(journal=kind), said) for kind, said in _JOURNALS.items()},
    **{kind.__name__: (_workload(kind=kind), said) for kind, said in _ENGINES.items()},
    **{kind.__name__: (Variant(session=kind), said) for kind, said in _SESSIONS.items()},
    "LosesQueries": (_workload(decoder=broken.LosesQueries), "have no alert"),
    "two owners": (_UNFENCED, "the noise of run"),
}
"""Deliberate bugs by name, and what the rules say of them."""
FIRST = {
    "ComparesNoNumbers": 14,
    "ForgetsBegins": 61,
    "GoesOnWithAnyVersion": 11,
    "LosesQueries": 27,
    "NeverExpires": 14,
    "PausesBeforeReplay": 34,
    "RetiresTooEarly": 310,
    "TakesAnyState": 85,
    "TestsBeforeDurable": 64,
    "UsesNumbersLate": 16,
    "two owners": 28,
}
"""The seed to begin with, where few catch it."""

COUNT = 450


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_history_loses_doubles_overspends_or_shows_anything_early() -> None:
    found = played(history, range(COUNT))
    assert found.count == COUNT
    assert found.failures == []
    assert found.tally["alerts"] > 5 * COUNT
    assert min(found.tally[what] for what in ("ends", "silences")) > COUNT // COUNTED_EACH / 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_history_goes_wrong_where_the_journal_of_what_waits_is_always_compacted(monkeypatch):
    small = {"RECORD_BYTES": 400, "_OVERHEAD": 10, "_FLOOR": 0, "_DELETED": 3}
    for name, value in small.items():
        monkeypatch.setattr(queue_journal, name, value)
    found = played(history, range(COUNT, COUNT + 150))
    assert found.count == 150
    assert found.failures == []


@pytest.mark.parametrize("form", [*range(len(APPLICATIONS)), COUNTED])
def test_a_crash_after_any_effect_is_survived(form: int) -> None:
    """One healthy history, crashed after each of its effects in turn, which is before the next."""
    seed = (7, 9)[form % 2]  # without and with transactions of producers
    whole = play(Script(seed, form, 12, ()))
    assert whole.rules.violations == []
    assert sum(event["type"] == EventType.ALERT for event in whole.rules.shown.values()) > 3
    for at in range(1, whole.effects + 1):
        for fault in (Fault.KILL_AFTER, (Fault.UNKNOWN, Fault.DELAYED)[at % 2]):
            script = Script(seed, form, 12, ((at, fault),))
            assert play(script).rules.violations == [], script


@pytest.mark.parametrize("form", range(2))
def test_a_state_put_back_after_any_effect_is_refused_or_the_newest(form: int) -> None:
    """One of before, and the records of an aborted transaction: sealed, complete, and not what was published."""
    assert not any(_put_back(form))


@pytest.mark.parametrize(
    ("journal", "first"), [(broken.TakesCopiesForPublications, 19), (broken.PublishesAgain, 26)]
)
def test_who_takes_copies_for_publications_or_publishes_again_is_caught(journal, first):
    said = "an owner went on with a state that the alerts contradict"
    assert any(said in found for found in _put_back(0, Variant(journal=journal), first))


def _put_back(form: int, variant: Variant | None = None, first: int = 1) -> Iterator[list[str]]:
    """Yield what breaks a rule in histories in which a state is put back after each effect in turn."""
    whole = play(Script(7, form, 12, ()))
    for at in range(first, whole.effects + 1):
        fault = (Fault.ROLLBACK, Fault.BESIDE)[(at + form) % 2]  # over both forms, each after each effect
        # An owner comes before all is mended.
        yield play(Script(7, form, 12, ((at, fault), (at + 60, Fault.STOP))), variant).rules.violations


def test_a_seed_is_one_history() -> None:
    script = Script.random(11, len(APPLICATIONS))
    first, second = play(script), play(script)
    assert [(e.partition, e.key, e.value) for p in first.broker.partitions.values() for e in p] == [
        (e.partition, e.key, e.value) for p in second.broker.partitions.values() for e in p
    ]
    assert first.trace == second.trace


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_protocol_is_caught(name: str) -> None:
    variant, said = BROKEN[name]
    first = FIRST.get(name, 0)
    found = played(partial(history, variant=variant), range(first, first + 150), most=1)
    assert found.failures, f"{name} got through {found.count} histories"
    _, violations = found.failures[0]
    assert any(said in text for text in violations), violations


def _closes_and_retires(engine: Engine) -> Iterator[None]:
    return chain(takeover.close_undeclared(engine), takeover.retire(engine))


@pytest.mark.parametrize(
    ("module", "mistakes", "said", "first"),
    [
        (takeover, {"ends_runs": lambda *_: False}, "was opened for", 32),
        (session, {"close_undeclared": lambda _: (), "retire": _closes_and_retires}, _UNPAID, 31),
    ],
    ids=["under another price", "of an undeclared dataset, until it is retired"],
)
def test_a_run_that_stays_open_is_caught(module, mistakes, said, first, monkeypatch):
    for name, mistake in mistakes.items():
        monkeypatch.setattr(module, name, mistake)
    for at in range(first, 50):
        faults = ((at, Fault.RECONFIGURE), (at + 1, Fault.UNKNOWN))
        found = played(partial(history, faults=faults), range(25), most=1)
        if any(said in text for _, violations in found.failures for text in violations):
            return
    pytest.fail(f"no history shows that it {said}")


@pytest.mark.parametrize(
    ("monitor", "said"), [("m0.end", "ends what is no incident"), ("m1", "is answered without or twice")]
)
def test_an_incident_that_goes_on_and_a_watch_that_is_never_over_are_caught(monitor, said, monkeypatch):
    remove = SeriesMutes.remove

    def kept(self: SeriesMutes, dataset: int, series: int) -> None:
        if self._monitor != monitor:
            remove(self, dataset, series)

    monkeypatch.setattr(SeriesMutes, "remove", kept)
    violations = chain.from_iterable(
        play(Script(seed, COUNTED, 40, ())).rules.violations for seed in range(20)
    )
    assert any(said in text for text in violations)


def test_a_query_with_two_alerts_is_found() -> None:
    world = play(Script(7, 0, 12, ()))
    alerts = [entry for entry in world.broker.read("alerts") if b'"gap"' in (entry.value or b"")]
    again = msgspec.json.decode(alerts[0].value or b"") | {"id": "other", "sequence": 99}
    world.broker.write("alerts", b"a", msgspec.json.encode(again))
    world.rules.finish()
    assert "1 queries have two alerts of a monitor" in world.rules.violations
