"""A hosted worker: it adopts every version, and limits the time of a stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from stream_svt.application.config import parse_config
from stream_svt.errors import StreamSvtError
from stream_svt.hosting import hosted as module
from stream_svt.hosting.hosted import HostedWorker
from stream_svt.kafka.clients import DISCARD_DEADLINE
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.worker import group as groups
from stream_svt.worker.shard import CANCEL_TIMEOUT
from stream_svt.worker.workload import AppliedWorkload
from tests.support.shop import SPEC


async def _versions(*texts: str) -> AsyncIterator[Version]:
    for number, text in enumerate(texts, start=1):
        yield Version(number, Bundle(text))


@pytest.mark.parametrize(
    ("errors", "text", "reason"),
    [
        ((), "application: shop", "datasets: is required"),
        ((ValueError("value 4711"),), SPEC, "unexpected ValueError"),
        ((OSError(11, "no process"),), SPEC, "no process"),
    ],
)
async def test_an_invalid_version_is_logged_and_the_next_one_is_adopted(caplog, errors, text, reason):
    adopted, raised = [], list(errors)

    async def adopt(workload: AppliedWorkload) -> None:
        if raised:
            raise raised.pop()
        adopted.append(workload.version[0])

    worker = SimpleNamespace(adopt=adopt, config=parse_config(SPEC))
    await HostedWorker(worker, _versions(text, SPEC))._adopt_versions()
    assert adopted == [2]
    assert "event=configuration_refused version=1" in caplog.text
    assert reason in caplog.text
    assert "4711" not in caplog.text


def test_the_timeouts_of_the_parts_of_a_stop_fit_into_its_deadline() -> None:
    parts = (groups.STOP_TIMEOUT, CANCEL_TIMEOUT, DISCARD_DEADLINE, groups.LEAVE_TIMEOUT)
    assert sum(parts) < module.STOP_DEADLINE


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_stop_that_takes_too_long_is_logged_and_fails(monkeypatch, caplog, in_time: bool) -> None:
    monkeypatch.setattr(module, "STOP_DEADLINE", 0.05)

    async def stop() -> None:
        await asyncio.sleep(0 if in_time else 60)

    hosted = HostedWorker(SimpleNamespace(stop=stop), _versions())
    with contextlib.nullcontext() if in_time else pytest.raises(StreamSvtError, match="not stopped within"):
        await hosted.stop()
    assert ("event=stop_timeout" in caplog.text) is not in_time
