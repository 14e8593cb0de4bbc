"""An engine equals the one that a new owner loads from its last commit, after any history.

Otherwise the new owner could compute another outcome than the one that the first computed and lost.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor import operations
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.state import queue_journal
from stream_svt.monitor.state.accounts import Bounds
from stream_svt.monitor.takeover import change_spec, change_spec_in_slices, check_spec, close_removed
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.support.engine_play import Play
from tests.support.monitor_forms import (
    FORMS,
    TOPIC,
    assert_books_balance,
    engine_state,
    make_small,
    spec_of,
    stream,
)

HISTORIES = 28
TURNS = 25
BOUNDS = (
    Bounds(),
    Bounds(runs=1),
    Bounds(records=2, cost=300),
    Bounds(runs=2, size=3_000),
    Bounds(rejects=2),
)
CHANGES = (
    lambda form, chance: form.replace("threshold: 500", f"threshold: {chance.choice([450, 480, 520])}"),
    lambda form, chance: f"{form}, resample_every: {chance.choice(['1s', '3s', '20s'])}",
    lambda form, chance: form.replace("cutoff: 3", f"cutoff: {chance.choice([1, 2, 5])}"),
    lambda form, _: f"{form}, datasets: [a, b]",
    lambda form, _: f"{form}, mute: run",
    lambda form, _: form,
)


def other_spec(chance: random.Random, before: ApplicationSpec, forms: list[str]) -> ApplicationSpec | None:
    """Return a random valid specification, None if the changes contradict each other."""
    changed = [chance.choice(CHANGES)(form, chance) for form in forms]
    kept = chance.choice([changed, changed, changed[:1]])
    limit = before.datasets[0].terms.limit // 10**9
    try:
        return spec_of(*kept, datasets=f"{{names: [a, b, c], limit: {limit}, unit: one basket}}")
    except (ConfigError, ValueError):  # the change contradicts the form
        return None


def command(chance: random.Random) -> Command:
    action = chance.choice([Action.PAUSE, Action.RESUME, Action.RESUME, Action.CLOSE, Action.RESAMPLE])
    now = action is Action.PAUSE and chance.random() < 0.3
    return Command("x", action, chance.choice("abc"), chance.choice(["", "m0", "m1"]), now=now)


def change(play: Play, chance: random.Random, spec: ApplicationSpec) -> None:
    """Change to another specification, with commits and crashes in between."""
    try:
        check_spec(play.engine, spec)
    except ConfigError:
        return
    at = play.engine.next_offset(TOPIC) or 0
    for _ in close_removed(play.engine, spec):
        if play.engine.full or chance.random() < 0.5:
            play.commit()
            if chance.random() < 0.3:
                play.crash()
                return
    for _ in change_spec_in_slices(play.engine, spec):
        pass
    play.spec = spec
    play.engine.begin(TOPIC, at)
    play.commit()


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_loaded_engine_equals_the_one_that_wrote_its_state(seed, monkeypatch):
    if seed % 4:
        make_small(monkeypatch)
    chance = random.Random(seed)
    forms = [FORMS[chance.choice(list(FORMS))] for _ in range(2)]
    if FORMS["general"] in forms or chance.random() < 0.3:  # declarations of one topic agree
        forms = [form.replace("monotonic: true", "monotonic: false") for form in forms]
    limit = chance.choice([2, 9, 40])
    datasets = f"{{names: [a, b, c], limit: {limit}, unit: one basket}}"
    play = Play(spec_of(*forms, datasets=datasets), bounds=chance.choice(BOUNDS))
    queries = stream(seed, 400, monitors=["m0", "m1"])
    for _ in range(TURNS):
        at = play.engine.next_offset(TOPIC) or 0
        match chance.randrange(5):
            case 0:
                operations.apply(play.engine, command(chance))
            case 1 if (spec := other_spec(chance, play.spec, forms)) is not None:
                change(play, chance, spec)
            case 2:
                play.crash()
            case _:
                play.feed(TOPIC, queries, min(len(queries), at + chance.randrange(1, 40)))
        limit = play.engine.accounts.queues.pending_bytes + queue_journal.SLACK
        records = play.commit().records
        assert sum(len(data or b"") for key, data in records.items() if key.startswith(b"w/")) <= limit
        assert engine_state(play.engine) == engine_state(play.loaded())
    assert_books_balance(play)


@pytest.mark.parametrize(
    ("before", "after"), [("retry", "plain"), ("retry", "sweep"), ("sweep", "retry"), ("sweep", "plain")]
)
def test_a_monitor_may_be_added_again_with_another_way_to_append(before: str, after: str) -> None:
    kept = FORMS["retry"].replace(
        "lifetime: 300, capacity: 12, every: 15", "lifetime: 300000, capacity: 5000, every: 5000"
    )
    datasets = "{names: [a, b, c], limit: 99, unit: one basket}"
    play = Play(spec_of(FORMS[before], kept, datasets=datasets))
    play.play(TOPIC, stream(5, 60))
    both = play.spec
    for spec in (replace(both, monitors=both.monitors[1:]), spec_of(FORMS[after], kept, datasets=datasets)):
        play.spec = spec
        change_spec(play.engine, spec)
        play.engine.begin(TOPIC, 60)
        play.commit()
    play.crash()
    append = type(play.engine.runners["m0"].append).__name__
    assert append == ("Append" if after == "plain" else f"{after.title()}Append")
    assert [play.runs().queued(number) for number in range(3)] == [0, 0, 0]
    assert sum(play.runs("m1").queued(number) for number in range(3)) > 0


def counting(*monitors: str) -> ApplicationSpec:
    source = "name: s, topic: raw, unit: user, window: 1h, dataset: web"
    listed = ", ".join(f"{{source: s, epsilon: 1, cutoff: 3, threshold: 5, {one}}}" for one in monitors)
    datasets = "[{name: web, limit: 50}]"
    return load_spec(
        f"{{application: web, sources: [{{{source}}}], datasets: {datasets}, monitors: [{listed}]}}"
    )


def test_what_a_question_declares_holds_for_its_answers_and_not_for_counts():
    both = counting("name: plain", "name: unusual, usual: {every: 1d, times: 2}")
    play = Play(both)
    play.commit()
    play.crash()
    check_spec(play.engine, both)
    change_spec(play.engine, counting("name: plain"))
    play.commit()
    # Another question has other rows: old ones, which may move further, are not tested.
    other = counting("name: plain", "name: unusual, for: 5")
    check_spec(play.engine, other)
    assert other.monitors[1].tested != both.monitors[1].tested
