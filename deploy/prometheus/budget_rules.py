# ruff: noqa: INP001  a program beside what it writes, in no package
"""Writes `rules/budget.yml`: how fast budgets burn, and when they will be spent.

    python -m deploy.prometheus.budget_rules

A budget does not refill, so its pace is measured against its horizon: a burn rate of 1 spends exactly the limit in
exactly the horizon. The windows are shares of the horizon, but a range in PromQL is a literal. So horizons are
sorted into six classes with windows of their own; the burn rate is exact for every horizon, only the share that
a window is of it varies within a class. A range is read for whatever its selector finds, before anything is
compared: hence a copy of each dataset's series under the name of its class.

Charges are few, so what a window shows is taken with the doubt that it deserves. Charges of one occasion, as when
one incident shows in many series, are one payment; payments count as a Poisson process; an alarm needs the lower
limit of the pace; and the end of a budget is an interval, as on the status page (`stream_svt.planning.budget`).
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import yaml

RULES: Final = Path(__file__).parent / "rules" / "budget.yml"

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

NINETY_PERCENT: Final = 1.645
"""5 % of a normal distribution lie beyond so many standard deviations, on each side."""

LEAST_PAYMENTS: Final = 3
"""Payments within the slow window without which nothing is said about the end of a budget."""


@dataclass(frozen=True)
class Window:
    """One of the four windows of a class.

    Attributes:
        name, shorts: How many times the shortest one it is.
        alarm: Lower limit of the burn rate from which a budget counts as burning, None for the shortest.
    """

    name: str
    shorts: int
    alarm: float | None


SHORT: Final = Window("short", 1, None)
FAST: Final = Window("fast", 3, 8)
MEDIUM: Final = Window("medium", 12, 4)
SLOW: Final = Window("slow", 36, 2)
WINDOWS: Final = (SHORT, FAST, MEDIUM, SLOW)


@dataclass(frozen=True)
class Horizons:
    """A class of horizons, from ``least`` seconds to below ``most``; ``short`` is its shortest window in seconds.

    A horizon of 432 times the shortest window has the others at 1/144, 1/36 and 1/12.
    """

    name: str
    least: int | None
    most: int | None
    short: int

    def seconds(self, window: Window) -> int:
        """Return the length of a window."""
        return self.short * window.shorts

    @property
    def occasion(self) -> int:
        """Seconds within which charges count as one payment."""
        return self.short // 4

    def matches(self) -> str:
        """Return the expression of the datasets with such a horizon."""
        bounds = [f">= {self.least}" if self.least else "", f"< {self.most}" if self.most else ""]
        return " ".join(["stream_svt:budget_horizon:seconds", *filter(None, bounds)])


CLASSES: Final = (
    Horizons("hours", None, 12 * HOUR, MINUTE),
    Horizons("day", 12 * HOUR, 60 * HOUR, 3 * MINUTE),
    Horizons("week", 60 * HOUR, 14 * DAY, 20 * MINUTE),
    Horizons("month", 14 * DAY, 52 * DAY, 100 * MINUTE),
    Horizons("quarter", 52 * DAY, 180 * DAY, 5 * HOUR),
    Horizons("year", 180 * DAY, None, 20 * HOUR),
)

_EACH: Final = "by (application, dataset)"
_ON: Final = "on (application, dataset)"
_Rule = dict[str, Any]


def duration(seconds: int) -> str:
    """Return a PromQL duration.

    >>> duration(100 * 60), duration(3 * 86_400)
    ('100m', '3d')
    """
    size, unit = next(
        (size, unit)
        for size, unit in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (1, "s"))
        if seconds % size == 0
    )
    return f"{seconds // size}{unit}"


def _rule(record: str, expr: str, **labels: str) -> _Rule:
    return {"record": f"stream_svt:{record}", "expr": expr, **({"labels": labels} if labels else {})}


def _greatest(metric: str, labels: str = "", function: str = "max") -> str:
    """Return a gauge of each dataset's books with these labels, whichever workers show it.

    During a hand-over, or while a worker is cut off, two of them do. What is spent only grows, so the greater
    figure is the newer one; their sum would be wrong. What lies beyond the labelled datasets is left out.
    """
    return f'{function} {_EACH} ({metric}{{{labels}dataset!="(others)"}})'


def _share_of_limit(name: str) -> str:
    return "\nor\n".join(
        f"{_greatest(f'stream_svt_budget_{name}_{measure}')}\n  / {_greatest(f'stream_svt_budget_limit_{measure}')}"
        for measure in ("epsilon", "rho")
    )


def _books() -> list[_Rule]:
    until = _greatest("stream_svt_monitor_state_until_timestamp_seconds", function="min")
    return [
        _rule("budget_spent:ratio", _share_of_limit("spent")),
        _rule("budget_reserved:ratio", _share_of_limit("reserved")),
        # What open runs reserved is not spent: it still buys tops.
        _rule("budget_left:ratio", "1 - stream_svt:budget_spent:ratio"),
        _rule("budget_horizon:seconds", _greatest("stream_svt_budget_horizon_seconds")),
        # Where every monitor skips queries, nothing is spent until one goes on, as `max_runs` or a pause says, if ever.
        _rule(
            "budget_rest:seconds",
            f"(\n  clamp_min({until} - time(), 0)\n  or {_in_state('limited|paused|stopped|exhausted')} * Inf\n)"
            f"\nunless {_ON} {_in_state('idle|running|halted')}\nor 0 * stream_svt:budget_left:ratio",
        ),
    ]


def _in_state(states: str) -> str:
    return _greatest("stream_svt_monitor_state", f'state=~"{states}", ')


def _within_an_hour() -> list[_Rule]:
    """Return how much of each dataset's limit went within an hour.

    A dataset that was not there an hour ago began with nothing spent, if its application was there; not so if it was
    there within the day before, for then its shard had no owner.
    """
    spent = "stream_svt:budget_spent:ratio"
    there = f"on (application) count by (application) ({spent} offset 1h)"
    before = f"max_over_time({spent}[1d:30m] offset 1h)"
    began = f"0 * {spent}\n    unless {_ON} {before}\n    and {there}"
    return [
        _rule(
            "budget_spent:increase1h",
            f"{spent} - (\n  (\n    {began}\n  )\n  or min_over_time({spent}[1h])\n)",
        ),
    ]


def _by_horizon() -> list[_Rule]:
    """Return a copy of each dataset's share under the class of its horizon, for the ranges to select."""
    chosen = [(one.name, f"and {_ON} ({one.matches()})") for one in CLASSES]
    return [
        _rule("budget_spent_by_horizon:ratio", f"stream_svt:budget_spent:ratio\n{condition}", horizon=name)
        for name, condition in chosen
    ]


