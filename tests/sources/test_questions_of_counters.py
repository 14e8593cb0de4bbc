"""Questions of monitors through the counter of a source: records of their own, also after takeovers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.records import OneRecord
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.questions import Question, Visits
from stream_svt.sources.counter import Counter
from stream_svt.sources.counts import CountsRecord
from stream_svt.sources.log import Counted
from stream_svt.sources.questions import Asked, ClosedCounts
from stream_svt.sources.visits import Counting
from tests.support.counter_of_questions import MINUTE, SOURCE, Play, T

QUESTIONS = {
    "burn": "share: {of: errors, above: 25%}, over: [1m, 3m], threshold: 1",
    "unusual": "usual: {every: 2m, times: 2, factor: 1.5}, threshold: 2",
    "lasting": "for: {windows: 3, at_least: 2}, threshold: 3",
    "rising": "excess: {over: 1, windows: 3, visits: {at_most: 1, in: 3}}, threshold: 3",
    "falling": "excess: {over: 1, windows: 2, visits: {at_most: 2, in: 4}}, for: 2, threshold: 3",
}


def application(*names: str, pages: Sequence[str] = ("/", "/a"), dataset: str = "web") -> ApplicationSpec:
    monitors = ["{name: plain, source: s, measure: all, epsilon: 1, cutoff: 3, threshold: 5}"]
    monitors += [
        f"{{name: {name}, source: s, measure: all, epsilon: 1, cutoff: 3, {QUESTIONS[name]}}}"
        for name in names
    ]
    source = SOURCE.replace("/, /a", ", ".join(pages)).replace("dataset: web", f'dataset: "{dataset}"')
    datasets = "{name: web, limit: 50}"
    if dataset != "web":
        datasets = f'{{generate: "{dataset}", from: 2026-01-01, lateness: 1h, limit: 50}}'
    listed = ", ".join(monitors)
    return load_spec(
        f"{{application: web, sources: [{{{source}}}], datasets: [{datasets}], monitors: [{listed}]}}"
    )


def drawn(rng: random.Random) -> list[tuple[str, str, int]]:
    return [
        (f"u{rng.randrange(8)}", rng.choice(("/", "/", "/a")), rng.choice((200, 200, 500)))
        for _ in range(rng.randrange(16))
    ]


def decoded(spec: ApplicationSpec, record: CountsRecord) -> list[tuple[str, str, Fraction]]:
    """Return what a worker reads of a record: what stands for the measure, series and value of each query."""
    index = DatasetIndex([record.dataset], partition=0, partitioning=Partitioning(1, "murmur2"))
    asked = [one.tested for one in spec.monitors if one.asks]
    decoder = QueryDecoder("web.s.counts", index, [], source=spec.sources[0], asked=asked)
    batch = decoder.decode(
        [OneRecord(7, record.timestamp_ms, record.dataset.encode(), record.content, record.headers)]
    )
    assert not batch.rejects
    fraction = np.zeros(len(batch), np.int64) if batch.fraction is None else batch.fraction
    values = [
        int(whole) + Fraction(int(part), 10**18) for whole, part in zip(batch.whole, fraction, strict=True)
    ]
    rows = [row for row in range(len(batch)) if row not in batch.markers]
    asks = {one.tested: f"monitor {one.name}" for one in spec.monitors if one.asks}
    measures = [batch.measure_at(row) or "" for row in rows]
    return [
        (asks.get(measure, measure), batch.series[row] or "", values[row])
        for row, measure in zip(rows, measures, strict=True)
    ]


def visitors(windows: Sequence[Sequence[tuple[str, str, int]]], visits: Visits) -> list[list[int]]:
    """Return the counts of each window, by page, in which a user counts in few windows."""
    counting: list[set[tuple[str, str]]] = []
    for events in windows:
        before = counting[max(len(counting) - visits.among + 1, 0) :]
        came = {(user, page) for user, page, _ in events}
        counting.append({one for one in came if sum(one in each for each in before) < visits.at_most})
    return [[sum(page == one for _, page in each) for one in ("/", "/a")] for each in counting]


def expected(
    windows: Sequence[Sequence[tuple[str, str, int]]], question: Question, number: int
) -> dict[str, Fraction]:
    closed = ClosedCounts(measures=("all", "errors", *question.measures))
    if question.visits is not None:
        for at, counts in enumerate(visitors(windows, question.visits)):
            closed.add(T + at * MINUTE, "web", question.visits.name, ("/", "/a"), np.array(counts))
    for at, events in enumerate(windows):
        for measure, wanted in (("all", (200, 500)), ("errors", (500,))):
            counts = [len({u for u, p, s in events if p == page and s in wanted}) for page in ("/", "/a")]
            closed.add(T + at * MINUTE, "web", measure, ("/", "/a"), np.array(counts))
    found = Asked(question, closed, lambda _: ("web",), ("/", "/a"), MINUTE).about(T + number * MINUTE)
    pairs = zip(("/", "/a"), found.steps[0].tolist(), found.known[0].tolist(), strict=True)
    return {page: Fraction(steps, question.parts) for page, steps, known in pairs if known}


@pytest.mark.parametrize("takes_over", [False, True])
def test_answers_are_written_after_the_counts_of_each_window(takes_over: bool):
    rng = random.Random(4)
    play, windows = Play(application(*QUESTIONS)), [drawn(rng) for _ in range(9)]
    for number, events in enumerate(windows):
        before = len(play.counts)
        play.window(number, events)
        found = [decoded(play.spec, one) for one in play.counts[before:]]
        kinds = [rows[0][0] for rows in found]
        begins = {"burn": 2, "unusual": 4, "lasting": 2, "rising": 2, "falling": 2}
        asked = [name for name, first in begins.items() if number >= first]
        assert kinds == ["all", "errors", *(f"monitor {name}" for name in asked)]
        for rows, question in zip(
            found[2:], [q for q in play.lists[0][1].questions if q.monitor in asked], strict=True
        ):
            assert {series: value for _, series, value in rows} == expected(windows, question, number)
        if takes_over and rng.random() < 0.6:
            play.take_over()
    assert (play.recalls > 1) is takes_over


def wrong_answers(play: Play, windows: Sequence[Sequence[tuple[str, str, int]]]) -> bool:
    """Play windows with takeovers; return whether an answer to the question about visits is not by the rules."""
    [question] = [one for one in play.lists[0][1].questions if one.monitor == "rising"]
    is_wrong = False
    for number, events in enumerate(windows):
        before = len(play.counts)
        play.window(number, events)
        for rows in (decoded(play.spec, one) for one in play.counts[before:]):
            found = {series: value for kind, series, value in rows if kind == "monitor rising"}
            is_wrong |= bool(found) and found != expected(windows, question, number)
        if number % 3 == 1:
            play.take_over()
    return is_wrong


MISTAKES = (
    "",
    "a key for each window",
    "one window too few",
    "one more",
    "by blocks",
    "forgotten in takeovers",
)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_unit_counts_in_few_windows_and_mistakes_show(mistake: str, monkeypatch: pytest.MonkeyPatch):
    made, replay = Counting.__init__, Counter.replay
    if mistake == "a key for each window":
        monkeypatch.setattr(Counter, "_is_one_period", lambda *_: False)
    elif mistake == "one window too few":
        monkeypatch.setattr(
            Counting, "__init__", lambda self, v, one, before: made(self, v, one, [*before][1:])
        )
    elif mistake == "one more":

        def make(self: Counting, *arguments: object) -> None:
            made(self, *arguments)
            self._at_most += 1

        monkeypatch.setattr(Counting, "__init__", make)
    elif mistake == "by blocks":
        monkeypatch.setattr(Counter, "_is_one_period", lambda _, begin, __: begin // MINUTE % 3 != 0)
    elif mistake:
        is_other = lambda entry: not isinstance(entry, Counted)  # noqa: E731
        monkeypatch.setattr(
            Counter, "replay", lambda self, at, one: replay(self, at, one) if is_other(one) else None
        )
    rng = random.Random(7)
    assert wrong_answers(Play(application("rising")), [drawn(rng) for _ in range(14)]) is bool(mistake)


@pytest.mark.parametrize(
    "beyond", ["excess: {over: 0, windows: 3, %s}, for: 5", "excess: {over: 0, windows: 6, %s}"]
)
def test_what_is_asked_does_not_depend_on_takeovers_where_a_question_reads_further_than_visits(
    beyond: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(QUESTIONS, "far", f"{beyond % 'visits: {at_most: 1, in: 3}'}, threshold: 3")
    rng = random.Random(1)
    windows = [drawn(rng) for _ in range(14)]
    found = []
    for takes_over in (False, True):
        play = Play(application("far"))
        for number, events in enumerate(windows):
            play.window(number, events)
            if takes_over and number in (8, 9):
                play.take_over()
        found.append([(one.dataset, one.headers, one.timestamp_ms, one.content) for one in play.counts])
    assert found[0] == found[1]


def test_visits_begin_again_with_each_period_and_outlast_a_changed_list():
    spec = application("rising", dataset="web-{date}")
    play = Play(spec, T - 4 * MINUTE)
    opens = play.counter.state.clock.opens_ms(T + 2 * MINUTE)
    more = application("rising", pages=("/b", "/", "/a"), dataset="web-{date}")
    play.lists.append((opens, more.window_list(play.source)))
    found = []
    for number in range(8):
        before = len(play.counts)
        play.window(number, [(f"u{one}", "/a", 200) for one in range(3)])
        rows = [row for one in play.counts[before:] for row in decoded(spec, one)]
        found.append([value for kind, page, value in rows if kind == "monitor rising" and page == "/a"])
    # The three count in the first window and in the fourth; in the first one of the new period, and in its fourth.
    # Nothing is asked while windows before the begin of the source lack.
    assert found == [[], [], [0], [2], [2], [1], [0], [2]]


def test_a_monitor_that_is_added_asks_from_the_windows_not_opened_yet_and_reads_earlier_ones():
    play = Play(application())
    for number in range(3):
        play.window(number, [("u", "/", 200)] * 2)
    play.spec = application("lasting")
    now = T + 4 * MINUTE
    play.lists.append((now - 16_000 - 15 * MINUTE, play.spec.window_list(play.source)))
    kinds = []
    for number in range(3, 21):
        before = len(play.counts)
        play.window(number, [("u", "/", 200)])
        kinds.append([decoded(play.spec, one)[0][0] for one in play.counts[before:]])
    first = kinds.index(["all", "errors", "monitor lasting"])
    assert all(len(one) == 2 for one in kinds[:first])
    assert all(len(one) == 3 for one in kinds[first:])
    assert first < 17


def test_a_counter_keeps_no_counts_once_its_last_question_is_removed():
    play = Play(application("lasting"))
    play.lists.append((T + 4 * MINUTE - 16 * MINUTE, application().window_list(play.source)))
    asked = dict.fromkeys(range(30), 0)
    for number in asked:
        before = len(play.counts)
        play.window(number, [("u", "/", 200)])
        asked[number] = len(play.counts) - before
    assert {*asked.values()} == {2, 3}
    assert play.counter._closed is None  # what it takes is not shown elsewhere
    play.lists.append((T + 30 * MINUTE, play.spec.window_list(play.source)))
    for number in range(30, 50):
        play.window(number, [("u", "/", 200)])
    assert [measure for measure, *_ in decoded(play.spec, play.counts[-1])] == ["monitor lasting"] * 2


def test_rows_of_a_monitor_that_is_not_declared_are_skipped_and_not_rejected():
    play = Play(application("lasting"))
    for number in range(3):
        play.window(number, [("u", "/", 200)])
    asked = play.counts[-1]
    assert dict(asked.headers)["monitor"].startswith(b"lasting ")
    assert [measure for measure, *_ in decoded(application(), asked)] == ["monitor ", "monitor "]
    # A new monitor of this name with another question does not test them.
    other = play.spec.monitors[1].model_copy(update={"for_": None, "mean": 2})
    spec = replace(play.spec, monitors=(play.spec.monitors[0], other))
    assert [measure for measure, *_ in decoded(spec, asked)] == ["monitor ", "monitor "]


def test_one_unit_moves_answers_by_as_much_as_they_say_and_nothing_else():
    """Also a part of its events; and whenever counters are taken over."""
    moved, fell = set[str](), set[str]()
    for seed in range(40):
        rng = random.Random(seed)
        plays = [Play(application(*QUESTIONS)) for _ in range(2)]
        moves = {f"monitor {one.monitor}": one for one in plays[0].lists[0][1].questions}
        for number in range(8):
            others = drawn(rng)
            whole = [("x", rng.choice(("/", "/a")), rng.choice((200, 500))) for _ in range(rng.randrange(4))]
            part = [event for event in whole if rng.random() < 0.3]
            for play, events in zip(plays, (whole, part), strict=True):
                play.window(number, rng.sample(others + events, len(others + events)))
                if rng.random() < 0.3:
                    play.take_over()
        more, fewer = (play.counts for play in plays)
        for one, other in zip(more, fewer, strict=True):
            assert (one.dataset, one.headers, one.timestamp_ms) == (
                other.dataset,
                other.headers,
                other.timestamp_ms,
            )
            assert len(one.content) == len(other.content)
            pairs = zip(
                *(decoded(play.spec, row) for play, row in zip(plays, (one, other), strict=True)), strict=True
            )
            for (measure, series, value), (same, named, least) in pairs:
                assert (measure, series) == (same, named)
                down, up = moves[measure].moves if measure in moves else (0, 1)
                parts = moves[measure].parts if measure in moves else 1
                assert -Fraction(down, parts) <= value - least <= Fraction(up, parts)
                if value != least:
                    moved.add(measure)
                if value < least:
                    fell.add(measure)
    assert moved == {"all", "errors", *moves}
    # Without its first visit a unit's second one counts.
    assert fell == {"monitor burn", "monitor unusual", "monitor rising", "monitor falling"}
