"""What the demo shows, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from stream_svt.demo.config import ADAPTIVE, APPEND, MONITORS
from stream_svt.demo.demo_status import DemoStatus
from stream_svt.demo.summary import Score
from stream_svt.demo.view import LiveView, PlainView, Rate, Scene, picture, view_for
from stream_svt.monitor.released import EventType
from tests.demo.events import alert, lifecycle

WEEK = "retail-week-1"
URLS = {
    "page": "http://127.0.0.1:6066/",
    "metrics": "http://127.0.0.1:6066/metrics",
    "health": "http://127.0.0.1:6066/health/ready",
    "status": "http://127.0.0.1:6066/api/v1/status",
}


@pytest.fixture
def scene() -> Scene:
    board = DemoStatus({WEEK: 4.0, "retail-week-2": 1.6}, MONITORS)
    board.tell(*lifecycle(EventType.RUN_STARTED, dataset=WEEK, monitor=APPEND, run=1, spent=0.1))
    for item in range(30):
        board.tell(*alert(f"line-00300/{item + 1}", dataset=WEEK, monitor=ADAPTIVE, spent=1.0))
    board.tell(*lifecycle(EventType.RUN_HALTED, dataset=WEEK, monitor=APPEND, run=1, spent=1.0))
    board.tell(*lifecycle(EventType.RUN_STARTED, dataset=WEEK, monitor=APPEND, run=2, spent=1.2))
    return Scene(board, 88_162, "127.0.0.1:9092", URLS, line=490, seen=16_470)


def drawn(scene: Scene, *, width: int = 110, height: int = 30) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(picture(scene, 98_765.0, height))
    return out.getvalue().splitlines()


def test_the_picture_shows_rate_alerts_budgets_lifecycle_and_addresses(scene):
    text = "\n".join(drawn(scene))
    for wanted in ("98,765 queries/s", "≥ 432", "halted", "resampled", "2.80 of 4 left", *URLS.values()):
        assert wanted in text


def test_the_picture_says_which_figures_are_truth(scene):
    scene.truth = {APPEND: Score(0.93, 0.5, None), ADAPTIVE: Score(None, None, None)}
    text = "\n".join(drawn(scene))
    assert "93%" in text
    assert "magenta: from the true counts, known to the demo only, never released" in text


@pytest.mark.parametrize(("width", "height"), [(80, 24), (110, 30), (160, 50)])
def test_the_picture_fits_the_terminal(scene, width, height):
    lines = drawn(scene, width=width, height=height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_a_budgets_bar_is_full_length_whatever_is_spent(scene):
    for spent, reserved in ((0.0, 0.0), (0.01, 3.99), (4.0, 0.0)):
        scene.board.budgets[WEEK].spent, scene.board.budgets[WEEK].reserved = spent, reserved
        row = next(line for line in drawn(scene) if WEEK in line)
        assert sum(row.count(block) for block in "█▒░") == 24


def test_a_pipe_gets_plain_lines(scene):
    out = io.StringIO()
    view = view_for(Console(file=out, width=200))
    assert isinstance(view, PlainView)
    with view:
        view.say("starting [it] ...")
        view.entry(scene.board.recent[-1])
        view.refresh(scene, 10.0)
        view.refresh(scene, 11.0)
    lines = out.getvalue().splitlines()
    assert lines[0] == "starting [it] ..."
    assert lines[1].startswith("resampled retail-week-1 hot-items-append: run 2")
    assert all(url in lines[2] for url in URLS.values())
    assert lines[3].startswith("progress  line 490 of 88,162, 16,470 queries")
    assert len(lines) == 4


def test_a_terminal_gets_the_live_picture(scene):
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=30)
    view = view_for(console)
    assert isinstance(view, LiveView)
    with view:
        view.refresh(scene, 1.0)
    assert "queries/s" in console.file.getvalue()


def test_the_rate_is_that_of_the_last_seconds():
    rate = Rate(window=2.0)
    shown = [rate.note(second, 1000 * max(second - 5, 0)) for second in range(11)]
    assert shown[5] == 0.0
    assert shown[10] == pytest.approx(1000.0)
