"""The demo's screen and summary: released events, progress, and figures from the true counts, which only the demo has.

An alert is *true* if the true count of its query had reached the threshold. *Precision*: the share of alerts that are
true. *Recall*: of the pairs (week, item) whose true count reached the threshold in a window, the share that the monitor
alerted in that week. These figures are magenta and marked with a star: no user of a private
monitor has them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stream_svt.demo.scenario import ASKED, LIMITS, LINES, MONITORS, SERIES, THRESHOLD, Window
from stream_svt.monitor.released import Alert, AnyEvent, Budget, EventType, Lifecycle, ReleasedStatus
from stream_svt.plain_text import escaped

BAR = 24
FIXED_LINES = 15  # borders, headings, head and foot
_NOTE = (
    "* from the true counts, which only the demo knows. Precision: share of alerts whose true count had reached the "
    "threshold ({}). Recall: share of the items with such a count in a week that were alerted in it. Retried: "
    "alerts at attempt 2 or later (append)."
)


class Board(ReleasedStatus):
    """The contents of the screen and of the summary.

    ``sent`` counts the queries of all windows so far, ``tested`` those that the service has tested or skipped.
    ``events`` is the number of raw events sent, ``late`` how many of them perhaps too late for their window,
    and ``begin_ms`` when the first window begins.
    """

    def __init__(self) -> None:
        budgets = {name: Budget(float(limit)) for name, limit in LIMITS.items()}
        super().__init__(budgets, dict.fromkeys(MONITORS, budgets))
        self.alerts: dict[str, list[Alert]] = {monitor: [] for monitor in MONITORS}
        self.recent: list[Text] = []
        self.line = self.sent = self.tested = self.events = self.late = self.begin_ms = 0
        self.seconds = 0.0
        # By dataset and series, the ids of the windows in which the true count is at the threshold.
        self._reached: dict[tuple[str, str], set[str]] = {}

    def add_counts(self, window: Window, counts: NDArray[np.int64]) -> None:
        """Take the true counts of a window, before any alert about it."""
        self.sent += ASKED
        for column in np.flatnonzero(counts >= THRESHOLD):
            self._reached.setdefault((window.dataset, SERIES % (column + 1)), set()).add(
                _window(window.set_id)
            )

    def add(self, event: AnyEvent) -> Text | None:
        """Take one event; return its line of the screen, or None for an event without one."""
        self.take(event)
        if isinstance(event.data, Alert):
            self.alerts[event.data.monitor].append(event.data)
        if (line := _line(event.type, event.data)) is not None:
            self.recent.append(line)
        return line

    def figures(self, monitor: str) -> dict[str, int | float | None]:
        """Return the figures of a monitor over all datasets; a ratio without a denominator is None."""
        alerts, statuses = self.alerts[monitor], self.statuses[monitor].values()
        reached = (self._reached.get((one.dataset, one.series or ""), ()) for one in alerts)
        true = sum(_window(one.query_id) in ids for one, ids in zip(alerts, reached, strict=True))
        found = self._reached.keys() & {(one.dataset, one.series) for one in alerts}
        return {
            "alerts": len(alerts),
            "halts": sum(status.halts for status in statuses),
            "resamples": sum(max(status.run - 1, 0) for status in statuses),
            "retried": sum(alert.attempt > 1 for alert in alerts),
            "precision*": true / len(alerts) if alerts else None,
            "recall*": len(found) / len(self._reached) if self._reached else None,
        }


def _window(query_id: str) -> str:
    """Return the window with which the ids of its queries and of its set begin."""
    return query_id.partition("/")[0]


def _line(kind: str, event: Alert | Lifecycle) -> Text | None:
    where = escaped(f"{_short(event.dataset)}  {_short(event.monitor):<8}  ")
    if isinstance(event, Alert):
        # The demo counts in steps of 1: all released figures except the estimate are integers.
        estimate = "-" if event.estimate is None else f"{event.estimate:.0f}"
        bound = "-" if event.bound is None else f"≥ {event.bound:g}"
        figures = f"{escaped(event.series or ''):<10}  gap {event.gap:<4g}  estimate {estimate:<4}  bound {bound:<6}  "
        again = f" attempt {event.attempt}" if event.attempt > 1 else ""
        detail = f"run {event.run} alert {event.number}, {event.branch}{again}"
        return Text.assemble(("ALERT      ", "bold green"), where, figures, (detail, "dim"))
    lines = {
        EventType.RUN_STARTED: (escaped(event.reason), "cyan", "new threshold noise drawn and charged"),
        EventType.RUN_HALTED: ("halted", "yellow", "all its alerts are used"),
        EventType.LIMITED: ("limited", "yellow", "max_runs runs have begun"),
        EventType.EXHAUSTED: ("exhausted", "bold red", "the budget cannot pay for another run"),
    }
    if kind not in lines:
        return None
    word, colour, detail = lines[EventType(kind)]
    return Text.assemble((f"{word:<11}", colour), where, (f"run {event.run}: {detail}", "dim"))


def picture(board: Board, foot: str, height: int) -> RenderableType:
    """Return the screen: at most ``height`` lines, or 24 lines if ``height`` is smaller."""
    rows = max(height - FIXED_LINES - len(board.budgets) - len(MONITORS), 2)
    events = Text("\n", no_wrap=True, overflow="ellipsis").join(board.recent[-rows:])
    panels: dict[str, RenderableType] = {
        "stream-svt demo: a shop's hot items; privacy unit: all events of one basket": _progress(board),
        "Privacy budget (epsilon): [red]spent[/] [yellow]reserved[/] [green]free[/]": _budgets(board),
        "Monitors; [magenta]* from the true counts, never released[/]": _monitors(board),
        "Released events (-: no figure can be certified)": events,
    }
    drawn = [Panel(content, title=title, title_align="left") for title, content in panels.items()]
    return Group(*drawn, Text(foot, "dim", overflow="fold"))


def report(board: Board) -> RenderableType:
    """Return the summary at the end: figures of the monitors, and budgets."""
    late = f"{board.late:,} events were perhaps too late for their window: this machine is too busy"
    return Group(
        Text(f"\nSummary: {_progress(board)}, in {board.seconds:.1f} s\n", "bold"),
        *([Text(f"{late}\n", "yellow")] if board.late else []),
        _monitors(board),
        Text(f"{_NOTE.format(THRESHOLD)}\n", "magenta"),
        _budgets(board),
    )


def _progress(board: Board) -> str:
    sent = f"line {board.line:,} of {LINES:,}, {board.events:,} events"
    return f"{sent}; {len(MONITORS)} monitors tested {board.tested:,} counts"


def _budgets(board: Board) -> Table:
    """Return each dataset's budget (spent, reserved by open runs, free) and the states of its monitors."""
    table = Table.grid(padding=(0, 2))
    for no_wrap in (True, True, True, False):  # on a narrow screen only the states wrap
        table.add_column(no_wrap=no_wrap)
    exhausted = set(board.exhausted())
    for name, budget in board.budgets.items():
        spent = round(BAR * budget.spent / budget.limit)
        reserved = min(round(BAR * (budget.spent + budget.reserved) / budget.limit), BAR) - spent
        blocks = ("█" * spent, "red"), ("▒" * reserved, "yellow"), ("░" * (BAR - spent - reserved), "green")
        shown = {monitor: status.shown for monitor, status in board.of_dataset(name).items()}
        states = ", ".join(f"{_short(one)} {state}" for one, state in shown.items() if state != "idle")
        amount = f"{budget.spent:.2f} of {budget.limit:g} spent"
        style = "bold red" if name in exhausted else "default"
        table.add_row(Text(name, style), Text.assemble(*blocks), amount, Text(states, "dim"))
    return table


def _monitors(board: Board) -> Table:
    table = Table("monitor", expand=True, box=None, pad_edge=False)
    figures = {name: board.figures(name) for name in MONITORS}
    for column in figures[MONITORS[0]]:
        colour = "magenta" if column.endswith("*") else ""
        table.add_column(column, justify="right", style=colour, header_style=colour)
    for name, own in figures.items():
        cells = (
            "-" if one is None else str(one) if isinstance(one, int) else f"{one:.0%}" for one in own.values()
        )
        table.add_row(_short(name), *cells)
    return table


def _short(name: str) -> str:
    return name.removeprefix("hot-items-").removeprefix("retail-")
