"""What the demo knows and shows: the released events, folded; how far it is; and the truth, which only it has.

An alert is *true* if the true count behind the query it names had reached the threshold. *Precision*: true alerts of
all alerts. *Recall*: of all (week, item) whose true count reached the threshold at some checkpoint asked, those that
the monitor alerted in that week. *Recall while funded* leaves out of both sides the weeks in which the monitor ran out
of budget. Whatever is shown of the truth is magenta and marked as truth: no user of a private monitor has it.
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
"""Dataset and series of each item whose true count had reached the threshold, by the id of a checkpoint's set."""
Entry: TypeAlias = tuple[str, ...]
"""A released event as a line of the screen: a cell for each of `_HEADS`, empty where it has none."""

_HEADS = ("", "week", "monitor", "item", "gap", "estimate", "bound", "")
_COLOURS = {
    "ALERT": "bold green",
    "first": "dim",
    "halted": "yellow",
    "resampled": "cyan",
    "exhausted": "bold red",
}
_NOTE = (
    "* from the true counts, known to the demo only, never released. Recall: of the items that reached the threshold "
    "in a week, those alerted in it; funded: without the weeks in which the monitor ran out of budget. Retried: "
    "alerts at attempt 2 or later (append)."
)


def truth_of(baskets: Baskets, clock: WeekClock, threshold: int) -> Truth:
    """Count everything once."""
    return {
        point.set_id: frozenset(
            (point.dataset, SERIES % (column + 1)) for column in np.flatnonzero(counts >= threshold)
        )
        for point, counts in running_counts(baskets, clock)
    }


class Board(ReleasedStatus):
    """Everything the screen and the summary show; whoever runs the demo keeps the attributes up to date.

    ``line`` is the public clock, ``asked`` has the sets that were closed, and ``seen`` counts the queries that the
    service has tested or skipped, each once.
    """

    def __init__(self, limits: Mapping[str, float], truth: Truth) -> None:
        super().__init__(
            {name: Budget(limit) for name, limit in limits.items()}, dict.fromkeys(MONITORS, limits)
        )
        self.alerts: dict[str, list[Alert]] = {monitor: [] for monitor in MONITORS}
        self.recent: deque[Entry] = deque(maxlen=200)
        self.asked: list[str] = []
        self.line = self.sent = self.seen = 0
        self.seconds = 0.0
        self.phase = "streaming"
        self._truth = truth

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.seen / self.seconds if self.seconds else 0.0

    def tell(self, envelope: Envelope, data: Alert | Lifecycle) -> Entry | None:
        """Fold one event; return its line, or None for what needs no line."""
        self.take(envelope, data)
        if isinstance(data, Alert):
            self.alerts[data.monitor].append(data)
        if (entry := _entry(envelope.type, data)) is not None:
            self.recent.append(entry)
        return entry

    def figures(self, *monitors: str) -> dict[str, float | None]:
        """Return what monitors did over all datasets, and how good that was; None: nothing to divide by.

        Several monitors count an item once for each.
        """
        alerts = [alert for name in monitors for alert in self.alerts[name]]
        statuses = [status for name in monitors for status in self.statuses[name].values()]
        hot = frozenset[tuple[str, str]]().union(*(self._truth[set_id] for set_id in self.asked))
        right = sum((one.dataset, one.series) in self._truth[one.query_id.split("/")[0]] for one in alerts)
        expected = {(name, *item) for name in monitors for item in hot}
        found = {(one.monitor, one.dataset, one.series) for one in alerts}
        funded = {one for one in expected if self.statuses[one[0]][one[1]].state is not State.EXHAUSTED}
        return {
            "alerts": len(alerts),
            "halts": sum(status.halts for status in statuses),
            "resamples": sum(max(status.run - 1, 0) for status in statuses),
            "alerts_at_later_attempts": sum(alert.attempt >= 2 for alert in alerts),
            "precision": _ratio(right, len(alerts)),
            "recall": _ratio(len(expected & found), len(expected)),
            "recall_while_funded": _ratio(len(funded & found), len(funded)),
        }

    def document(self) -> dict[str, object]:
        """Return the summary as it is written to a file. Ratios are rounded to four decimals; epsilon to nine."""
        asked: dict[str, float | None] = {"queries": self.seen, "queries_per_second": round(self.rate, 1)}
        return {
            "seconds": round(self.seconds, 1),
            **asked,
            **self.figures(*MONITORS),
            "monitors": {name: asked | self.figures(name) for name in MONITORS},
            "datasets": {
                name: {"spent": round(budget.spent, 9), "limit": round(budget.limit, 9)}
                for name, budget in self.budgets.items()
            },
            "exhausted": self.exhausted(),
        }


