"""What must hold in every history, judged from the modelled log alone; shares no code with the journal."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stream_svt.monitor.spec import ApplicationSpec
from tests.simulation.computed import Computed
from tests.simulation.log import Broker, Entry, Fate, Txn
from tests.simulation.published import GIVEN_UP, UNITS, Published

_FRAME = 1 + 1 + 8 + 16
"""Bytes before the content of a plain state record: version, kind, sequence, check."""
_HIGH = 1_000
"""What is above it has an alert: the threshold is 500, and noise is far smaller."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a state knows.

    Attributes
    ----------
    charged
        The events that it charged, by id.
    settled
        All that was ever sent when budgets were given up.
    outcomes
        The tops that were computed until then, whether or not they are charged.
    """

    charged: dict[str, bytes]
    settled: frozenset[bytes] = frozenset()
    outcomes: Mapping[tuple[str, str, int, int], Any] = field(default_factory=dict)

    def explains(self, value: bytes) -> bool:
        """Whether an event that was sent shows nothing newer than this state."""
        return value in self.settled or self.charged.get(msgspec.json.decode(value)["id"]) == value


class Rules:
    """Watches a log while it grows.

    Parameters
    ----------
    specs
        What was declared, the usual one first: an event's own word for a limit or a price is not taken.

    Attributes
    ----------
    older
        Whether the state is now older than the alerts, and its budgets are not given up.
    reconfigured
        Whether workers were given another configuration.
    plain
        Whether not, no command was given and no query deleted, so that every query far above a threshold has an alert.
    commands
        Those of control topics that were made anew.
    """

    def __init__(self, broker: Broker, *specs: ApplicationSpec) -> None:
        self._limits = {dataset.name: dataset.limit for dataset in specs[0].datasets}
        mechanisms = {monitor.name: monitor.mechanism() for spec in specs for monitor in spec.monitors}
        self._usual = [monitor.name for monitor in specs[0].monitors]
        self._openings = {name: mechanism.threshold_charge for name, mechanism in mechanisms.items()}
        self._prices = {
            (name, branch.name): branch.charge
            for name, mechanism in mechanisms.items()
            for branch in mechanism.branches
        }
        self.violations: list[str] = []
        self.tops = 0
        self._broker = broker
        self._charged: dict[str, bytes] = {}
        self._settled: frozenset[bytes] = frozenset()
        self._contents: dict[str, bytes] = {}
        self._outcomes: dict[tuple[str, str, int, int], Any] = {}
        self._secrets: dict[tuple[str, str, int], bytes] = {}
        self._put_back: list[tuple[tuple[int, int], bool, set[str]]] = []
        self._deleted: list[list[Entry]] = []
        self.older = False
        self.plain, self.reconfigured = True, False
        self.commands: list[Entry] = []
        self._anew = False
        self.computed = Computed(self.say)
        broker.appended = self._appended
        broker.decided = self._decided

    @property
    def known(self) -> Known:
        """What the newest state knows."""
        return Known(dict(self._charged), self._settled, dict(self._outcomes))

    def put_back(self, records: dict[bytes, bytes], known: Known) -> None:
        """Take note that the state is now this one, and whether it must be refused.

        It is the newest if nothing else was ever sent to the alert partition, and nothing of what it has yet to
        publish was committed there.
        """
        self.older = newer = _newer(self._all()[-1], records, known)
        owing = {event["data"]["dataset"] for event in _waiting(records) if event["type"] == GIVEN_UP}
        self.computed.forget()
        end = len(self._deleted), self._broker.span("alerts", committed=False)[1]
        self._put_back.append((end, newer, set(self._limits) if newer else owing))
        self._charged, self._settled = dict(known.charged), known.settled
        # What nobody was shown the start of may be drawn anew.
        sent = [msgspec.json.decode(value)["data"] for entries in self._all() for value, _ in entries]
        shown = {(data["dataset"], data["monitor"], data["run"]) for data in sent if data.get("run")}
        self._secrets = {run: secrets for run, secrets in self._secrets.items() if run in shown}
        # What was computed later may come out otherwise, for another command or configuration may come before it.
        self._outcomes = {top: outcome for top, outcome in known.outcomes.items() if top[:3] in shown}

    def can_tell(self, records: dict[bytes, bytes], known: Known) -> bool:
        """Whether the alert topic as it is now shows if this state is the newest: what was deleted shows nothing."""
        hidden = any(_newer(entries, records, known) for entries in self._all()[:-1])
        return not hidden or _newer(self._all()[-1], records, known)

    def make_anew(self, topic: str) -> None:
        """Empty a partition, and take note of what was in it."""
        was = self._broker.partitions.get(topic, [])
        self._broker.partitions[topic] = []
        self._broker.first.pop(topic, None)
        if topic == "alerts":
            self._deleted.append(was)
        elif topic == "control":
            self.commands += was
        else:
            self._anew, self.plain = True, False
            self.computed.forget()

    def _all(self) -> list[list[tuple[bytes, bool]]]:
        """Return what was ever sent to the alert partition, and whether it was committed: a list for each topic."""
        topics = [*self._deleted, self._broker.partitions.get("alerts", [])]
        return [
            [(entry.value, entry.visible) for entry in entries if entry.value is not None]
            for entries in topics
        ]

    def refused(self) -> None:
        """Take note that an owner refused the state as older than the alerts."""
        if not self._put_back or not self._put_back[-1][1]:
            self.say("the newest state was refused")

    def say(self, text: str) -> None:
        """Note a violation."""
        if text not in self.violations:
            self.violations.append(text)

    def _appended(self, entry: Entry) -> None:
        if entry.marker or entry.value is None:
            return
        if entry.partition == "alerts":
            event = msgspec.json.decode(entry.value)
            if event["id"] not in self._charged:
                self.say(f"{event['id']} is visible before its charge is durable")
            if self._contents.setdefault(event["id"], entry.value) != entry.value:
                self.say(f"{event['id']} has two contents")
        elif entry.partition == "state" and (entry.key or b"").startswith(b"ob/"):
            # Computed, whether or not it will ever be durable: computed again it must be the same.
            for event, _ in _outbox(entry.value):
                data = event["data"]
                if "gap" in data:
                    # The books may have moved between: another monitor of the dataset was faster this time.
                    top = (data["dataset"], data["monitor"], data["run"], data["top"])
                    outcome = {**data, "account": None}
                    if self._outcomes.setdefault(top, outcome) != outcome and not self._anew:
                        self.say(f"top {top} was computed twice, with different outcomes")

    def _decided(self, txn: Txn) -> None:
        if txn.fate is not Fate.COMMITTED:
            return
        own: dict[str, bytes] = {}
        given_up = False
        for entry in txn.entries:
            if entry.partition != "state" or entry.value is None or entry.key is None:
                continue
            if entry.key.startswith(b"ob/"):
                for event, encoded in _outbox(entry.value):
                    own[event["id"]] = encoded
                    given_up = given_up or event["type"] == GIVEN_UP
            elif entry.key.startswith(b"d/"):
                _, name, _, _, _, _, slots, _ = msgspec.msgpack.decode(entry.value[_FRAME:])
                for monitor, slot in slots.items():
                    run, secrets = slot[3], slot[5]
                    if any(secrets):  # zeros once the run is closed
                        known = self._secrets.setdefault((name, monitor, run), secrets)
                        if known != secrets:
                            self.say(f"the noise of run {run} of {name}/{monitor} changed")
        if given_up and self._put_back:
            self._forget()
        self._charged |= own

    def _forget(self) -> None:
        """Forget what was not published before the transaction that gave the budgets up."""
        self._settled |= {value for value, _ in self._all()[-1]}
        self._charged = {
            msgspec.json.decode(value)["id"]: value
            for entries in self._all()
            for value, committed in entries
            if committed
        }
        self._secrets, self._outcomes = {}, {}
        self.older = False

    def finish(self) -> None:
        """Judge the books once a healthy owner has had its time."""
        deleted = [[entry for entry in entries if entry.visible] for entries in self._deleted]
        shown = [
            ((number, entry.offset), msgspec.json.decode(entry.value or b""))
            for number, entries in enumerate([*deleted, self._broker.read("alerts")])
            for entry in entries
        ]
        if missing := self._charged.keys() - {event["id"] for _, event in shown}:
            self.say(f"{len(missing)} events were charged and never published")
        books = Published(self._limits, self._raised(), self.say)
        boundaries, topic = list(self._put_back), 0
        for place, event in shown:
            if place[0] != topic:
                topic = place[0]
                books.made_anew()
            while boundaries and boundaries[0][0] <= place:
                books.put_back(boundaries.pop(0)[2])
            books.take(event)
            data = event["data"]
            if data.get("account") is not None:
                self._priced(event["type"], data, round(data["account"]["charge"] * UNITS))
        self.tops = books.topped.total()
        self.computed.judge(books.closed)
        lost = {top for top in self._outcomes if top not in books.released and top[:3] not in books.closed}
        if lost and not self._anew:  # else the queries that showed them are gone, and nobody can tell
            self.say(f"{len(lost)} tops were computed and never released")
        if not self._put_back and not self._anew:
            # A monitor that is removed and added again may begin where its topic does.
            if not self.reconfigured and (doubled := sum(times > 1 for times in books.topped.values())):
                self.say(f"{doubled} queries have two alerts of a monitor")
            self._complete(books)
        spent = books.spent
        stored = self._stored()
        if stored != {name: spent.get(name, 0) for name in stored}:
            self.say("the ledgers in the state are not the sums of the charges released")

    def _complete(self, books: Published) -> None:
        """Demand an alert for every high query, where nothing but the budget can have kept a monitor from it."""
        if len(self._usual) > 1 or not self.plain:
            return
        (monitor,) = self._usual
        least = self._openings[monitor] + max(
            price for (name, _), price in self._prices.items() if name == monitor
        )
        topped = {offset for name, _, offset, _ in books.topped if name == monitor}
        for name, limit in self._limits.items():
            if books.spent[name] + least > limit:
                continue  # of the last run, what is left pays for no further one
            missing = self._high(name) - topped
            if missing:
                self.say(f"{name}: {len(missing)} queries far above the threshold have no alert")

    def _high(self, dataset: str) -> set[int]:
        """Return the offsets of the queries of a dataset that are far above the threshold."""
        found = set()
        for entry in self._broker.read("t"):
            try:
                value = msgspec.json.decode(entry.value or b"").get("value", 0)
            except msgspec.DecodeError:
                continue
            if entry.key == dataset.encode() and value > _HIGH:
                found.add(entry.offset)
        return found

    def _raised(self) -> set[int]:
        """Return the limits that commands asked for."""
        asked = re.findall(
            rb'"limit": ?"([0-9.]+)"',
            b" ".join(entry.value or b"" for entry in [*self.commands, *self._broker.read("control")]),
        )
        return {round(float(limit) * UNITS) for limit in asked}

    def _priced(self, kind: str, data: dict[str, Any], charge: int) -> None:
        if "gap" in data and charge != self._prices[data["monitor"], data["branch"]]:
            self.say(f"{data['dataset']}: a top was not charged its price")
        if kind.endswith("run.started.v1") and charge != self._openings[data["monitor"]]:
            self.say(f"{data['dataset']}: the start of a run was not charged its price")

    def _stored(self) -> dict[str, int]:
        """Return what each ledger of the live state has spent."""
        live: dict[bytes, bytes | None] = {}
        for entry in self._broker.read("state"):
            if entry.key is not None and entry.key.startswith(b"d/"):
                live[entry.key] = entry.value
        found = {}
        for value in live.values():
            if value is not None:
                record = msgspec.msgpack.decode(value[_FRAME:])
                found[record[1]] = msgspec.msgpack.decode(record[4])[3]
        return found


def _outbox(value: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """Return the events of an outbox record, and how they are published."""
    events, _ = msgspec.msgpack.decode(zlib.decompress(value[_FRAME:]))
    return [(msgspec.json.decode(encoded), encoded) for _, _, encoded in events]


def _waiting(records: dict[bytes, bytes]) -> list[dict[str, Any]]:
    """Return the events that a state has yet to publish."""
    meta = msgspec.msgpack.decode(records[b"meta"][_FRAME:]) if records else {"chunks": 0, "published": 0}
    return [
        event
        for number in range(meta["chunks"])
        for event, _ in _outbox(records[f"ob/{number}".encode()])
        if event["sequence"] > meta["published"]
    ]


def _newer(sent: list[tuple[bytes, bool]], records: dict[bytes, bytes], known: Known) -> bool:
    """Whether events were sent that this state does not know, or that it does not know to be published."""
    ids = {event["id"] for event in _waiting(records)}
    return any(
        not known.explains(value) or (committed and msgspec.json.decode(value)["id"] in ids)
        for value, committed in sent
    )
