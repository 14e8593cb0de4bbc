"""The windows of a series that are tested behind its mute: whether an alert was renewed.

Each query of the first windows behind the mute has to be tested, in one run that is not paused meanwhile. Which are
tested follows from released outcomes and public facts, and that none of them is a top is an outcome, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

import numpy as np
from msgspec.structs import replace

from stream_svt.columns.query_batch import Segment
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.plan import RARELY, silent_margin
from stream_svt.monitor.state.runs import Runs
from stream_svt.monitor.state.snapshot import INTERRUPTED, PAUSED, RESTED, WatchedMute

_NOT_ASKED, _OTHER_RUN = "not-asked", "other-run"
_REASONS = {INTERRUPTED: PAUSED, RESTED: "maintenance"}
"""Reasons why a window was not tested, besides the states of a monitor, as shown."""

_Moment = tuple[int, bool, int, int, int]
"""A row at which a watch may end, by its own test or (first) its time; its number, dataset and series."""
_until = attrgetter("until")


class Watch:
    """Counts the tests of a monitor's watched series, and ends their watches."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs

    def count(self, segment: Segment, start: int, stop: int, *, is_top: bool = False) -> int:
        """Count the tests of rows [start, stop) of a segment; return the row reached, less if a commit comes first.

        ``is_top``: row ``stop`` is a top, before which times end. No later top changes these rows.
        """
        for row, is_own, _, dataset, series in sorted(self._moments(segment, start, stop, stop + is_top)):
            if self._runs.accounts.full:
                return row
            mute = self._runs.mutes.of[dataset].watched.get(series)
            if mute is not None and is_own:
                self._count(segment, row, dataset, mute)
            elif mute is not None:
                self._end(dataset, mute, _REASONS.get(mute.run, _NOT_ASKED))
        return stop

    def _moments(self, segment: Segment, start: int, stop: int, due: int) -> Iterator[_Moment]:
        """Yield the rows of watched series before ``stop``, and those before ``due`` behind the time of a watch.

        Watches end at queries for the monitor alone: a run may begin ahead of rows in maintenance.
        """
        view, batch, mutes = segment.view, segment.view.batch, self._runs.mutes
        for dataset in mutes.watching:
            watched = mutes.of[dataset].watched
            mine = batch.dataset[start:due] == dataset
            mine[[row - start for row in batch.markers if start <= row < due]] = False
            rows, queries = (
                np.flatnonzero(one) + start for one in (mine, view.only_eligible(mine, start, due))
            )
            clock = view.clock[queries]
            if (
                not self._runs.covers[dataset]
                or not len(rows)
                or view.clock[rows[-1]] < min(map(_until, watched.values()))
            ):
                continue
            for series, one in watched.items():
                if len(clock) and one.by < clock[-1]:
                    late = int(queries[clock.searchsorted(one.by, side="right")])
                    yield late, False, one.number, dataset, series
            own = rows[rows < stop]
            hashes = mutes.hashes_of(batch.series)[own]
            for at in np.flatnonzero(np.isin(hashes, np.fromiter(watched, np.uint64))).tolist():
                one = watched[series := hashes.item(at)]
                if batch.window is not None and one.first <= batch.window[own[at]] <= one.last:
                    yield int(own[at]), True, one.number, dataset, series

    def _count(self, segment: Segment, row: int, dataset: int, mute: WatchedMute) -> None:
        """Count one query of a watched series."""
        runs = self._runs
        run, eligible = runs.run_state(dataset).run, segment.view.eligible
        if eligible is not None and not eligible[row]:
            runs.mutes.of[dataset].put(replace(mute, run=RESTED))
        elif mute.run not in (0, run):
            self._end(dataset, mute, _REASONS.get(mute.run, _OTHER_RUN))
        elif not segment.live[row - segment.start]:
            self._end(dataset, mute, runs.shown(dataset))
        elif mute.left > 1:
            runs.mutes.of[dataset].put(replace(mute, left=mute.left - 1, run=run))
        else:
            self._end(dataset, mute)

    def _end(self, dataset: int, mute: WatchedMute, why: str = "") -> None:
        """Release whether all windows were tested, or why not."""
        if why:
            self._runs.announce_watch(EventType.UNTESTED, dataset, mute, why)
        else:
            chances = {"silent_half": 0.5, "silent_rarely": RARELY}
            odds = {name: silent_margin(self._runs.spec, mute.windows, one) for name, one in chances.items()}
            self._runs.announce_watch(EventType.NOT_RENEWED, dataset, mute, "tested", **odds)
        self._runs.mutes.remove(dataset, mute.series)
