"""Replays of counts: scores against a slow reference, whole budgets in each draw, ledgers of each period."""

from __future__ import annotations

import inspect
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial
from types import ModuleType

import numpy as np
import pytest

from stream_svt.application.config import parse_config
from stream_svt.columns.query_batch import Integers
from stream_svt.planning import Belief, from_percentiles
from stream_svt.planning.budget import reported_margin
from stream_svt.protocol.records import OneRecord, Records
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec
from stream_svt.settings.periods import DAY_MS
from stream_svt.sources import replay
from stream_svt.sources.counts import closed_record, records_of
from stream_svt.sources.events import Fate
from stream_svt.sources.questions import Values
from stream_svt.sources.replay import Draw, Recounter, Replay, Score, by_dataset
from stream_svt.sources.ticks import TickClock
from tests.support.sources import changed

HOUR_MS = 3_600_000
FIRST_MS = 20_000 * DAY_MS
LEVEL = Fraction(700)


def spec_of(*changes: tuple[str, str]) -> ApplicationSpec:
    return parse_config(changed(*changes)).spec


def replay_of(spec: ApplicationSpec, windows: int, draws: int = 3) -> Replay:
    [source] = spec.sources
    levels = {one.name: max(LEVEL, one.threshold) for one in spec.monitors}
    return Replay(spec, source, levels, FIRST_MS, FIRST_MS + windows * HOUR_MS, draws, os.urandom)


def play(spec: ApplicationSpec, counts: Sequence[Integers], draws: int = 3) -> Replay:
    """Replay counts of visitors by window and page; no event is an error, or slow."""
    [source], played = spec.sources, replay_of(spec, len(counts), draws)
    listed, clock = source.window_list(), TickClock.of(source)
    for number, visitors in enumerate(counts):
        values = np.concatenate([visitors, np.zeros(2 * len(visitors), np.int64)])
        begin = FIRST_MS + number * HOUR_MS
        played.play([*records_of(source, listed, begin, clock.close_of(begin), values)])
    return played


def peaks(*at: tuple[int, int], windows: int = 48) -> list[Integers]:
    """Return counts of five pages, with peaks at some windows of a page."""
    counts = [np.full(5, 100) for _ in range(windows)]
    for window, page in at:
        counts[window][page] = 2_000
    return counts


# -- scores


SERIES = 2


