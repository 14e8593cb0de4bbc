"""Applications that are closed and carried over to successors, in histories full of faults, and attacks on both.

Each history is a chain: an application lives through a script of faults, is closed by its owner or with its state given
up, or dies behind a mirror; what is left of it is carried over from its alerts; a successor goes on. The judge adds up
what every event that was ever sent charged, committed or not, over all applications.
"""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from typing import Any

import msgspec
from msgspec import structs

from stream_svt.errors import ApplicationClosed, CommandRefused, UnreadableState
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import CLOSING, EventType
from stream_svt.protocol.history.carry_over import CarryOverRefused, ShardHistory, carry_over
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.sealing import Sealing, proof_checker
from stream_svt.settings.application import ApplicationSpec, load_spec
from stream_svt.settings.carried import Carried, parse
from tests.simulation.applications import APPLICATIONS, Application, monitors_of, query
from tests.simulation.log import CONTEXT, Broker, finish, journal_of
from tests.simulation.rules import UNITS
from tests.simulation.script import Fault, Script
from tests.simulation.world import SUCCESSOR, Variant, World

KEY = bytes(range(32))
LIMIT = 5 * UNITS
MOST_APPLICATIONS = 3
ENDINGS = 3
"""Of each application, with a successor after each."""
_OTHER_ACCIDENTS = {Fault.ANEW, Fault.RECONFIGURE, Fault.CLOSE}


class Ending(StrEnum):
    CLOSED = "its owner closes it"
    GIVEN_UP = "its state is lost or unusable, and given up"
    MIRROR = "it lives on or dies unseen, and its alerts are read from a mirror"
    RESTORED = "its cluster is restored from a backup, and a mirror holds what was before and after that"


class ProvingJournal(Journal):
    """A journal of a plain state that proves what a successor relies on: the rules read states as they are."""

    _proof = staticmethod(Sealing(CONTEXT, [KEY], bytes).prove)

    async def _read(self, *, fence: bool = False) -> dict[bytes, bytes]:
        read = await super()._read(fence=fence)
        self.records.sealing.prove = self._proof
        return read


@dataclass(frozen=True)
class CarryingOver:
    """What is carried over and how; the broken ones differ from the service in one part."""

    history: Callable[..., ShardHistory] = ShardHistory
    committed: bool = False
    carry_over: Callable[..., tuple[Carried, list[str]]] = carry_over


class Accounts:
    """What was charged over all applications of a chain, uncommitted events included, and the limits."""

    def __init__(self) -> None:
        self._charged: dict[str, int] = defaultdict(int)
        self._limits: dict[str, int] = defaultdict(lambda: LIMIT)

    def add(self, shown: Mapping[str, Any], but: Container[str] = ()) -> None:
        for name, event in shown.items():
            data = event["data"]
            if data.get("account") and name not in but:
                self._charged[data["dataset"]] += round(data["account"]["charge"] * UNITS)
                if event["type"] == EventType.BUDGET_RAISED:
                    limit = round(data["account"]["limit"] * UNITS)
                    self._limits[data["dataset"]] = max(self._limits[data["dataset"]], limit)

    def forgive(self) -> None:
        """Take no notice of what was charged beyond the limits."""
        for name, charged in self._charged.items():
            self._charged[name] = min(charged, self._limits[name])

    def judge(self, carried: Carried | None) -> list[str]:
        """Return what was spent beyond a limit, or is not carried over."""
        found = []
        for name, charged in self._charged.items():
            if charged > self._limits[name]:
                found.append(f"{name}: {charged / UNITS} was spent of {self._limits[name] / UNITS}")
            if carried is not None and carried.datasets[name].spent < charged:
                spent = carried.datasets[name].spent / UNITS
                found.append(f"{name}: {spent} was carried over, {charged / UNITS} was spent")
        return found


