"""`backtest` on a real broker: the live counter's counts, from raw events and from its topic, untouched."""

from __future__ import annotations

import asyncio
import logging
import re
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from stream_svt.monitor.engine import Engine
from stream_svt.operate import backtesting
from stream_svt.sources import replay
from stream_svt.sources.counts import CountsRecord
from stream_svt.sources.replay import Replay
from tests.support import records
from tests.support.command_line import CommandLine, Ended
from tests.support.counting import Counting, window_of
from tests.support.topics import administrator, delete_before

pytestmark = pytest.mark.kafka

LASTING = (
    "  - {name: lasting, source: web, measure: users, epsilon: 1, cutoff: 3, threshold: 50, "
    "expected_queries: 10000, for: 2}\n"
    "  - {name: rare, source: web, measure: users, epsilon: 1, cutoff: 3, threshold: 50, expected_queries: 10000, "
    "excess: {over: 10, windows: 2, visits: {at_most: 1, in: 2}}}\n"
)
PAGES = "harbour, meadow, quarry"


class Recorded(Replay):
    """Notes what is tested."""

    tested: list[CountsRecord]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Recorded.tested, Recorded.last = [], self

    def _test(self, records: Sequence[CountsRecord], tick: int) -> None:
        self.tested += records
        super()._test(records, tick)


@dataclass
class Backtests:
    """Runs the command on an application, in a directory of its own."""

    scene: Counting
    line: CommandLine
    directory: Path

    async def __call__(self, *options: object) -> Ended:
        file = self.directory / "monitors.yaml"
        file.write_text(self.scene.text())
        arguments = ("backtest", "-c", file, "--draws", 3, *options)
        return await asyncio.to_thread(self.line, *arguments)

    @property
    def report(self) -> Path:
        return self.directory / f"backtest-{self.scene.application}.txt"


