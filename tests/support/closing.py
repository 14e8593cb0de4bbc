"""An application on a broker that is closed, what is carried over from it, and the one that goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from stream_svt.kafka.clients import cluster_id_of
from stream_svt.monitor.operations import Action, Command
from stream_svt.operate.audit import audit_topic, read_balances
from stream_svt.operate.control import Reply, for_shards, send
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.history.audit import Audit
from stream_svt.protocol.shard_states import Cause
from stream_svt.settings.carried import Carried
from tests.support import records
from tests.support.keys import write_secrets
from tests.support.topics import create_topics
from tests.support.worker import HIGH, Scene

SEALED = "sealing: {keys: [key]}\n"
SEALED_ANEW = "sealing: {keys: [another-key]}\n"
KEY_LOST = "sealing: {keys: [another-key], key_lost: true}\n"
CARRIED = "carried_over: carried.jsonl\n"
KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
LIMIT = 4
RUN = Kind.PURE.units
"""What one run of the monitor costs in all: epsilon 1."""
TOPS = {"a": 1, "b": 2, "c": 4, "d": 0, "e": 3, "f": 5}
"""Datasets of the applications closed, and their alerts: a run of three tops is open, over, or was never begun."""
MORE_TOPS = 13
"""Alerts that no budget holds: twelve are what the limit pays for."""

StateRecords = Mapping[tuple[int, bytes], bytes]


@dataclass(frozen=True)
class Spent:
    """What an application had spent of each dataset, and what its open runs had reserved beside that."""

    spent: Mapping[str, int]
    reserved: Mapping[str, int]

    @property
    def held(self) -> dict[str, int]:
        """Spent and reserved."""
        return {name: spent + self.reserved[name] for name, spent in self.spent.items()}


@dataclass(eq=False)
class Application(Scene):
    """An application with a sealing key: what it spends, how it ends, what is left of it."""

    limit: int = LIMIT
    datasets: str = ", ".join(TOPS)
    more: str = SEALED
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        write_secrets(self.directory, {"key": KEY.hex(), "another-key": OTHER_KEY.hex()})

    # Its life

    async def spend(self, tops: Mapping[str, int]) -> Spent:
        """Let a worker answer so many queries that become alerts, as far as budgets allow, and stop it."""
        worker = await self.start()
        for name, count in tops.items():
            await self.send(name, *[HIGH] * count)
        await self.settled(worker, len(await self.read("counts")))
        await self.stop(worker)
        return await self.accounts()

    async def accounts(self) -> Spent:
        account = (await self.audit()).datasets
        known = {name: account.get(name) for name in self.datasets.split(", ")}
        return Spent(
            {name: one.spent if one else 0 for name, one in known.items()},
            {name: one.reserved if one else 0 for name, one in known.items()},
        )

    async def audit(self) -> Audit:
        config = self.config()
        return await audit_topic(config.cluster(), config.topics.alerts, config.spec.monitors)

    async def charged(self) -> dict[str, int]:
        """Add up what all events charged, uncommitted ones included, each once."""
        events = {event.id: event.data for event in await self.events("read_uncommitted")}
        found: dict[str, int] = defaultdict(int)
        for data in events.values():
            found[data.dataset] += round(data.account.charge * RUN) if data.account else 0
        return found

    # Its end

    @property
    def successor(self) -> str:
        return f"{self.application}-next"

    async def close(
        self, *, shard: int | None = None, give_up: bool = False, timeout: float = 20
    ) -> list[Reply]:
        """Give the command that closes the application, or one shard of it."""
        config = self.config()
        cluster = await cluster_id_of(config.cluster()) if give_up else ""
        command = Command("", Action.CLOSE_APPLICATION, successor=self.successor, cluster=cluster)
        commands = for_shards(config, None if shard is None else [shard], command)
        return await send(config, config.cluster(), commands, timeout=timeout)

    async def close_in_order(self) -> None:
        """Start a worker, close every shard, and stop the worker."""
        worker = await self.start()
        replies = await self.close()
        assert [reply.accepted for reply in replies] == [True] * self.partitions, replies
        await self.parked(worker, Cause.CLOSED)
        await self.stop(worker)

    async def give_up(self, cause: Cause, words: str, shards: Collection[int] = (0, 1)) -> None:
        """Start a worker, which parks these shards, give their states up, and stop the worker."""
        worker = await self.start(ready=False)
        await self.parked(worker, cause, shards=shards)
        for status in worker.statuses():
            assert status.shard not in shards or words in status.reason, status.reason
        for shard in shards:
            (reply,) = await self.close(shard=shard, give_up=True)
            assert reply.accepted, reply
        await self.parked(worker, Cause.CLOSED, shards=shards)
        await self.stop(worker)

    # What is stored

    async def put(self, state: StateRecords) -> None:
        """Write records over those that are there, as a restore would, and delete all others."""
        gone = dict.fromkeys((await self.live()).keys() - state.keys())
        for (shard, key), value in {**state, **gone}.items():
            await self.producer.send(f"{self.application}.state", value, key=key, partition=shard)
        await self.producer.flush()

    # What is left of it

    async def carry_over(self, *, source_ended: bool = False, **changes: object) -> Carried:
        """Read what is left of each budget, and write the successor's file."""
        config = self.config(**changes)
        carried, self.notes = await read_balances(
            config, config.cluster(), successor=self.successor, source_ended=source_ended
        )
        (self.directory / "carried.jsonl").write_text("".join(f"{line}\n" for line in carried.lines()))
        return carried

    async def mirrored_to(self, servers: str) -> Application:
        """Copy the committed alerts to a topic of the same name on another cluster."""
        alerts = f"{self.application}.alerts"
        await create_topics(servers, {alerts: self.partitions})
        copies = [(one.partition, one.key, one.value) for one in await self.read("alerts")]
        await records.send(servers, alerts, *copies)
        return replace(self, servers=servers)

    async def followed_by(
        self, scenes: Callable[..., Awaitable[Application]], *, more: str = SEALED, **options: Any
    ) -> Application:
        """Put the successor on a broker."""
        usual = {"application": self.successor, "directory": self.directory, "partitions": 3}
        return await scenes(Application, more=more + CARRIED, **usual | options)


def balances(carried: Carried) -> dict[str, int]:
    """Return what counts as spent of each dataset."""
    return {name: balance.spent for name, balance in carried.datasets.items()}


async def goes_on(old: Application, new: Application, carried: Carried, real: Spent) -> None:
    """Let a successor spend all that is left, and hold both to every limit; then audit them together.

    ``real`` is what the old application had spent when it was last seen.
    """
    after = await new.spend(dict.fromkeys(TOPS, MORE_TOPS))
    audit, earlier = await new.audit(), await old.audit()
    audit.follow(earlier, old.application)
    assert (audit.problems, earlier.problems) == ([], [])
    assert set(audit.carried_from.values()) == {old.application}
    before, charged = await old.charged(), await new.charged()
    for name, balance in carried.datasets.items():
        assert real.spent[name] <= balance.spent <= balance.limit == LIMIT * RUN
        assert after.held[name] <= balance.limit
        assert max(before[name], real.spent[name]) + charged[name] <= balance.limit, name
        left = balance.limit - balance.spent
        assert left - RUN < charged[name] <= left, (name, left, charged[name])
        assert bool(charged[name]) is (left >= RUN), name
