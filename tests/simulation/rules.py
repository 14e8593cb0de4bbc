"""What must hold in every history, judged from the modelled log alone; shares no code with the journal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec

from stream_svt.monitor.spec import ApplicationSpec
from tests.simulation.log import Broker, Entry, Fate, Txn

_FRAME = 1 + 1 + 8 + 16
"""Bytes before the content of a plain state record: version, kind, sequence, check."""
_UNITS = 10**9
_GIVEN_UP = "io.stream-svt.budget.marked-exhausted.v1"
_CLOSED = "io.stream-svt.run.closed.v1"
_RAISED = "io.stream-svt.budget.raised.v1"


class Rules:
    """Watches a log while it grows.

    Parameters
    ----------
    spec
        What was declared: an event's own word for a limit or a price is not taken.

    Attributes
    ----------
    older
        Whether the state is now older than the alerts, and its budgets are not given up.
    """

    def __init__(self, broker: Broker, spec: ApplicationSpec) -> None:
        self._limits = {dataset.name: dataset.limit for dataset in spec.datasets}
        mechanisms = {monitor.name: monitor.mechanism() for monitor in spec.monitors}
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
        self._contents: dict[str, bytes] = {}
        self._outcomes: dict[tuple[str, str, int, int], Any] = {}
        self._secrets: dict[tuple[str, str, int], bytes] = {}
        self._put_back: list[tuple[tuple[int, int], bool, set[str]]] = []
        self._deleted: list[list[Entry]] = []
        self.older = False
        broker.appended = self._appended
        broker.decided = self._decided

    @property
    def charged(self) -> dict[str, bytes]:
        """The events that the newest state knows, by id."""
        return dict(self._charged)

    def put_back(self, records: dict[bytes, bytes], charged: dict[str, bytes]) -> None:
        """Take note that the state is now this one, which knows these events, and whether it must be refused.

        It is the newest if nothing else was ever sent to the alert partition, and nothing of what it has yet to
        publish was committed there.
        """
        self.older = newer = _newer(self._sent(), records, charged)
        owing = {event["data"]["dataset"] for event in _waiting(records) if event["type"] == _GIVEN_UP}
        end = len(self._deleted), self._broker.span("alerts", committed=False)[1]
        self._put_back.append((end, newer, set(self._limits) if newer else owing))
        self._charged = dict(charged)
        # What nobody was shown the start of may be drawn anew.
        sent = [msgspec.json.decode(value)["data"] for entries in self._all() for value, _ in entries]
        known = {(data["dataset"], data["monitor"], data["run"]) for data in sent if data.get("run")}
        self._secrets = {run: secrets for run, secrets in self._secrets.items() if run in known}
        self._outcomes = {top: outcome for top, outcome in self._outcomes.items() if top[:3] in known}

    def can_tell(self, records: dict[bytes, bytes], charged: dict[str, bytes]) -> bool:
        """Whether the alert topic as it is now shows if this state is the newest: what was deleted shows nothing."""
        hidden = any(_newer(entries, records, charged) for entries in self._all()[:-1])
        return not hidden or _newer(self._sent(), records, charged)

    def made_anew(self) -> None:
        """Take note that the alert partition is empty from now on, and what was in it."""
        self._deleted.append(self._broker.partitions.get("alerts", []))
        self._broker.partitions["alerts"] = []

    def _all(self) -> list[list[tuple[bytes, bool]]]:
        """Return what was ever sent to the alert partition, and whether it was committed: a list for each topic."""
        topics = [*self._deleted, self._broker.partitions.get("alerts", [])]
        return [
            [(entry.value, _committed(entry)) for entry in entries if entry.value is not None]
            for entries in topics
        ]

    def _sent(self) -> list[tuple[bytes, bool]]:
        return self._all()[-1]

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
            for event in _outbox(entry.value):
                data = event["data"]
                if "gap" in data:
                    # The books may have moved between: another monitor of the dataset was faster this time.
                    top = (data["dataset"], data["monitor"], data["run"], data["top"])
                    outcome = {**data, "account": None}
                    if self._outcomes.setdefault(top, outcome) != outcome:
                        self.say(f"top {top} was computed twice, with different outcomes")

    def _decided(self, txn: Txn) -> None:
        if txn.fate is not Fate.COMMITTED:
            return
        given_up = False
        for entry in txn.entries:
            if entry.partition != "state" or entry.value is None or entry.key is None:
                continue
            if entry.key.startswith(b"ob/"):
                self._charged |= _by_id(entry.value)
                given_up = given_up or any(event["type"] == _GIVEN_UP for event in _outbox(entry.value))
            elif entry.key.startswith(b"d/"):
                _, name, _, _, _, _, slots = msgspec.msgpack.decode(entry.value[_FRAME:])
                for monitor, slot in slots.items():
                    run, secrets = slot[3], slot[5]
                    if any(secrets):  # zeros once the run is closed
                        known = self._secrets.setdefault((name, monitor, run), secrets)
                        if known != secrets:
                            self.say(f"the noise of run {run} of {name}/{monitor} changed")
        if given_up and self._put_back:
            self._forget(txn)

    def _forget(self, txn: Txn) -> None:
        """Forget what was neither published nor is part of the transaction that gave the budgets up."""
        self._charged = {
            msgspec.json.decode(value)["id"]: value
            for entries in self._all()
            for value, committed in entries
            if committed
        }
        for entry in txn.entries:
            if (
                entry.partition == "state"
                and (entry.key or b"").startswith(b"ob/")
                and entry.value is not None
            ):
                self._charged |= _by_id(entry.value)
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
        books = _Published(self._limits, self._raised(), self.say)
        boundaries = list(self._put_back)
        for place, event in shown:
            while boundaries and boundaries[0][0] <= place:
                books.put_back(boundaries.pop(0)[2])
            books.take(event)
            data = event["data"]
            if data.get("account") is not None:
                self._priced(event["type"], data, round(data["account"]["charge"] * _UNITS))
        self.tops = books.tops
        lost = {top for top in self._outcomes if top not in books.released and top[:3] not in books.closed}
        if lost:
            self.say(f"{len(lost)} tops were computed and never released")
        spent = books.spent
        stored = self._stored()
        if stored != {name: spent.get(name, 0) for name in stored}:
            self.say("the ledgers in the state are not the sums of the charges released")

    def _raised(self) -> set[int]:
        """Return the limits that commands asked for."""
        asked = re.findall(
            rb'"limit": ?"([0-9.]+)"', b" ".join(entry.value or b"" for entry in self._broker.read("control"))
        )
        return {round(float(limit) * _UNITS) for limit in asked}

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


class _Published:
    """The books as a subscriber keeps them, event by event."""

    def __init__(self, limits: dict[str, int], raised: set[int], say: Callable[[str], None]) -> None:
        self.spent: dict[str, int] = defaultdict(int)
        self.tops = 0
        self.released: set[tuple[str, str, int, int]] = set()
        self.closed: set[tuple[str, str, int]] = set()
        self._limits, self._raised, self._say = dict(limits), raised, say
        self._numbered: dict[tuple[str, str, int], int] = defaultdict(int)
        self._last = 0
        self._gap = False
        self._owing: set[str] = set()

    def put_back(self, owing: set[str]) -> None:
        """Go on beside a state that was put back, where these datasets' budgets must be given up first."""
        self._owing = set(owing)
        self._gap = bool(owing)

    def take(self, event: dict[str, Any]) -> None:
        """Take the next event."""
        expected, self._last = self._last + 1, event["sequence"]
        if self._last != expected and not (self._gap and self._last > expected):
            self._say("events are lost, doubled or out of order for read_committed readers")
        self._gap = False
        data = event["data"]
        if data.get("account") is None:
            return
        kind, name = event["type"], data["dataset"]
        charge, spent, reserved, limit = (
            round(data["account"][field] * _UNITS) for field in ("charge", "spent", "reserved", "limit")
        )
        if kind == _GIVEN_UP:
            self._give_up(name, spent, limit)
        elif name in self._owing:
            if charge and not (kind == _CLOSED and data["reason"] == "marked-exhausted"):
                self._say(f"{name}: {kind} from a state that is older than the alerts")
            return
        else:
            self.spent[name] += charge
        if kind == _CLOSED and data["reason"] == "loss":
            self.closed.add((name, data["monitor"], data["run"]))
        if kind == _RAISED and limit in self._raised:
            self._limits[name] = limit
        if limit != self._limits[name]:
            self._say(f"{name}: the limit is not the one declared, and no command raised it")
        if self.spent[name] != spent:
            self._say(f"{name}: what is spent is not the sum of the charges released")
        if spent + reserved > limit:
            self._say(f"{name}: the limit is passed")
        if "gap" in data:
            self._top(name, data)

    def _give_up(self, name: str, spent: int, limit: int) -> None:
        if spent != limit or spent < self.spent[name] or limit < self._limits[name]:
            self._say(f"{name}: something is left of a budget that was given up")
        if limit in self._raised:  # by a command of which nobody was shown the answer
            self._limits[name] = limit
        self.spent[name] = spent
        self._owing.discard(name)
        for run in [run for run in self._numbered if run[0] == name]:
            del self._numbered[run]

    def _top(self, name: str, data: dict[str, Any]) -> None:
        self.tops += 1
        run = (name, data["monitor"], data["run"])
        self._numbered[run] += 1
        if data["top"] != self._numbered[run]:
            self._say(f"{name}: the tops of run {data['run']} are not numbered densely")
        self.released.add((*run, data["top"]))


