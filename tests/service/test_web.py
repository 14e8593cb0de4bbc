"""The pages of a worker, before any web framework sees them."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from stream_svt.errors import ConfigError
from stream_svt.protocol.tenure import State
from stream_svt.service import web
from stream_svt.service.config import parse_config
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


def test_reloads_that_shards_would_refuse_leave_the_old_specification_in_use(worker: Stub) -> None:
    worker.shards = (owned(view("a")),)
    changes = {
        "limit: {epsilon: 4}": ("limit: {epsilon: 5}", "raise-budget --dataset a --limit 5"),
        "unit: one basket": ("unit: one user", "cannot change"),
        "names: [a, b, c]": ("names: [a, b]", "never dropped"),
        "correction: none": ("correction: none, append: retry", "another name"),
        "application: shop": ("application: shed", "another application"),
    }
    before = worker.config
    for old, (new, message) in changes.items():
        with pytest.raises(ConfigError, match=message):
            worker.reload(parse_config(SPEC.replace(old, new)))
        assert worker.config is before


def test_a_reload_after_a_raised_budget_is_accepted(worker: Stub) -> None:
    worker.shards = (owned(replace(view("a"), limit=5.0)),)
    worker.reload(
        parse_config(SPEC.replace("epsilon: 4", "epsilon: 5").replace("threshold: 5", "threshold: 6"))
    )
    assert worker.workload.spec.monitor("hot").threshold == 6
