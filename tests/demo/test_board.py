"""Lines of released events, and figures on a case small enough to count by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from stream_svt.demo.board import Board, Screen, picture, report, truth_of
from stream_svt.demo.scenario import ADAPTIVE, APPEND, Baskets, WeekClock
from stream_svt.demo.session import processed_queries
from stream_svt.monitor.released import EventType, decode
from tests.support import alerts
from tests.support.alerts import account_of, encoded

# Two weeks of four lines, a checkpoint every two: item 1 reaches 3 in both weeks, item 2 in the second only.
CLOCK = WeekClock(8, week_lines=4, every=2)
BASKETS = Baskets(
    np.array([0, 1, 2, 3, 4, 6, 8, 10, 10]), np.array([1, 1, 1, 2, 1, 2, 1, 2, 1, 2], np.uint16)
)
TRUTH = truth_of(BASKETS, CLOCK, threshold=3)
SETS = ["line-00002", "line-00004", "line-00006", "line-00008"]
FIRST, SECOND = WEEKS = CLOCK.weeks()
FOOT = "Kafka 127.0.0.1:9092   page http://127.0.0.1:6066/   metrics http://127.0.0.1:6066/metrics"


def alert(query_id: str, dataset: str = FIRST, monitor: str = APPEND, *, certified: bool = True, **fields):
    fields |= {"estimate": 458.0, "bound": 432.0} if certified else {"estimate": None, "bound": None}
    account = account_of(spent=fields.pop("spent", 0.3), reserved=0.5)
    about = {"dataset": dataset, "monitor": monitor, "series": f"item-{query_id.split('/')[1]}"}
    return decode(encoded(1, alerts.alert(query_id=query_id, gap=31.0, account=account, **about, **fields)))


def lifecycle(kind: EventType, reason: str = "", *, dataset: str = FIRST, run: int = 1, spent: float = 0.0):
    account = account_of(spent=spent, reserved=0.5)
    data = alerts.lifecycle(reason, dataset=dataset, monitor=APPEND, run=run, account=account)
    return decode(encoded(1, data, kind=kind))


def board(*events, closed=tuple(SETS)) -> Board:
    made = Board(dict.fromkeys(WEEKS, 4.0), TRUTH)
    made.closed, made.tested, made.seconds, made.line = list(closed), 4000, 2.0, 490
    for event in events:
        made.add(*event)
    return made


@pytest.fixture
def busy() -> Board:
    """Two runs of one monitor and 30 alerts of the other."""
    alerted = (alert(f"line-00002/{1 + number % 2}", monitor=ADAPTIVE, spent=1.0) for number in range(30))
    halted = lifecycle(EventType.RUN_HALTED, spent=1.0)
    first, second = (
        lifecycle(EventType.RUN_STARTED, reason, run=run, spent=1.2)
        for run, reason in ((1, "first"), (2, "resampled"))
    )
    return board(first, *alerted, halted, second)


# Events


def test_a_run_after_the_first_is_a_resample_and_a_halt_is_counted(busy):
    assert [kind for kind, *_ in busy.recent if kind != "ALERT"] == ["first", "halted", "resampled"]
    figures = busy.figures(APPEND)
    assert [figures[name] for name in ("alerts", "halts", "resamples")] == [0, 1, 1]
    assert busy.figures(ADAPTIVE)["alerts"] == 30


@pytest.mark.parametrize(("certified", "figures"), [(True, ("458", "≥ 432")), (False, ("-", "-"))])
def test_a_line_of_an_alert_has_gap_estimate_and_bound(certified, figures):
    entry = board().add(*alert("line-00002/1", attempt=3, certified=certified))
    assert entry[:3] == ("ALERT", FIRST, APPEND)
    assert entry[3:7] == ("item-1", "31", *figures)
    assert "attempt 3" in entry[7]


def test_events_without_a_line_change_the_budgets_too():
    shown = board()
    assert shown.add(*lifecycle(EventType.MUTED, spent=0.7)) is None
    assert shown.budgets[FIRST].spent == 0.7


@pytest.mark.parametrize(
    ("offsets", "queries"),
    [((), 0), ((0, 0), 0), ((100, 5), 105), ((16_471,), 16_470), ((16_471, 2 * 16_471), 3 * 16_470)],
)
def test_queries_are_counted_without_the_markers_that_close_sets(offsets, queries):
    shards = [{"offsets": {"demo.counts": offset, "demo.control": 7}} for offset in offsets]
    assert processed_queries({"shards": [*shards, {"offsets": {}}]}, "demo.counts") == queries


# Figures


def test_truth_holds_what_reached_the_threshold_by_its_checkpoint():
    expected = [[], [(FIRST, "item-1")], [], [(SECOND, "item-1"), (SECOND, "item-2")]]
    assert [sorted(TRUTH[name]) for name in SETS] == expected


def test_precision_counts_alerts_and_recall_counts_items_of_weeks():
    # The first alert is too early, so it is false; its item still counts as found.
    document = board(alert("line-00002/1"), alert("line-00008/2", SECOND, attempt=4)).document()
    append, adaptive = (document["monitors"][name] for name in (APPEND, ADAPTIVE))
    assert append["precision"] == 0.5
    assert append["recall"] == pytest.approx(2 / 3, abs=1e-4)
    assert append["alerts_at_later_attempts"] == 1
    assert (adaptive["precision"], adaptive["recall"]) == (None, 0.0)
    assert document["recall"] == pytest.approx(1 / 3, abs=1e-4)


def test_recall_while_funded_leaves_out_the_weeks_that_ran_out():
    document = board(alert("line-00004/1"), lifecycle(EventType.EXHAUSTED, run=2, dataset=SECOND)).document()
    append = document["monitors"][APPEND]
    assert append["recall"] == pytest.approx(1 / 3, abs=1e-4)
    assert append["recall_while_funded"] == 1.0
    assert document["queries_per_second"] == 2000.0
    assert document["datasets"] == {FIRST: {"spent": 0.3, "limit": 4.0}, SECOND: {"spent": 0.0, "limit": 4.0}}


# The screen


def drawn(what, *, width: int = 110, height: int = 30) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(what)
    return out.getvalue().splitlines()


def test_the_screen_and_the_summary_show_released_events_and_mark_figures_from_true_counts(busy):
    shown, summary = "\n".join(drawn(picture(busy, FOOT, 88_162, 30))), "\n".join(drawn(report(busy)))
    for wanted in ("2,000 queries/s", "≥ 432", "halted", "resampled", "1.20 of 4 spent", *FOOT.split()):
        assert wanted in shown
    for text in (shown, summary):
        assert "precision*" in text
        assert "* from the true counts" in text
        assert "0%" in text
    assert "4,000 queries, each read by 2 monitors, in 2.0 s: 2,000/s" in summary


@pytest.mark.parametrize(("width", "height"), [(80, 24), (110, 30), (160, 50)])
def test_the_picture_fits_the_terminal(busy, width, height):
    lines = drawn(picture(busy, FOOT, 88_162, height), width=width, height=height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_the_bar_of_a_budget_always_has_its_full_length(busy):
    for spent, reserved in ((0.0, 0.0), (0.01, 3.99), (4.0, 0.0)):
        busy.budgets[FIRST].spent, busy.budgets[FIRST].reserved = spent, reserved
        row = next(line for line in drawn(picture(busy, FOOT, 88_162)) if FIRST in line)
        assert sum(row.count(block) for block in "█▒░") == 24


def test_a_pipe_gets_plain_lines(busy):
    out = io.StringIO()
    with Screen(Console(file=out, width=200), 88_162) as screen:
        screen.write("starting [it] ...")
        screen.write_entry(busy.recent[-2])
        screen.write_entry(busy.add(*alert("line-00002/1")))
        screen.show(busy)
    starting, halted, alerted = out.getvalue().splitlines()
    assert starting == "starting [it] ..."
    assert halted.startswith("halted  week retail-week-1  monitor hot-items-append  run 1 has used")
    assert "append  item item-1  gap 31  estimate 458  bound ≥ 432  top branch, attempt 1" in alerted


def test_a_terminal_gets_the_live_picture(busy):
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=30)
    with Screen(console, 88_162, FOOT) as screen:
        screen.write_entry(busy.recent[-1])
        screen.show(busy)
    assert "queries/s" in console.file.getvalue()