def reference(values: np.ndarray, known: np.ndarray, draws: list[Draw], least: int) -> Score:
    """Return scores of values by window and cell, of which some are known; a window of others ends an incident."""
    windows, cells = values.shape
    incidents: list[tuple[int, int, int, int]] = []
    for cell in range(cells):
        rise, high = None, list[int]()
        for window in range(windows + 1):
            value = values[window, cell] if window < windows and known[window, cell] else -1
            if value >= least:
                rise = window if rise is None else rise
                high += [window] if value >= 10 else []
            elif rise is not None:
                if high:
                    incidents.append((cell, rise, high[0], high[-1]))
                rise, high = None, []
    score = Score(len(incidents), [], [], [], [], [], [])
    for draw in draws:
        alerts = [(one >> 32, one & 0xFFFFFFFF) for one in draw.alerts if one & 0xFFFFFFFF < windows]
        kinds = {"found": 0, "muted": 0, "idle": 0, "missed": 0}
        for cell, rise, begin, end in incidents:
            seen = [window for at, window in alerts if at == cell and rise <= window <= end]
            order = (cell // SERIES * 2**32 + begin) * SERIES + cell % SERIES
            if seen:
                kind = "found"
                score.delays.append(min(seen) - begin)
            elif any(first <= (cell << 32) + begin < last for first, last in draw.mutes):
                kind = "muted"
            else:
                kind = "idle" if any(first <= order < last for first, last in draw.idle) else "missed"
            kinds[kind] += 1
        score.alerts.append(len(alerts))
        for numbers, kind in zip((score.found, score.muted, score.unbudgeted), kinds, strict=False):
            numbers.append(kinds[kind])
        score.false.append(
            sum(not known[window, cell] or values[window, cell] < least for cell, window in alerts)
        )
        assert score.missed[-1] == kinds["missed"]
    return score


def drawn(rng: random.Random, windows: int, cells: int) -> Draw:
    """Return a random draw; its spans may overlap, and may be empty."""

    def place() -> int:
        return rng.randrange(cells) << 32 | rng.randrange(windows + 2)

    def spans() -> list[tuple[int, int]]:
        return [(begin, begin + rng.randrange(4)) for begin in (place() for _ in range(rng.randrange(4)))]

    idle = [(by_dataset(place(), SERIES), by_dataset(place(), SERIES)) for _ in range(rng.randrange(3))]
    return Draw([place() for _ in range(rng.randrange(6))], [], spans(), idle)


@cache
def monitor_with(threshold: int) -> MonitorSpec:
    return spec_of(("threshold: 500, mute", f"threshold: {threshold}, mute")).monitors[0]


def differs(module: ModuleType, seed: int) -> bool:
    """Play a random small history; return whether scores differ from the reference."""
    rng = random.Random(seed)
    windows, cells, least = rng.randrange(1, 9), rng.choice((2, 4)), rng.choice((5, 10))
    shape, chance = (windows, cells), np.random.default_rng(seed)
    values, known = chance.choice((0, 4, 5, 9, 10, 12), shape), chance.random(shape) < 0.8
    whole = chance.random(windows) < 0.9  # others are lost: nothing is added
    draws = [drawn(rng, windows, cells) for _ in range(3)]
    monitor = monitor_with(least)
    track = module.Track(monitor, None, (Fraction(10), monitor.threshold), draws, SERIES)
    for number in np.flatnonzero(whole).tolist():
        track.add(number, Values(values[number : number + 1], known[number : number + 1]))
    expected = reference(values, known & whole[:, None], draws, least)
    found = track.score(windows)
    return [sorted(one) for one in found[1:]] != [sorted(one) for one in expected[1:]] or (
        found[:6] != expected[:6]
    )


def test_scores_are_those_of_the_reference():
    assert not any(differs(replay, seed) for seed in range(400))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("values.steps >= least", "values.steps > least"),
        ("values.known & (values", "(values"),
        ("high[np.diff(run, prepend=-1) != 0]", "high[np.diff(run, prepend=-1) != 1]"),
        ("high[np.diff(run, append=-1) != 0]", "high[np.diff(high, append=-2) != 1]"),
        ("rises = low[", "rises = high["),
        ("low[np.diff(low, prepend=-2) != 1]", "low"),
        ('high, side="right") - 1', 'high, side="left") - 1'),
        ("alerts = alerts[alerts & _WINDOW < windows]", "pass"),
        ("alerts.searchsorted(rises)", "alerts.searchsorted(begins)"),
        ("first <= ends", "first <= begins"),
        ("~found & _within(begins, draw.mutes)", "_within(begins, draw.mutes)"),
        ("~found & ~muted &", "~found &"),
        ("~np.isin(alerts, low)", "~np.isin(alerts, high)"),
        ("(first - begins)[found]", "abs(first - begins)[found]"),
        ("np.maximum.accumulate(ends)", "ends"),
        ('places, side="right"', 'places, side="left"'),
        ("> places", ">= places"),
        ("cell // series << _NUMBER | number", "cell << _NUMBER | number"),
    ],
)
def test_a_mistake_in_a_score_is_seen(right, wrong):
    source = inspect.getsource(replay)
    assert source.count(right) == 1
    mutant = ModuleType("mutant")
    sys.modules["mutant"] = mutant  # dataclasses look for it
    try:
        exec(source.replace(right, wrong), vars(mutant))  # noqa: S102 - our own source
        assert any(_is_caught(mutant, seed) for seed in range(400))
    finally:
        del sys.modules["mutant"]


def _is_caught(mutant: ModuleType, seed: int) -> bool:
    try:
        return differs(mutant, seed)
    except (IndexError, ValueError):
        return True


# -- replays


def test_every_draw_finds_a_clear_incident_once_and_nothing_else():
    played = play(spec_of(), peaks((3, 1), (4, 1), (30, 4)))
    score = played.tracks["many-users"].score(played.windows)
    # The mute of an hour is over when the second window of the first incident is tested.
    assert score == Score(2, [3] * 3, [2] * 3, [0] * 3, [0] * 3, [0] * 3, [0] * 6)
    assert played.tracks["many-errors"].score(played.windows).incidents == 0


