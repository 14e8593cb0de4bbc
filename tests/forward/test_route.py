"""When the brokers last answered, without a broker."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from stream_svt.forward.route import Route
from tests.support.forwarding import destination


@pytest.fixture
async def route(tmp_path) -> Route:
    one = destination(tmp_path, "{name: a, webhook: {url: 'http://127.0.0.1:1/'}}")
    dispatcher = SimpleNamespace(deliver=None, retrying=0)
    return Route(None, "alerts", one, dispatcher, None, start_at=None, accept_loss=False)


def noted(route: Route, answered: dict[str, int | None]) -> float:
    route._consumer = SimpleNamespace(assignment=lambda: set(answered), last_poll_timestamp=answered.get)
    route._note_poll()
    return route.status().polled


async def test_the_partition_that_waits_longest_tells_when_the_brokers_last_answered(route):
    route.joined = True
    assert noted(route, {"p": None, "q": 5_000}) == 0
    assert noted(route, {"p": 7_000, "q": 5_000}) == 5
    assert noted(route, {"p": 8_000, "q": 5_000}) == 5
    # A partition that was just given to it does not turn the time back.
    assert noted(route, {"p": None, "q": 9_000}) == 5


async def test_a_member_without_partitions_is_fine_and_who_is_in_no_group_is_not(route):
    assert noted(route, {}) == 0
    route.joined = True
    assert noted(route, {}) >= time.time() - 5