@dataclass
class Chains:
    """The chains of a seed: each life of an application is ended in several ways, each with a successor of its own.

    ``carried`` counts applications of which something was carried over, ``count`` the chains that came to their end.
    """

    seed: int
    variant: Variant = field(default_factory=lambda: Variant(journal=ProvingJournal))
    carrying: CarryingOver = field(default_factory=CarryingOver)
    violations: list[str] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    carried: int = 0
    count: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(f"chain {self.seed}")
        self._form = self.chance.randrange(len(APPLICATIONS))

    def run(self) -> list[str]:
        try:
            self._live(None, Accounts(), self.chance.randint(2, MOST_APPLICATIONS))
        except Exception as error:  # noqa: BLE001  with it the chains would be lost
            self.violations.append(f"a process gave up: {type(error).__name__}: {error}")
        return self.violations

    def _live(self, carried: Carried | None, accounts: Accounts, left: int) -> None:
        """Play an application that goes on with what was carried over, its endings, and so many after it."""
        world = self._world(carried)
        world.run(settles=False)
        world.abandon()
        if all(event["type"] != EventType.APPLICATION_CLOSED for event in world.rules.shown.values()):
            self._refused_while_it_runs(world)
        for ending in self.chance.sample(list(Ending), ENDINGS):
            self._end(world.fork(self.chance.randrange(2**32)), ending, deepcopy(accounts), left - 1)

    def _end(self, world: World, ending: Ending, accounts: Accounts, left: int) -> None:
        """End an application, judge what is carried over from it, and go on with that."""
        ends = {
            Ending.CLOSED: self._closed,
            Ending.GIVEN_UP: self._give_up,
            Ending.MIRROR: self._mirror,
            Ending.RESTORED: self._restored,
        }
        world.closes = ending is Ending.CLOSED
        if ending in {Ending.CLOSED, Ending.RESTORED} or self.chance.random() < 0.3:
            world.settle()
        self.endings.append(ending)
        carried = ends[ending](world, accounts)
        accounts.add(world.rules.shown)
        self.violations += world.rules.violations
        if ending is Ending.RESTORED:  # a limit may be passed: nobody can tell a restored cluster from before
            accounts.forgive()
        self.violations += accounts.judge(carried)
        if carried is None or not left:
            self.count += 1
        else:
            self._live(carried, accounts, left)

    def _world(self, carried: Carried | None) -> World:
        script = Script.random(self.chance.randrange(2**32), 1)
        faults = [(at, kind) for at, kind in script.faults if kind not in _OTHER_ACCIDENTS][:5]
        if self.chance.random() < 0.3:
            faults.append((self.chance.randint(20, 120), Fault.CLOSE))
        script = replace(
            script, form=self._form, queries=self.chance.randint(3, 10), faults=tuple(sorted(faults))
        )
        spec = specification(self._form, carried, parsed=self.seed % 8 == 0)
        return World(script, self.variant, Application(spec, query), behind=True)

    # How an application ends

    def _closed(self, world: World, _: Accounts) -> Carried | None:
        if not world.closed:
            self.violations.append("an application could not be closed")
            return None
        if self.chance.random() < 0.3:  # an older state is put back, and an owner comes
            world.lose_state()
            world.finish(world.asleep(0))
        shown = self._shown(world)
        if self._carry_over(world, shown, successor="second"):
            self.violations.append("an application was carried over to two successors")
        return self._carry_over(world, self._attacked(shown))

    def _give_up(self, world: World, _: Accounts) -> Carried | None:
        """Lose the state or put an older one back, and give it up; an owner that was asleep wakes up then."""
        world.abandon()
        sleeper = world.asleep(self.chance.randint(1, 25)) if self.chance.random() < 0.5 else None
        newest = world.lose_state()
        is_sound = not (world.rules.contradicted or world.damaged)
        if self.chance.random() < 0.3:  # retention, of which the state may know nothing
            world.broker.first["alerts"] = self.chance.randint(*world.broker.span("alerts", committed=False))
            is_sound = False
        if not give_up(world.broker, self.variant.journal, self.chance):
            world.abandon()
            return None  # what was put back was the newest one: the state can be proved
        if is_sound:
            self.violations.append("a sound state was given up")
        charged = len(world.rules.shown)
        if self.chance.random() < 0.5:  # the newest state is found again
            for key, value in newest.items():
                world.broker.write("state", key, value)
        if sleeper is not None:
            world.finish(sleeper)
        world.finish(world.asleep(0))
        if len(world.rules.shown) > charged:
            self.violations.append("an owner went on with an application whose state was given up")
        return self._carry_over(world, self._attacked(self._shown(world)))

    def _mirror(self, world: World, _: Accounts) -> Carried | None:
        """Read the alerts from another cluster, which holds a part of them while the source goes on."""
        if self.chance.random() < 0.5:
            world.abandon()
            shown = self._mirrored(self._shown(world))
            return self._carry_over(world, shown, cluster="mirror", source_ended=True)
        shown = self._shown(world)
        world.closes = True
        world.settle()
        if self.chance.random() < 0.5:
            shown = self._shown(world)
        part = shown[: self.chance.randint(0, len(shown))]
        return self._carry_over(world, self._attacked(part), cluster="mirror")

    def _mirrored(self, shown: list[Any]) -> list[Any]:
        """Return events as a mirror may hold them: the last tops of open runs are missing, some events come again."""
        while shown and self.chance.random() < 0.7 and _is_of_a_run(shown[-1]):
            shown = shown[:-1]
        if shown and self.chance.random() < 0.5:
            shown = [*shown, *self.chance.sample(shown, min(len(shown), 3))]
        return shown

    def _restored(self, world: World, accounts: Accounts) -> Carried | None:
        """Let the cluster go on from a backup after it went on without it; both are on the mirror."""
        again = world.fork(self.chance.randrange(2**32))
        known = set(world.rules.shown)
        for one in (world, again):
            one.unwritten = self.chance.randint(3, 8)
            one.settle()
        after = [entry for entry in self._shown(again) if entry not in self._shown(world)]
        accounts.add(again.rules.shown, but=known)
        self.violations += again.rules.violations
        return self._carry_over(world, [*self._shown(world), *after], cluster="mirror", source_ended=True)

    # What is left of it

    def _shown(self, world: World) -> list[Any]:
        return list(world.broker.read("alerts", committed=self.carrying.committed))

    def _attacked(self, shown: list[Any]) -> list[Any]:
        """Return events behind which somebody forged some that say that nothing was spent, or copied some."""
        if self.chance.random() < 0.6 or not shown:
            return shown
        if self.chance.random() < 0.3:
            return [*shown, *self.chance.sample(shown, min(len(shown), 3))]
        return [*shown, *(forged(shown, kind, self.chance) for kind in CLOSING)]

    def _refused_while_it_runs(self, world: World) -> None:
        shown = self._shown(world)
        if self.chance.random() < 0.5 and shown:
            shown = [*shown, forged(shown, EventType.APPLICATION_CLOSED, self.chance)]
        if self._carry_over(world, shown):
            self.violations.append("an application was carried over that is not closed")

    def _carry_over(self, world: World, shown: list[Any], **how: Any) -> Carried | None:
        """Carry over what events show; return what the successor reads, None where that is refused."""
        try:
            carried = self._carried(world, shown, **how)
        except CarryOverRefused:
            return None
        self.carried += 1
        # The successor's log is a new one, as on another cluster.
        return structs.replace(parse(list(carried.lines())), cluster="")

    def _carried(
        self,
        world: World,
        shown: list[Any],
        *,
        cluster: str = "cluster",
        successor: str = SUCCESSOR,
        **how: Any,
    ) -> Carried:
        found = self.carrying.history("app", 0, proof_checker([KEY] if self.chance.random() < 0.7 else []))
        if cluster == "cluster":
            with contextlib.suppress(UnreadableState):
                found.closed = finish(journal_of(world.broker, self.variant.journal).read_closed())
        for entry in shown:
            found.take(entry)
        found.end()
        where = {"cluster": cluster, "alerts": "alerts", "successor": successor}
        carried, _ = self.carrying.carry_over(
            world.spec, [found], home=lambda name: 0, now_ms=0, **where, **how
        )
        return carried