def test_each_period_has_a_whole_ledger_also_before_the_first_that_is_declared():
    flood = play(spec_of(), peaks(*((window, page) for window in range(10) for page in range(5))))
    assert [*flood.datasets] == ["web-2024-10-04", "web-2024-10-05"]
    track = flood.tracks["many-users"]
    # The other monitor's run has half of the limit: this one has a run of five alerts, and is told so an hour later.
    assert track.score(flood.windows).alerts == [5, 5, 5]
    assert [draw.spent for draw in track.draws] == [[2 * HOUR_MS + 60_000]] * 3
    assert flood.periods[:2] == [0, 24]
    # A run costs half of the limit: a seventh of it with its threshold, the rest with its alerts.
    for draw in track.draws:
        assert [number for number, _ in draw.charges] == [0] * 6 + [24]
        parts = [part for _, part in draw.charges]
        assert (sum(parts[:6]), parts[6]) == (pytest.approx(0.5), parts[0])
    again = play(spec_of(), peaks(*((window, page) for window in (2, 26) for page in range(5))))
    assert again.tracks["many-users"].score(again.windows).found == [10, 10, 10]


USERS = "epsilon: 1, cutoff: 5, threshold: 500, mute: 1h"


def scored(keys: str, counts: Sequence[Integers]) -> Score:
    played = play(spec_of((USERS, keys)), counts)
    return played.tracks["many-users"].score(played.windows)


def test_an_early_alert_finds_an_incident_that_begins_in_its_mute():
    rising = [np.zeros(5, np.int64) for _ in range(12)]
    for window, visitors in enumerate((650, 690, 900, 900), 3):
        rising[window][2] = visitors
    text = USERS.replace("threshold: 500, mute: 1h", "threshold: 300, mute: 6h")
    early = scored(text, rising)
    assert early == Score(1, [1] * 3, [1] * 3, [0] * 3, [0] * 3, [0] * 3, [-2] * 3)


@pytest.mark.parametrize(
    ("keys", "at", "found", "muted", "unbudgeted"),
    [
        (
            "mute: 3h",
            (2, 4, 5, 7),
            2,
            1,
            0,
        ),  # the mute is over in the second incident, and another one begins
        ("mute: period", (2, 5, 22, 24, 30), 2, 3, 0),
        ("mute: none", (2, 4, 6), 3, 0, 0),
        ("mute: 1h", (2, 4, 6, 8, 10, 12, 14, 22, 24, 26), 7, 0, 3),
        ("mute: run", (2, 4, 8), 1, 2, 0),
    ],
)
def test_incidents_in_a_mute_or_without_a_run_are_not_missed(keys, at, found, muted, unbudgeted):
    score = scored(USERS.replace("mute: 1h", keys), peaks(*((window, 3) for window in at)))
    assert (score.found, score.muted, score.unbudgeted) == ([found] * 3, [muted] * 3, [unbudgeted] * 3)
    assert score.missed == [0] * 3


def test_the_end_of_an_incident_ends_its_mute():
    keys = "epsilon: 0.5, cutoff: 2, threshold: 10000, end: {below: 9000, longest: 3h}"
    counts = peaks((2, 1), (4, 3))
    counts[2][1] = counts[4][3] = 20_000
    counts[5][3] = counts[6][3] = counts[7][3] = 9_000 + 1_000
    draws = play(spec_of((USERS, keys)), counts).tracks["many-users"].draws
    at = 1 << 32, 3 << 32
    assert [draw.mutes for draw in draws] == [[(at[0] | 3, at[0] | 4), (at[1] | 5, at[1] | 7)]] * 3


def test_the_rest_of_a_tick_has_no_run_after_the_last_alert_and_what_was_tested_before_had_one():
    played = play(spec_of((USERS, "epsilon: 1, cutoff: 1, threshold: 500, mute: 1h")), peaks((2, 1), (2, 3)))
    track = played.tracks["many-users"]
    score = track.score(played.windows)
    assert (score.found, score.unbudgeted) == ([1] * 3, [1] * 3)
    assert [draw.idle for draw in track.draws] == [
        [(by_dataset(1 << 32 | 2, 5) + 1, by_dataset(24, 5))],
    ] * 3


def test_draws_differ_where_values_are_near_the_threshold():
    spec = spec_of()
    near = 500 + int(reported_margin(spec.monitors[0], 0.5))
    played = play(spec, [np.full(5, near)], draws=12)
    assert len({tuple(one.alerts) for one in played.tracks["many-users"].draws}) > 2


