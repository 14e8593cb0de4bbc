"""What must hold in every history, judged from the modelled log alone; shares no code with the journal."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import msgspec

from stream_svt.monitor.spec import ApplicationSpec
from tests.simulation.log import Broker, Entry, Fate, Txn

_FRAME = 1 + 1 + 8 + 16
"""Bytes before the content of a plain state record: version, kind, sequence, check."""
_UNITS = 10**9


class Rules:
    """Watches a log while it grows.

    Parameters
    ----------
    spec
        What was declared: an event's own word for a limit or a price is not taken.
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
        self._charged: set[str] = set()
        self._contents: dict[str, bytes] = {}
        self._outcomes: dict[tuple[str, str, int, int], Any] = {}
        self._secrets: dict[tuple[str, str, int], bytes] = {}
        broker.appended = self._appended
        broker.decided = self._decided

    def _say(self, text: str) -> None:
        if text not in self.violations:
            self.violations.append(text)

    def _appended(self, entry: Entry) -> None:
        if entry.marker or entry.value is None:
            return
        if entry.partition == "alerts":
            event = msgspec.json.decode(entry.value)
            if event["id"] not in self._charged:
                self._say(f"{event['id']} is visible before its charge is durable")
            if self._contents.setdefault(event["id"], entry.value) != entry.value:
                self._say(f"{event['id']} has two contents")
        elif entry.partition == "state" and (entry.key or b"").startswith(b"ob/"):
            # Computed, whether or not it will ever be durable: computed again it must be the same.
            for event in _outbox(entry.value):
                data = event["data"]
                if "gap" in data:
                    # The books may have moved between: another monitor of the dataset was faster this time.
                    top = (data["dataset"], data["monitor"], data["run"], data["top"])
                    outcome = {**data, "account": None}
                    if self._outcomes.setdefault(top, outcome) != outcome:
                        self._say(f"top {top} was computed twice, with different outcomes")

    def _decided(self, txn: Txn) -> None:
        if txn.fate is not Fate.COMMITTED:
            return
        for entry in txn.entries:
            if entry.partition != "state" or entry.value is None or entry.key is None:
                continue
            if entry.key.startswith(b"ob/"):
                self._charged |= {event["id"] for event in _outbox(entry.value)}
            elif entry.key.startswith(b"d/"):
                _, name, _, _, _, _, slots = msgspec.msgpack.decode(entry.value[_FRAME:])
                for monitor, slot in slots.items():
                    run, secrets = slot[3], slot[5]
                    if any(secrets):  # zeros once the run is closed
                        known = self._secrets.setdefault((name, monitor, run), secrets)
                        if known != secrets:
                            self._say(f"the noise of run {run} of {name}/{monitor} changed")

    def finish(self) -> None:
        """Judge the books once a healthy owner has had its time."""
        events = [msgspec.json.decode(entry.value or b"") for entry in self._broker.read("alerts")]
        if [event["sequence"] for event in events] != list(range(1, len(events) + 1)):
            self._say("events are lost, doubled or out of order for read_committed readers")
        if missing := self._charged - {event["id"] for event in events}:
            self._say(f"{len(missing)} events were charged and never published")
        spent: dict[str, int] = defaultdict(int)
        tops: dict[tuple[str, str, int], int] = defaultdict(int)
        limits, raised = dict(self._limits), self._raised()
        for event in events:
            data = event["data"]
            account = data.get("account")
            if account is None:
                continue
            name = data["dataset"]
            charge = round(account["charge"] * _UNITS)
            spent[name] += charge
            self._priced(event["type"], data, charge)
            limit = round(account["limit"] * _UNITS)
            if event["type"].endswith("budget.raised.v1") and limit in raised:
                limits[name] = limit
            if limit != limits[name]:
                self._say(f"{name}: the limit is not the one declared, and no command raised it")
            if spent[name] != round(account["spent"] * _UNITS):
                self._say(f"{name}: what is spent is not the sum of the charges released")
            if spent[name] + round(account["reserved"] * _UNITS) > limits[name]:
                self._say(f"{name}: the limit is passed")
            if "gap" in data:
                self.tops += 1
                run = (name, data["monitor"], data["run"])
                tops[run] += 1
                if data["top"] != tops[run]:
                    self._say(f"{name}: the tops of run {data['run']} are not numbered densely")
        stored = self._stored()
        if stored != {name: spent.get(name, 0) for name in stored}:
            self._say("the ledgers in the state are not the sums of the charges released")

    def _raised(self) -> set[int]:
        """Return the limits that commands asked for."""
        asked = re.findall(
            rb'"limit": ?"([0-9.]+)"', b" ".join(entry.value or b"" for entry in self._broker.read("control"))
        )
        return {round(float(limit) * _UNITS) for limit in asked}

    def _priced(self, kind: str, data: dict[str, Any], charge: int) -> None:
        if "gap" in data and charge != self._prices[data["monitor"], data["branch"]]:
            self._say(f"{data['dataset']}: a top was not charged its price")
        if kind.endswith("run.started.v1") and charge != self._openings[data["monitor"]]:
            self._say(f"{data['dataset']}: the start of a run was not charged its price")

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


def _outbox(value: bytes) -> list[dict[str, Any]]:
    (events,) = msgspec.msgpack.decode(value[_FRAME:])
    return [msgspec.json.decode(encoded) for _, _, encoded in events]