def _entry(kind: str, event: Alert | Lifecycle) -> Entry | None:
    if isinstance(event, Alert):
        # On the demo's grid of whole counts all released figures but the estimate are whole numbers.
        estimate = "-" if event.estimate is None else f"{event.estimate:.0f}"
        bound = "-" if event.bound is None else f"≥ {event.bound:g}"
        text = f"{event.branch} branch, attempt {event.attempt}, run {event.run} top {event.top}"
        names = ("ALERT", event.dataset, event.monitor, event.series or "")
        return (*names, f"{event.gap:g}", estimate, bound, text)
    told = {
        EventType.RUN_STARTED: (event.reason, f"run {event.run}, fresh threshold noise drawn and charged"),
        EventType.RUN_HALTED: ("halted", f"run {event.run} has used all its alerts"),
        EventType.EXHAUSTED: ("exhausted", "the budget cannot pay another run"),
    }
    if kind not in told:
        return None
    word, text = told[EventType(kind)]
    return (word, event.dataset, event.monitor, "", "", "", "", text)


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


class Screen(Live):
    """A live picture while it is entered, or, where it is no terminal, a line for each event.

    ``foot`` says where Kafka and the pages are; ``lines`` are those of the whole stream.
    """

    def __init__(self, console: Console, lines: int, foot: str = "") -> None:
        super().__init__(console=console, auto_refresh=False, transient=not console.is_terminal)
        self.foot, self.lines = foot, lines

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def entry(self, entry: Entry) -> None:
        """Print a released event; the picture shows the board's latest ones anyway."""
        if not self.console.is_terminal:
            cells = zip(_HEADS, entry, strict=True)
            self.say("  ".join(f"{head} {cell}".strip() for head, cell in cells if cell))

    def show(self, board: Board) -> None:
        """Draw the picture."""
        if self.console.is_terminal:
            self.update(picture(board, self.foot, self.lines, self.console.height), refresh=True)


def picture(board: Board, foot: str, lines: int, height: int = 40) -> RenderableType:
    """Return the whole screen, not higher than ``height`` lines where that is at least 24."""
    rows = max(height - FIXED_LINES - len(board.budgets) - len(MONITORS), 2)
    panels: dict[str, RenderableType] = {
        "stream-svt demo: hot items of a shop; privacy unit: one basket, its line stays": (
            f"[bold]{board.seen:,}[/] queries tested by 2 monitors   [bold]{board.rate:,.0f}[/] queries/s   "
            f"line {board.line:,} of {lines:,}   [dim]{board.phase}[/]"
        ),
        "Privacy budget (epsilon): [red]spent[/] [yellow]reserved[/] [green]free[/]": _budgets(board),
        "Monitors; [magenta]* from the true counts, never released[/]": _monitors(board),
        "Released, as it is released (-: nothing can be certified)": _events(board, rows),
    }
    drawn = [Panel(content, title=title, title_align="left") for title, content in panels.items()]
    return Group(*drawn, Text(foot, "dim", overflow="fold"))


def report(board: Board) -> RenderableType:
    """Return what is shown at the end: what was released, and how good it was against the truth."""
    head = (
        f"\nSummary: {board.seen:,} queries, each read by {len(MONITORS)} monitors, in {board.seconds:.1f} s: "
        f"{board.rate:,.0f}/s\n"
    )
    return Group(Text(head, "bold"), _monitors(board), Text(_NOTE, "magenta"), Text(), _budgets(board))


def _short(name: str) -> str:
    return name.removeprefix("hot-items-").removeprefix("retail-week-").removeprefix("item-")


def _budgets(board: Board) -> Table:
    """Return each dataset's budget: spent, reserved by open runs, free; and the states of its monitors."""
    table = Table.grid(padding=(0, 2))
    for no_wrap in (True, True, True, False):  # on a narrow screen the states are what wraps
        table.add_column(no_wrap=no_wrap)
    out = set(board.exhausted())
    for name, budget in board.budgets.items():
        found = {_short(monitor): status.shown for monitor, status in board.of_dataset(name).items()}
        states = ", ".join(f"{monitor} {state}" for monitor, state in found.items() if state != "idle")
        amount = f"{budget.spent:.2f} of {budget.limit:g} spent"
        style = "bold red" if name in out else "default"
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
        table.add_column(head, no_wrap=True, justify="right" if head in _HEADS[4:] else "left")
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
    for kind, *cells, text in list(board.recent)[-rows:]:
        table.add_row(Text(kind, _COLOURS[kind]), *map(_short, cells), text)
    return table
