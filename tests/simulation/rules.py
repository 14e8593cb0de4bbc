"""What must hold in every history, judged from the modelled log alone; shares no code with the journal."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from stream_svt.columns.query_batch import QueryBatch, Segment
from stream_svt.monitor.engine import Engine, Step
from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.testing.retry import RetryAppend
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.history.audit import Audit, StoredShard
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.fields import END, MaxRuns
from tests.simulation.log import Broker, Entry, Fate, Txn, finish, journal_of
from tests.support.verifier import FRAME, begins, dataset, outbox

UNITS = Kind.PURE.units
_HIGH = 1_000
"""What is above it has an alert: the threshold is 500, and noise is far smaller."""


@dataclass(frozen=True, slots=True)
class Commands:
    """The numbers of commands that a state has answered, and which one it used up last."""

    state: bytes = b""
    number: int = 0
    under_way: bool = False
    answered: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Known:
    """What a state knows: the events that it charged, by id, and the tops computed until then, charged or not."""

    charged: dict[str, bytes]
    outcomes: Mapping[tuple[str, str, int, int], Any] = field(default_factory=dict)
    commands: Commands = field(default_factory=Commands)

    def explains(self, value: bytes) -> bool:
        """Whether an event that was sent shows nothing newer than this state."""
        return self.charged.get(msgspec.json.decode(value)["id"]) == value


Run = tuple[str, str, int]
Position = tuple[int, int]


class Computed:
    """Every test on arrival that any owner computed, by run and position: computed again, it has the same outcome.

    A test is *owed* once an owner took over whose state does not reach it: it has to be computed again. What an owner
    computes after another one took over is lost whatever comes out, and owed to nobody; its outcome is compared, too.
    ``read_to`` has the durable bounds of what may be stepped, by topic.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._outcomes: dict[tuple[Run, Position], bool] = {}
        self._unsettled: set[tuple[Run, Position]] = set()
        self._owed: set[tuple[Run, Position]] = set()
        self.read_to: Mapping[str, int] = {}
        self.newest: Engine | None = None

    def watch(self, engine: Engine) -> None:
        """Take note of what an engine computes from now on, and of where it takes over."""
        add, step = engine.add, engine.step
        self.newest = engine

        def added(*args: Any, **options: Any) -> Runner:
            runner = add(*args, **options)
            self._watch_runner(engine, runner)
            if options.get(
                "journal", True
            ):  # added with another version: it was removed after a replay, or never there
                self._unsettled = {test for test in self._unsettled if test[0][1] != runner.name}
            return runner

        def first_step(batch: QueryBatch) -> Step:
            if engine is self.newest:
                self._taken_over(engine)
            engine.step = bounded_step  # type: ignore[method-assign]
            return bounded_step(batch)

        def bounded_step(batch: QueryBatch) -> Step:
            if engine is self.newest and batch.end > self.read_to.get(batch.topic, 0):
                self._say("records were stepped before their bound was durable")
            return step(batch)

        for runner in engine.runners.values():
            self._watch_runner(engine, runner)
        engine.add, engine.step = added, first_step  # type: ignore[method-assign]

    @property
    def unsettled(self) -> bool:
        """Whether tests of an owner are not durable."""
        return bool(self._unsettled)

    def forget(self) -> None:
        """Begin anew: queries or budgets are gone, and what was computed with them."""
        self._outcomes, self._unsettled, self._owed = {}, set(), set()

    def judge(self, paid: set[Run]) -> None:
        """Demand that nothing is owed but in runs that were closed at their full price."""
        if lost := {test for test in self._owed if test[0] not in paid}:
            self._say(f"{len(lost)} tests were computed, lost, and neither computed again nor paid for")

    def _taken_over(self, engine: Engine) -> None:
        positions = {
            name: (runner.offset, runner.row) for name, runner in engine.runners.items() if runner.started
        }
        for test in self._unsettled:
            (_, monitor, _), position = test
            if monitor in positions and position >= positions[monitor]:
                self._owed.add(test)
        self._unsettled = set()

    def _watch_runner(self, engine: Engine, runner: Runner) -> None:
        append, tester = runner.append, runner.tester
        if isinstance(append, RetryAppend):
            arrive = append._arrive

            def arrived(dataset: int, queue: Any, arrival: Any, *rest: Any) -> bool:
                run = engine.accounts.run_state(runner.name, dataset).run
                top = arrive(dataset, queue, arrival, *rest)
                self._add(engine, runner, dataset, run, (arrival.offset, arrival.row), top)
                return top

            append._arrive = arrived  # type: ignore[method-assign]
            return
        test_arrivals = tester.test_arrivals

        def noted(view: Any, start: int, stop: int) -> Segment:
            segment = test_arrivals(view, start, stop)
            found = set(segment.tops)
            for row in (np.flatnonzero(segment.live) + start).tolist():
                dataset = int(view.batch.dataset[row])
                position = int(view.batch.offset[row]), int(view.batch.row[row])
                run = engine.accounts.run_state(runner.name, dataset).run
                self._add(engine, runner, dataset, run, position, row in found)
            return segment

        tester.test_arrivals = noted  # type: ignore[method-assign]

    def _add(
        self, engine: Engine, runner: Runner, dataset: int, run: int, position: Position, top: bool
    ) -> None:
        test = (engine.datasets[dataset].name, runner.name, run), position
        if self._outcomes.setdefault(test, top) != top:
            self._say(f"test {test} was computed twice, with different outcomes")
        if engine is self.newest:
            self._unsettled.add(test)
            self._owed.discard(test)


