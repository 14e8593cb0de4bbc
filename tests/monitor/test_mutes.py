"""Muted series: oldest first, whatever parts they are kept in, and however often they are stored and loaded."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.monitor import mutes as module
from stream_svt.monitor.mutes import MuteFilter, Mutes, series_hashes
from stream_svt.monitor.snapshot import DatasetRecord, MuteRecord, from_bytes
from tests.golden.regenerate import mutes_split
from tests.support.engine_play import Play
from tests.support.monitor_forms import (
    FORMS,
    TOPIC,
    assert_books_balance,
    counts,
    interrupted,
    spec_of,
    standing,
    stream,
    transcript,
    uninterrupted,
)

_ENOUGH = "{names: [a, b, c], limit: 400, unit: one basket}"
_ACTS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "end", "oldest", "store", "crash"]), st.integers(0, 30)),
    max_size=120,
)


def _store(mutes: Mutes, records: dict[int, bytes]) -> None:
    for number, data in mutes.save():
        if data is None:
            records.pop(number, None)
        else:
            records[number] = data


@given(_ACTS)
@settings(max_examples=60, deadline=None)
def test_mutes_are_an_ordered_mapping_that_survives_its_records(acts):
    with mutes_split(60):
        mutes, records, known, stored = Mutes(), dict[int, bytes](), dict[str, int](), dict[str, int]()
        for clock, (act, which) in enumerate(acts):
            series = f"\u00e9{which}"
            if act == "add":
                assert mutes.add(series, clock) is (known.pop(series, None) is not None)
                known[series] = clock
            elif act == "end":
                assert mutes.discard(series) is (known.pop(series, None) is not None)
            elif act == "oldest" and known:
                mutes.discard(next(iter(mutes)))
                del known[next(iter(known))]
            elif act == "store":
                _store(mutes, records)
                stored = dict(known)
            elif act == "crash":
                parts = [(number, from_bytes(MuteRecord, data, key="q")) for number, data in records.items()]
                random.Random(which).shuffle(parts)
                mutes, known = Mutes.restore(parts), dict(stored)
                assert not list(mutes.save())
            assert list(mutes.items()) == list(known.items())
            assert list(mutes) == list(known)
            assert len(mutes) == len(known)
            assert (series in mutes, mutes.get(series)) == (series in known, known.get(series))
            assert mutes.size == sum(len(name.encode()) + 16 for name in known)
            assert all(len(data) < 60 + 30 for data in records.values())


def test_a_commit_writes_the_parts_that_changed_alone():
    mutes = Mutes((f"series {k:05}", 0) for k in range(50_000))
    records: dict[int, bytes] = {}
    _store(mutes, records)
    assert len(records) > 20
    assert max(map(len, records.values())) < module._PART_BYTES + 100
    mutes.add("newest", 0)
    mutes.discard("series 00000")
    assert [number for number, _ in mutes.save()] == [0, max(records)]


@pytest.mark.parametrize("at_once", [False, True])
def test_the_filter_hits_every_mute_however_they_came_in(at_once):
    found, everything = MuteFilter(), {}
    for dataset in range(3):
        names = [f"s{k}" for k in range(dataset, 3000, 3)]
        everything[dataset] = list[str]()
        for some in [names] if at_once else [[name] for name in names]:
            everything[dataset] += some
            found.add(dataset, some, everything)
    assert len(found) == 3000
    for dataset, names in everything.items():
        numbers = series_hashes(names, len(names))
        assert len(found.hits(np.full(len(names), dataset), numbers)) == len(names)
        for name in names:
            found.remove(dataset, name)
    assert len(found) == 0
    numbers = series_hashes(everything[0], 1000)
    assert len(found.hits(np.zeros(1000, dtype=np.int64), numbers)) == 0


@pytest.mark.parametrize("form", [name for name in FORMS if name != "never muted"])
def test_a_monitor_does_the_same_wherever_its_mutes_are_kept(form):
    spec, queries = spec_of(FORMS[form], FORMS["few short mutes"], datasets=_ENOUGH), stream(31, 700)
    whole = uninterrupted(spec, queries)
    for seed in range(2):
        chance = random.Random(seed)
        with mutes_split():
            split = interrupted(spec, queries, chance.randrange)
        assert any(key.startswith(b"q/") for key in split.records)
        assert transcript(split) == transcript(whole)
        assert counts(split) == counts(whole)
        assert standing(split) == standing(whole)
        assert_books_balance(split)


def test_a_play_goes_on_the_same_once_its_mutes_have_moved_into_records_of_their_own():
    spec, queries = spec_of(FORMS["few mutes"], FORMS["sweep"], datasets=_ENOUGH), stream(7, 900)
    whole = uninterrupted(spec, queries)
    play = Play(spec)
    play.feed(TOPIC, queries, 400)
    play.commit()
    play.crash()
    with mutes_split():
        play.feed(TOPIC, queries, 600)
        play.commit()
        play.crash()
    play.feed(TOPIC, queries, 900)
    play.commit()
    play.crash()
    assert from_bytes(DatasetRecord, play.records[b"d/a"], key="d/a").mutes == {}
    assert (transcript(play), standing(play)) == (transcript(whole), standing(whole))