@pytest.fixture
async def backtests(counting, capfd, tmp_path, monkeypatch) -> Backtests:
    """A source with three known pages, on a topic with brokers' timestamps, counted for some seconds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(backtesting, "Replay", Recorded)
    scene = await counting(pages=PAGES, more=LASTING, partitions=2)
    await scene.publish()
    # The raw topic reaches as far back as the counts, and nobody else comes in a window that only the replay counts:
    # later visits depend on earlier ones.
    await scene.event("early", "quarry")
    await scene.producer.flush()
    counter = await scene.count()
    await asyncio.sleep(1 - time.time() % 1)
    for number in range(7):
        await scene.visit(150, "harbour", f"{number % 2}")
        await scene.visit(10, "meadow")
        await asyncio.sleep(0.8)
    await scene.event("someone", "elsewhere")
    await scene.producer.flush()
    await scene.agrees()
    await scene.end(counter)
    return Backtests(scene, CommandLine(capfd), tmp_path)


async def ends(servers: str) -> tuple[dict[TopicPartition, int], set[str]]:
    """Return the ends of all partitions, and the groups."""
    async with administrator(servers) as admin:
        groups = {name for name, _ in await admin.list_consumer_groups()}
        topics = {one["topic"]: one["partitions"] for one in await admin.describe_topics()}
    places = [TopicPartition(topic, one["partition"]) for topic, parts in topics.items() for one in parts]
    async with AIOKafkaConsumer(bootstrap_servers=servers) as consumer:
        return await consumer.end_offsets(places), groups


def contents(written: Sequence[Any]) -> list[tuple[int, bytes, list[Any], bytes]]:
    return sorted((one.timestamp, one.key, [*one.headers], one.value) for one in written)


def replayed() -> list[tuple[int, bytes, list[Any], bytes]]:
    found = ((one.timestamp_ms, one.dataset.encode(), [*one.headers], one.content) for one in Recorded.tested)
    return sorted(found)


async def assert_same_counts(scene: Counting) -> None:
    """Compare with the live records from the fourth tick on: at earlier ones questions read windows before."""
    topic, found = f"{scene.application}.web.counts", replayed()
    live = contents(await records.read(scene.servers, topic, range(scene.partitions)))
    first, last = sorted({one[0] for one in found})[2], max(one[0] for one in live)
    common = [one for one in live if one[0] > first]
    assert len({one[0] for one in common}) >= 3
    assert len({(name, content) for _, _, headers, _ in common for name, content in headers}) >= 2 + 2 + 3
    assert [one for one in found if first < one[0] <= last] == common


async def test_a_replay_tests_the_live_counts_and_answers_from_raw_events_and_from_counts(backtests):
    scene, untouched = backtests.scene, await ends(backtests.scene.servers)
    assert (await backtests("--from", "1h")).code == 0
    text = backtests.report.read_text()
    assert f"raw events of topic {scene.topic}: " in text
    assert "1 events not counted: the event is of a series without a name in the window's list" in text
    await assert_same_counts(scene)
    assert await ends(scene.servers) == untouched
    backtests.report.unlink()
    # Of the raw topic the last records are left: counts reach further back.
    for number in range(scene.places):
        if held := await records.read(scene.servers, scene.topic, [number]):
            await delete_before(scene.servers, scene.topic, held[-1].offset, number)
    assert (await backtests("--from", "1h")).code == 0
    assert f"counts of topic {scene.application}.web.counts: " in backtests.report.read_text()
    await assert_same_counts(scene)
    assert await ends(scene.servers) == untouched


async def test_what_depends_on_events_is_in_the_owners_file_alone(backtests, caplog):
    caplog.set_level(logging.DEBUG)
    scene, said = backtests.scene, list[str]()
    for name in ("first", "again"):
        files = f"{name}.txt", f"{name}.svg"
        ended = await backtests("--output", files[0], "--plot", files[1], "--from", "1h")
        modes = [stat.S_IMODE((backtests.directory / one).stat().st_mode) for one in files]
        assert (ended.code, modes) == (0, [0o600, 0o600])
        said.append((ended.out + ended.err).replace(name, "FILE"))
        await scene.visit(300, "quarry", "more")  # a neighbour, and more
    assert said[0] == said[1]
    assert "as sensitive as the data" in said[0]
    values = {str(one.value) for one in await scene.answers() if one.value >= 10}
    words = {*PAGES.split(", "), *values, "incident", "u0", "shop"}
    logged = " ".join(one.getMessage() for one in caplog.records if one.name.startswith("stream_svt"))
    assert not {one for one in words if re.search(rf"\b{one}\b", logged + said[0])}
    assert "and the picture to FILE.svg, for their owner alone" in " ".join(said[0].split())
    picture = (backtests.directory / "first.svg").read_text()
    assert "as sensitive as the raw events" in picture
    ended = await backtests("--output", "first.txt")
    assert (ended.code, "is there" in ended.err) == (2, True)
    printed = await backtests("--output", "-", "--monitor", "many", "--surely-from", "120")
    rows = [line.split()[:2] for line in printed.out.splitlines()]
    assert ["many", "120"] in rows
    assert "lasting" not in printed.out
    assert sorted(one.name for one in backtests.directory.iterdir()) == [
        "again.svg",
        "again.txt",
        "first.svg",
        "first.txt",
        "monitors.yaml",
    ]


async def test_draws_have_keys_of_their_own(backtests):
    keys = set[bytes]()

    class Watched(Engine):
        def __init__(self, *args: Any, key: bytes, **options: Any) -> None:
            keys.add(key)
            super().__init__(*args, key=key, **options)

    with patch.object(replay, "Engine", Watched):
        assert (await backtests()).code == 0
    assert len(keys) == 3


async def test_a_backtest_refuses_what_it_cannot_replay_and_says_why(counting, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scene = await counting()
    run = Backtests(scene, CommandLine(capfd), tmp_path)
    empty = await run()
    assert empty.code == 1
    assert f"topics {scene.topic} and {scene.application}.web.counts are empty: let it count" in empty.err
    await scene.visit(3)
    open_yet = await run("--from", "1s")
    assert (open_yet.code, "no window of this time has closed" in open_yet.err) == (1, True)
    assert "--monitor must be one of many" in (await run("--monitor", "few")).err
    scene.application += "-other"
    missing = await run()
    assert (missing.code, "does not exist" in missing.err) == (3, True)
    assert not run.report.exists()


async def test_events_from_before_any_counter_are_replayed_by_their_producers_timestamps(
    counting, capfd, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    scene = await counting(raw={})
    begin = window_of(int(time.time() * 1000)) - 3_600_000
    for number in range(900):
        at = begin + number % 3 * 1_000  # three windows in a row are one incident
        await scene.event(f"u{number}", "abc"[number % 2], at=at)
    await scene.producer.flush()
    run = Backtests(scene, CommandLine(capfd), tmp_path)
    assert (await run("--from", "2h", "--surely-from", "120")).code == 0
    text = run.report.read_text()
    assert "900 events counted" in text
    [row] = [line.split() for line in text.splitlines() if line.startswith("many")]
    assert row[:3] == ["many", "120", "2"]
