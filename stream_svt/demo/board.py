"""The demo's screen and summary: released events, progress, and figures from the true counts, which only the demo has.

An alert is *true* if the true count of its query had reached the threshold. *Precision*: the share of alerts that are
true. *Recall*: of the pairs (week, item) whose true count reached the threshold at a checkpoint, the share that the
monitor alerted in that week. *Recall while funded* leaves out the weeks in which the monitor ran out of budget.
Figures from the true counts are magenta and marked with a star: no user of a private monitor has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stream_svt.demo.scenario import MONITORS, SERIES, Baskets, WeekClock, running_counts
from stream_svt.monitor.released import Alert, Budget, Envelope, EventType, Lifecycle, ReleasedStatus
from stream_svt.monitor.snapshot import State

BAR = 24
FIXED_LINES = 16  # borders, headings, head and foot

Truth: TypeAlias = Mapping[str, frozenset[tuple[str, str]]]
"""Dataset and series of the items whose true count had reached the threshold, by the id of a checkpoint's set."""
Entry: TypeAlias = tuple[str, ...]
"""A released event as a line of the screen: a cell for each of `_HEADS`, which may be empty."""

_HEADS = ("", "week", "monitor", "item", "gap", "estimate", "bound", "")
_COLOURS = {
    "ALERT": "bold green",
    "first": "dim",
    "halted": "yellow",
    "resampled": "cyan",
    "exhausted": "bold red",
}
_NOTE = (
    "* from the true counts, which only the demo knows. Precision: share of alerts whose item had reached the "
    "threshold. Recall: share of the items reaching the threshold in a week that were alerted in it; funded: without "
    "weeks in which the monitor ran out of budget. Retried: alerts at attempt 2 or later (append)."
)


def truth_of(baskets: Baskets, clock: WeekClock, threshold: int) -> Truth:
    """Return the items that had reached the threshold at each checkpoint."""
    return {
        point.set_id: frozenset(
            (point.dataset, SERIES % (column + 1)) for column in np.flatnonzero(counts >= threshold)
        )
        for point, counts in running_counts(baskets, clock)
    }


class Board(ReleasedStatus):
    """The contents of the screen and of the summary; the session updates the attributes.

    ``line`` is the public clock, ``closed`` has the sets that were sent, and ``tested`` counts the queries that the
    service has tested or skipped, each once.
    """

    def __init__(self, limits: Mapping[str, float], truth: Truth) -> None:
        super().__init__(
            {name: Budget(limit) for name, limit in limits.items()}, dict.fromkeys(MONITORS, limits)
        )
        self.alerts: dict[str, list[Alert]] = {monitor: [] for monitor in MONITORS}
        self.recent: deque[Entry] = deque(maxlen=200)
        self.closed: list[str] = []
        self.line = self.sent = self.tested = 0
        self.seconds = 0.0
        self.phase = "streaming"
        self._truth = truth

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.tested / self.seconds if self.seconds else 0.0

    def add(self, envelope: Envelope, data: Alert | Lifecycle) -> Entry | None:
        """Take one event; return its line of the screen, or None for an event without one."""
        self.take(envelope, data)
        if isinstance(data, Alert):
            self.alerts[data.monitor].append(data)
        if (entry := _entry(envelope.type, data)) is not None:
            self.recent.append(entry)
        return entry

    def figures(self, *monitors: str) -> dict[str, float | None]:
        """Return the figures of monitors over all datasets; a ratio without a denominator is None.

        Every monitor counts an item once.
        """
        alerts = [alert for name in monitors for alert in self.alerts[name]]
        statuses = [status for name in monitors for status in self.statuses[name].values()]
        expected_items = frozenset[tuple[str, str]]().union(*(self._truth[set_id] for set_id in self.closed))
        true = sum((one.dataset, one.series) in self._truth[one.query_id.split("/")[0]] for one in alerts)
        expected = {(name, *item) for name in monitors for item in expected_items}
        alerted = {(one.monitor, one.dataset, one.series) for one in alerts}
        funded = {one for one in expected if self.statuses[one[0]][one[1]].state is not State.EXHAUSTED}
        return {
            "alerts": len(alerts),
            "halts": sum(status.halts for status in statuses),
            "resamples": sum(max(status.run - 1, 0) for status in statuses),
            "alerts_at_later_attempts": sum(alert.attempt >= 2 for alert in alerts),
            "precision": _ratio(true, len(alerts)),
            "recall": _ratio(len(expected & alerted), len(expected)),
            "recall_while_funded": _ratio(len(funded & alerted), len(funded)),
        }

    def document(self) -> dict[str, object]:
        """Return the summary for a file, with ratios rounded to four decimals and epsilon to nine."""
        load: dict[str, float | None] = {"queries": self.tested, "queries_per_second": round(self.rate, 1)}
        return {
            "seconds": round(self.seconds, 1),
            **load,
            **self.figures(*MONITORS),
            "monitors": {name: load | self.figures(name) for name in MONITORS},
            "datasets": {
                name: {"spent": round(budget.spent, 9), "limit": round(budget.limit, 9)}
                for name, budget in self.budgets.items()
            },
            "exhausted": self.exhausted(),
        }


