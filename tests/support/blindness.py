"""One application that becomes blind in every way of docs/blindness.md, and sees again.

What its forwarder posts goes to an Alertmanager of its own, so that each source is seen by itself.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.observed import Watched
from tests.support.partitioning import partition_of
from tests.support.process import applied
from tests.support.prometheus import Alertmanager
from tests.support.topics import create_topics
from tests.support.worker import HIGH, LOW, WANTED

PAGE = Path(__file__).parents[2] / "docs" / "blindness.md"
ROWS = {
    "exhausted": "exhausted",
    "limited": "limited",
    "`on_halt: stop`": "stopped",
    "closed": "closed",
    "paused": "paused",
    "paused `--for` 1h": "timed",
    "shard parked": "parked",
    "not covered": "uncovered",
    "no queries": "silent",
}
"""The part of the play that each row of the page is, by its name; `limit too small` never begins."""
TOO_SMALL = "limit too small"
ON_SHARD_1 = "parked"
NAMES = {
    part: next(
        name
        for name in (f"{part}-{number}" for number in range(100))
        if partition_of(name.encode(), 2) == (part == ON_SHARD_1)
    )
    for part in ROWS.values()
}
"""The dataset of each part."""
COMMON = (
    "epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 100000], threshold: 5000, expected_queries: 10000"
)
KEYS = {
    "limited": "max_runs: 1 per 1h",
    "stopped": "on_halt: stop, max_runs: off",
}
LIMITS = {"exhausted": 1}


class Told(NamedTuple):
    """What a row of the page says."""

    status: str
    alarm: str
    forwarded: str
    until: str


def told() -> dict[str, Told]:
    """Return the rows of the page's first table by their first cell."""
    rows = tables()[0]
    return {name: Told(status.strip("`"), *rest[:3]) for name, status, *rest in rows}


def tables() -> list[list[list[str]]]:
    """Return the page's tables as rows of cells, without their heads."""
    found = re.findall(r"^\|.*\n\|[-|]*\|\n((?:\|.*\n)+)", PAGE.read_text(), re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
        for text in found
    ]


@dataclass(eq=False)
class Night(Watched):
    """One application that becomes blind in every way at once."""

    covered: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.file = self.write()

    def text(self, **changes: object) -> str:
        monitors = [
            f"{{name: m-{part}, topic: {self.application}.{'none' if part == 'silent' else 'counts'}, "
            f"datasets: [{name}], {COMMON}, {KEYS.get(part, 'max_runs: off')}}}"
            for part, name in NAMES.items()
            if part != "uncovered" or self.covered
        ]
        datasets = [
            f"{{name: {name}, limit: {LIMITS.get(part, 9)}, unit: u}}" for part, name in NAMES.items()
        ]
        return (
            f'application: {self.application}\nkafka: {{bootstrap_servers: "{self.servers}", session_timeout: 2s, '
            "heartbeat_interval: 300ms}\ntopics: {partitions: 2}\ncommit: {interval: 100ms}\n"
            f"datasets: [{', '.join(datasets)}]\nmonitors: [{', '.join(monitors)}]\n"
        )


@dataclass
class Seen:
    """What was seen: each part as the page would say it, and what alerted after all had ended."""

    rows: dict[str, Told] = field(default_factory=dict)
    texts: dict[str, list[Mapping[str, str]]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)


