"""Nothing visible distinguishes neighbouring counts of several measures; a test of another measure is detected."""

from __future__ import annotations

from collections import Counter
from unittest.mock import ANY

import pytest

from stream_svt.columns.query_batch import OF_DECILES, QueryBatch
from stream_svt.mechanisms.contract import Neighbours
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.runs import Runs
from stream_svt.proving import neighbours, prove, streams
from stream_svt.proving.streams import batch_of_records, case_of
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.encoding import Encoded
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.support.cases import MAX_CASES, sources
from tests.support.counts import ERRORS, LONG, SOURCE, VISITORS, counting
from tests.support.sources import ANSWERS

AMPLE = "{names: [a, b, c], limit: 30}"
_OFF = ", max_runs: off"
FORMS = {
    "plain": _OFF,
    "adaptive": f"{_OFF}, mechanism: adaptive",
    "muted for a while": f"{_OFF}, mute: 2s, max_mutes: 2",
    "resampled": f"{_OFF}, resample_every: 5s",
    "limited": ", max_runs: 2 per 3s",
    "sweep": f"{_OFF}, correction: {{annealed: {{start: 12, end: 2}}}}, append: sweep",
    "retry": f"{_OFF}, append: {{retry: {{attempts: 3, lifetime: 2s, capacity: 5, every: 9}}}}",
}
DECODED = {"as arrays": lambda *_: batch_of_records, "from bytes": Encoded}
each_way = pytest.mark.parametrize("decoder", DECODED.values(), ids=DECODED)


def spec_of(form: str, source: str = SOURCE) -> ApplicationSpec:
    """Return three monitors of two measures: two of them may test rows together."""
    return counting(
        f"{VISITORS}{form}", f"{ERRORS}{form}", f"{VISITORS}{form}", source=source, datasets=AMPLE
    )


@each_way
@pytest.mark.parametrize("form", FORMS)
def test_neighbouring_counts_cannot_be_distinguished(form, decoder):
    summary = prove(spec_of(FORMS[form]), sources(f"counts {form}", 3), decoder)
    assert summary.counterexample is None, summary.counterexample
    assert summary.alerts > 0
    assert summary.largest_cost <= 1


@each_way
def test_neighbouring_answers_that_a_source_passes_on_cannot_be_distinguished(decoder):
    summary = prove(
        load_spec(ANSWERS.replace("series: page", "granularity: 0.5")), sources("answers", 3), decoder
    )
    assert summary.counterexample is None, summary.counterexample
    assert summary.alerts > 0


def test_a_silence_after_an_alert_distinguishes_nothing(monkeypatch):
    told, announce = Counter[str](), Runs.announce_watch

    def counted(self, kind, *more, **odds):
        told[kind] += 1
        announce(self, kind, *more, **odds)

    monkeypatch.setattr(Runs, "announce_watch", counted)
    source = SOURCE.replace("window: 1h", "window: 2s, every: 2s, lateness: 0s")
    for count in (2, 3):
        spec = spec_of(f"{_OFF}, mute: 300ms, not_renewed: {count}", source)
        summary = prove(spec, sources(f"{count} silences", 24), Encoded)
        assert summary.counterexample is None, summary.counterexample
    assert told[EventType.NOT_RENEWED] > 9
    assert told[EventType.UNTESTED] > 9


def test_the_restarts_are_also_within_records_of_counts(monkeypatch):
    reached = Counter[str]()
    load = neighbours.load

    def counted(engine, *state):
        load(engine, *state)
        reached["within"] += any(runner.row for runner in engine.runners.values())

    monkeypatch.setattr(neighbours, "load", counted)
    summary = prove(spec_of(FORMS["plain"], LONG), sources("counts within", 8), Encoded)
    assert summary.counterexample is None, summary.counterexample
    assert reached["within"]


def test_one_unit_moves_all_counts_of_a_dataset_one_way_by_no_more_than_a_source_lets_it():
    moves, measures = Counter[int](), set[str]()
    for rng in sources("moves of counts", 6):
        case = case_of(spec_of(FORMS["plain"]), rng)
        assert {*case.directions} <= {Neighbours.UP, Neighbours.DOWN}
        for (topic, records), moved in zip(case.first[0].items(), case.second[0].values(), strict=True):
            assert topic == "web.requests.counts"
            measures |= {record.measure for record in records}
            for record, other in zip(records, moved, strict=True):
                sign = 1 if case.directions[record.rows[0].dataset] is Neighbours.UP else -1
                for row, at in zip(record.rows, other.rows, strict=True):
                    assert (row.threshold, row.monitor) == (None, None)
                    if row.value is not None and at.value is not None:
                        moves[sign * (at.value - row.value)] += 1
    assert measures == {"visitors", "errors", OF_DECILES}
    assert min(moves) == 0
    assert max(moves) == 3 * streams.PARTS


def lets_all_test_it(patch):
    patch.setattr(QueryBatch, "measure_at", lambda *_: ANY)
    patch.setattr(QueryBatch, "of_one_measure", lambda _, start, stop: stop)


def ignores_the_header(patch):
    patch.setattr(QueryDecoder, "_measure", lambda *_: 0)


@pytest.mark.parametrize("broken", [lets_all_test_it, ignores_the_header])
def test_a_monitor_that_tests_queries_of_another_measure_is_detected(broken, monkeypatch):
    broken(monkeypatch)
    found = prove(spec_of(FORMS["plain"]), sources(broken.__name__, MAX_CASES), Encoded).counterexample
    assert found is not None
    assert "tested a query of measure" in found
