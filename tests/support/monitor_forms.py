"""All forms of a monitor, streams that exercise them, and the results that must not depend on batches and crashes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import pytest

from stream_svt.monitor.engine import Engine
from stream_svt.monitor.released import Alert, EventType
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state import queue_journal
from stream_svt.monitor.state.queue_journal import Queue
from stream_svt.monitor.state.snapshot import Block, OpenSet, Waiting
from stream_svt.monitor.takeover import change_spec
from stream_svt.monitor.testing import sweep
from stream_svt.monitor.testing.retry import RetryQueue
from stream_svt.monitor.testing.sweep import OpenSets, columns_of
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.support.engine_play import Play, Query

TOPIC = "t"

_LIMITABLE = (
    "topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500"
)
_COMMON = f"{_LIMITABLE}, max_runs: off"
_LIMITED = f"{_LIMITABLE}, expected_queries: 1000, mute: none"
_STREAM = f"{_COMMON}, expected_queries: 1000"
_SETS = f"{_COMMON}, correction: {{annealed: {{start: 12, end: 2}}}}"
_RETRY = "append: {retry: {attempts: 4, lifetime: 300, capacity: 12, every: 15}}"

FORMS = {
    "plain": _STREAM,
    "adaptive": f"{_STREAM}, mechanism: adaptive",
    "ladder": f"{_STREAM}, mechanism: ladder",
    "laplace": f"{_STREAM}, query_noise: laplace, threshold_noise: laplace",
    "fine": f"{_STREAM}, granularity: 1/4",
    "coarse": f"{_STREAM}, granularity: 5/2",
    "muted for the run": f"{_STREAM}, mute: run",
    "muted for a while": f"{_STREAM}, mute: 2s",
    "never muted": f"{_STREAM}, mute: none",
    "few mutes": f"{_STREAM}, max_mutes: 2",
    "few short mutes": f"{_STREAM}, mute: 2s, max_mutes: 2",
    "resampled": f"{_STREAM}, resample_every: 5s",
    "stopped": f"{_STREAM}, on_halt: stop",
    "general": _STREAM.replace("monotonic: true", "monotonic: false"),
    "sweep": f"{_SETS}, append: sweep",
    "sweep adaptive": f"{_SETS}, append: sweep, mechanism: adaptive, mute: run",
    "sweep caps": f"{_SETS}, append: {{sweep: {{alerts_per_set: 2, max_open_sets: 2, max_set_size: 7}}}}",
    "sweep by clock": f"{_SETS}, append: {{sweep: {{close_after: 3s, max_open_sets: 3}}}}, mute: none",
    "sweep resampled": f"{_SETS}, append: {{sweep: {{close_after: 3s}}}}, resample_every: 5s, mute: 4s",
    "retry": f"{_STREAM}, {_RETRY}",
    "retry adaptive": f"{_STREAM}, {_RETRY}, mechanism: adaptive, mute: run",
    "retry by clock": f"{_STREAM}, append: {{retry: {{attempts: 3, lifetime: 2s, capacity: 5, every: 9}}}}, "
    "mute: 3s, max_mutes: 3",
    "retry resampled": f"{_STREAM}, {_RETRY}, resample_every: 5s, mute: none",
    "limited": f"{_LIMITED}, max_runs: 1 per 1s",
    "limited to some": f"{_LIMITED}, max_runs: 3 per 3s",
    "limited resampled": f"{_LIMITED}, max_runs: 1 per 4s, resample_every: 1s".replace(
        "cutoff: 3", "cutoff: 12"
    ),
    "limited for the stream": f"{_LIMITED}",
    "sweep limited": f"{_LIMITABLE}, max_runs: 1 per 2s, mute: none, append: sweep, "
    "correction: {annealed: {start: 12, end: 2}}",
    "retry limited": f"{_LIMITED}, {_RETRY}, max_runs: 2 per 3s",
}

ONE_TOP = (
    "topic: t, epsilon: 1, cutoff: 1, sensitivity: 1, monotonic: true, bounds: [0, 100000], threshold: 500, "
    "expected_queries: 100, mute: none"
)
"""A monitor whose runs end with their first top."""

MONOTONIC = [form for form in FORMS.values() if "monotonic: true" in form]
"""Forms that may read one topic: its monitors declare the same."""


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Make records of the journal of queues short, and its compaction immediate."""
    small = {"RECORD_BYTES": 400, "_OVERHEAD": 10, "_FLOOR": 0, "SLACK": 800, "_DELETED": 3}
    for name, value in (small | {"_NUMBERS_AT_ONCE": 2, "_WRITTEN_AT_ONCE": 100}).items():
        patch.setattr(queue_journal, name, value)
    patch.setattr(sweep, "_BLOCK_BYTES", 200)


