"""What the process does around a worker: it hands over every version, and has the last word where it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.protocol.shard_states import Cause
from stream_svt.service import app as module
from stream_svt.service import group as groups
from stream_svt.service import worker as service
from stream_svt.service.app import Monitoring
from stream_svt.service.config import Config, parse_config
from stream_svt.service.kafka import DISCARD_DEADLINE, BrokerUnavailable
from stream_svt.service.reading import Reading, read
from stream_svt.service.self_test import Fault
from stream_svt.service.shard import CUT_SHORT
from tests.service.test_metrics import SPEC


class Worker:
    """Notes what it adopts; fails as it is told."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.adopted: list[int] = []

    async def adopt(self, reading: Reading) -> None:
        if self.errors:
            raise self.errors.pop()
        self.adopted.append(reading.version.number)


async def _versions(*texts: str) -> AsyncIterator[Version]:
    for number, text in enumerate(texts, start=1):
        yield Version(number, Bundle(text))


@pytest.mark.parametrize(
    ("errors", "text", "said"),
    [
        ((), "application: shop", "datasets: is required"),
        ((ValueError("value 4711"),), SPEC, "unexpected ValueError"),
        ((OSError(11, "no process"),), SPEC, "no process"),
    ],
)
async def test_a_version_that_cannot_be_used_is_told_and_the_next_one_is_used(
    caplog, errors: tuple[Exception, ...], text: str, said: str
) -> None:
    worker = Worker(*errors)
    monitoring = Monitoring(worker, None, asyncio.get_running_loop())
    await monitoring._follow(_versions(text, SPEC))
    assert worker.adopted == [2]
    assert "event=configuration_refused version=1" in caplog.text
    assert said in caplog.text
    assert "4711" not in caplog.text


async def test_a_worker_stays_out_of_its_group_until_a_configuration_is_applied(monkeypatch) -> None:
    joined = []

    async def require(config: Config, cluster: object) -> None:
        joined.append(config.spec.application)
        raise BrokerUnavailable("away")

    monkeypatch.setattr("stream_svt.service.worker.require", require)
    monkeypatch.setattr("stream_svt.service.worker.JOIN_BACKOFF", (0.01, 60.0))
    worker = service.Worker(parse_config(SPEC, is_whole=False))
    await worker.start()
    await asyncio.sleep(0.05)
    assert not worker.ready
    assert worker.fault == Fault(Cause.CONFIGURATION, service.NOTHING_APPLIED)
    assert joined == []
    version = Version(3, Bundle(SPEC))
    await worker.adopt(await read(version))
    await asyncio.sleep(0.05)
    assert joined == ["shop"]
    assert worker.workload.version == (3, version.digest)
    assert worker.config.spec == parse_config(SPEC).spec
    await worker.stop()


def test_the_parts_of_a_stop_fit_into_it() -> None:
    parts = (groups.STOP_PATIENCE, CUT_SHORT, DISCARD_DEADLINE, groups.GOODBYE)
    assert sum(parts) < module.STOP_DEADLINE


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_that_takes_too_long_is_told_and_no_success(monkeypatch, caplog, in_time: bool) -> None:
    monkeypatch.setattr(module, "STOP_DEADLINE", 0.05)

    async def stop() -> None:
        await asyncio.sleep(0 if in_time else 60)

    monitoring = module.Monitoring(SimpleNamespace(stop=stop), None, asyncio.get_running_loop())
    await monitoring.on_stop()
    assert ("event=stop_timeout" in caplog.text) is not in_time
    assert monitoring.stopped_in_time is in_time
    codes = [module._exit_code(code, in_time) for code in (None, 0, 3)]
    assert codes == ([0, 0, 3] if in_time else [1, 1, 3])
