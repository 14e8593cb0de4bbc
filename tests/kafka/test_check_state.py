"""`check` opens what a worker opens first: a state that none could open is found before one is started."""

from __future__ import annotations

import pytest

from stream_svt.protocol.sealing import key_id
from stream_svt.service.check import Finding, Level, check_brokers
from stream_svt.service.config import Config, parse_config
from stream_svt.service.worker import cluster_of
from tests.support.books import NEW, OLD
from tests.support.worker import HIGH, Scene

pytestmark = pytest.mark.kafka


async def _about(config: Config, *subjects: str) -> list[Finding]:
    report = await check_brokers(config, cluster_of(config))
    return [finding for finding in report.findings if finding.subject in subjects]


async def test_a_state_under_another_key_is_found_before_a_worker_starts(broker, topics, tmp_path) -> None:
    for name, key in (("old", OLD), ("new", NEW)):
        (tmp_path / name).write_text(key.hex())
        (tmp_path / name).chmod(0o600)
    async with Scene(broker.bootstrap_servers, topics.name("shop")).on_stage() as scene:

        def keyed(sealing: str) -> Config:
            return parse_config(scene.text() + f"sealing: {{{sealing}}}\n", directory=tmp_path)

        subjects = "state", "sealing.key_file", "topics.state"
        # Topics that were made a moment ago may not be known to every broker yet.
        for _ in range(20):
            found = await _about(keyed("key_file: old"), "state")
            if found:
                break
        assert [one.message for one in found] == ["nothing is stored yet"]
        worker = await scene.start(keyed("key_file: old"))
        await scene.send("a", HIGH, HIGH)
        await scene.settled(worker, 2)
        before = await scene.read("state")
        (beside,) = await _about(keyed("key_file: old"), "state", "sealing.key_file")
        assert (beside.level, beside.message) == (
            Level.OK,
            "what 2 of 2 shards have stored opens with the configured keys",
        )
        assert worker.ready, "a look disturbs no worker"
        await scene.stop(worker)
        for config in (keyed("key_file: new"), scene.config()):
            found = [one for one in await _about(config, *subjects) if one.level is Level.PROBLEM]
            (problem,) = found
            assert problem.subject == "sealing.key_file"
            assert (
                f"shards 0, 1 on topic '{scene.application}.state': it is sealed with key" in problem.message
            )
            assert key_id(OLD).hex() in problem.message
        (rotated,) = await _about(
            keyed("key_file: new, previous_key_files: [old]"), "state", "sealing.key_file"
        )
        assert rotated.level is Level.OK
        assert len(await scene.read("state")) >= len(before)