def _outbox(value: bytes) -> list[dict[str, Any]]:
    (events,) = msgspec.msgpack.decode(value[_FRAME:])
    return [msgspec.json.decode(encoded) for _, _, encoded in events]


def _waiting(records: dict[bytes, bytes]) -> list[dict[str, Any]]:
    """Return the events that a state has yet to publish."""
    chunks = msgspec.msgpack.decode(records[b"meta"][_FRAME:])["chunks"] if records else 0
    return [event for number in range(chunks) for event in _outbox(records[f"ob/{number}".encode()])]


def _newer(sent: list[tuple[bytes, bool]], records: dict[bytes, bytes], charged: dict[str, bytes]) -> bool:
    """Whether events were sent that this state does not know, or that it does not know to be published."""
    ids = {event["id"] for event in _waiting(records)}
    for value, committed in sent:
        name = msgspec.json.decode(value)["id"]
        if charged.get(name) != value or (committed and name in ids):
            return True
    return False


def _by_id(value: bytes) -> dict[str, bytes]:
    (events,) = msgspec.msgpack.decode(value[_FRAME:])
    return {msgspec.json.decode(encoded)["id"]: encoded for _, _, encoded in events}


def _committed(entry: Entry) -> bool:
    return entry.txn is None or entry.txn.fate is Fate.COMMITTED
