"""A counter and a worker as two users, each with the permissions that are printed for Strimzi."""

from __future__ import annotations

import asyncio

import pytest

from stream_svt.application.config import Config, parse_config
from stream_svt.counting.service import CounterService
from stream_svt.operate import strimzi
from tests.support.counting import Counting
from tests.support.permissions import allow
from tests.support.tls import USERS
from tests.support.worker import until

pytestmark = pytest.mark.kafka
COUNTER, WORKER = USERS[-2:]


async def test_a_counter_counts_and_a_worker_tests_with_the_printed_permissions_of_each(
    secure_broker, topics, tmp_path
):
    servers = secure_broker.bootstrap_servers
    async with Counting(servers, topics.name("web"), directory=tmp_path).on_stage() as scene:
        scene.more = (
            "  - {name: lasting, source: web, measure: users, epsilon: 1, cutoff: 1, threshold: 20, for: 2, "
            "expected_queries: 10000}\n"
        )
        printed = strimzi.grants(scene.config())
        for role, user in (("counter", COUNTER), ("worker", WORKER)):
            for acl in printed[role]:
                kind = {"transactionalId": "transactional_id"}.get(acl.kind, acl.kind)
                for operation in acl.operations:
                    named = {"DescribeConfigs": "describe_configs"}.get(operation, operation.lower())
                    await allow(scene.servers, user, named, kind, acl.name, prefixed=acl.prefixed)
        await scene.publish()

        def config(user: str, *, for_counter: bool = False) -> Config:
            text = secure_broker.secured(scene.text(), scene.directory, user)
            options = {"directory": scene.directory, "is_whole": not for_counter, "for_counter": for_counter}
            return parse_config(text, **options)

        counter = CounterService(config(COUNTER, for_counter=True))
        running = scene.counters[counter] = asyncio.create_task(counter.run())
        await until(lambda: running.done() or not counter.lacks)
        worker = await scene.start(config(WORKER))
        await until(lambda: [loop.waits for loop in counter.loops] == [""])
        await scene.visit(400)
        (alert,) = await scene.alerted(1)
        assert (alert.dataset, alert.monitor, alert.series) == ("shop", "many", "a")

        async def answered() -> bool:
            return bool(await scene.answers("lasting"))

        await until(answered)
        await scene.stop(worker)
