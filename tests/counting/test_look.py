"""`look` on a real broker: the true deciles reach the worker alone, which charges and releases them with noise."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest

from stream_svt.monitor.released import EventType
from stream_svt.operate import looking
from stream_svt.worker.worker import Worker
from tests.support import records
from tests.support.command_line import CommandLine, Ended
from tests.support.counting import Answer, Counting
from tests.support.worker import until

pytestmark = pytest.mark.kafka

PAGES = "harbour, meadow, quarry"
UNUSUAL = (
    "  - {name: unusual, source: web, measure: events, epsilon: 1, cutoff: 3, threshold: 20, "
    "expected_queries: 10000, usual: {every: 2s, times: 1, factor: 1.5}}\n"
)
EXACT = "90"
"""An epsilon of which the noise is 0 but in one look of a thousand, of a measure of users."""


@dataclass
class Looks:
    """Runs the command on an application with a worker."""

    scene: Counting
    worker: Worker
    line: CommandLine
    directory: Path

    async def __call__(self, *options: object) -> Ended:
        return await self.asked(*options, "--yes")

    async def asked(self, *options: object) -> Ended:
        """Run the command without a confirmation."""
        file = self.directory / "monitors.yaml"
        file.write_text(self.scene.text())
        return await asyncio.to_thread(self.line, "look", "-c", file, *options)

    async def tested(self, monitor: str) -> list[Answer]:
        return await self.scene.answers(*([] if monitor == "users" else [monitor]))


@pytest.fixture
async def looks(counting, capfd, tmp_path) -> Looks:
    """A source with three known pages that was counted for some seconds, and a worker that has read all."""
    scene = await counting(pages=PAGES, more=UNUSUAL, partitions=2)
    await scene.publish()
    counter = await scene.count()
    worker = await scene.start()
    for number in range(7):
        await scene.visit(150 - 20 * number, "harbour", f"{number % 2}")
        await scene.visit(10, "meadow")
        await asyncio.sleep(0.8)
    await scene.agrees()
    await scene.end(counter)
    return Looks(scene, worker, CommandLine(capfd), tmp_path)


def deciles(values: list[Decimal | int]) -> list[float]:
    """Return nine values by their ranks."""
    ordered = sorted(values)
    return [float(ordered[-(-tenth * len(ordered) // 10) - 1]) for tenth in range(1, 10)]


async def test_a_look_releases_the_deciles_of_all_closed_windows_with_noise_for_its_charge(
    looks, monkeypatch
):
    first = await looks("--monitor", "many", "--epsilon", EXACT, "--json")
    assert (first.code, first.err) == (0, "")
    event = json.loads(first.out)
    of_users = [one.value for one in await looks.tested("users") if one.measure == "users"]
    detail = event["data"]["detail"]
    assert detail["deciles"] == [one - 100 for one in deciles(of_users)]
    assert detail["values"] == len(of_users)
    assert len({*detail["deciles"]}) > 3
    account = event["data"]["account"]
    assert account["charge"] == 90
    assert account["spent"] > 90
    again = await looks("--monitor", "unusual", "--epsilon", "5")
    assert (again.code, again.err) == (0, "")
    answers = [one.value for one in await looks.tested("unusual")]
    assert f"{len(answers):,} values that unusual tests in shop," in again.out
    assert "less the threshold 20:" in again.out
    assert "Charged epsilon 5 to shop. Event " in again.out
    shown = [float(line.split()[-1]) for line in again.out.splitlines() if " in 100 are at most " in line]
    # Of events, of which one unit sends three, a difference moves by 4.5 at most.
    wanted = [one - 20 for one in deciles(answers)]
    assert max(abs(one - other) for one, other in zip(shown, wanted, strict=True)) < 200
    assert all(one * 2 == int(one * 2) for one in shown)
    audit = await looks.scene.audited()
    assert audit.problems == []
    monkeypatch.setattr("sys.stdin", io.StringIO())
    unconfirmed = await looks.asked("--monitor", "many", "--epsilon", "0.5")
    assert "One look at what many tests costs epsilon 0.5.\nLook? [y/N]:" in unconfirmed.err
    assert (unconfirmed.code, "not confirmed; nothing was changed" in unconfirmed.err) == (1, True)


async def test_a_look_that_is_not_paid_for_shows_nothing_and_one_that_nobody_answers_waits(looks):
    ended = await looks("--monitor", "many", "--epsilon", "101")
    assert (ended.code, ended.out) == (1, "")
    assert "refused, nothing was charged to shop: what is left of its limit does not pay for it" in ended.err
    (refused,) = await looks.scene.told(EventType.DECILES)
    assert (refused.reason, refused.account.charge) == ("budget", 0)
    # Without a worker it waits in the topic.
    await looks.scene.stop(looks.worker)
    ended = await looks("--monitor", "many", "--epsilon", "0.5", "--timeout", "1")
    assert (ended.code, ended.out) == (1, "")
    assert "no answer in time: a worker that reads the topic of counts charges for the look" in ended.err
    await looks.scene.start()
    await until(lambda: _told(looks.scene, 2))


async def _told(scene: Counting, count: int) -> bool:
    return len(await scene.told(EventType.DECILES)) == count


async def test_true_deciles_are_in_the_topic_of_counts_alone(looks):
    ended = await looks("--monitor", "many", "--epsilon", "0.5")
    assert ended.code == 0
    scene = looks.scene
    topic = f"{scene.application}.web.counts"
    written = await records.read(scene.servers, topic, range(scene.partitions))
    (held,) = [one for one in written if "deciles" in dict(one.headers)]
    look = json.loads(dict(held.headers)["deciles"])
    for name in (scene.config().topics.alerts, scene.config().topics.control):
        for one in await records.read(scene.servers, name, range(scene.partitions)):
            content = one.value or b""
            assert held.value not in content
    # A window's close before it has as late a timestamp: no clock goes on by a look.
    assert held.timestamp == max(one.timestamp for one in written if one is not held and one.key == held.key)
    assert look["monitor"] == "many"
    # Another worker that takes over goes on behind it.
    await scene.stop(looks.worker)
    await scene.start()
    assert len(await scene.told(EventType.DECILES)) == 1


async def test_a_look_refuses_what_it_cannot_look_at(looks, monkeypatch):
    assert "--monitor must be one of many, unusual" in (await looks("--monitor", "few", "--epsilon", "1")).err
    assert "is not an epsilon" in (await looks("--monitor", "many", "--epsilon", "0")).err
    other = await looks("--monitor", "many", "--epsilon", "1", "--dataset", "other")
    assert (other.code, "many tests nothing in 'other'" in other.err) == (2, True)
    monkeypatch.setattr(looking, "closed_record", lambda *_: None)
    empty = await looks("--monitor", "many", "--epsilon", "1")
    assert (
        empty.code,
        "retains no closed window of dataset 'shop' that many was asked about" in empty.err,
    ) == (
        1,
        True,
    )