def spec_of(*forms: str, datasets: str = "{names: [a, b, c], limit: 9, unit: one basket}") -> ApplicationSpec:
    """Return an application with a monitor for each form, named m0, m1, .."""
    monitors = "\n".join(f"  - {{name: m{k}, {form}}}" for k, form in enumerate(forms))
    return load_spec(f"application: app\ndatasets:\n  - {datasets}\nmonitors:\n{monitors}\n")


def stream(seed: int, size: int, *, datasets: int = 3, monitors: Sequence[str] = ()) -> list[Query]:
    """Return queries of several datasets: integers, decimals, not numbers; series, sets, markers, thresholds."""
    rng = random.Random(seed)
    queries: list[Query] = []
    clock = 1_000
    for k in range(size):
        clock += rng.choice([0, 0, 5, 20, -30, 60])
        dataset = rng.randrange(datasets)
        name = f"set{k // 97}"
        if rng.random() < 0.02:
            name = f"set{max(0, k // 97 - rng.randrange(2))}"
            queries.append(Query(dataset, None, None, name, closes=True, time_ms=clock))
            continue
        queries.append(
            Query(
                dataset,
                rng.choice([0, 10, 300, 450, 520, 600, Decimal("499.75"), Decimal("610.3"), None, 10**9]),
                f"s{rng.randrange(25)}" if rng.random() < 0.9 else None,
                name if rng.random() < 0.9 else None,
                time_ms=max(0, clock),
                threshold=rng.choice([None] * 8 + [450, Fraction(1201, 2)]),
                monitor=rng.choice([None] * 5 + list(monitors)) if monitors else None,
            )
        )
    return queries


def uninterrupted(spec: ApplicationSpec, queries: Sequence[Query]) -> Play:
    """Play all queries in one batch."""
    play = Play(spec)
    play.play(TOPIC, queries)
    return play


