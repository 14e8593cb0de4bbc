"""Precision, recall and the summary file, on a case small enough to count by hand."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from stream_svt.demo.clock import Clock
from stream_svt.demo.config import ADAPTIVE, APPEND, MONITORS
from stream_svt.demo.data import Baskets, from_lines
from stream_svt.demo.demo_status import DemoStatus
from stream_svt.demo.summary import Figures
from stream_svt.demo.truth import Truth
from stream_svt.monitor.released import EventType
from tests.demo.events import alert, lifecycle

# Two weeks of four lines, asked every two: item 1 reaches 3 in both weeks, item 2 in the second only.
CLOCK = Clock(8, week_lines=4, every=2)
BASKETS: Baskets = from_lines(["1", "1", "1", "2", "1 2", "1 2", "1 2", ""])
SETS = ("line-00002", "line-00004", "line-00006", "line-00008")
WEEKS = ("retail-week-1", "retail-week-2")


@pytest.fixture
def truth() -> Truth:
    return Truth.of(BASKETS, CLOCK, threshold=3)


def figures(truth: Truth, events, asked=SETS) -> Figures:
    board = DemoStatus(dict.fromkeys(WEEKS, 4.0), MONITORS)
    for event in events:
        board.tell(*event)
    return Figures(board, truth, queries=4000, seconds=2.0, asked=asked)


def test_truth_is_judged_at_the_checkpoint_of_the_query(truth):
    assert not truth.is_hot("line-00002/1")
    assert truth.is_hot("line-00004/1")
    assert not truth.is_hot("line-00004/2")
    assert truth.is_hot("line-00008/2")


def test_hot_series_are_those_that_reached_the_threshold_in_the_sets_asked(truth):
    hot = {(WEEKS[0], "item-1"), (WEEKS[1], "item-1"), (WEEKS[1], "item-2")}
    assert truth.hot_series(SETS) == hot
    assert truth.hot_series(SETS[:2]) == {(WEEKS[0], "item-1")}
    assert truth.hot_series(()) == set()


def test_precision_counts_alerts_and_recall_counts_items_of_weeks(truth):
    document = figures(
        truth,
        [
            alert(
                "line-00002/1", dataset=WEEKS[0], monitor=APPEND
            ),  # too early: false, yet the item is found
            alert("line-00008/2", dataset=WEEKS[1], monitor=APPEND, attempt=4),
        ],
    ).document()
    append = document["monitors"][APPEND]
    assert append["precision"] == 0.5
    assert append["recall"] == pytest.approx(2 / 3, abs=1e-4)
    assert append["alerts_at_later_attempts"] == 1
    assert document["monitors"][ADAPTIVE]["precision"] is None
    assert document["monitors"][ADAPTIVE]["recall"] == 0.0
    assert document["recall"] == pytest.approx(1 / 3, abs=1e-4)


def test_recall_while_funded_leaves_out_the_weeks_that_ran_out(truth):
    document = figures(
        truth,
        [
            alert("line-00004/1", dataset=WEEKS[0], monitor=APPEND),
            lifecycle(EventType.EXHAUSTED, dataset=WEEKS[1], monitor=APPEND, run=1),
        ],
    ).document()
    append = document["monitors"][APPEND]
    assert append["recall"] == pytest.approx(1 / 3, abs=1e-4)
    assert append["recall_while_funded"] == 1.0


def test_the_document_has_the_promised_keys_and_is_plain_json(truth):
    document = figures(truth, [alert("line-00004/1", dataset=WEEKS[0], monitor=APPEND, spent=0.3)]).document()
    promised = {"queries", "queries_per_second", "alerts", "precision", "recall", "halts", "resamples"}
    assert promised <= document.keys()
    assert document["queries_per_second"] == 2000.0
    assert all(promised <= part.keys() for part in document["monitors"].values())
    assert document["datasets"][WEEKS[0]] == {"spent": 0.3, "limit": 4.0}
    assert json.loads(json.dumps(document, allow_nan=False)) == document


def test_the_printed_summary_marks_what_comes_from_the_truth(truth):
    out = io.StringIO()
    Console(file=out, width=120).print(figures(truth, []).render())
    text = out.getvalue()
    assert "* from the true counts, known to the demo only" in text
    assert "precision*" in text
    assert "recall*" in text


def test_true_counts_stay_out_of_reprs(truth):
    assert "array" not in repr(truth)
    assert isinstance(truth._counts, np.ndarray)
