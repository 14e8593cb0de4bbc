"""Neighbouring streams that reach the engine through the decoders; rules broken in a decoder are detected."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest

from stream_svt.columns import query_batch as batches
from stream_svt.proving import prove
from stream_svt.proving.streams import batch_of_records, case_of, reduce_spec
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.encoding import Encoded
from stream_svt.settings.application import ApplicationSpec
from tests.support.cases import MAX_CASES, sources
from tests.support.engine_play import numbers
from tests.support.monitor_forms import FORMS, spec_of

TENTHS = FORMS["plain"].replace("sensitivity: 1", "granularity: 0.1, sensitivity: 0.1").replace("500", "40")
PATHS = "value: payload.count, series: payload.page, set: meta.set"
LAYOUTS = {
    "messages and columns": "",
    "mapped JSON": f", record: {{{PATHS}, id: meta.id}}",
    "Avro": f", record: {{format: avro, {PATHS}}}",
}


def streams_of(spec: ApplicationSpec, rng: random.Random) -> tuple[dict, Encoded]:
    small = reduce_spec(spec, rng)
    return case_of(small, rng).first[0], Encoded(small, rng)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_written_is_read(layout):
    spec, exactly = spec_of(f"{TENTHS}{LAYOUTS[layout]}"), []
    for rng in sources(layout, 6):
        stream, encoded = streams_of(spec, rng)
        for topic, records in stream.items():
            found, expected = encoded(topic, records, 0), batch_of_records(topic, records, 0)
            rows = range(len(expected))
            assert (found.rejects, found.end) == ([], expected.end)
            for name in ("offset", "row", "dataset", "timestamp_ms"):
                assert getattr(found, name).tolist() == getattr(expected, name).tolist()
            assert found.markers == expected.markers
            assert (found.monitor, [*found.threshold]) == (expected.monitor, [*expected.threshold])
            for row in rows:
                for texts, written in ((found.series, expected.series), (found.set_id, expected.set_id)):
                    assert (texts[row] if texts else None) == (written[row] if written else None)
            pairs = [*zip(numbers(found), numbers(expected), strict=True)]
            near = [(read, written) for read, written in pairs if written is not None and abs(written) < 100]
            assert all(read is not None and abs(read - written) <= Fraction(1, 10) for read, written in near)
            exactly += [read == written for read, written in near]
    assert {*exactly} == {True, False}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("form", ["plain", "fine", "general", "retry", "sweep", "adaptive"])
def test_neighbours_look_the_same_through_the_decoders(layout, form):
    text = f"{FORMS[form]}{LAYOUTS[layout]}"
    summary = prove(spec_of(text, text), sources(f"{layout} {form}", 3), Encoded)
    assert summary.counterexample is None, summary.counterexample
    assert summary.alerts > 0


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("granularity", ["0.1", "0.01", "0.05"])
def test_neighbours_on_decimal_grids_look_the_same_through_the_decoders(layout, granularity):
    text = TENTHS.replace("0.1", granularity).replace("40", "3") + LAYOUTS[layout]
    summary = prove(spec_of(text), sources(f"{layout} {granularity}", 3), Encoded)
    assert summary.counterexample is None, summary.counterexample


def floors_floats_as_binary_fractions(patch):
    patch.setattr(batches, "GUARD", 2**80)


def _refusing(patch: pytest.MonkeyPatch, is_bad: Callable[[bytes], bool]) -> None:
    decode = QueryDecoder.decode

    def refusing(self, records):
        batch = decode(self, records)
        bad = [one.offset for one in records if is_bad(one.value)]
        return replace(batch, rejects=sorted([*batch.rejects, *((offset, "bad") for offset in bad)]))

    patch.setattr(QueryDecoder, "decode", refusing)


def refuses_what_is_no_text(patch):
    def is_bad(value):
        try:
            return value[5:].decode() is None
        except UnicodeDecodeError:
            return True

    _refusing(patch, is_bad)


def refuses_lengths(patch):
    _refusing(patch, lambda value: len(value) % 7 == 0)


CAUGHT_IN = {
    floors_floats_as_binary_fractions: [*LAYOUTS],
    refuses_what_is_no_text: ["Avro"],
    refuses_lengths: ["Avro", "mapped JSON"],
}


@pytest.mark.parametrize(
    ("broken", "layout"), [(broken, layout) for broken, layouts in CAUGHT_IN.items() for layout in layouts]
)
def test_a_broken_decoder_is_detected(broken, layout, monkeypatch):
    broken(monkeypatch)
    text = f"{TENTHS}{LAYOUTS[layout]}".replace("epsilon: 1", "epsilon: 20")
    spec = spec_of(text, datasets="{names: [a, b, c], limit: 300, unit: one basket}")
    assert prove(spec, sources(broken.__name__, MAX_CASES), Encoded).counterexample is not None
