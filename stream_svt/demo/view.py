"""The demo's screen: a live picture on a terminal, plain lines anywhere else.

It draws released events and public facts (how far the clock is, how many queries were looked at). What
draws on the truth is magenta, and the screen says so.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stream_svt.demo.demo_status import DemoStatus, Entry
from stream_svt.demo.summary import Score
from stream_svt.monitor.released_status import Budget

BAR = 24
FIXED_LINES = 16  # borders, headings, head and foot
RATE_WINDOW = 3.0
PLAIN_INTERVAL = 5.0

_COLOURS = {
    "ALERT": "bold green",
    "started": "dim",
    "halted": "yellow",
    "resampled": "cyan",
    "exhausted": "bold red",
}


@dataclass(slots=True)
class Scene:
    """Everything the screen shows.

    ``line`` is the public clock; ``seen`` counts the queries that the service has looked at.
    """

    board: DemoStatus
    lines: int
    broker: str
    urls: dict[str, str]
    line: int = 0
    seen: int = 0
    phase: str = "starting"
    truth: dict[str, Score] = field(default_factory=dict)


class Rate:
    """Queries a second over the last few seconds."""

    def __init__(self, window: float = RATE_WINDOW) -> None:
        self._window = window
        self._points: deque[tuple[float, int]] = deque()

    def note(self, now: float, count: int) -> float:
        """Take the count at a moment (seconds) and return the rate."""
        self._points.append((now, count))
        while len(self._points) > 2 and now - self._points[1][0] > self._window:
            self._points.popleft()
        then, before = self._points[0]
        return (count - before) / (now - then) if now > then else 0.0


class PlainView:
    """The addresses, one line an event, and one every few seconds about progress: for pipes, logs and tests."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rate = Rate(PLAIN_INTERVAL)
        self._next = 0.0
        self._addressed = False

    def __enter__(self) -> Self:
        """Nothing to open."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""

    def say(self, text: str) -> None:
        """Print the line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def entry(self, entry: Entry) -> None:
        """Print a released event."""
        self.say(f"{entry.kind:<9} {entry.dataset} {entry.monitor}: {entry.text}")

    def refresh(self, scene: Scene, now: float) -> None:
        """Print the addresses once, and progress now and then; ``now`` in seconds of any steady clock."""
        if not self._addressed:
            self._addressed = True
            self.say(_foot(scene).plain)
        rate = self._rate.note(now, scene.seen)
        if now < self._next or not scene.line:
            return
        self._next = now + PLAIN_INTERVAL
        spent = ", ".join(f"{b.spent:.2f}/{b.limit:g}" for b in scene.board.budgets.values())
        self.say(
            f"progress  line {scene.line:,} of {scene.lines:,}, {scene.seen:,} queries, {rate:,.0f}/s, "
            f"epsilon spent {spent}"
        )


class LiveView(PlainView):
    """A picture that is drawn anew four times a second."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, auto_refresh=False)
        self._rate = Rate()

    def __enter__(self) -> Self:
        """Start drawing."""
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last picture on the terminal."""
        self._live.stop()

    def entry(self, entry: Entry) -> None:
        """Nothing to do: the picture shows the board's latest entries."""

    def refresh(self, scene: Scene, now: float) -> None:
        """Draw."""
        self._live.update(
            picture(scene, self._rate.note(now, scene.seen), self._console.height), refresh=True
        )


def picture(scene: Scene, rate: float, height: int = 40) -> RenderableType:
    """Return the whole screen, not higher than ``height`` lines where that is at least 24."""
    rows = max(height - FIXED_LINES - len(scene.board.budgets) - len(scene.board.tallies), 2)
    return Group(
        _head(scene, rate),
        _budgets(scene.board),
        _monitors(scene.board, scene.truth),
        _events(scene.board, rows),
        _foot(scene),
    )


def _head(scene: Scene, rate: float) -> Panel:
    text = Text.assemble(
        (f"{scene.seen:,}", "bold"),
        " queries tested by 2 monitors   ",
        (f"{rate:,.0f}", "bold"),
        " queries/s   ",
        f"line {scene.line:,} of {scene.lines:,}   ",
        (scene.phase, "dim"),
    )
    return Panel(
        text,
        title="stream-svt demo: hot items of a shop; privacy unit: one basket, its line stays",
        title_align="left",
    )


