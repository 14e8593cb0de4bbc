"""The pages of a worker, before any web framework sees them."""

from __future__ import annotations

import asyncio
import json

import pytest

from stream_svt.service import web
from stream_svt.service.config import parse_config
from stream_svt.service.tenure import State
from stream_svt.service.worker import Worker
from tests.service.test_metrics import SPEC, owned, view


class Stub(Worker):
    """A worker that never meets a broker."""

    joined = True
    shards: tuple = ()

    async def start(self) -> None:
        self.failed = asyncio.get_running_loop().create_future()

    async def stop(self) -> None:
        """Nothing runs."""

    def statuses(self):
        return list(self.shards)

    @property
    def ready(self) -> bool:
        self._group = self  # it has `joined`
        return super().ready


@pytest.fixture
def worker() -> Stub:
    return Stub(parse_config(SPEC))


def test_the_status_is_json_with_released_state_only(worker: Stub) -> None:
    worker.shards = (owned(view("a", tops=2)),)
    status = json.loads(web.status(worker).body)
    assert status["application"] == "shop"
    assert status["datasets"][0]["monitors"][0]["tops"] == 2
    assert status["monitors"][0]["threshold"] == 5
    assert status["shards"][0]["state"] == "running"


def test_a_standby_without_shards_is_ready(worker: Stub) -> None:
    assert web.ready(worker).status == 200
    worker.joined = False
    assert web.ready(worker).status == 503


@pytest.mark.parametrize(
    "state", [State.OPENING, State.LOST, State.ROLLED_BACK, State.PARKED, State.RETRYING]
)
def test_a_shard_that_is_not_open_makes_the_worker_unready_but_keeps_it_alive(
    worker: Stub, state: State
) -> None:
    status = owned()
    status.state = state
    worker.shards = (status,)
    assert web.ready(worker).status == 503
    assert state.value in web.ready(worker).body.decode()
    assert web.live(worker).status == 200


async def test_a_failed_worker_is_neither_live_nor_ready(worker: Stub) -> None:
    await worker.start()
    worker.failed.set_exception(RuntimeError())
    assert web.live(worker).status == 503
    assert web.ready(worker).status == 503
    worker.failed.exception()
