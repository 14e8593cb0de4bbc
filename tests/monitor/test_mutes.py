"""Which queries the filter of mutes hits; `test_queue_journal` stores mutes and loads them."""

from __future__ import annotations

import numpy as np
import pytest

from stream_svt.monitor.mutes import MuteFilter, Mutes, series_hashes
from stream_svt.monitor.queue_journal import QueueJournal


@pytest.mark.parametrize("at_once", [False, True])
def test_the_filter_hits_every_mute_however_they_came_in(at_once):
    found, everything = MuteFilter(), {}
    for dataset in range(3):
        names = [f"s{k}" for k in range(dataset, 3000, 3)]
        everything[dataset] = Mutes(QueueJournal(), "m", f"d{dataset}")
        for some in [names] if at_once else [[name] for name in names]:
            for name in some:
                everything[dataset].add(name, 0)
            found.add(dataset, some, everything)
    assert len(found) == 3000
    for dataset, mutes in everything.items():
        names = list(mutes.entries)
        numbers = series_hashes(names, len(names))
        assert len(found.hits(np.full(len(names), dataset), numbers)) == len(names)
        for name in names:
            found.remove(dataset, name)
    assert len(found) == 0
    numbers = series_hashes(everything[0].entries, 1000)
    assert len(found.hits(np.zeros(1000, dtype=np.int64), numbers)) == 0
