"""The neighbour test of a user's own sources: holds for the counter, and finds counters with a mistake."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_svt.settings.application import load_spec
from stream_svt.settings.sources import SourceSpec
from stream_svt.sources.proving import prove_source
from tests.support.command_line import CommandLine
from tests.support.counter_mutants import MUTANTS
from tests.support.sources import WEB, changed

FORMS = {
    "close": (),
    "tick": (("window: 1h", "window: 1h\n    ask: tick\n    every: 1m"),),
    "events": (("{name: visitors}", "{name: visitors, of: {events: {at_most: 3}}}"),),
    "weeks": (
        ("window: 1h", "window: 7d\n    lateness: 1h"),
        ('dataset: "web-{date}"', 'dataset: "web-{iso_week}"'),
        (
            'generate: "web-{date}", from: 2026-11-28, lateness: 1h',
            'generate: "web-{iso_week}", from: 2026-11-23, lateness: 2h',
        ),
    ),
    "own time, conditions, nested": (
        ("time: {field: ts, in: ms}", "where: {a.b: [1, yes]}\n    time: {field: c.d, in: iso}"),
        ("unit: user", "unit: key"),
    ),
    "avro of seconds": (("time: {field: ts, in: ms}", "format: avro\n    time: {field: ts, in: s}"),),
}


def source(form: str) -> SourceSpec:
    [found] = load_spec(changed(*FORMS[form]) if FORMS[form] else WEB).sources
    return found


def seeds(count: int) -> Iterator[random.Random]:
    return (random.Random(f"proving {number}") for number in range(count))


@pytest.mark.parametrize("form", FORMS)
def test_no_unit_moves_a_count_by_more_than_its_measure_says(form: str) -> None:
    found = prove_source(source(form), seeds(8))
    assert found.counterexample is None
    assert found.cases == 8
    assert 0 < found.moved < found.answers
    assert found.takeovers > 8


@pytest.mark.parametrize(
    "name",
    [
        "the largest event time closes windows",
        "only series that exist are asked",
        "totals are in the ids",
        "a unit counts in each tick",
        "a takeover draws a second hash key",
        "a record that cannot be read spoils its batch",
    ],
)
def test_a_counter_with_a_mistake_is_found(name: str) -> None:
    [mutant] = [one for one in MUTANTS if one.name.startswith(name)]
    with mutant.made():
        found = [prove_source(source(form), seeds(15)).counterexample for form in ("close", "events", "tick")]
    assert any(found)


def test_prove_says_what_it_did_with_the_sources_of_a_configuration(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "web.yaml").write_text(WEB)
    found = CommandLine(capfd)("prove", "-c", tmp_path / "web.yaml", "--cases", 3)
    assert found.code == 0, found.err
    assert "Tested 3 pairs of raw topics of source requests, with and without one unit" in found.out
