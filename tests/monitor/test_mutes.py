"""Which queries the filter of mutes hits; `test_queue_journal` stores mutes and loads them."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.monitor.mutes import UNTIL_RUN_ENDS, MonitorMutes, Mutes, series_hashes
from stream_svt.monitor.queue_journal import QueueJournal


@pytest.mark.parametrize("at_once", [False, True])
def test_the_filter_hits_every_mute_however_they_came_in(at_once):
    found = MonitorMutes()
    for dataset in range(3):
        names = [f"s{k}" for k in range(dataset, 3000, 3)]
        mutes = Mutes(QueueJournal(), "m", f"d{dataset}")
        for name in names if at_once else ():
            mutes.add(name, UNTIL_RUN_ENDS)
        found.hold(dataset, mutes)
        for name in () if at_once else names:
            found.add(dataset, name, UNTIL_RUN_ENDS, 0, most=1000)
    assert len(found) == 3000
    for dataset, mutes in found.held.items():
        names = list(mutes.entries)
        numbers = series_hashes(names, len(names))
        assert len(found.hits(np.full(len(names), dataset), numbers)) == len(names)
        assert [found.is_muted(k, names[0], 0) for k in range(3)] == [k == dataset for k in range(3)]
        found.end_run(dataset)
        assert not mutes.entries
    assert len(found) == 0
    numbers = series_hashes((f"s{k}" for k in range(0, 3000, 3)), 1000)
    assert len(found.hits(np.zeros(1000, dtype=np.int64), numbers)) == 0