class Rules:
    """Watches a log while it grows; ``specs`` is what was declared, the usual one first.

    Attributes:
        contradicted: Whether the state is now older than the alerts, or the alerts are gone: it may not be written.
        reconfigured: Whether workers were given another configuration.
        audit: Of the events and the state, once it is finished.
        plain: Whether not, no command was given and no query deleted: every query far above a threshold has an alert.
        commands: Those of control topics that were made anew.
    """

    def __init__(self, broker: Broker, *specs: ApplicationSpec) -> None:
        self.specs = specs
        self.audit = Audit()
        self.violations: list[str] = []
        self.tops = 0
        self._broker = broker
        self._charged: dict[str, bytes] = {}
        self._contents: dict[str, bytes] = {}
        self._outcomes: dict[tuple[str, str, int, int], Any] = {}
        self._secrets: dict[tuple[str, str, int], bytes] = {}
        self._put_back = self.was_contradicted = False
        self.contradicted = False
        self.plain, self.reconfigured = True, False
        self.commands: list[Entry] = []
        self._commands = Commands()
        self._last_commit_ms = 0
        self._anew = self.closed = False
        self._begins: dict[Run, int] = {}
        self.computed = Computed(self.add_violation)
        broker.appended = self._appended
        broker.decided = self._decided

    @property
    def is_whole(self) -> bool:
        """Whether the state and its topics stayed what owners wrote."""
        return not self._put_back and not self._anew

    @property
    def known(self) -> Known:
        return Known(dict(self._charged), dict(self._outcomes), self._commands)

    def known_beside(self, records: dict[bytes, bytes]) -> Known:
        """Return what a state knows that an aborted transaction would have left."""
        waiting, meta = _waiting(records), _meta(records)
        replies = [event for event, _ in waiting if event["type"].endswith("command.reply.v1")]
        answered = self._commands.answered | {event["data"]["detail"]["number"] for event in replies}
        commands = meta["commands"]
        commands = Commands(meta["state_id"], commands["number"], commands["under_way"] is not None, answered)
        own = {event["id"]: encoded for event, encoded in waiting}
        return Known(self._charged | own, dict(self._outcomes), commands)

    def put_back(self, records: dict[bytes, bytes], known: Known) -> None:
        """Take note that the state is now this one, and whether it must be refused.

        It is the newest if nothing else was ever sent to the alert partition, and nothing of what it has yet to
        publish was committed there.
        """
        if _newer(self._sent(), records, known):
            self.contradicted = self.was_contradicted = True
            return
        self._put_back = True
        self.computed.forget()
        self.computed.read_to = _meta(records).get("read_to", {})
        self._charged, self._commands = dict(known.charged), known.commands
        self.closed = bool(records and _meta(records)["commands"]["closed"])
        # What nobody was shown the start of may be drawn anew.
        sent = [msgspec.json.decode(value)["data"] for value, _ in self._sent()]
        shown = {(data["dataset"], data["monitor"], data["run"]) for data in sent if data.get("run")}
        self._secrets = {run: secrets for run, secrets in self._secrets.items() if run in shown}
        # What was computed later may come out otherwise, for another command or configuration may come before it.
        self._outcomes = {top: outcome for top, outcome in known.outcomes.items() if top[:3] in shown}

    def make_anew(self, topic: str) -> None:
        """Empty a partition."""
        was = self._broker.partitions.get(topic, [])
        self._broker.make_anew(topic)
        if topic == "alerts":
            self.contradicted = any(entry.visible and entry.value for entry in was)
            self.was_contradicted = self.was_contradicted or self.contradicted
        elif topic == "control":
            self.commands += was
        else:
            self._anew, self.plain = True, False
            self.computed.forget()

    def _sent(self) -> list[tuple[bytes, bool]]:
        entries = self._broker.partitions.get("alerts", [])
        return [(entry.value, entry.visible) for entry in entries if entry.value is not None]

    @property
    def shown(self) -> dict[str, dict[str, Any]]:
        """Every event that was ever sent, whether or not it was committed, by id."""
        return {name: msgspec.json.decode(value) for name, value in self._contents.items()}

    def require(self, holds: bool, text: str) -> None:
        if not holds:
            self.add_violation(text)

    def add_violation(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)

    def _appended(self, entry: Entry) -> None:
        if entry.marker or entry.value is None:
            return
        if entry.partition == "alerts":
            event = msgspec.json.decode(entry.value)
            if event["id"] not in self._charged and event["data"].get("reason") != "given-up":
                self.add_violation(f"{event['id']} is visible before its charge is durable")
            if self._contents.setdefault(event["id"], entry.value) != entry.value:
                self.add_violation(f"{event['id']} has two contents")
        elif entry.partition == "state" and (entry.key or b"").startswith(b"ob/"):
            # Computed, whether or not it will ever be durable: computed again it must be the same.
            for event, _ in outbox(entry.value):
                data = event["data"]
                if (reported := _reported(data)) is not None:
                    # The books may have moved between: another monitor of the dataset was faster this time.
                    top = (data["dataset"], data["monitor"], data["run"], reported["number"])
                    outcome = {**data, "account": None}
                    if self._outcomes.setdefault(top, outcome) != outcome and not self._anew:
                        self.add_violation(f"top {top} was computed twice, with different outcomes")

    def _decided(self, txn: Txn) -> None:
        if txn.fate is not Fate.COMMITTED:
            return
        own: dict[str, bytes] = {}
        written = {entry.key for entry in txn.entries if entry.partition == "state"}
        if written == {b"closed"}:  # the state is given up
            self.closed = True
            return
        ignored = self.contradicted and bool(written)
        self.require(not ignored, "an owner went on with a state that the alerts contradict")
        for entry in txn.entries:
            if entry.partition != "state" or entry.value is None or entry.key is None:
                continue
            if entry.key.startswith(b"ob/"):
                for event, encoded in outbox(entry.value):
                    own[event["id"]] = encoded
            elif entry.key.startswith(b"d/"):
                self._begins |= begins(entry.value)
                for run, secrets in dataset(entry.value)[2].items():
                    if self._secrets.setdefault(run, secrets) != secrets:
                        self.add_violation(f"the noise of run {run} changed")
        self._charged |= own
        self.require(not (self.closed and own), "something was charged after the application was closed")
        for entry in txn.entries:
            if entry.partition == "state" and entry.key == b"meta" and entry.value is not None:
                events = [msgspec.json.decode(encoded) for encoded in own.values()]
                meta = msgspec.msgpack.decode(entry.value[FRAME:])
                self._numbered(meta, events)
                self.computed.read_to = meta["read_to"]
                self.closed = bool(meta["commands"]["closed"])

    def _numbered(self, meta: dict[str, Any], events: list[dict[str, Any]]) -> None:
        """Judge what one transaction does of commands: each number has its effect once, together with its use."""
        before, commands = self._commands, meta["commands"]
        number, under_way = commands["number"], commands["under_way"] is not None
        answered = set(before.answered)
        self.require(before.state in (b"", meta["state_id"]), "a state got another id")
        is_next = number in (before.number, before.number + 1)
        self.require(is_next, f"command {number} came after {before.number}")
        if number != before.number:
            sent = self._sent_commands(meta["state_id"].hex(), number, commands["id"])
            self.require(bool(sent), "a command was carried out, and nobody had sent it for this number")
            self._in_time(sent, commands["expired"])
        self._last_commit_ms = self._broker.now_ms()
        used = number != before.number or under_way or before.under_way
        for event in events:
            data = event["data"]
            told = event["command"] == number and event["stateid"] == meta["state_id"].hex()
            self.require(told, f"an event says that command {event['command']} was the last one: {number}")
            if not event["type"].endswith("command.reply.v1"):
                if data.get("reason") == "command" and not used:
                    self.add_violation("a command had its effect, and its number was not used up")
                continue
            if data["detail"]["message"].startswith(("it was ", "it had ")):
                continue
            if data["detail"]["number"] in answered or not used:
                self.add_violation(f"command {data['detail']['number']} was carried out twice")
            answered.add(data["detail"]["number"])
        self._commands = Commands(meta["state_id"], number, under_way, frozenset(answered))

    def _in_time(self, sent: list[dict[str, Any]], expired: bool) -> None:
        """Demand that just those commands are called expired that were at the last commit: they changed nothing."""
        ends = [math.inf if one["action"] == Action.WITHDRAW else one["expires"] for one in sent]
        fits = any((end < self._last_commit_ms) == expired for end in ends)
        self.require(fits or not ends, "a command struck, or counted as expired, out of its time")

    def _sent_commands(self, state: str, number: int, command_id: str) -> list[dict[str, Any]]:
        """Return what somebody sent with this id for this state and number."""
        found = []
        for entry in [*self.commands, *self._broker.partitions["control"]]:
            with contextlib.suppress(msgspec.DecodeError):
                sent = msgspec.json.decode(entry.value or b"")
                if (sent.get("state"), sent.get("number"), sent["id"]) == (state, number, command_id):
                    found.append(sent)
        return found

    def finish(self) -> None:
        """Judge the books once a healthy owner has had its time."""
        shown = [msgspec.json.decode(entry.value or b"") for entry in self._broker.read("alerts")]
        if missing := self._charged.keys() - {event["id"] for event in shown}:
            self.add_violation(f"{len(missing)} events were charged and never published")
        self.audit = self._audited()
        events = [(event["type"], event["data"]) for event in shown]
        self._judge_limits(events)
        if self.plain and not self.reconfigured and not self._put_back:
            self._judge_begins()
        adopted = [
            data["detail"]["number"] for kind, data in events if kind == EventType.CONFIGURATION_ADOPTED
        ]
        self.require(
            adopted == sorted(set(adopted)), "a version is adopted that is older than the one before"
        )
        tops = [(data, top) for _, data in events if (top := _reported(data)) is not None]
        self.tops = len(tops)
        closed = {
            (data["dataset"], data["monitor"], data["run"])
            for kind, data in events
            if kind == EventType.RUN_CLOSED and data["reason"] in {"loss", "unread", "paused", "retired"}
        }
        self.computed.judge(closed)
        released = {(data["dataset"], data["monitor"], data["run"], top["number"]) for data, top in tops}
        lost = {top for top in self._outcomes if top not in released and top[:3] not in closed}
        if lost and not self._anew:  # else the queries that showed them are gone, and nobody can tell
            self.add_violation(f"{len(lost)} tops were computed and never released")
        if self.is_whole:
            # The offsets of counts are not shown.
            tops_at = [
                (data["monitor"], top["position"]) for data, top in tops if top["position"]["offset"] >= 0
            ]
            topped = Counter((name, at["topic"], at["offset"], at["row"]) for name, at in tops_at)
            # A monitor that is removed and added again may begin where its topic does.
            if not self.reconfigured and (doubled := sum(times > 1 for times in topped.values())):
                self.add_violation(f"{doubled} queries have two alerts of a monitor")
            self._complete({(name, offset) for name, _, offset, _ in topped})
            self._judge_series(shown)

    def _audited(self) -> Audit:
        """Hold events to each other, to the prices and to the state, with the audit that is shipped."""
        audit = Audit(monitor for spec in self.specs for monitor in spec.monitors)
        for entry in self._broker.read("alerts"):
            audit.add(0, entry.offset, entry.value)
        journal = journal_of(self._broker)
        state = StoredShard.of(0, finish(journal.inspect()), journal)
        for finding in audit.compare([state], lambda name: 0).findings:
            self.add_violation(f"audit: {finding}")
        self.require(not audit.truncated, "the first events are lost")
        return audit

    def _judge_limits(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        """Take no event's word for a limit."""
        limits, raised = {one.name: one.terms.limit for one in self.specs[0].datasets}, self._raised()
        for kind, data in events:
            if (account := data["account"]) is None:
                continue
            limit = round(account["limit"] * UNITS)
            if limit != limits[data["dataset"]] and limit not in raised:
                self.add_violation(
                    f"{data['dataset']}: the limit is not the one declared, and no command raised it"
                )
            if kind == EventType.RETIRED and account["reserved"]:
                self.add_violation(f"{data['dataset']} is retired while a run is open")

    def _judge_series(self, shown: list[dict[str, Any]]) -> None:
        """Demand an open incident for each end, and one answer at most to what is watched behind an alert."""
        incidents, watched = set[tuple[str, str, str]](), Counter[str]()
        for event in shown:
            kind, data, detail = event["type"], event["data"], event["data"].get("detail", {})
            name = data["monitor"].removesuffix(END)
            series = data["dataset"], name, data.get("series") or detail.get("series") or ""
            until = data.get("watched_until")
            if kind == EventType.ALERT and until is not None:
                watched[event["id"]] += 1
                if until == data["muted_until"]:
                    incidents.add(series)
            elif kind in (EventType.NOT_RENEWED, EventType.UNTESTED):
                self.require(watched[detail["alert"]] > 0, f"{detail['alert']} is answered without or twice")
                watched[detail["alert"]] -= 1
            elif kind in (EventType.ALERT_ENDED, EventType.MUTED, EventType.UNMUTED):
                ends = kind == EventType.ALERT_ENDED
                self.require(not ends or series in incidents, f"{event['id']} ends what is no incident")
                incidents.discard(series)

    def _judge_begins(self) -> None:
        """Demand that no more runs begin within a window than the monitor allows."""
        allowed = {one.name: one.max_runs for one in self.specs[0].monitors}
        times: dict[tuple[str, str], list[int]] = defaultdict(list)
        for (name, monitor, run), begin in self._begins.items():
            if run:
                times[name, monitor].append(begin)
        for (name, monitor), found in times.items():
            most = allowed.get(monitor)
            if isinstance(most, MaxRuns):
                found.sort()
                pairs = zip(found, found[most.count :], strict=False)
                if any(later - earlier < most.within_ms for earlier, later in pairs):
                    self.add_violation(f"{name}: more runs of {monitor} began than {most}")

    def _complete(self, topped: set[tuple[str, int]]) -> None:
        """Demand an alert for every high query, where nothing but the budget can have kept a monitor from it."""
        monitors = self.specs[0].monitors
        if len(monitors) > 1 or not self.plain:
            return
        mechanism = Plan.of(monitors[0]).mechanism
        least = mechanism.threshold_units + max(branch.charge_units for branch in mechanism.branches)
        for declared in self.specs[0].datasets:
            tally = self.audit.datasets.get(declared.name)
            if tally is not None and tally.spent + least > declared.terms.limit:
                continue  # of the last run, what is left pays for no further one
            high = self._high(declared.name)
            missing = {offset for offset in high if (monitors[0].name, offset) not in topped}
            if missing:
                self.add_violation(
                    f"{declared.name}: {len(missing)} queries far above the threshold have no alert"
                )

    def _high(self, dataset: str) -> set[int]:
        found = set()
        for entry in self._broker.read("t"):
            try:
                value = msgspec.json.decode(entry.value or b"").get("value", 0)
            except msgspec.DecodeError:
                continue
            if entry.key == dataset.encode() and value > _HIGH:
                found.add(entry.offset)
        return found

    def _raised(self) -> frozenset[int]:
        asked = re.findall(
            rb'"limit": ?"([0-9.]+)"',
            b" ".join(entry.value or b"" for entry in [*self.commands, *self._broker.read("control")]),
        )
        return frozenset(round(float(limit) * UNITS) for limit in asked)


def _reported(data: dict[str, Any]) -> dict[str, Any] | None:
    """Return the top that the content of an event reports, None without one."""
    return next((one for one in (data, data.get("detail", {})) if "gap" in one), None)


def _meta(records: dict[bytes, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = {"chunks": 0, "published": 0}
    return msgspec.msgpack.decode(records[b"meta"][FRAME:], type=dict) if records else found


def _waiting(records: dict[bytes, bytes]) -> list[tuple[dict[str, Any], bytes]]:
    """Return the events that a state has yet to publish, and how they are published.

    Where an owner wrote on after its state was put back, records are missing: such a state is refused.
    """
    meta = _meta(records)
    chunks = [records.get(f"ob/{number}".encode()) for number in range(meta["chunks"])]
    return [
        (event, encoded)
        for chunk in chunks
        if chunk is not None
        for event, encoded in outbox(chunk)
        if event["sequence"] > meta["published"]
    ]


def _newer(sent: list[tuple[bytes, bool]], records: dict[bytes, bytes], known: Known) -> bool:
    """Whether events were sent that this state does not know, or it is wrong about what is published."""
    ids = {event["id"] for event, _ in _waiting(records)}
    published = [msgspec.json.decode(value)["sequence"] for value, committed in sent if committed]
    return max(published, default=0) != _meta(records)["published"] or any(
        not known.explains(value) or (committed and msgspec.json.decode(value)["id"] in ids)
        for value, committed in sent
    )