def _is_of_a_run(entry: Any) -> bool:
    return bool(msgspec.json.decode(entry.value or b"")["type"] == EventType.ALERT)


def specification(form: int, carried: Carried | None, *, parsed: bool = True) -> ApplicationSpec:
    """Return an application that goes on with what was carried over; not ``parsed``, without the file's detour."""
    if parsed or carried is None:
        return _specification(form, None if carried is None else tuple(carried.lines()))
    spec = _specification(form, None)
    datasets = tuple(carried.datasets[one.name].continued(one) for one in spec.datasets)
    return replace(spec, datasets=datasets, carried=carried)


@cache
def _specification(form: int, lines: tuple[str, ...] | None) -> ApplicationSpec:
    before = {} if lines is None else parse(list(lines)).datasets
    limits = {name: before[name].limit / UNITS if before else 5 for name in ("a", "b")}
    datasets = "".join(
        f"  - {{name: {name}, limit: {limit:.9f}, unit: one basket}}\n" for name, limit in limits.items()
    )
    listed = "".join(f"  - {monitor}\n" for monitor in monitors_of(form))
    head = "application: app\n" + ("carried_over: file\n" if before else "")
    text = f"{head}datasets:\n{datasets}monitors:\n{listed}"
    return load_spec(text, read_names=lambda name: list(lines or ()))


