"""The demo's screen: a live picture on a terminal, plain lines anywhere else; and the summary at the end.

It draws released events and public facts (how far the clock is, how many queries were looked at). What
draws on the truth is magenta, and the screen says so.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stream_svt.demo.board import Board, Entry
from stream_svt.demo.config import MONITORS
from stream_svt.monitor.released_status import Budget

BAR = 24
FIXED_LINES = 16  # borders, headings, head and foot
PLAIN_INTERVAL = 5.0

_COLOURS = {
    "ALERT": "bold green",
    "started": "dim",
    "halted": "yellow",
    "resampled": "cyan",
    "exhausted": "bold red",
}
_NOTE = (
    "* from the true counts, known to the demo only, never released. Recall: of the items that reached the threshold "
    "in a week, those alerted in it; funded: without the weeks in which the monitor ran out of budget. Retried: "
    "alerts at attempt 2 or later (append)."
)


class View:
    """A live picture on a terminal; elsewhere a line for each event, and one every few seconds about progress.

    Args:
        foot: Where Kafka and the pages are.
        lines: Of the whole stream.
    """

    def __init__(self, console: Console, foot: str = "", lines: int = 0) -> None:
        self.foot, self.lines = foot, lines
        self._console = console
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._next = 0.0

    def __enter__(self) -> Self:
        """Start drawing, or print the addresses."""
        if self._live is not None:
            self._live.start()
        else:
            self.say(self.foot)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last picture on the terminal."""
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def entry(self, entry: Entry) -> None:
        """Print a released event; the picture shows the board's latest ones anyway."""
        if self._live is None:
            self.say(f"{entry.kind:<9} {entry.dataset} {entry.monitor}: {entry.text}")

    def refresh(self, board: Board) -> None:
        """Draw the picture, or print progress now and then."""
        if self._live is not None:
            self._live.update(picture(board, self.foot, self.lines, self._console.height), refresh=True)
        elif board.seconds >= self._next and board.line:
            self._next = board.seconds + PLAIN_INTERVAL
            spent = ", ".join(f"{b.spent:.2f}/{b.limit:g}" for b in board.budgets.values())
            self.say(
                f"progress  line {board.line:,} of {self.lines:,}, {board.seen:,} queries, {board.rate:,.0f}/s, "
                f"epsilon spent {spent}"
            )


def picture(board: Board, foot: str, lines: int, height: int = 40) -> RenderableType:
    """Return the whole screen, not higher than ``height`` lines where that is at least 24."""
    rows = max(height - FIXED_LINES - len(board.budgets) - len(MONITORS), 2)
    return Group(
        _panel(
            f"[bold]{board.seen:,}[/] queries tested by 2 monitors   [bold]{board.rate:,.0f}[/] queries/s   "
            f"line {board.line:,} of {lines:,}   [dim]{board.phase}[/]",
            "stream-svt demo: hot items of a shop; privacy unit: one basket, its line stays",
        ),
        _panel(_budgets(board), "Privacy budget (epsilon): [red]spent[/] [yellow]reserved[/] [green]free[/]"),
        _panel(_monitors(board), "Monitors; [magenta]* from the true counts, never released[/]"),
        _panel(_events(board, rows), "Released, as it is released (-: nothing can be certified)"),
        Text(foot, "dim", overflow="fold"),
    )


def report(board: Board) -> RenderableType:
    """Return what is shown at the end: what was released, and how good it was against the truth."""
    head = (
        f"\nSummary: {board.seen:,} queries, each read by {len(MONITORS)} monitors, in {board.seconds:.1f} s: "
        f"{board.rate:,.0f}/s\n"
    )
    return Group(Text(head, "bold"), _monitors(board), Text(_NOTE, "magenta"), Text(), _budgets(board))


def _panel(content: RenderableType, title: str) -> Panel:
    return Panel(content, title=title, title_align="left")


def _short(name: str) -> str:
    return name.removeprefix("hot-items-").removeprefix("retail-week-").removeprefix("item-")


def _budgets(board: Board) -> Table:
    """Return each dataset's budget: spent, reserved by open runs, free; and the states of its monitors."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)  # on a narrow screen the states are what wraps
    table.add_column()
    out = set(board.exhausted())
    for name, budget in board.budgets.items():
        states = ", ".join(f"{_short(monitor)} {state}" for monitor, state in board.states(name).items())
        style = "bold red" if name in out else "default"
        amount = f"{budget.spent:.2f} of {budget.limit:g} spent"
        table.add_row(Text(name, style), _bar(budget), amount, Text(states, "dim"))
    return table


def _bar(budget: Budget) -> Text:
    spent = round(BAR * budget.spent / budget.limit)
    reserved = min(round(BAR * (budget.spent + budget.reserved) / budget.limit), BAR) - spent
    return Text.assemble(
        ("█" * spent, "red"), ("▒" * reserved, "yellow"), ("░" * (BAR - spent - reserved), "green")
    )


def _monitors(board: Board) -> Table:
    table = Table(expand=True, box=None, pad_edge=False)
    table.add_column("monitor")
    for column in ("alerts", "halts", "resamples", "retried"):
        table.add_column(column, justify="right")
    for column in ("precision*", "recall*", "funded*"):
        table.add_column(column, justify="right", style="magenta", header_style="magenta")
    for name in MONITORS:
        ratios = ["-" if ratio is None else f"{ratio:.0%}" for ratio in board.judged(name).values()]
        table.add_row(_short(name), *map(str, board.counts(name).values()), *ratios)
    return table


def _events(board: Board, rows: int) -> Table:
    table = Table(expand=True, box=None, pad_edge=False)
    for column in ("", "week", "monitor", "item"):
        table.add_column(column, no_wrap=True)
    for column in ("gap", "estimate", "bound"):
        table.add_column(column, no_wrap=True, justify="right")
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    for entry in list(board.recent)[-rows:]:
        cells, text, alert = ["", "", "", ""], entry.text, entry.alert
        if alert is not None:
            estimate = "-" if alert.estimate is None else f"{alert.estimate:.0f}"
            bound = "-" if alert.bound is None else f"≥ {alert.bound:g}"
            cells = [_short(alert.series or ""), f"{alert.gap:g}", estimate, bound]
            text = f"{alert.branch} branch, attempt {alert.attempt}, run {alert.run} top {alert.top}"
        kind = Text(entry.kind, _COLOURS[entry.kind])
        table.add_row(kind, _short(entry.dataset), _short(entry.monitor), *cells, Text(text, "dim"))
    return table
