"""The books as a subscriber keeps them from what is published, and what must hold of them event by event."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_CLOSED = "io.stream-svt.run.closed.v1"
_ADOPTED = "io.stream-svt.configuration.adopted.v1"
_RETIRED = "io.stream-svt.budget.retired.v1"
_BALANCE = "io.stream-svt.budget.balance.v1"
_RAISED = "io.stream-svt.budget.raised.v1"
_STARTED = "io.stream-svt.run.started.v1"
UNITS = 10**9


@dataclass(frozen=True)
class Terms:
    """What was declared, in billionths of epsilon: an event's own word for a limit or a price is not taken.

    ``openings`` are what the start of a run costs, ``prices`` what a top costs, by monitor and branch; ``before`` was
    spent of a dataset before its first event.
    """

    limits: Mapping[str, int]
    openings: Mapping[str, int]
    prices: Mapping[tuple[str, str], int]
    before: Mapping[str, int] = field(default_factory=dict)


class Published:
    """The books as a subscriber keeps them, event by event; ``raised`` are limits that commands asked for.

    Prices of ``applied`` count from the adoption of a version on, by its number from 1; without, they stay as they are.
    """

    def __init__(
        self,
        terms: Terms,
        say: Callable[[str], None],
        raised: frozenset[int] = frozenset(),
        applied: Sequence[Terms] = (),
    ) -> None:
        self.spent: dict[str, int] = defaultdict(int, terms.before)
        self.topped: Counter[tuple[str, str, int, int]] = Counter()
        self.released: set[tuple[str, str, int, int]] = set()
        self.closed: set[tuple[str, str, int]] = set()
        self._terms, self._say, self._raised, self._applied = terms, say, raised, applied
        self._limits = dict(terms.limits)
        self._numbered: dict[tuple[str, str, int], int] = defaultdict(int)
        self._opened: dict[tuple[str, str, int], int] = {}
        self._last = self._adopted = 0
        self._retired: set[str] = set()

    def take(self, event: dict[str, Any]) -> None:
        expected, self._last = self._last + 1, event["sequence"]
        if self._last != expected:
            self._say(f"{event['id']}: here events are lost, doubled or out of order")
        data = event["data"]
        if event["type"] == _ADOPTED:
            self._adopt(data["detail"]["number"])
        if data.get("account") is None:
            return
        kind, name = event["type"], data["dataset"]
        charge, spent, reserved, limit = (
            round(data["account"][field] * UNITS) for field in ("charge", "spent", "reserved", "limit")
        )
        self.spent[name] += charge
        if name in self._retired and kind not in {_RETIRED, _BALANCE}:
            self._say(f"{event['id']}: its dataset was retired")
        if kind == _RETIRED:
            self._retired.add(name)
            if reserved:
                self._say(f"{event['id']}: a dataset is retired while a run is open")
        if kind == _CLOSED and data["reason"] in {"loss", "unread", "paused", "retired"}:
            self.closed.add((name, data["monitor"], data["run"]))
        if kind == _RAISED and limit in self._raised:
            self._limits[name] = limit
        if limit != self._limits[name]:
            self._say(f"{event['id']}: the limit is not the one declared, and no command raised it")
        if self.spent[name] != spent:
            self._say(f"{event['id']}: charges so far do not add up to what is spent")
        if max(spent, self.spent[name]) + reserved > self._limits[name]:
            self._say(f"{event['id']}: the limit is passed")
        if kind == _STARTED:
            self._opened[name, data["monitor"], data["run"]] = charge
            if charge != self._terms.openings[data["monitor"]]:
                self._say(f"{event['id']}: the start of a run was not charged its price")
        if "gap" in data:
            self._top(event["id"], data, charge)

    def _adopt(self, number: int) -> None:
        if number <= self._adopted:
            self._say("a version is adopted that is older than the one before")
        self._adopted = number
        if self._applied:  # a change of price ends the open runs: what follows is of new ones
            self._terms = self._applied[number - 1]

    def _top(self, event_id: str, data: dict[str, Any], charge: int) -> None:
        run = (data["dataset"], data["monitor"], data["run"])
        opening = self._terms.openings[data["monitor"]]
        if self._opened.get(run, opening) != opening:
            self._say(f"{event_id}: a top of a run that was opened at another price")
        if charge != self._terms.prices[data["monitor"], data["branch"]]:
            self._say(f"{event_id}: a top was not charged its price")
        self._numbered[run] += 1
        if data["top"] != self._numbered[run]:
            self._say(f"{event_id}: tops of the run are not numbered densely")
        self.released.add((*run, data["top"]))
        place = data["position"]
        self.topped[data["monitor"], place["topic"], place["offset"], place["row"]] += 1
