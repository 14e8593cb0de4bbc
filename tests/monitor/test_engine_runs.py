"""Threshold noise: one draw a run, durable before its first comparison, overwritten after its last."""

from __future__ import annotations

import gc
import random
import weakref

import numpy as np
import pytest

from stream_svt.mechanisms import sampler
from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import Commit, DatasetAccount
from stream_svt.monitor.state.queue_journal import QueueJournal
from stream_svt.monitor.state.snapshot import (
    SECRETS,
    Block,
    OpenSet,
    QueueGroup,
    RunState,
    StoredMute,
    Waiting,
    from_bytes,
)
from stream_svt.monitor.testing.retry import RetryQueue
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import FORMS, MONOTONIC, TOPIC, spec_of, stream


class Entropy:
    """Random bytes from a seed, counted by how many were asked for."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.salts: list[bytes] = []

    def __call__(self, count: int) -> bytes:
        drawn = self.rng.randbytes(count)
        if count == 16:
            self.salts.append(drawn)
        return drawn


def _stored(play: Play) -> dict[str, DatasetAccount]:
    return {
        key.decode()[2:]: from_bytes(DatasetAccount, data, key=key.decode())
        for key, data in play.records.items()
        if key.startswith(b"d/")
    }


def _secrets(run_state: RunState) -> tuple[int, ...]:
    return np.frombuffer(run_state.secrets, SECRETS)[0].tolist()


@pytest.mark.parametrize("form", ["plain", "sweep", "retry", "resampled"])
def test_a_run_draws_its_noise_once_and_shares_it_with_no_other_monitor(form):
    entropy = Entropy(1)
    limit = "{names: [a, b, c], limit: 100, unit: one basket}"
    play = Play(spec_of(FORMS[form], FORMS["never muted"], datasets=limit), entropy=entropy)
    play.play(TOPIC, stream(3, 700))
    started = [event for event in play.events if event.type is EventType.RUN_STARTED]
    assert len(started) > 5
    assert len(entropy.salts) == len(set(entropy.salts)) == len(started)
    assert len({(e.data.dataset, e.data.monitor, e.data.run) for e in started}) == len(started)
    assert {e.data.monitor for e in started} == {"m0", "m1"}


@pytest.mark.parametrize("form", ["plain", "sweep", "retry", "resampled", "sweep by clock"])
def test_no_run_is_compared_before_its_record_is_in_the_store(form, monkeypatch):
    play = Play(spec_of(FORMS[form], FORMS["adaptive"]), entropy=Entropy(2))
    runs: set[tuple[int, int]] = set()
    reached = SparseVector.reached

    def spy(self, values, thresholds, rho, *rest):
        run_states = [
            run_state for record in _stored(play).values() for run_state in record.run_states.values()
        ]
        durable = {_secrets(run_state)[0] for run_state in run_states if run_state.state == "running"}
        assert set(np.unique(rho).tolist()) <= durable, "a threshold was compared before it was durable"
        runs.update((int(noise), 0) for noise in np.unique(rho))
        return reached(self, values, thresholds, rho, *rest)

    monkeypatch.setattr(SparseVector, "reached", spy)
    queries = stream(3, 900)
    rng = random.Random(5)
    while (at := play.engine.next_offset(TOPIC)) < len(queries):
        play.feed(TOPIC, queries, min(len(queries), at + rng.randrange(1, 200)))
        if rng.random() < 0.4:
            play.commit()
        elif rng.random() < 0.4:
            play.crash()
    assert len(runs) > 3


def test_noise_that_a_crash_lost_was_never_compared_and_is_drawn_again(monkeypatch):
    entropy = Entropy(3)
    play = Play(spec_of(FORMS["plain"]), entropy=entropy)
    compared = []
    monkeypatch.setattr(SparseVector, "reached", lambda *a, **k: compared.append(a))
    for _ in range(5):
        batch = batch_of(TOPIC, [Query(0, 0), Query(1, 0)], 0, 2)
        step = play.engine.step(batch)
        assert step.durable_first
        assert not step.done
        assert play.engine.step(batch) == step, "stepping again without a commit must not help"
        play.crash()
    assert not compared
    assert len(set(entropy.salts)) == 10


def test_secrets_of_a_run_are_overwritten_in_the_store_and_in_memory_when_it_ends():
    play = Play(
        spec_of(FORMS["plain"], datasets="{names: [a, b], limit: 2, unit: one basket}"), entropy=Entropy(4)
    )
    for last in range(40, 801, 40):
        play.feed(TOPIC, stream(3, 800, datasets=2), last)
        play.commit()
        for name, record in _stored(play).items():
            run_state = record.run_states["m0"]
            runner, number = play.engine.runners["m0"], play.engine.number[name]
            secrets = _secrets(run_state)
            assert secrets == runner.runs.secrets[number].tolist()
            if run_state.state == "running":
                assert all(secrets[1:])
            else:
                assert not any(secrets)
    assert {record.run_states["m0"].state for record in _stored(play).values()} == {"exhausted"}


@pytest.mark.parametrize("form", ["sweep adaptive", "retry"])
def test_no_test_of_a_query_meets_the_noise_of_another(form, monkeypatch):
    """Noise follows from salt, offset, row, attempt and branch: that makes it independent is shown elsewhere."""
    seen: set[tuple[int, ...]] = set()
    checked = sampler._checked

    def spy(identity, *laws):
        columns = *identity.salt, identity.offset, identity.attempt, identity.value
        *tests, attempts, _ = [column.tolist() for column in np.broadcast_arrays(*columns)]
        branches = range(identity.branch, identity.branch + len(laws))
        found = [(*row, branch) for row in zip(*tests, attempts, strict=True) for branch in branches]
        if any(attempts):  # what is tested on arrival is computed again after a barrier
            assert not seen & set(found), "one identity was tested twice"
        seen.update(found)
        return checked(identity, *laws)

    monkeypatch.setattr(sampler, "_checked", spy)
    play = Play(spec_of(FORMS[form]), entropy=Entropy(9))
    play.play(TOPIC, stream(3, 1200))
    assert {attempt for _, _, _, attempt, _ in seen} >= set(range(4))
    assert {branch for *_, branch in seen} == set(range(2 if "adaptive" in form else 1))


def test_a_commit_that_was_taken_before_a_run_was_opened_does_not_make_it_testable():
    """A command may close a run and the next query open another while a transaction is under way."""
    play = Play(spec_of(FORMS["plain"]), entropy=Entropy(10))
    play.engine.step(batch_of(TOPIC, [Query(0, 0)], 0, 1))
    play.engine.take_commit()
    runner = play.engine.runners["m0"]
    runner.runs.reopen(0)
    play.engine.step(batch_of(TOPIC, [Query(0, 0)], 0, 1))
    play.engine.committed()
    assert play.engine.step(batch_of(TOPIC, [Query(0, 0)], 0, 1)).durable_first


def test_no_repr_shows_a_secret():
    waiting = Waiting(1, 1, 0, b"23456789", 123456789, 1, 0, 0, "x", "q")
    batch = batch_of(TOPIC, [Query(0, 123456789)], 0, 1)
    play = Play(spec_of(FORMS["plain"]), entropy=Entropy(1))
    play.play(TOPIC, [Query(0, 123456789)])
    things = [
        Block(1, 1, b"123456789", ["x"], ["q"]),
        waiting,
        QueueGroup(1, "m0", "a", 123456789, 0, [123456789], [waiting, StoredMute(123456789, 123456789, 0)]),
        OpenSet(123456789, "x", 0, 0),
        RetryQueue(QueueJournal(), "m0", "a", entries={"x": waiting}),
        RunState(secrets=b"123456789" + bytes(15)),
        batch,
        Commit(records={b"d/a": b"123456789"}, progress=b"123456789"),
        *(play.engine, play.engine.runners["m0"], play.engine.accounts.account(0), play.engine._sampler),
    ]
    for thing in things:
        assert "123456789" not in repr(thing), type(thing)


def test_a_discarded_engine_is_freed_without_the_garbage_collector() -> None:
    play = Play(spec_of(*MONOTONIC, datasets="{names: [a, b, c], limit: 90, unit: one basket}"))
    play.feed(TOPIC, stream(5, 300), 300)  # the last runs opened are not committed
    known = weakref.ref(play.engine)
    gc.disable()
    try:
        del play
        assert known() is None
    finally:
        gc.enable()
