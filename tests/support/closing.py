"""An application on a broker that is closed, what is carried over from it, and the one that goes on."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from stream_svt.monitor.commands import Action
from stream_svt.monitor.released import decode
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.audit import Audit, follow
from stream_svt.protocol.sealing import RecordContext, Sealing
from stream_svt.protocol.shard_states import Cause, State
from stream_svt.protocol.state_records import META, Meta
from stream_svt.service.audit import audit_topic
from stream_svt.service.carry_over import read_balances
from stream_svt.service.config import Config, parse_config
from stream_svt.service.control import Reply, for_datasets, for_shards
from stream_svt.service.kafka import cluster_id_of
from stream_svt.service.worker import Worker, cluster_of
from stream_svt.settings.carried import Carried
from tests.support import records
from tests.support.keys import write_secrets
from tests.support.topics import create_topics
from tests.support.worker import HIGH, Scene, give, until

SEALED = "sealing: {key_file: key}\n"
SEALED_ANEW = "sealing: {key_file: another-key}\n"
KEY_LOST = "sealing: {key_file: another-key, key_lost: true}\n"
CARRIED = "carried_over: carried.jsonl\n"
KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
LIMIT = 4
RUN = Kind.PURE.units
"""What one run of the monitor costs in all: epsilon 1."""
TOPS = {"a": 1, "b": 2, "c": 4, "d": 0, "e": 3, "f": 5}
"""Datasets of the applications closed, and their alerts: a run of three tops is open, over, or was never begun."""
MORE_TOPS = 13
"""Alerts that no budget holds: twelve are what the limit pays for."""

State_ = Mapping[tuple[int, bytes], bytes]


@dataclass(frozen=True)
class Spent:
    """What an application had spent of each dataset, and what its open runs had reserved beside that."""

    spent: Mapping[str, int]
    reserved: Mapping[str, int]

    @property
    def held(self) -> dict[str, int]:
        """Spent and reserved."""
        return {name: spent + self.reserved[name] for name, spent in self.spent.items()}


class Application:
    """One application with a sealing key: what it spends, how it ends, what is left of it."""

    def __init__(self, scene: Scene, directory: Path, more: str = SEALED) -> None:
        self.scene = scene
        self.name = scene.application
        self.directory = directory
        self.more = more
        self.notes: list[str] = []
        write_secrets(directory, {"key": KEY.hex(), "another-key": OTHER_KEY.hex()})

    def config(self, more: str | None = None) -> Config:
        text = self.scene.text() + (self.more if more is None else more)
        return parse_config(text, directory=self.directory)

    # Its life

    async def spend(self, tops: Mapping[str, int]) -> Spent:
        """Let a worker answer so many queries that become alerts, as far as budgets allow, and stop it."""
        worker = await self.scene.start(self.config())
        for name, count in tops.items():
            await self.scene.send(name, *[HIGH] * count)
        await self.scene.settled(worker, len(await self.scene.read("counts")))
        await self.scene.stop(worker)
        return await self.told()

    async def told(self) -> Spent:
        """Return what the published events tell."""
        account = (await self.audit()).datasets
        names = self.scene.datasets.split(", ")
        return Spent(
            {name: account[name].spent if name in account else 0 for name in names},
            {name: account[name].reserved if name in account else 0 for name in names},
        )

    async def audit(self) -> Audit:
        config = self.config()
        return await audit_topic(cluster_of(config), config.topics.alerts, config.spec.monitors)

    async def charged(self) -> dict[str, int]:
        """Add up what all events charged, uncommitted ones included, each once."""
        seen: set[str] = set()
        found: dict[str, int] = defaultdict(int)
        for record in await self.scene.read("alerts", "read_uncommitted"):
            envelope, data = decode(record.value)
            if data.account is not None and envelope.id not in seen:
                seen.add(envelope.id)
                found[data.dataset] += round(data.account.charge * RUN)
        return found

    # Its end

    async def close(
        self, successor: str, *, shard: int | None = None, give_up: bool = False, patience: float = 20
    ) -> list[Reply]:
        """Give the command that closes the application, or one shard of it."""
        config = self.config()
        commands = for_shards(
            config,
            Action.CLOSE_APPLICATION,
            None if shard is None else [shard],
            successor=successor,
            cluster=await cluster_id_of(cluster_of(config)) if give_up else "",
        )
        return await give(config, commands, patience=patience)

    async def command(self, dataset: str) -> list[Reply]:
        """Give a command that has nothing to do with an end: to pause a dataset."""
        config = self.config()
        return await give(config, for_datasets(config, Action.PAUSE, [dataset]), patience=10)

    async def close_in_order(self, successor: str) -> None:
        """Start a worker, close every shard, and stop the worker."""
        worker = await self.scene.start(self.config())
        replies = await self.close(successor)
        assert [reply.accepted for reply in replies] == [True] * self.scene.partitions, replies
        await self.parked(worker, {Cause.CLOSED})
        await self.scene.stop(worker)

    async def give_up(self, successor: str, shards: Iterable[int], cause: Cause, words: str) -> None:
        """Start a worker, which parks these shards, give their states up, and stop the worker."""
        worker = await self.scene.start(self.config(), ready=False)
        shards = list(shards)
        await self.parked(worker, {cause}, shards)
        for status in worker.statuses():
            assert status.shard not in shards or words in status.reason, status.reason
        for shard in shards:
            (reply,) = await self.close(successor, shard=shard, give_up=True)
            assert reply.accepted, reply
        await self.parked(worker, {Cause.CLOSED}, shards)
        await self.scene.stop(worker)

    async def parked(self, worker: Worker, causes: set[Cause], shards: Sequence[int] | None = None) -> None:
        """Wait until these shards of a worker, or all, are parked for one of these causes."""
        wanted = set(range(self.scene.partitions) if shards is None else shards)

        def done() -> bool:
            parked = [status for status in worker.statuses() if status.state is State.PARKED]
            return wanted <= {status.shard for status in parked if status.cause in causes}

        await until(done, 60)

    # What is stored

    async def before_publication(self) -> State_:
        """Return the state of every shard as the last transaction left it that charged an event."""
        config = self.config()
        cluster_id = await cluster_id_of(cluster_of(config))
        latest: dict[int, dict[bytes, bytes]] = defaultdict(dict)
        found: dict[int, dict[bytes, bytes]] = {}
        for record in await self.scene.read("state"):
            latest[record.partition][record.key] = record.value
            if record.key != META:  # which a transaction writes last
                continue
            place = RecordContext(cluster_id, self.name, config.topics.state, record.partition)
            opened = Sealing(place, (KEY,), bytes).open(META, record.value)
            if msgspec.msgpack.decode(opened.content, type=Meta).chunks:
                found[record.partition] = dict(latest[record.partition])
        return {
            (shard, key): value for shard, state in found.items() for key, value in state.items() if value
        }

    async def put(self, state: State_) -> None:
        """Write records over those that are there, as a restore would, and delete all others."""
        gone = dict.fromkeys((await self.scene.live()).keys() - state.keys())
        for (shard, key), value in {**state, **gone}.items():
            await self.scene.producer.send(f"{self.name}.state", value, key=key, partition=shard)
        await self.scene.producer.flush()

    # What is left of it

    async def carry_over(
        self, successor: str, *, source_ended: bool = False, more: str | None = None
    ) -> Carried:
        """Read what is left of each budget, and write the successor's file."""
        config = self.config(more)
        carried, self.notes = await read_balances(
            config, cluster_of(config), successor=successor, source_ended=source_ended
        )
        (self.directory / "carried.jsonl").write_text("".join(f"{line}\n" for line in carried.lines()))
        return carried

    async def mirrored_to(self, servers: str) -> Application:
        """Copy the committed alerts to a topic of the same name on another cluster."""
        scene = replace(self.scene, servers=servers)
        await create_topics(servers, {f"{self.name}.alerts": self.scene.partitions})
        copies = [(one.partition, one.key, one.value) for one in await self.scene.read("alerts")]
        await records.send(servers, f"{self.name}.alerts", *copies)
        return Application(scene, self.directory, self.more)