async def play(night: Night, ruled: Alertmanager, posted: Alertmanager) -> Seen:
    """Play the night, of which the rules alert in one Alertmanager, and the forwarder in another one."""
    found, file = Seen(), night.file
    async with night.on_stage():
        await create_topics(night.servers, {f"{night.application}.none": 2})
        worker = night.serve(file=file)
        await worker.ready(90)
        for name in NAMES.values():
            await night.send(name, LOW, topic=f"{night.application}.counts")
        await worker.until(lambda: worker.offsets(night.queries) >= len(NAMES))
        # Queries of shard 1 are lost while nobody reads.
        await worker.end()
        await night.send(NAMES["parked"], *[LOW] * 3)
        ends = await night.ends("counts")
        lost = next(offset for place, offset in ends.items() if place.partition == 1)
        await night.delete_before("counts", lost, 1)
        worker = night.serve(file=file)
        night.forward(posted.url)
        await worker.until(lambda: 0 in worker.shards())
        for part in ("exhausted", "limited", "stopped"):
            await night.send(NAMES[part], HIGH, HIGH, HIGH)
        hour = int(1000 * (time.time() + 3600))
        for action, part, until in (("close", "closed", 0), ("pause", "paused", 0), ("pause", "timed", hour)):
            await night.command(action, NAMES[part], monitor=f"m-{part}", until=until)
            await worker.until(lambda part=part: _status(worker.status(), part) in ("stopped", "paused"))

        def alerts(of: Alertmanager) -> list[dict[str, Any]]:
            labels = ((one, one["labels"]) for one in of.alerts())
            return [one for one, own in labels if own.get("application") == night.application]

        def rows() -> dict[str, Told]:
            return {part: _row(part, worker.status(), alerts(ruled), alerts(posted), found) for part in NAMES}

        expected = {part: told()[row] for row, part in ROWS.items()}
        try:
            await worker.until(lambda: rows() == expected, 60)
        except AssertionError:
            assert worker.alive, worker.log
        found.rows = rows()
        await _end(night, worker, file)

        def standing() -> set[str]:
            shown = [*alerts(ruled), *alerts(posted)]
            return {part for part in NAMES for alert in shown if _concerns(alert, part)}

        try:
            await worker.until(lambda: not standing(), 60)
        except AssertionError:
            assert worker.alive, worker.log
        found.left = standing()
    return found


async def _end(night: Night, worker: Any, file: Path) -> None:
    """End everything as the page says."""
    await night.command("raise-budget", NAMES["exhausted"], limit="9")
    for part, action in (
        ("limited", "resample"),
        ("stopped", "resample"),
        ("closed", "resample"),
        ("paused", "resume"),
    ):
        await asyncio.sleep(0.5)
        await night.command(action, NAMES[part], monitor=f"m-{part}")
    await asyncio.sleep(0.5)
    soon = int(1000 * (time.time() + 1))
    await night.command("pause", NAMES["timed"], monitor="m-timed", until=soon)
    reason = next(one["reason"] for one in worker.status()["shards"] if one["shard"] == 1)
    match = WANTED.search(reason)
    assert match, reason
    await night.command("accept-loss", partition=1, topic=match[1], offset=int(match[2]))
    await night.send(NAMES["silent"], LOW, topic=f"{night.application}.none")
    await worker.until(lambda: 1 in worker.shards())
    night.covered = True
    text = night.text() + f"web: {{port: {night.ports[file]}}}\n"
    await asyncio.to_thread(file.write_text, text)
    await asyncio.to_thread(applied, file)
    for part in ("exhausted", "limited", "stopped", "closed", "paused", "timed"):
        await night.send(NAMES[part], LOW)


def _status(status: Mapping[str, Any] | None, part: str) -> str:
    """Return the word of the worker's status for a part."""
    if status is None:
        return "no answer"
    if part == "parked":
        return next((one["state"] for one in status["shards"] if one["shard"] == 1), "none")
    (monitors,) = [one["monitors"] for one in status["datasets"] if one["dataset"] == NAMES[part]]
    return next((monitor["state"] for monitor in monitors), "not covered")


def _concerns(alert: Mapping[str, Any], part: str) -> bool:
    labels = alert["labels"]
    if part in ("parked", "silent"):
        own = {"parked": ("ShardParked", "shard", "1"), "silent": ("QueriesStopped", "topic", ".none")}[part]
        return labels["alertname"] == own[0] and labels[own[1]].endswith(own[2])
    return (
        labels.get("dataset") == NAMES[part]
        and re.match("Monitor|DatasetNot", labels["alertname"]) is not None
    )


def _row(part: str, status: Any, ruled: list[Any], posted: list[Any], found: Seen) -> Told:
    alarms = [alert for alert in ruled if _concerns(alert, part)]
    others = [alert for alert in posted if _concerns(alert, part)]
    found.texts[part] = [alert["annotations"] for alert in (*alarms, *others)]
    untils = {
        "a time" if "continues at" in text or "continues by itself at" in text else "none"
        for text in (notes["description"] for notes in found.texts[part])
    }
    return Told(
        _status(status, part),
        ", ".join(sorted(f"{one['labels']['severity']} {one['labels']['alertname']}" for one in alarms))
        or "none",
        _same(alarms, others),
        ", ".join(sorted(untils)),
    )


def _same(alarms: list[Any], others: list[Any]) -> str:
    """Return whether the forwarder's alerts have the labels of the rules', or what else they are."""
    ruled, posted = [sorted(map(str, (one["labels"] for one in alerts))) for alerts in (alarms, others)]
    return "yes" if posted and posted == ruled else "no" if not posted else f"{posted} beside {ruled}"