def _series(horizon: str) -> str:
    return f'stream_svt:budget_spent_by_horizon:ratio{{horizon="{horizon}"}}'


def _increase(horizon: str, seconds: int, occasion: int) -> str:
    """Return by how much the share spent grew within a window.

    Not `increase` or `delta`, which extrapolate: of a window that began before the dataset did they would invent
    charges. A raised limit lowers the share; the window then begins there. A dataset that began after the last
    mark has spent nothing yet.
    """
    least = _occasions("min_over_time", horizon, seconds, occasion)
    return f"{_series(horizon)} - ({least} or {_series(horizon)})"


def _occasions(function: str, horizon: str, seconds: int, occasion: int) -> str:
    """Return a function of what a window shows at one mark for each occasion.

    Marks, and not all samples: a month of those, of a thousand datasets, takes ten seconds to read.
    """
    return f"{function}({_series(horizon)}[{duration(seconds)}:{duration(occasion)}])"


def _windows() -> list[_Rule]:
    rules = []
    for one in CLASSES:
        for window in WINDOWS:
            seconds, labels = one.seconds(window), {"horizon": one.name, "window": window.name}
            paced = f"* {_ON} group_left () stream_svt:budget_horizon:seconds / {seconds}"
            increase = _increase(one.name, seconds, one.occasion)
            rules.append(_rule("budget_burn:ratio", f"({increase})\n{paced}", **labels))
            if window.alarm is not None:
                payments = _occasions("changes", one.name, seconds, one.occasion)
                rules.append(_rule("budget_payments:changes", payments, **labels))
    return rules


def _slowly() -> list[_Rule]:
    """Return what the slow windows show of every dataset."""
    payments = "stream_svt:budget_payments:changes"
    slow = {one.name: (one.seconds(SLOW), one.occasion) for one in CLASSES}
    rules = [
        _rule(
            "budget_paid_lately:changes",
            f'sum without (window) ({payments}{{window="{SLOW.name}"}}) >= {LEAST_PAYMENTS}',
        ),
    ]
    for name, (seconds, occasion) in slow.items():
        # A window may begin before its dataset did, or before Prometheus: only what was seen counts.
        seen = f"({_occasions('count_over_time', name, seconds, occasion)} - 1) * {occasion}"
        rules += [
            _rule("budget_spent_lately:increase", _increase(name, seconds, occasion), horizon=name),
            _rule("budget_seen_lately:seconds", seen, horizon=name),
        ]
    return rules