def test_a_question_is_asked_anew_of_closed_counts():
    lasting = ("threshold: 500, mute: 1h", "threshold: 500, mute: 1h, for: 2")
    played = play(spec_of(lasting), peaks((3, 1), (10, 2), (11, 2)))
    score = played.tracks["many-users"].score(played.windows)
    assert (score.incidents, score.alerts, score.found) == (1, [1] * 3, [1] * 3)
    assert {one & 0xFFFFFFFF for draw in played.tracks["many-users"].draws for one in draw.alerts} == {11}


@pytest.mark.parametrize("question", ["", ", for: 2"])
def test_values_are_as_believed(question):
    text = "threshold: 500, mute: 1h"
    spec = spec_of((text, f"{text}{question}"))
    belief = Belief(positives=0.25, above=400, below=from_percentiles([(100, 450)]))
    [source] = spec.sources
    played = Replay(spec, source, {"many-users": Fraction(500)}, FIRST_MS, FIRST_MS + DAY_MS, 2, os.urandom)
    played.play_belief(belief.central(1), 240, np.random.default_rng(1))
    [track] = played.tracks.values()
    high, low = (np.concatenate(one) for one in track._reached)
    assert played.windows == 240
    assert high.tolist() == low.tolist()
    assert abs(len(high) / (240 * 5) - 0.25) < 0.05  # four standard deviations
    assert {one >> 32 for one in high.tolist()} == {0, 1, 2, 3, 4}
    assert all(track.score(24).alerts)


def recounted(windows: int, events: Sequence[tuple[int, str]]) -> tuple[dict[int, int], int, dict[Fate, int]]:
    """Return visitors of a page by window, the most open windows, and fates; events have a timestamp and a user."""
    [source] = spec_of(("window: 1h", "window: 1m")).sources
    counter, log, open_at_once, found = Recounter(source, partial(os.urandom, 16)), 0, 0, dict[int, int]()
    rows = [
        (stamp, json.dumps({"user": user, "page": "/", "ts": stamp, "status": 200, "ms": 1}).encode())
        for stamp, user in events
    ]
    each = (OneRecord(offset, stamp, None, value) for offset, (stamp, value) in enumerate(rows))
    topic, look_ms = replace(Records.of(each), by_broker=True), FIRST_MS + (windows + 2) * 60_000
    counter.begin({0: (0, len(rows))}, FIRST_MS, by_broker=True, topic_id="")
    counter.look(look_ms + 1, {0: (0, len(rows))}, "", by_broker=True)
    while counter.state.next_tick <= look_ms:
        counter.open_next(source.window_list())
        while (step := counter.step()) is not None:
            for one in step.counts:
                closed = closed_record(source, one.dataset.encode(), one.content, dict(one.headers))
                if closed and closed.measure == "visitors" and closed.counts[0]:
                    found[closed.window] = int(closed.counts[0])
            log += len(step.entries)
            counter.stepped(range(log - len(step.entries), log))
            open_at_once = max(open_at_once, len(counter.state.windows))
        for partition, (at, end) in counter.ranges().items():
            counter.fold(partition, topic[at:end], end)
    return found, open_at_once, counter.fates


def test_weeks_of_windows_are_counted_with_few_open_also_through_quiet_days():
    rng, windows = random.Random(5), 3_000
    stamps = sorted(FIRST_MS + rng.randrange(windows * 60_000) for _ in range(1_500))
    quiet = (FIRST_MS + 500 * 60_000, FIRST_MS + 2_000 * 60_000)
    events = [(stamp, f"u{rng.randrange(3)}") for stamp in stamps if not quiet[0] <= stamp < quiet[1]]
    users: dict[int, set[str]] = defaultdict(set)
    for stamp, user in events:
        users[stamp // 60_000 * 60_000].add(user)
    expected = {window: len(each) for window, each in users.items()}
    found, open_at_once, fates = recounted(windows, events)
    assert found == expected
    assert open_at_once < 20  # ten of them are those ahead
    # A producer's timestamp far in the future is left out, and hides nothing that stands behind it.
    found, _, fates = recounted(windows, [events[0], (FIRST_MS + 100 * 365 * DAY_MS, "u9"), *events[1:]])
    assert found == expected
    assert (fates[Fate.COUNTED], fates[Fate.FAR_AHEAD]) == (len(events), 1)