def give_up(broker: Broker, kind: type[Journal], chance: random.Random) -> bool:
    """Give the state up as its operator would, a few times where that is interrupted; return whether it was."""
    while True:
        events = [msgspec.json.decode(entry.value or b"") for entry in broker.read("alerts", committed=False)]
        command = giving_up(events, SUCCESSOR)
        crash = chance.randint(1, 12) if chance.random() < 0.3 else None
        try:
            finish(journal_of(broker, kind).give_up(command), crash=crash, after=chance.random() < 0.5)
        except CommandRefused:
            return False
        except ApplicationClosed:
            return True
        broker.settle(abandoned=crash is not None)
        if crash is None:
            return True


def giving_up(events: list[Any], successor: str, **fields: Any) -> Command:
    """Return the command of an operator who looked at these events; ``fields`` are what he got wrong."""
    newest = events[-1] if events else {"sequence": 0, "origin": "", "stateid": ""}
    seen = {"event": newest["sequence"], "origin": newest["origin"], "state": newest["stateid"]}
    named = {"successor": successor, "cluster": "cluster"} | seen | fields
    return Command("give-up", Action.CLOSE_APPLICATION, **named)


def forged(shown: list[Any], kind: EventType, chance: random.Random) -> Any:
    """Return a record like the newest one, of an event that nobody charged, with a proof of another one."""
    events = [msgspec.json.decode(entry.value or b"") for entry in shown]
    newest = max(events, key=lambda event: event["sequence"])
    account = {"measure": "epsilon", "charge": 0.0, "spent": 0.0, "reserved": 0.0, "limit": 5.0}
    data: dict[str, Any] = {"dataset": "a", "monitor": "", "run": 0, "reason": "command", "account": account}
    data["detail"] = {"unit": "one basket"}
    if kind is EventType.APPLICATION_CLOSED:
        data |= {"dataset": "", "account": None}
        data["detail"] = {"successor": SUCCESSOR, "balances": chance.randint(0, 2)}
    proofs = [event["proof"] for event in events if "proof" in event]
    changed = {"type": kind, "sequence": newest["sequence"] + 1, "data": data, "id": f"forged/{kind}"}
    event = {name: value for name, value in newest.items() if name != "proof"} | changed
    if proofs:
        event["proof"] = chance.choice(proofs)
    return replace(shown[-1], value=msgspec.json.encode(event))