def _is_going_on(window: Window, shorter: Window) -> str:
    """Return the datasets charged lately, and not lately alone.

    Without charges in the shorter window the pace of the longer one is past. With nearly all of them in it, one
    incident that many series reported would look like a pace.
    """
    longer, recent = (f'stream_svt:budget_burn:ratio{{window="{one.name}"}}' for one in (window, shorter))
    # Of a steady pace both windows show the same, of one moment's charges the shorter one shows the more, by as many
    # times as it is shorter.
    most = (window.shorts // shorter.shorts + 1) / 2
    return f"({recent} > 0) < {_ON} {most:g} * {longer}"


def _burning() -> list[_Rule]:
    count = "stream_svt:budget_payments:changes"
    # The lower 95 % limit of a Poisson mean, by Wilson and Hilferty, as a share of the count.
    share = f"clamp_min(1 - 1 / (9 * {count}) - {NINETY_PERCENT} / (3 * sqrt({count})), 0) ^ 3"
    alarms = "\n  or\n".join(
        f'  (stream_svt:budget_burn_sure:ratio{{window="{window.name}"}} >= {window.alarm:g}\n'
        f"    and {_ON} ({_is_going_on(window, shorter)}))"
        for shorter, window in pairwise(WINDOWS)
        if window.alarm is not None
    )
    lasts = "stream_svt:budget_left:ratio * stream_svt:budget_horizon:seconds"
    ends = f"{_greatest('stream_svt_budget_end_timestamp_seconds')} - time()"
    pace = f"max {_EACH} (\n{alarms}\n)"
    return [
        _rule(
            "budget_burn_sure:ratio",
            f'stream_svt:budget_burn:ratio{{window!="short"}}\n* on (application, dataset, horizon, window) {share}',
        ),
        _rule("budget_alarm:ratio", pace),
        _rule("budget_burning_lasts:seconds", f"{lasts} / stream_svt:budget_alarm:ratio"),
        # A period that ends before its budget does leaves nothing to save.
        _rule(
            "budget_burning:ratio",
            f"stream_svt:budget_alarm:ratio\nunless {_ON}\n  ({ends} < stream_svt:budget_burning_lasts:seconds)"
            f"\nunless {_ON} stream_svt:budget_rest:seconds > 0",
        ),
    ]


def _exhaustion() -> list[_Rule]:
    """Return the end of a budget, with 90 % between its bounds.

    Both are random, the payments seen and those to come: hence a ratio with an F distribution, whose quantiles
    Paulson's approximation gives. Its two parameters are recorded as the variances of the cube roots.
    """
    paid, spent, seen = (
        f"stream_svt:budget_{name}"
        for name in ("paid_lately:changes", "spent_lately:increase", "seen_lately:seconds")
    )
    to_come = "stream_svt:budget_payments_to_come:estimate"
    rest = f"\n+ {_ON} group_left () (stream_svt:budget_rest:seconds < Inf)"
    rules = [
        # At least one, and whole: the last payment may be larger than what is left.
        _rule(
            "budget_payments_to_come:estimate",
            f"clamp_min(ceil(\n  {paid} / ({spent} > 0)\n"
            f"  * {_ON} group_left () (stream_svt:budget_left:ratio > 0)\n  - 1e-9\n), 1)",
        ),
        _rule("budget_payments_to_come:variance", f"1 / (9 * {to_come})"),
        _rule("budget_exhaustion:seconds", f"{seen} * {to_come} / {paid}{rest}", bound="expected"),
    ]
    # The time ends now and not at a payment: counting one more makes the early end early enough.
    for bound, counted, sign in (("early", f"({paid} + 1)", "-"), ("late", paid, "+")):
        a, b = "stream_svt:budget_payments_to_come:variance", f"stream_svt:budget_paid_{bound}:variance"
        z, square = NINETY_PERCENT, f"{NINETY_PERCENT**2:.6g}"
        root = f"sqrt((1 - {b}) ^ 2 * {a} + (1 - {a}) ^ 2 * {b} - {square} * {a} * {b})"
        rules += [
            _rule(f"budget_paid_{bound}:variance", f"1 / (9 * {counted})"),
            _rule(
                "budget_exhaustion:seconds",
                f"{seen} * {to_come} / {counted}\n* clamp_min(\n"
                f"  ((1 - {a}) * (1 - {b})\n    {sign} {z} * {root})\n"
                f"  / ((1 - {b}) ^ 2 - {square} * {b}), 0) ^ 3{rest}",
                bound=bound,
            ),
        ]
    return rules


class _Dumper(yaml.SafeDumper):
    """Writes expressions of several lines as such, and lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indent a list like anything else."""
        del indentless
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def document() -> str:
    """Return the file's content."""
    # One group: its rules are evaluated in order, each on what those before it just recorded.
    rules = [
        *_books(),
        *_within_an_hour(),
        *_by_horizon(),
        *_windows(),
        *_burning(),
        *_slowly(),
        *_exhaustion(),
    ]
    groups = {"groups": [{"name": "stream-svt-budget", "rules": rules}]}
    body = yaml.dump(groups, Dumper=_Dumper, sort_keys=False, width=1000)
    return f"# Made by `python -m deploy.prometheus.budget_rules`, which says what all this means.\n{body}"


def main() -> int:
    """Write the file."""
    RULES.write_text(document(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