class Stage:
    """Puts applications on brokers, and takes them away when the drill is over."""

    def __init__(self, directory: Path, name: str, servers: str, stack: contextlib.AsyncExitStack) -> None:
        self.directory = directory
        self.name = name
        self.successor = f"{name}-next"
        self.servers = servers
        self._stack = stack

    def beside(self, number: int) -> Stage:
        """Return one more stage, for a drill that is played at the same time."""
        directory = self.directory / str(number)
        directory.mkdir()
        return Stage(directory, f"{self.name}-{number}", self.servers, self._stack)

    async def old(self, *, partitions: int = 2, more: str = SEALED) -> Application:
        return await self._put(self.name, self.servers, partitions, more)

    async def new(self, *, partitions: int = 3, servers: str = "", more: str = SEALED) -> Application:
        return await self._put(self.successor, servers or self.servers, partitions, more + CARRIED)

    async def _put(self, name: str, servers: str, partitions: int, more: str) -> Application:
        scene = Scene(servers, name, partitions=partitions, datasets=", ".join(TOPS), limit=LIMIT)
        await self._stack.enter_async_context(scene.on_stage())
        return Application(scene, self.directory, more)


def balances(carried: Carried) -> dict[str, int]:
    """Return what counts as spent of each dataset."""
    return {name: balance.spent for name, balance in carried.datasets.items()}


async def goes_on(old: Application, new: Application, carried: Carried, real: Spent) -> None:
    """Let a successor spend all that is left, and hold both to every limit; then audit them together.

    ``real`` is what the old application had spent when it was last seen.
    """
    after = await new.spend(dict.fromkeys(new.scene.datasets.split(", "), MORE_TOPS))
    audit, earlier = await new.audit(), await old.audit()
    follow(audit, earlier, old.name)
    assert (audit.problems, earlier.problems) == ([], [])
    assert set(audit.carried_from.values()) == {old.name}
    before, charged = await old.charged(), await new.charged()
    for name, balance in carried.datasets.items():
        assert real.spent[name] <= balance.spent <= balance.limit == LIMIT * RUN
        assert after.spent[name] + after.reserved[name] <= balance.limit
        assert max(before[name], real.spent[name]) + charged[name] <= balance.limit, name
        left = balance.limit - balance.spent
        assert left - RUN < charged[name] <= left, (name, left, charged[name])
        assert bool(charged[name]) is (left >= RUN), name
