"""How `check --sample` tells which of the newest events count."""

from __future__ import annotations

from collections import Counter

import pytest

from stream_svt.operate.sampling import _findings
from stream_svt.sources.events import Fate
from stream_svt.sources.sampling import EventSample
from tests.support.events import source


@pytest.mark.parametrize(("errors", "level"), [(0, "note"), (2, "ok")])
def test_a_measure_that_no_event_matches_is_a_note(errors: int, level: str) -> None:
    sample = EventSample(Counter({Fate.COUNTED: 3, Fate.LATE: 1}), Counter(visitors=3, errors=errors))
    found = [*_findings(source(), sample, ["misspelt"])]
    assert [(one.level, one.message) for one in found] == [
        ("ok", "3 of the newest 4 events of topic 'web.requests' would count"),
        (level, f"of these match each measure: visitors 3, errors {errors}"),
        ("note", f"1 would not: the event {Fate.LATE.text}"),
        ("note", "misspelt"),
    ]


def test_measures_are_left_out_where_no_event_counts_or_answers_are_passed_on() -> None:
    [failed, _] = _findings(source(), EventSample(Counter([Fate.LATE]), Counter(visitors=0)), [])
    assert failed.level == "problem"
    assert len([*_findings(source(), EventSample(Counter([Fate.COUNTED])), [])]) == 1
