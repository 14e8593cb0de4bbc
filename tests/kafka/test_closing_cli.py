"""A move to a successor as an operator types it: every step by exit code and by what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.support import records
from tests.support.command_line import Ended
from tests.support.keys import write_secrets
from tests.support.process import Service, free_port
from tests.support.worker import Scene

pytestmark = pytest.mark.kafka
Command = Callable[..., Awaitable[Ended]]


class Operator:
    """One application's configuration file, its worker, and the commands given with the file."""

    def __init__(
        self, servers: str, directory: Path, application: str, partitions: int, more: str = ""
    ) -> None:
        self.servers = servers
        self.application = application
        self.partitions = partitions
        self.port = free_port()
        self.log = directory / f"{application}.log"
        self.config = directory / f"{application}.yaml"
        text = Scene(servers, application, partitions=partitions, datasets="today, tomorrow").text()
        sections = f"sealing: {{key_file: key}}\nweb: {{port: {self.port}}}\n"
        self.config.write_text(text + sections + more)

    async def serve(self, tops: dict[str, int]) -> Service:
        """Start a worker, send it queries that become alerts, and wait until they are answered."""
        service = Service(self.config, self.port, self.log)
        await service.ready()
        queries = [
            (name, {"id": f"{name}-{number}", "value": 50_000, "series": f"item-{number}"})
            for name, count in tops.items()
            for number in range(count)
        ]
        topic = f"{self.application}.counts"
        await records.send_queries(self.servers, topic, *queries, partitions=self.partitions)

        wanted = sum(tops.values())
        await service.until(
            lambda: sum(sum(shard["offsets"].values()) for shard in service.shards().values()) >= wanted
        )
        return service


async def test_an_application_is_closed_carried_over_and_audited_with_its_successor(
    stream_svt, broker, topics, tmp_path
) -> None:
    write_secrets(tmp_path, {"key": bytes(range(32)).hex()})
    name, successor, servers = topics.name("shop"), topics.name("next"), broker.bootstrap_servers
    old = Operator(servers, tmp_path, name, 2)
    new = Operator(servers, tmp_path, successor, 3, "carried_over: carried.jsonl\n")
    assert (await stream_svt("check", "-c", old.config, "--create-topics")).code == 0
    service = await old.serve({"today": 4, "tomorrow": 1})
    try:
        await _close(stream_svt, old, successor)
    finally:
        assert await service.end() == 0
    carry_over = ("carry-over", "-c", old.config, "--successor")
    second = await stream_svt(*carry_over, "second")
    assert (second.code, second.out) == (1, "")
    assert f"the application was closed for successor '{successor}': a second one would" in second.err
    missing = await stream_svt("check", "-c", new.config)
    assert missing.code == 2
    assert "cannot read 'carried.jsonl': No such file" in missing.out + missing.err
    carried = await stream_svt(*carry_over, successor)
    said = f"Carried over from {name} to {successor}: 2 datasets, 2 of them with something left.\n"
    assert (carried.code, carried.err) == (0, said)
    head, *lines = [json.loads(line) for line in carried.out.splitlines()]
    assert (head["application"], head["successor"], head["complete"]) == (name, successor, True)
    assert {line["name"]: (line["limit"], line["spent"]) for line in lines} == {
        "today": ("4", "1.6"),
        "tomorrow": ("4", "0.6"),
    }
    await _go_on(stream_svt, old, new, carried.out)


async def _close(stream_svt: Command, old: Operator, successor: str) -> None:
    """Close an application that runs; whatever is not exactly that is refused, and changes nothing."""
    early = await stream_svt("carry-over", "-c", old.config, "--successor", successor)
    assert (early.code, early.out) == (1, "")
    assert "not closed yet: shard 0, 1. 'stream-svt control close-application -c FILE" in early.err
    close = ("control", "close-application", "-c", old.config, "--successor")
    unasked = await stream_svt(*close, successor)
    assert unasked.code == 1
    assert f"Close all shards of {old.application} for ever?" in unasked.err
    assert "not confirmed; nothing was changed" in unasked.err
    first = await stream_svt(*close, successor, "--yes")
    assert (first.code, first.err) == (0, "")
    assert [line.partition(": ")[2].partition(":")[0] for line in first.out.splitlines()] == ["accepted"] * 2
    again = await stream_svt(*close, successor, "--yes")
    closed = f"the shard is closed for ever, for successor '{successor}'"
    assert (again.code, again.out) == (0, f"shard 0: accepted: {closed}\nshard 1: accepted: {closed}\n")
    other = await stream_svt(*close, "second", "--yes")
    assert (other.code, other.err) == (1, f"shard 0: refused: {closed}\nshard 1: refused: {closed}\n")
    async with asyncio.timeout(20):
        while "closed for ever" not in (await stream_svt("status", "-c", old.config)).out:
            await asyncio.sleep(0.1)


async def _go_on(stream_svt: Command, old: Operator, new: Operator, carried: str) -> None:
    """Let the successor spend more, and audit both."""
    file = new.config.parent / "carried.jsonl"
    file.write_text("".join(carried.splitlines(keepends=True)[:-1]))
    cut = await stream_svt("check", "-c", new.config)
    assert cut.code == 2
    assert "it has 1 datasets and says 2: lines are missing, or were added" in cut.out + cut.err
    file.write_text(carried)
    assert (await stream_svt("check", "-c", new.config, "--create-topics")).code == 0
    ready = await stream_svt("check", "-c", new.config)
    assert (ready.code, ready.out.endswith("Ready to run.\n")) == (0, True)
    assert f"application '{old.application}' was closed for this one" in ready.out
    await _refused_for_another(stream_svt, old, new)
    service = await new.serve({"today": 3, "tomorrow": 13})
    assert await service.end() == 0
    audit = ("audit", "-c", new.config, "--before", old.config)
    both = await stream_svt(*audit)
    assert both.code == 0
    assert "today: epsilon 2.6 of 4 spent, 1.6 of it by an earlier application" in both.out
    assert "tomorrow: epsilon 3.6 of 4 spent, 0.6 of it by an earlier application" in both.out
    assert "today: epsilon 1.6 of 4 spent, 4 alerts" in both.out
    balanced = [line for line in both.out.splitlines() if line.startswith("The ledgers balance: ")]
    topics = [f"{new.application}.alerts", f"{old.application}.alerts"]
    assert [line.split(" on ")[1].split(",")[0] for line in balanced] == topics
    assert (await stream_svt(*audit, "--state")).code == 0
    shown = json.loads((await stream_svt(*audit, "--json")).out)
    assert (shown["balances"], [one["balances"] for one in shown["before"]]) == (True, [True])
    turned = await stream_svt("audit", "-c", old.config, "--before", new.config)
    assert turned.code == 1
    assert f"FAIL it does not go on with the budgets of application '{new.application}'" in turned.err


async def _refused_for_another(stream_svt: Command, old: Operator, new: Operator) -> None:
    """A copy of the file in which somebody put another successor's name."""
    directory = new.config.parent
    another = Operator(new.servers, directory, f"{new.application}-b", 3, "carried_over: copied.jsonl\n")
    carried = (directory / "carried.jsonl").read_text()
    (directory / "copied.jsonl").write_text(carried.replace(new.application, another.application))
    refused = await stream_svt("check", "-c", another.config, "--create-topics")
    assert refused.code == 2
    said = f"application '{old.application}' was closed for '{new.application}': two successors would spend"
    assert said in refused.out
