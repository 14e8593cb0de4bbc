"""Severities of alerts follow from released bounds alone, and a change of them changes nothing else."""

from __future__ import annotations

from fractions import Fraction

import pytest

from stream_svt.monitor.takeover import change_spec
from stream_svt.settings.monitors import Change, MonitorSpec, changed_fields, effects
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, spec_of
from tests.support.settings import monitor

SEVERITY = ", severity: {ticket: 520, page: 800.2, call: 1500}"
VALUES = [500, 650, 800, 900, 1400, 1600, 9000, 100_000]


def played(form: str, more: str = SEVERITY) -> Play:
    play = Play(spec_of(FORMS[form] + more))
    play.play(TOPIC, [Query(0, value, f"s{k}") for k, value in enumerate(VALUES * 30)])
    return play


@pytest.mark.parametrize("form", ["never muted", "fine", "coarse", "adaptive", "general"])
def test_an_alert_has_the_severity_with_the_largest_number_that_its_bound_reaches(form):
    found = played(form).alerts()
    for alert in found:
        assert alert.bound is not None
        reached = [name for name, least in (("call", 1500), ("page", 800.2)) if alert.bound >= least]
        assert alert.severity == (reached or ["ticket"])[0]
    assert {alert.severity for alert in found} == {"ticket", "page", "call"}


def test_a_bound_of_exactly_the_number_reaches_it():
    bound = min(alert.bound for alert in played("fine").alerts() if alert.bound is not None)
    exact = Fraction(bound)
    for number, severity in ((exact, "page"), (exact + Fraction(1, 100), "ticket")):
        alerts = played("fine", f", severity: {{page: {number}, ticket: -5}}").alerts()
        assert next(one.severity for one in alerts if one.bound == bound) == severity


def test_without_a_bound_an_alert_has_the_severity_with_the_smallest_number():
    alerts = played("laplace").alerts()
    assert {(alert.bound, alert.severity) for alert in alerts} == {(None, "ticket")}


def test_a_change_of_severities_changes_no_outcome_and_no_digest():
    first, second = (played("never muted", more) for more in ("", SEVERITY))
    for one, other in zip(first.commits, second.commits, strict=True):
        assert one.records.keys() == other.records.keys()
        assert all(one.records[key] == other.records[key] for key in one.records if not key.startswith(b"m/"))
        assert one.progress == other.progress
    assert {alert.severity for alert in first.alerts()} == {None}
    assert effects(monitor(), monitor(severity={"page": 3})) == []
    assert changed_fields(monitor(), monitor(severity={"page": 3})) == ["severity"]
    assert monitor(severity={"page": 3}).hash() == monitor().hash()
    assert Change.NO_OUTCOME in MonitorSpec.model_fields["severity"].metadata


def test_a_changed_severity_holds_from_the_next_alert_of_the_open_run():
    play = Play(spec_of(FORMS["never muted"]))
    play.more(Query(0, 5000, "a"))
    change_spec(play.engine, spec_of(FORMS["never muted"] + SEVERITY))
    play.commit()
    play.crash()
    play.more(Query(0, 5000, "b"))
    assert [(alert.run, alert.number, alert.severity) for alert in play.alerts()] == [
        (1, 1, None),
        (1, 2, "call"),
    ]


def test_a_specification_without_severities_is_stored_as_by_earlier_releases():
    assert "severity" not in monitor().to_json()
    rated = monitor(severity={"page": "1/3"})
    assert MonitorSpec.from_json(rated.to_json()) == rated
