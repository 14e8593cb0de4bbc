"""Threshold noise: one draw a run, durable before its first comparison, overwritten after its last."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from stream_svt.mechanisms.sparse_vector import SparseVector
from stream_svt.monitor.engine import Commit
from stream_svt.monitor.pending import RetryQueue, Waits
from stream_svt.monitor.queue_journal import QueueJournal
from stream_svt.monitor.released import EventType
from stream_svt.monitor.snapshot import (
    Block,
    DatasetRecord,
    RunState,
    Waiting,
    from_bytes,
    pack_secrets,
    unpack_secrets,
)
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import FORMS, TOPIC, interrupted, spec_of, stream


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


def _stored(play: Play) -> dict[str, DatasetRecord]:
    return {
        key.decode()[2:]: from_bytes(DatasetRecord, data, key=key.decode())
        for key, data in play.records.items()
        if key.startswith(b"d/")
    }


@pytest.mark.parametrize("form", ["plain", "sweep", "retry", "resampled"])
def test_a_run_draws_its_noise_once(form):
    entropy = Entropy(1)
    play = Play(spec_of(FORMS[form]), entropy=entropy)
    play.play(TOPIC, stream(3, 1500))
    started = [event for event in play.events if event.type is EventType.RUN_STARTED]
    assert len(started) > 5
    assert len(entropy.salts) == len(set(entropy.salts)) == len(started)
    assert len({(e.data.dataset, e.data.run) for e in started}) == len(started)


@pytest.mark.parametrize("form", ["plain", "sweep", "retry", "resampled", "sweep by clock"])
def test_no_run_is_compared_before_its_record_is_in_the_store(form, monkeypatch):
    play = Play(spec_of(FORMS[form], FORMS["adaptive"]), entropy=Entropy(2))
    runs: set[tuple[int, int]] = set()
    reached = SparseVector.branch_gaps

    def spy(self, values, thresholds, rho, attempt, draw):
        run_states = [
            run_state for record in _stored(play).values() for run_state in record.run_states.values()
        ]
        durable = {
            unpack_secrets(run_state.secrets)[0] for run_state in run_states if run_state.state == "running"
        }
        assert set(np.unique(rho).tolist()) <= durable, "a threshold was compared before it was durable"
        runs.update((int(noise), 0) for noise in np.unique(rho))
        return reached(self, values, thresholds, rho, attempt, draw)

    monkeypatch.setattr(SparseVector, "branch_gaps", spy)
    queries = stream(3, 900)
    rng = random.Random(5)
    while (at := play.engine.next_offset(TOPIC)) < len(queries):
        play.feed(TOPIC, queries, min(len(queries), at + rng.randrange(1, 200)))
        if rng.random() < 0.4:
            play.commit()
        elif rng.random() < 0.4:
            play.crash()
    assert len(runs) > 3


def test_the_noise_of_a_crashed_opening_was_never_compared_and_is_drawn_anew(monkeypatch):
    entropy = Entropy(3)
    play = Play(spec_of(FORMS["plain"]), entropy=entropy)
    compared = []
    monkeypatch.setattr(SparseVector, "branch_gaps", lambda *a, **k: compared.append(a))
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
            secrets = unpack_secrets(run_state.secrets)
            held = (
                runner.runs.threshold_noise[number],
                runner.runs.salt_high[number],
                runner.runs.salt_low[number],
            )
            assert secrets == tuple(int(secret) for secret in held)
            if run_state.state == "running":
                assert all(secrets[1:])
            else:
                assert not any(secrets)
    assert {record.run_states["m0"].state for record in _stored(play).values()} == {"exhausted"}


def test_the_length_of_a_record_tells_nothing_of_its_noise():
    play = Play(spec_of(FORMS["plain"]), entropy=Entropy(4))
    play.play(TOPIC, [Query(0, 0)])
    account, sizes = play.engine.accounts.account(0), set()
    run_state = account.run_states["m0"]
    for noise, salt in ((0, 0), (1, 200), (70_000, 2**20), (-(2**59), 2**64 - 1)):
        run_state.secrets = pack_secrets(noise, salt, salt)
        sizes.add(len(account.to_bytes()))
    assert len(sizes) == 1


def test_a_run_keeps_its_noise_across_crashes_and_batches():
    play = Play(spec_of(FORMS["never muted"]), entropy=Entropy(5))
    noise: dict[tuple[str, int], set[tuple[int, int]]] = {}
    queries = stream(3, 900)
    rng = random.Random(6)
    while (at := play.engine.next_offset(TOPIC)) < len(queries):
        play.feed(TOPIC, queries, min(len(queries), at + rng.randrange(1, 60)))
        play.commit()
        for name, record in _stored(play).items():
            run_state = record.run_states["m0"]
            if run_state.state == "running":
                noise.setdefault((name, run_state.run), set()).add(unpack_secrets(run_state.secrets))
        play.crash()
    assert len(noise) > 6
    assert all(len(seen) == 1 for seen in noise.values())


def test_two_monitors_on_one_query_share_no_noise():
    """With shared bits two equal monitors would report the same queries with the same gaps."""
    form = FORMS["never muted"]
    play = Play(spec_of(form, form, datasets="{name: a, limit: 500, unit: one basket}"), entropy=Entropy(7))
    play.play(TOPIC, [Query(0, 500 + k % 60) for k in range(4000)])
    drawn: dict[str, dict[int, float]] = {"m0": {}, "m1": {}}
    for event in play.events:
        if event.type is EventType.ALERT:
            drawn[event.data.monitor][event.data.position.offset] = event.data.gap
    both = drawn["m0"].keys() & drawn["m1"].keys()
    assert min(len(gaps) for gaps in drawn.values()) > 300
    assert len(both) > 20
    assert sum(drawn["m0"][k] == drawn["m1"][k] for k in both) < len(both) / 4


def test_attempts_and_branches_of_one_query_share_no_noise(monkeypatch):
    play = Play(spec_of(FORMS["sweep adaptive"]), entropy=Entropy(8))
    seen: Counter[tuple[int, ...]] = Counter()
    sampler = play.engine._noise
    draw = sampler.draw

    def spy(noise, rate, *, salt, offset, row, attempt, branch, value):
        attempts = np.broadcast_to(attempt, len(offset))
        for k in range(len(offset)):
            seen[int(salt[0][k]), int(offset[k]), 0, int(attempts[k]), branch] += 1
        return draw(
            noise, rate, salt=salt, offset=offset, row=row, attempt=attempt, branch=branch, value=value
        )

    monkeypatch.setattr(sampler, "draw", spy)
    play.play(TOPIC, stream(3, 400))
    assert {identity[3] for identity in seen} > set(range(5))
    assert {identity[4] for identity in seen} == {0, 1}


def test_a_retried_series_never_meets_the_same_identity_twice_in_a_run(monkeypatch):
    play = Play(spec_of(FORMS["retry"]), entropy=Entropy(9))
    seen: dict[tuple[int, ...], int] = {}
    sampler = play.engine._noise
    draw = sampler.draw

    def spy(noise, rate, *, salt, offset, row, attempt, branch, value):
        if isinstance(attempt, np.ndarray):
            for k in range(len(offset)):
                identity = int(salt[0][k]), int(offset[k]), int(attempt[k]), branch
                assert identity not in seen, "one identity was tested twice"
                seen[identity] = int(value[k])
        return draw(
            noise, rate, salt=salt, offset=offset, row=row, attempt=attempt, branch=branch, value=value
        )

    monkeypatch.setattr(sampler, "draw", spy)
    play.play(TOPIC, stream(3, 1200))
    assert len(seen) > 100


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


def test_a_thousand_mutes_hold_each_for_its_own_dataset_also_after_a_restart():
    form = FORMS["plain"].replace("epsilon: 1, cutoff: 3", "epsilon: 1000, cutoff: 2000")
    play = Play(spec_of(form, datasets="{names: [a, b], limit: 1000, unit: one basket}"))
    queries = [Query(0, 10**5, f"s{k}") for k in range(1000)]
    play.play(TOPIC, queries)
    assert play.engine.accounts.mutes["m0"].count(0) == 1000
    for _ in range(2):
        at = len(queries)
        queries += [Query(0, 10**5, f"s{k}") for k in range(1000)] + [
            Query(1, 0, f"s{k}") for k in range(1000)
        ]
        tested = sum(commit.tested.get("m0", 0) for commit in play.commits)
        play.play(TOPIC, queries)
        assert sum(commit.tested.get("m0", 0) for commit in play.commits) == tested + 1000
        assert play.engine.next_offset(TOPIC) == at + 2000
        play.crash()


def test_a_crash_between_opening_and_commit_costs_nothing():
    spec = spec_of(FORMS["plain"])
    play = interrupted(spec, stream(3, 500), random.Random(0).randrange)
    before = {view.dataset: view.spent for view in play.engine.projection.views()}
    play.engine.step(batch_of(TOPIC, [Query(k % 3, 10**6) for k in range(600)], 500, 600))
    play.crash()
    assert {view.dataset: view.spent for view in play.engine.projection.views()} == before


def test_nothing_secret_shows_when_something_is_printed():
    numbers = np.full((4, 1), 123456789)
    waits = Waits(numbers, ["x"], ["q"])
    block = Block(1, 1, b"123456789", ["x"], ["q"])
    waiting = Waiting(1, 1, 0, b"23456789", 123456789, 1, 0, 0, "x", "q")
    run_state = RunState(secrets=b"123456789" + bytes(15))
    batch = batch_of(TOPIC, [Query(0, 123456789)], 0, 1)
    commit = Commit(records={b"d/a": b"123456789"}, progress=b"123456789")
    things = [
        block,
        waits,
        waiting,
        RetryQueue(QueueJournal(), "m0", "a", entries={"x": waiting}),
        run_state,
        batch,
        commit,
    ]
    play = Play(spec_of(FORMS["plain"]), entropy=Entropy(1))
    play.play(TOPIC, [Query(0, 123456789)])
    things += [play.engine, play.engine.runners["m0"], play.engine.accounts.account(0), play.engine._noise]
    for thing in things:
        assert "123456789" not in repr(thing), type(thing)
