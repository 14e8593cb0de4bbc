"""The demo's screen: a live picture on a terminal, plain lines anywhere else; and the summary at the end.

It draws released events and public facts. What draws on the truth is magenta, and the screen says so.
"""

from __future__ import annotations

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


class Screen(Live):
    """A live picture while it is entered, or a line for each event, and one every few seconds about progress.

    ``foot`` says where Kafka and the pages are; ``lines`` are those of the whole stream.
    """

    def __init__(self, console: Console, lines: int, foot: str = "") -> None:
        super().__init__(console=console, auto_refresh=False, transient=not console.is_terminal)
        self.foot, self.lines = foot, lines
        self._next = 0.0

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def entry(self, entry: Entry) -> None:
        """Print a released event; the picture shows the board's latest ones anyway."""
        if not self.console.is_terminal:
            names = ("gap", "estimate", "bound")
            measured = [f"{name} {cell}" for name in names if (cell := getattr(entry, name))]
            told = ", ".join([*filter(None, [entry.item]), *measured, entry.text])
            self.say(f"{entry.kind:<9} {entry.dataset} {entry.monitor}: {told}")

    def show(self, board: Board) -> None:
        """Draw the picture, or print progress now and then."""
        if self.console.is_terminal:
            self.update(picture(board, self.foot, self.lines, self.console.height), refresh=True)
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
    for _ in range(3):
        table.add_column(no_wrap=True)  # on a narrow screen the states are what wraps
    table.add_column()
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
    table = Table(expand=True, box=None, pad_edge=False)
    table.add_column("monitor")
    for column in ("alerts", "halts", "resamples", "retried"):
        table.add_column(column, justify="right")
    for column in ("precision*", "recall*", "funded*"):
        table.add_column(column, justify="right", style="magenta", header_style="magenta")
    for name in MONITORS:
        counts = board.figures(name)
        cells = [
            "-" if value is None else str(value) if isinstance(value, int) else f"{value:.0%}"
            for value in counts.values()
        ]
        table.add_row(_short(name), *cells)
    return table


def _events(board: Board, rows: int) -> Table:
    table = Table(expand=True, box=None, pad_edge=False)
    for column in ("", "week", "monitor", "item"):
        table.add_column(column, no_wrap=True)
    for column in ("gap", "estimate", "bound"):
        table.add_column(column, no_wrap=True, justify="right")
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
    for kind, *cells, text in list(board.recent)[-rows:]:
        table.add_row(Text(kind, _COLOURS[kind]), *map(_short, cells), text)
    return table
