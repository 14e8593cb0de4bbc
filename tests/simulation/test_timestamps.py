"""Queries stamped far ahead of the worker's clock, on the modelled log: they are not tested before it has caught up."""

from __future__ import annotations

import pytest

from stream_svt.errors import TimestampAhead
from stream_svt.monitor.released import EventType
from stream_svt.settings.application import load_spec
from tests.simulation.effects import finish
from tests.simulation.model import COMMON, Model, declared, send, told
from tests.simulation.test_reconfigured import HOT as UNTIMED

MUTED = f"{{name: hot, mute: 1h, {COMMON}}}"


def stamped_ahead(model: Model, seconds: float, name: str, dataset: str = "d0") -> None:
    """Send a query while the broker's clock is so far ahead."""
    model.now += seconds
    send(model, 1, name, dataset=dataset, series=name)
    model.now -= seconds


def alerts(model: Model) -> list[int]:
    return [data["position"]["offset"] for data in told(model, EventType.ALERT)]


def refused(model: Model) -> TimestampAhead:
    session = model.session()
    finish(session.open())
    with pytest.raises(TimestampAhead) as ahead:
        finish(session.run())
    model.broker.settle()
    return ahead.value


def test_what_comes_before_a_query_stamped_far_ahead_is_tested_and_that_one_waits_for_the_clock() -> None:
    model = Model(declared(MUTED))
    send(model, 1, "a", series="a")
    stamped_ahead(model, 610, "early")
    send(model, 1, "b", series="b")
    error = refused(model)
    assert "the record at offset 1 of 't' is stamped 6" in str(error)
    assert error.passes_at == pytest.approx(model.now + 10, abs=2)
    refused(model)  # and again: the place is stored
    assert alerts(model) == [0]
    model.now = error.passes_at
    for _ in range(2):
        model.serve()
    assert alerts(model) == [0, 1, 2]


@pytest.mark.parametrize(("monitor", "seconds"), [(MUTED, 590), (UNTIMED, 10**9)])
def test_what_is_a_little_ahead_is_tested_and_anything_where_no_duration_is_measured(
    monitor: str, seconds: float
) -> None:
    model = Model(declared(monitor))
    stamped_ahead(model, seconds, "early")
    for _ in range(2):
        model.serve()
    assert alerts(model) == [0]


def test_a_period_ends_for_no_query_stamped_behind_its_end() -> None:
    """The model begins on 21 September 2026."""
    periods = "{generate: 'd{date}', from: 2026-09-21, until: 2026-09-23, limit: 5, unit: one basket}"
    spec = load_spec(f"application: app\ndatasets: [{periods}]\nmonitors:\n  - {UNTIMED}\n")
    model = Model(spec)
    model.now += 86_400 - model.now % 86_400 - 3_600  # an hour before midnight
    stamped_ahead(model, 3_700, "early", "d2026-09-22")
    refused(model)
    model.broker.first["t"] = 1
    assert alerts(model) == []
