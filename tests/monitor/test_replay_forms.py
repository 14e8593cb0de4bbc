"""Any division of a stream into batches, commits and crashes releases the same alerts at the same price."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from stream_svt.columns import query_batch, strings
from stream_svt.columns.strings import TextCodes, TextList, TextParts
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state import mutes
from tests.support.engine_play import Play, batch_of
from tests.support.monitor_forms import (
    FORMS,
    TOPIC,
    assert_books_balance,
    assert_same,
    counts,
    engine_state,
    interrupted,
    of_monitors,
    spec_of,
    stream,
    uninterrupted,
)

_SEEDS = 4


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_any_batching_and_any_crashes_release_the_same(form, monkeypatch):
    spec = spec_of(FORMS[form])
    queries = stream(7, 1200, monitors=["m0", "other"])
    expected = uninterrupted(spec, queries)
    assert any(event.type is EventType.ALERT for event in expected.events)
    for seed in range(_SEEDS):
        rng = random.Random(seed)
        # How many queries are looked up, and hashed, one by one decides nothing.
        monkeypatch.setattr(mutes, "_FEW", (16, 0)[seed % 2])
        monkeypatch.setattr(strings, "_FEW", (8, 0)[seed // 2])
        play = interrupted(spec, queries, rng.randrange)
        assert_same(play, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    "forms",
    [("plain", "adaptive"), ("sweep", "retry", "muted for the run"), ("resampled", "sweep by clock", "fine")],
    ids=" and ".join,
)
def test_monitors_that_share_a_topic_replay_each_from_its_own_position(forms):
    limit = "{names: [a, b, c], limit: 1000, unit: one basket}"
    spec = spec_of(*(FORMS[form] for form in forms), datasets=limit)
    queries = stream(11, 900, monitors=["m0", "m1", "m2"])
    expected = uninterrupted(spec, queries)
    for seed in range(_SEEDS):
        rng = random.Random(seed)
        play = interrupted(spec, queries, rng.randrange)
        assert of_monitors(play) == of_monitors(expected), seed
        assert counts(play) == counts(expected), seed
        assert engine_state(play.engine) == engine_state(expected.engine), seed
        assert_books_balance(play)


# Records of several rows: a monitor may stop inside one, and continues from there.


_ROWS = 7
_GAP = 3
"""Every third offset has no query: a refused record, or a transaction marker."""


class Columnar(Play):
    """Plays records of seven rows at two of three offsets; `coded`: whether series are entries of dictionaries."""

    coded = False

    def feed(self, topic, queries, last):
        first = self.engine.next_offset(topic) or 0
        offsets = [offset for offset in range(first, last) if offset % _GAP]
        rows = [(offset, row) for offset in offsets for row in range(_ROWS)]
        heads = [(offset - offset // _GAP - 1) * _ROWS for offset, _ in rows]
        index = [head + row for head, (_, row) in zip(heads, rows, strict=True)]
        of_record = [(queries[head].dataset, queries[head].time_ms) for head in heads]
        given = [
            replace(queries[k], dataset=dataset, time_ms=time_ms)
            for k, (dataset, time_ms) in zip(index, of_record, strict=True)
        ]
        fed = batch_of(topic, given, 0, len(index))
        fed.first, fed.end = first, last
        fed.query_id = [f"q{k}" for k in index]
        fed.offset = np.array([offset for offset, _ in rows], dtype=np.int64)
        fed.row = np.array([row for _, row in rows], dtype=np.int64)
        if self.coded and rows:
            series = [fed.series[row] for row in range(len(fed))]
            fed.series = TextParts([coded(series[row : row + _ROWS]) for row in range(0, len(fed), _ROWS)])
        self.step(fed)


def coded(texts):
    entries = [*{text: None for text in texts if text is not None}]
    return TextCodes(TextList(entries), np.array([entries.index(text) if text else -1 for text in texts]))


def test_monitors_that_pack_a_record_together_report_what_each_does_by_itself(monkeypatch):
    monkeypatch.setattr(query_batch, "_MANY", 4)
    queries, packing, plays = stream(23, 1400), query_batch.QueryBatch.packing, []
    packed, batches = [], []
    spec = spec_of(FORMS["plain"], FORMS["adaptive"], FORMS["fine"], FORMS["plain"] + ", datasets: [b]")

    def pack(fed, *rows):
        batches.append(fed)
        packed.append(packing(fed, *rows))
        return packed[-1]

    for packs in (pack, lambda *_: None):
        monkeypatch.setattr(query_batch.QueryBatch, "packing", packs)
        play = Columnar(spec)
        for records in range(10, 260, 10):
            play.feed(TOPIC, queries, records)
        play.commit()
        plays.append(play)
    assert any(packed)
    assert not any(fed.packed for fed in batches)
    assert_same(*plays)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["plain", "few mutes", "sweep by clock", "sweep resampled", "retry", "resampled"]
)
def test_rows_of_records_replay_the_same(form, monkeypatch):
    queries = stream(19, 1400)
    records = len(queries) // _ROWS // 2 * _GAP
    spec = spec_of(FORMS[form])
    expected = Columnar(spec)
    expected.feed(TOPIC, queries, records)
    expected.commit()
    alerts = [event.data.position for event in expected.events if event.type is EventType.ALERT]
    assert len(alerts) > 10
    assert {position.row for position in alerts} > {0, 1, 2}
    assert len({(position.offset, position.row) for position in alerts}) == len(alerts)
    inside = False
    for seed in range(6):
        rng, play = random.Random(seed), Columnar(spec)
        # The parts of a batch that are tested at once decide nothing.
        monkeypatch.setattr(query_batch, "_ROWS_AT_ONCE", rng.choice([1, 5, 1 << 14]))
        monkeypatch.setattr(query_batch, "_MANY", rng.choice([1, 4, 256]))
        play.coded = seed % 2 == 1
        while (at := play.engine.next_offset(TOPIC)) < records:
            play.feed(TOPIC, queries, min(records, at + rng.randrange(1, 40)))
            if rng.random() < 0.4:
                play.commit()
            elif rng.random() < 0.4:
                play.crash()
                inside |= play.engine.runners["m0"].row > 0
        play.commit()
        assert_same(play, expected)
    assert inside, "no crash left a monitor inside a record"