def _entry(kind: str, event: Alert | Lifecycle) -> Entry | None:
    if isinstance(event, Alert):
        # The demo's grid is that of counts: all released figures except the estimate are integers.
        estimate = "-" if event.estimate is None else f"{event.estimate:.0f}"
        bound = "-" if event.bound is None else f"≥ {event.bound:g}"
        text = f"{event.branch} branch, attempt {event.attempt}, run {event.run} top {event.top}"
        names = ("ALERT", event.dataset, event.monitor, event.series or "")
        return (*names, f"{event.gap:g}", estimate, bound, text)
    texts = {
        EventType.RUN_STARTED: (event.reason, f"run {event.run}, new threshold noise drawn and charged"),
        EventType.RUN_HALTED: ("halted", f"run {event.run} has used all its alerts"),
        EventType.EXHAUSTED: ("exhausted", "the budget cannot pay for another run"),
    }
    if kind not in texts:
        return None
    word, text = texts[EventType(kind)]
    return (word, event.dataset, event.monitor, "", "", "", "", text)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


class Screen(Live):
    """A live picture on a terminal; elsewhere a line for each event.

    ``foot`` has the addresses of Kafka and of the pages; ``lines`` is the number of lines of the stream.
    """

    def __init__(self, console: Console, lines: int, foot: str = "") -> None:
        super().__init__(console=console, auto_refresh=False, transient=not console.is_terminal)
        self.foot, self.lines = foot, lines

    def write(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def write_entry(self, entry: Entry) -> None:
        """Print a released event, unless there is a live picture, which shows it."""
        if not self.console.is_terminal:
            cells = zip(_HEADS, entry, strict=True)
            self.write("  ".join(f"{head} {cell}".strip() for head, cell in cells if cell))

    def show(self, board: Board) -> None:
        """Draw the picture."""
        if self.console.is_terminal:
            self.update(picture(board, self.foot, self.lines, self.console.height), refresh=True)


def picture(board: Board, foot: str, lines: int, height: int = 40) -> RenderableType:
    """Return the screen, of at most ``height`` lines if that is at least 24."""
    rows = max(height - FIXED_LINES - len(board.budgets) - len(MONITORS), 2)
    panels: dict[str, RenderableType] = {
        "stream-svt demo: hot items of a shop; privacy unit: one basket": (
            f"[bold]{board.tested:,}[/] queries tested by 2 monitors   [bold]{board.rate:,.0f}[/] queries/s   "
            f"line {board.line:,} of {lines:,}   [dim]{board.phase}[/]"
        ),
        "Privacy budget (epsilon): [red]spent[/] [yellow]reserved[/] [green]free[/]": _budgets(board),
        "Monitors; [magenta]* from the true counts, never released[/]": _monitors(board),
        "Released events (-: no figure can be certified)": _events(board, rows),
    }
    drawn = [Panel(content, title=title, title_align="left") for title, content in panels.items()]
    return Group(*drawn, Text(foot, "dim", overflow="fold"))


def report(board: Board) -> RenderableType:
    """Return the summary at the end: figures of the monitors, and budgets."""
    head = (
        f"\nSummary: {board.tested:,} queries, each read by {len(MONITORS)} monitors, in {board.seconds:.1f} s: "
        f"{board.rate:,.0f}/s\n"
    )
    return Group(Text(head, "bold"), _monitors(board), Text(_NOTE, "magenta"), Text(), _budgets(board))


def _short(name: str) -> str:
    return name.removeprefix("hot-items-").removeprefix("retail-week-").removeprefix("item-")


def _budgets(board: Board) -> Table:
    """Return each dataset's budget (spent, reserved by open runs, free) and the states of its monitors."""
    table = Table.grid(padding=(0, 2))
    for no_wrap in (True, True, True, False):  # on a narrow screen only the states wrap
        table.add_column(no_wrap=no_wrap)
    exhausted = set(board.exhausted())
    for name, budget in board.budgets.items():
        shown = {_short(monitor): status.shown for monitor, status in board.of_dataset(name).items()}
        states = ", ".join(f"{monitor} {state}" for monitor, state in shown.items() if state != "idle")
        amount = f"{budget.spent:.2f} of {budget.limit:g} spent"
        style = "bold red" if name in exhausted else "default"
        table.add_row(Text(name, style), _bar(budget), amount, Text(states, "dim"))
    return table


def _bar(budget: Budget) -> Text:
    spent = round(BAR * budget.spent / budget.limit)
    reserved = min(round(BAR * (budget.spent + budget.reserved) / budget.limit), BAR) - spent
    return Text.assemble(
        ("█" * spent, "red"), ("▒" * reserved, "yellow"), ("░" * (BAR - spent - reserved), "green")
    )


def _monitors(board: Board) -> Table:
    table = Table("monitor", expand=True, box=None, pad_edge=False)
    columns = ("alerts", "halts", "resamples", "retried", "precision*", "recall*", "funded*")
    for column in columns:
        colour = "magenta" if column.endswith("*") else ""
        table.add_column(column, justify="right", style=colour, header_style=colour)
    for name in MONITORS:
        counts = board.figures(name).values()
        cells = ["-" if one is None else str(one) if isinstance(one, int) else f"{one:.0%}" for one in counts]
        table.add_row(_short(name), *cells)
    return table


def _events(board: Board, rows: int) -> Table:
    table = Table(expand=True, box=None, pad_edge=False)
    for head in _HEADS[:-1]:
        table.add_column(head, no_wrap=True, justify="right" if head in _HEADS[4:-1] else "left")
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
    for kind, *cells, text in list(board.recent)[-rows:]:
        table.add_row(Text(kind, _COLOURS[kind]), *map(_short, cells), text)
    return table
