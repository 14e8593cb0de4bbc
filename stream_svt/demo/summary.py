"""The summary at the demo's end: what was released, and how good it was against the truth.

Definitions. An alert is *true* if the true count behind the query it names had reached the threshold.
*Precision*: true alerts of all alerts. *Recall*: of all (week, item) whose true count reached the threshold
at some checkpoint asked, those that the monitor alerted in that week. *Recall while funded* leaves out of
both sides the pairs of weeks in which the monitor ran out of budget. Precision and recall are computed from
true counts, which no user of a private monitor has: only the demo knows them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stream_svt.demo.demo_status import DemoStatus, Tally
from stream_svt.demo.truth import Truth
from stream_svt.monitor.released import Alert


@dataclass(frozen=True, slots=True)
class Score:
    """How good alerts were against the truth. None where there is nothing to divide by."""

    precision: float | None
    recall: float | None
    recall_while_funded: float | None


def score(tallies: Collection[Tally], truth: Truth, asked: Collection[str]) -> Score:
    """Judge monitors; several together count an item once for each monitor."""
    right = alerts = hits = hot = funded_hits = funded_hot = 0
    expected = truth.hot_series(asked)
    for tally in tallies:
        alerts += len(tally.alerts)
        right += sum(truth.is_hot(alert.query_id) for alert in tally.alerts)
        told = {(alert.dataset, alert.series) for alert in tally.alerts}
        broke = {dataset for dataset, state in tally.states.items() if state == "exhausted"}
        hits += len(expected & told)
        hot += len(expected)
        funded = {pair for pair in expected if pair[0] not in broke}
        funded_hits += len(funded & told)
        funded_hot += len(funded)
    return Score(_ratio(right, alerts), _ratio(hits, hot), _ratio(funded_hits, funded_hot))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class Figures:
    """What the demo measured.

    Attributes:
        queries: Queries the service has tested or skipped, each counted once however many monitors read it.
        seconds: From the first query sent until the last alert was readable.
        asked: Sets that were closed.
    """

    board: DemoStatus
    truth: Truth
    queries: int
    seconds: float
    asked: tuple[str, ...]

    @property
    def rate(self) -> float:
        """Queries per second."""
        return self.queries / self.seconds if self.seconds else 0.0

    def document(self) -> dict[str, object]:
        """Return the summary as it is written to a file. Rounded to four decimals; epsilon to nine."""
        board = self.board
        return {
            "seconds": round(self.seconds, 1),
            **self._part(list(board.tallies.values())),
            "monitors": {name: self._part([tally]) for name, tally in board.tallies.items()},
            "datasets": {
                name: {"spent": round(budget.spent, 9), "limit": round(budget.limit, 9)}
                for name, budget in board.budgets.items()
            },
            "exhausted": board.exhausted(),
        }

    def _part(self, tallies: list[Tally]) -> dict[str, object]:
        judged = score(tallies, self.truth, self.asked)
        alerts = [alert for tally in tallies for alert in tally.alerts]
        return {
            "queries": self.queries,
            "queries_per_second": round(self.rate, 1),
            "alerts": len(alerts),
            "precision": _rounded(judged.precision),
            "recall": _rounded(judged.recall),
            "recall_while_funded": _rounded(judged.recall_while_funded),
            "halts": sum(tally.halts for tally in tallies),
            "resamples": sum(tally.resamples for tally in tallies),
            "alerts_at_later_attempts": sum(alert.attempt >= 2 for alert in alerts),
        }

    def render(self) -> RenderableType:
        """Return the summary for the terminal."""
        head = Text.assemble(
            ("Summary  ", "bold"),
            f"{self.queries:,} queries, each read by {len(self.board.tallies)} monitors, "
            f"in {self.seconds:.1f} s: ",
            (f"{self.rate:,.0f}/s", "bold"),
        )
        return Group(
            Text(), head, Text(), self._monitor_table(), Text(_NOTE, "magenta"), Text(), self._dataset_table()
        )

    def _monitor_table(self) -> Table:
        table = _table("monitor", "alerts", "retried", "halts", "resamples")
        for column in ("precision*", "recall*", "funded*"):
            table.add_column(column, justify="right", style="magenta")
        for name, tally in self.board.tallies.items():
            judged = score([tally], self.truth, self.asked)
            counts = (len(tally.alerts), _later(tally.alerts), tally.halts, tally.resamples)
            ratios = (judged.precision, judged.recall, judged.recall_while_funded)
            table.add_row(name.removeprefix("hot-items-"), *map(str, counts), *map(_shown, ratios))
        return table

    def _dataset_table(self) -> Table:
        table = _table("dataset", "epsilon spent", "limit")
        table.add_column("")
        out = set(self.board.exhausted())
        for name, budget in self.board.budgets.items():
            state = "exhausted" if name in out else ""
            table.add_row(name, f"{budget.spent:.3f}", f"{budget.limit:g}", state)
        return table


_NOTE = (
    "* from the true counts, known to the demo only. Recall: of the items that reached the threshold in a "
    "week, those alerted in it; funded: without the weeks in which the monitor ran out of budget. Retried: "
    "alerts at attempt 2 or later (append)."
)


def _table(name: str, *figures: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold underline")
    table.add_column(name, no_wrap=True)
    for column in figures:
        table.add_column(column, justify="right")
    return table


def _later(alerts: list[Alert]) -> int:
    return sum(alert.attempt >= 2 for alert in alerts)


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 4)


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
