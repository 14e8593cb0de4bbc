"""The last word of a worker that gives up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from stream_svt.errors import BrokerError, ConfigError, Problem
from stream_svt.service import app
from stream_svt.service import group as groups
from stream_svt.service.app import _in_file
from stream_svt.service.kafka import DISCARD_DEADLINE
from stream_svt.service.shard import CUT_SHORT

LIMIT = Problem(0, "datasets.a.limit", "is journaled as epsilon 3")


def test_what_is_wrong_with_the_file_is_said_with_its_name():
    nameless = _in_file(ConfigError([LIMIT]), "shop.yaml")
    assert str(nameless) == "shop.yaml: 1 problem\n  datasets.a.limit: is journaled as epsilon 3"
    assert nameless.exit_code == 2


def test_an_error_that_names_its_place_is_left_as_it_is():
    for error in (ConfigError([LIMIT], "other workers"), BrokerError("not reachable")):
        assert _in_file(error, "shop.yaml") is error


def test_the_parts_of_a_stop_fit_into_it() -> None:
    parts = (groups.STOP_PATIENCE, CUT_SHORT, groups.LAST_HINT, DISCARD_DEADLINE, groups.GOODBYE)
    assert sum(parts) < app.STOP_DEADLINE


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_that_takes_too_long_is_told_and_no_success(monkeypatch, caplog, in_time: bool) -> None:
    monkeypatch.setattr(app, "STOP_DEADLINE", 0.05)

    async def stop() -> None:
        await asyncio.sleep(0 if in_time else 60)

    monitoring = app.Monitoring(SimpleNamespace(stop=stop), None, asyncio.get_running_loop())
    await monitoring.on_stop()
    assert ("event=stop_timeout" in caplog.text) is not in_time
    assert monitoring.stopped_in_time is in_time
    for code in (None, 0):
        assert app._ended(code, in_time) == (app.OK if in_time else app.FAILED)
    assert app._ended(3, in_time) == 3
