"""What becomes of a query after its first test: nothing, or another test later (append).

A `Runner` says which rows of a batch are tested next; one of these tests them.
"""

from __future__ import annotations

from typing import Any

from stream_svt.monitor.query_tester import QueryTester, View
from stream_svt.monitor.queue_journal import Queue


class Append:
    """Tests every query once. Other kinds build on this.

    Attributes:
        row_cost: What a query costs, as a multiple of one that is tested with a whole batch at once.
        queue: What queries of a dataset wait in, None where none waits.
    """

    row_cost = 1
    queue: type[Queue[Any]] | None = None

    def __init__(self, tester: QueryTester) -> None:
        self.tester = tester
        self.runs = tester.runs

    def test(self, view: View, start: int, stop: int) -> int:
        """Test rows [start, stop); return the row reached, before ``stop`` where something comes first."""
        return self.tester.test_arrivals(view, start, stop).stop

    def next_close(self, view: View, start: int) -> int:  # noqa: ARG002 - nothing closes
        """Return the next row from ``start`` on before which a set closes; the view's end where none does."""
        return view.stop

    def close(self, view: View, row: int) -> bool:  # noqa: ARG002
        """Test again what waits in the sets that close before a row; False where durable noise is needed first."""
        return True
