"""The books as a subscriber keeps them from what is published, and what must hold of them event by event."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

GIVEN_UP = "io.stream-svt.budget.marked-exhausted.v1"
_CLOSED = "io.stream-svt.run.closed.v1"
_RAISED = "io.stream-svt.budget.raised.v1"
UNITS = 10**9


class Published:
    """The books as a subscriber keeps them, event by event."""

    def __init__(self, limits: dict[str, int], raised: set[int], say: Callable[[str], None]) -> None:
        self.spent: dict[str, int] = defaultdict(int)
        self.topped: Counter[tuple[str, str, int, int]] = Counter()
        self.released: set[tuple[str, str, int, int]] = set()
        self.closed: set[tuple[str, str, int]] = set()
        self._declared, self._limits, self._raised, self._say = limits, dict(limits), raised, say
        self._numbered: dict[tuple[str, str, int], int] = defaultdict(int)
        self._last = 0
        self._gap = False
        self._owing: set[str] = set()
        self._shown: dict[str, tuple[int, int]] = {}

    def made_anew(self) -> None:
        """Go on in an alert topic that was made anew: what the one before showed, nobody can be held to."""
        self._shown = {}

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
            round(data["account"][field] * UNITS) for field in ("charge", "spent", "reserved", "limit")
        )
        before = self._shown.get(name, (0, 0))
        self._shown[name] = max(before[0], spent), max(before[1], limit)
        if kind == GIVEN_UP:
            self._give_up(name, spent, limit, before)
        elif name in self._owing:
            if charge and not (kind == _CLOSED and data["reason"] == "marked-exhausted"):
                self._say(f"{name}: {kind} from a state that is older than the alerts")
            return
        else:
            self.spent[name] += charge
        if kind == _CLOSED and data["reason"] in {"loss", "unread", "paused"}:
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

    def _give_up(self, name: str, spent: int, limit: int, shown: tuple[int, int]) -> None:
        if spent != limit or (spent, limit) < shown or limit < shown[1]:
            self._say(f"{name}: something is left of a budget that was given up")
        if limit in self._raised or limit == self._declared[name]:
            # By a command of which nobody was shown the answer; or by none, where nothing is left that shows it.
            self._limits[name] = limit
        self.spent[name] = spent
        self._owing.discard(name)
        for run in [run for run in self._numbered if run[0] == name]:
            del self._numbered[run]

    def _top(self, name: str, data: dict[str, Any]) -> None:
        run = (name, data["monitor"], data["run"])
        self._numbered[run] += 1
        if data["top"] != self._numbered[run]:
            self._say(f"{name}: the tops of run {data['run']} are not numbered densely")
        self.released.add((*run, data["top"]))
        place = data["position"]
        self.topped[data["monitor"], place["topic"], place["offset"], place["row"]] += 1
