"""The neighbour test of a user's own sources: holds for the counter, and finds counters with a mistake."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.questions import Question
from stream_svt.sources.proving import SourceSummary, prove_source
from tests.support.command_line import CommandLine
from tests.support.counter_mutants import MUTANTS
from tests.support.sources import WEB, changed

QUESTIONS = (
    "share: {of: errors, above: 25%}, over: [1h, 6h]",
    "usual: {every: 24h, times: 4, factor: 1.5}",
    "excess: {over: 1, windows: 24, visits: {at_most: 1, in: 24}}",
    "mean: 3, for: {windows: 5, at_least: 4}",
)
ASKING = "".join(
    f"  - {{name: q{number}, source: requests, measure: visitors, epsilon: 1, cutoff: 5, threshold: 5, {question}}}\n"
    for number, question in enumerate(QUESTIONS)
)
WITHOUT_PER = ", from: 2026-11-28, lateness: 1h, limit: {epsilon: 2}"
PER = ", every: 15d, from: 2026-11-28, lateness: 1h, looks_back: 4d, limit: {epsilon: 40, per: 30d}"
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
    "questions": (
        ("monitors:\n", f"monitors:\n{ASKING}"),
        (", from: 2026-11-28, lateness: 1h, limit: {epsilon: 2}", PER),
    ),
    "avro of seconds": (("time: {field: ts, in: ms}", "format: avro\n    time: {field: ts, in: s}"),),
}


def spec(form: str) -> ApplicationSpec:
    return load_spec(changed(*FORMS[form]) if FORMS[form] else WEB)


def proved(spec: ApplicationSpec, count: int) -> SourceSummary:
    return prove_source(spec, spec.sources[0], seeds(count))


def seeds(count: int) -> Iterator[random.Random]:
    return (random.Random(f"proving {number}") for number in range(count))


@pytest.mark.parametrize("form", FORMS)
def test_no_unit_moves_a_count_by_more_than_its_measure_says(form: str) -> None:
    found = proved(spec(form), 8)
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
        found = [proved(spec(form), 15).counterexample for form in ("close", "events", "tick")]
    assert any(found)


@pytest.mark.parametrize("question", range(len(QUESTIONS)))
def test_a_question_that_moves_further_than_it_says_is_found(
    question: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a unit moved it by at most half of what it does, in either direction."""
    asked, told = spec("questions"), Question.moves.fget
    halved = property(
        lambda one: tuple(move // 2 if one.monitor == f"q{question}" else move for move in told(one))
    )
    monkeypatch.setattr(Question, "moves", halved)
    found = proved(asked, 40).counterexample
    assert found is not None
    assert f"b'q{question} " in found


def test_prove_says_what_it_did_with_the_sources_of_a_configuration(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "web.yaml").write_text(WEB)
    found = CommandLine(capfd)("prove", "-c", tmp_path / "web.yaml", "--cases", 3)
    assert found.code == 0, found.err
    assert "Tested 3 pairs of raw topics of source requests, with and without one unit" in found.out
