"""Lines of released events, and figures on a case small enough to count by hand."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from stream_svt.demo.board import Board, picture, report
from stream_svt.demo.scenario import ADAPTIVE, APPEND, LIMITS, Setting, Window
from stream_svt.demo.session import counts_tested
from stream_svt.monitor.released import EventType, decode
from tests.support import alerts
from tests.support.alerts import account_of, encoded

FIRST, SECOND, *_ = LIMITS
# Item 1 reaches the threshold in both weeks, item 2 in the second only.
STREAM = [
    (Window(FIRST, "10:00:00Z/units", 0, 2), [199, 0]),
    (Window(FIRST, "10:00:03Z/units", 2, 4), [200, 199]),
    (Window(SECOND, "10:00:06Z/units", 4, 6), [199, 199]),
    (Window(SECOND, "10:00:09Z/units", 6, 8), [200, 200]),
]
FOOT = "Kafka 127.0.0.1:9092   page http://127.0.0.1:6066/   metrics http://127.0.0.1:6066/metrics"


def alert(query_id: str, dataset: str = FIRST, monitor: str = APPEND, *, certified: bool = True, **fields):
    fields |= {"estimate": 458.0, "bound": 432.0} if certified else {"estimate": None, "bound": None}
    account = account_of(spent=fields.pop("spent", 0.3), reserved=0.5)
    about = {
        "dataset": dataset,
        "monitor": monitor,
        "series": f"item-{query_id.rsplit('/', maxsplit=1)[-1]}",
    } | fields
    return decode(encoded(1, alerts.alert(query_id=query_id, gap=31.0, account=account, **about)))


def lifecycle(kind: EventType, reason: str = "", *, dataset: str = FIRST, run: int = 1, spent: float = 0.0):
    account = account_of(spent=spent, reserved=0.5)
    data = alerts.lifecycle(reason, dataset=dataset, monitor=APPEND, run=run, account=account)
    return decode(encoded(1, data, kind=kind))


def board(*events) -> Board:
    made = Board()
    for point, counts in STREAM:
        made.add_counts(point, np.array(counts))
    made.tested, made.seconds = 4000, 2.0
    for event in events:
        made.add(event)
    return made


@pytest.fixture
def busy() -> Board:
    """Two runs of one monitor and 30 alerts of the other."""
    alerted = (alert(f"10:00:00Z/{1 + number % 2}", monitor=ADAPTIVE, spent=1.0) for number in range(30))
    halted = lifecycle(EventType.RUN_HALTED, spent=1.0)
    first, second = (
        lifecycle(EventType.RUN_STARTED, reason, run=run, spent=1.2)
        for run, reason in ((1, "first"), (2, "resampled"))
    )
    return board(first, *alerted, halted, second)


# Events


def test_a_run_after_the_first_is_a_resample_and_a_halt_is_counted(busy):
    words = [line.plain.split()[0] for line in busy.recent]
    assert [word for word in words if word != "ALERT"] == ["first", "halted", "resampled"]
    figures = busy.figures(APPEND)
    assert [figures[name] for name in ("alerts", "halts", "resamples")] == [0, 1, 1]
    assert busy.figures(ADAPTIVE)["alerts"] == 30


@pytest.mark.parametrize(("certified", "figures"), [(True, "458 bound ≥ 432"), (False, "- bound -")])
def test_a_line_of_an_alert_has_gap_estimate_and_bound(certified, figures):
    line = board().add(alert("10:00:00Z/1", attempt=3, certified=certified)).plain
    assert f"ALERT week-1 append item-1 gap 31 estimate {figures} " in " ".join(line.split())
    assert "attempt 3" in line


def test_events_without_a_line_change_the_budgets_too():
    shown = board()
    assert shown.add(lifecycle(EventType.RESUMED, spent=0.7)) is None
    assert shown.budgets[FIRST].spent == 0.7


@pytest.mark.parametrize(
    ("ticks", "windows"),
    [((), 0), ((9_000, 9_000), 0), ((9_001, 6_000), 0), ((9_001, 12_000), 1), ((12_001, 99_000), 2)],
)
def test_counts_of_a_window_are_tested_once_every_shard_tests_the_next_window(ticks, windows):
    # The first window begins at 3,000 and closes at 9,000; all datasets are on two shards.
    setting = Setting(application="demo", partitions=2)
    assert {setting.partitioning.of(name.encode()) for name in LIMITS} == {0, 1}
    shards = [{"shard": n, "ticks": {"demo.baskets.counts": tick}} for n, tick in enumerate(ticks)]
    assert counts_tested({"shards": shards}, setting, 3_000) == windows * 6 * 16_470


# Figures


def test_precision_counts_alerts_and_recall_counts_items_of_weeks():
    # The first alert is too early, so it is false; its item still counts as found.
    shown = board(alert("10:00:00Z/1"), alert("10:00:09Z/2", SECOND, attempt=4))
    append, adaptive = map(shown.figures, (APPEND, ADAPTIVE))
    assert append["precision*"] == 0.5
    assert append["recall*"] == pytest.approx(2 / 3)
    assert append["retried"] == 1
    assert (adaptive["precision*"], adaptive["recall*"]) == (None, 0.0)


def test_an_alert_about_a_window_is_true_if_the_count_of_this_window_reached_the_threshold():
    first, second = (f"2026-11-28T10:00:0{second}Z" for second in (0, 3))
    shown = Board()
    shown.add_counts(Window(FIRST, f"{first}/units", 0, 2), np.array([200, 199]))
    shown.add_counts(Window(FIRST, f"{second}/units", 2, 4), np.array([199, 199]))
    for window, item in ((first, 1), (second, 1), (first, 2)):
        shown.add(alert(f"{window}/2026-11-28T10:00:09Z", series=f"item-{item}"))
    figures = shown.figures(APPEND)
    assert (figures["precision*"], figures["recall*"]) == (pytest.approx(1 / 3), 1.0)
    assert shown.sent == 2 * 6 * 16_470


# The screen


def drawn(what, *, width: int = 110, height: int = 30) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(what)
    return out.getvalue().splitlines()


def test_the_screen_and_the_summary_show_released_events_and_mark_figures_from_true_counts(busy):
    shown, summary = "\n".join(drawn(picture(busy, FOOT, 30))), "\n".join(drawn(report(busy)))
    for wanted in (
        "monitors tested 4,000 counts",
        "≥ 432",
        "halted",
        "resampled",
        "1.20 of 4 spent",
        *FOOT.split(),
    ):
        assert wanted in shown
    for text in (shown, summary):
        assert "precision*" in text
        assert "* from the true counts" in text
        assert "0%" in text
    assert "2 monitors tested 4,000 counts, in 2.0 s" in summary


def test_the_screen_has_the_unit_and_the_events_and_the_summary_those_that_were_late():
    shown = board()
    shown.events, shown.line = 908_576, 88_162
    lines = drawn(picture(shown, FOOT, 24), width=80, height=24)
    assert len(lines) <= 24
    assert "privacy unit: all events of one basket" in lines[0]
    assert "line 88,162 of 88,162, 908,576 events; 2 monitors tested 4,000 counts" in lines[1]
    assert not any("too late" in line for line in drawn(report(shown)))
    shown.late = 70
    assert any("70 events were perhaps too late" in line for line in drawn(report(shown)))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (110, 30), (160, 50)])
def test_the_picture_fits_the_terminal(busy, width, height):
    lines = drawn(picture(busy, FOOT, height), width=width, height=height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_the_bar_of_a_budget_always_has_its_full_length(busy):
    for spent, reserved in ((0.0, 0.0), (0.01, 3.99), (4.0, 0.0)):
        busy.budgets[FIRST].spent, busy.budgets[FIRST].reserved = spent, reserved
        row = next(line for line in drawn(picture(busy, FOOT, 40)) if FIRST in line)
        assert sum(row.count(block) for block in "█▒░") == 24