def interrupted(spec: ApplicationSpec, queries: Sequence[Query], choose: Callable[[int], int]) -> Play:
    """Play in batches, with commits and crashes chosen by ``choose``, which returns a number below its argument."""
    play = Play(spec)
    crashes_left = 400
    while (at := play.engine.next_offset(TOPIC) or 0) < len(queries):
        play.feed(TOPIC, queries, min(len(queries), at + 1 + choose(len(queries) // 4)))
        act = choose(5)
        crashes_left -= 1
        if act < 2:
            play.commit()
        elif act == 2 and crashes_left > 0:
            play.crash()
    play.commit()
    return play


def transcript(play: Play) -> dict[tuple[str, str], list[Any]]:
    """Return the events of each monitor on each dataset in order, without the sums that other monitors change."""
    lines: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for event in play.events:
        data = event.data
        if isinstance(data, Alert):
            content = (
                data.series,
                data.query_id,
                data.position.offset,
                data.threshold,
                data.correction,
                data.gap,
            )
            content += (
                data.branch,
                data.attempt,
                data.run,
                data.number,
                data.estimate,
                data.bound,
                data.muted_until,
            )
        else:
            detail = {} if event.type is EventType.COMMAND_REPLY else data.detail
            content = (data.run, data.reason, sorted(detail.items()))
        charge = data.account.charge if data.account else None
        lines[data.dataset, data.monitor].append((event.type.name, charge, *content))
    return dict(lines)


def of_monitors(play: Play) -> dict[tuple[str, str], list[Any]]:
    """Return the `transcript` without the events about datasets."""
    return {key: lines for key, lines in transcript(play).items() if key[1]}


def counts(play: Play) -> tuple[Counter[Any], Counter[Any]]:
    """Return how many queries were tested and skipped, over all commits."""
    tested: Counter[Any] = Counter()
    skipped: Counter[Any] = Counter()
    for commit in play.commits:
        tested.update(commit.tested)
        skipped.update(commit.skipped)
    return tested, skipped


def engine_state(engine: Engine) -> dict[Any, Any]:
    """Return everything that determines an engine's future and its views."""
    found: dict[Any, Any] = {"totals": engine.projection.totals(), "declared": engine.declared}
    for number in engine.accounts.numbers():
        account = engine.accounts.read(number)
        found["ledger", number] = account and msgspec.structs.astuple(account.ledger)
    for name, runner in engine.runners.items():
        found[name] = (runner.offset, runner.row, runner.clock_ms, runner.runs.plan.hash)
        for dataset, number in engine.number.items():
            found[name, dataset] = (
                msgspec.structs.astuple(runner.runs.run_state(number)),
                mutes_of(runner, number),
                runner.runs.secrets[number].tobytes(),
                int(runner.runs.deadline[number]),
                int(runner.runs.status[number]),
                runner.runs.queued(number),
            )
            found[name, dataset, "waiting"] = waiting(runner.runs.queues.get(number))
    return found


def mutes_of(runner: Runner, number: int) -> list[tuple[int, int]]:
    """Return the mutes of a monitor on a dataset, oldest first."""
    held = runner.runs.mutes.of.get(number)
    return [] if held is None else [(mute.series, mute.until) for mute in held.entries.values()]


def waiting(queue: Queue[Any] | None) -> Any:
    """Return the waiting queries of a queue in order, None if there are none."""
    if isinstance(queue, OpenSets):
        return [
            (entry.name, entry.opened_ms, entry.tops, numbers.tolist(), series, query_id)
            for entry in queue.entries.values()
            if isinstance(entry, OpenSet)
            for numbers, series, query_id in [
                columns_of([Block(0, 0, b"", [], []), *queue.blocks[entry.name]])
            ]
        ] or None
    if isinstance(queue, RetryQueue) and queue.count:
        return queue.count, [
            (*msgspec.structs.astuple(entry)[1:7], entry.series, entry.query_id, queue.attempt(entry))
            for entry in queue.entries.values()
            if isinstance(entry, Waiting)
        ]
    return None


def assert_same(play: Play, expected: Play) -> None:
    """Check that two plays have the same events, counts and state, and that the books balance."""
    assert transcript(play) == transcript(expected)
    assert counts(play) == counts(expected)
    assert engine_state(play.engine) == engine_state(expected.engine)
    assert_books_balance(play)


def assert_books_balance(play: Play) -> None:
    """Check after every commit that announced charges equal what the ledger has spent, within its limit."""
    charged: Counter[str] = Counter()
    for commit in play.commits:
        for event in commit.events:
            account = event.data.account
            if account is not None:
                charged[event.data.dataset] += _units(account, account.charge)
                _assert_balance(account, charged[event.data.dataset])
        for view in commit.views:
            _assert_balance(view, charged[view.dataset])
            assert sum(_units(view, m.spent) for m in view.monitors) <= _units(view, view.spent)


def _units(account: Any, amount: float) -> int:
    return round(amount * (10**9 if account.measure == "epsilon" else 10**12))


def _assert_balance(account: Any, charged: int) -> None:
    assert charged == _units(account, account.spent)
    assert charged + _units(account, account.reserved) <= _units(account, account.limit)


def ample_spec(*forms: str) -> ApplicationSpec:
    """Return the specification of monitors whose budget lasts."""
    return spec_of(*forms, datasets="{names: [a, b, c], limit: 40, unit: one basket}")


def ample_play(*forms: str) -> Play:
    """Return a play of such monitors with a few queries behind it."""
    play = Play(ample_spec(*forms))
    play.play(TOPIC, [Query(k % 3, 0, f"s{k}", "set", time_ms=k) for k in range(12)])
    return play


def changed_to(play: Play, *forms: str) -> list[Any]:
    """Change the specification while the play runs, and return the events of that."""
    play.spec = ample_spec(*forms)
    change_spec(play.engine, play.spec)
    return play.commit().events