def _budgets(board: DemoStatus) -> Panel:
    table = Table.grid(padding=(0, 2))
    out = set(board.exhausted())
    for name, budget in board.budgets.items():
        states = ", ".join(
            f"{monitor.removeprefix('hot-items-')} {tally.states[name]}"
            for monitor, tally in board.tallies.items()
            if name in tally.states
        )
        style = "bold red" if name in out else "default"
        amount = f"{budget.left:.2f} of {budget.limit:g} left"
        table.add_row(Text(name, style), _bar(budget), amount, Text(states, "dim"))
    return Panel(
        table,
        title="Privacy budget (epsilon): [red]spent[/] [yellow]reserved[/] [green]free[/]",
        title_align="left",
    )


def _bar(budget: Budget) -> Text:
    """Return a dataset's budget: spent, reserved by open runs, free."""
    spent = round(BAR * budget.spent / budget.limit)
    reserved = min(round(BAR * (budget.spent + budget.reserved) / budget.limit), BAR) - spent
    return Text.assemble(
        ("█" * spent, "red"), ("▒" * reserved, "yellow"), ("░" * (BAR - spent - reserved), "green")
    )


def _monitors(board: DemoStatus, truth: dict[str, Score]) -> Panel:
    table = Table(expand=True, box=None, pad_edge=False)
    for column in ("monitor", "alerts", "halts", "resamples", "exhausted"):
        table.add_column(column, justify="left" if column == "monitor" else "right")
    for column in ("precision", "recall"):
        table.add_column(column, justify="right", style="magenta", header_style="magenta")
    for name, tally in board.tallies.items():
        broke = sum(state == "exhausted" for state in tally.states.values())
        judged = truth.get(name, Score(None, None, None))
        counts = (len(tally.alerts), tally.halts, tally.resamples, broke)
        table.add_row(
            name.removeprefix("hot-items-"),
            *map(str, counts),
            _percent(judged.precision),
            _percent(judged.recall),
        )
    return Panel(
        table,
        title="Monitors",
        title_align="left",
        subtitle="[magenta]magenta: from the true counts, known to the demo only, never released[/]",
        subtitle_align="right",
    )


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def _events(board: DemoStatus, rows: int) -> Panel:
    table = Table(expand=True, box=None, pad_edge=False)
    for column in ("", "week", "monitor", "item", "gap", "estimate", "bound"):
        table.add_column(
            column, justify="right" if column in ("gap", "estimate", "bound") else "left", no_wrap=True
        )
    table.add_column("", ratio=1, no_wrap=True, overflow="ellipsis")
    for entry in list(board.recent)[-rows:]:
        kind, week = Text(entry.kind, _COLOURS[entry.kind]), entry.dataset.removeprefix("retail-week-")
        monitor = entry.monitor.removeprefix("hot-items-")
        alert = entry.alert
        if alert is None:
            table.add_row(kind, week, monitor, "", "", "", "", Text(entry.text, "dim"))
            continue
        table.add_row(
            kind,
            week,
            monitor,
            (alert.series or "").removeprefix("item-"),
            f"{alert.gap:g}",
            "-" if alert.estimate is None else f"{alert.estimate:.0f}",
            "-" if alert.bound is None else f"≥ {alert.bound:g}",
            Text(f"{alert.branch} branch, attempt {alert.attempt}, run {alert.run} top {alert.top}", "dim"),
        )
    return Panel(table, title="Released, as it is released (-: nothing can be certified)", title_align="left")


def _foot(scene: Scene) -> Text:
    links = "   ".join(f"{name} {url}" for name, url in scene.urls.items())
    return Text(f"Kafka {scene.broker}   {links}", "dim", overflow="fold")


def view_for(console: Console) -> PlainView:
    """Return the live picture on a terminal, plain lines otherwise."""
    return LiveView(console) if console.is_terminal else PlainView(console)
