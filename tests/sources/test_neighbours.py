"""The neighbour test of counters: streams with and without one unit give records of counts that differ by 0 to k.

Pairs of raw streams, JSON or Avro, that differ by the records of one unit go through the real counter on a modelled
log: with stops, takeovers, outages, changed lists, added partitions and losses. On brokers' timestamps the two have
different processes, on producers' the same moments of looks. What the counter writes must have the same keys, ids,
headers, timestamps and lengths, and without a loss it must be what a slow count of the records says. Then both go
through the engine. ``tests/run soak sources`` plays more pairs.
"""

from __future__ import annotations

import pytest

from stream_svt.proving.neighbours import Summary
from tests.simulation.soak import neighbours, played
from tests.support.counted_alerts import CountedAlerts
from tests.support.counter_mutants import MUTANTS, Mutant
from tests.support.counter_play import problem_of, query_of
from tests.support.raw_streams import Making, history_of

pytestmark = pytest.mark.slow

PAIRS = 200
MOST_PAIRS = 60
"""Pairs in which a mistake must show itself."""
FAULTS = {
    "kills", "lost requests", "lost replies", "fences", "takeovers", "late looks", "changed lists", "accepted losses",
    "requests of schemas", "pairs of avro", "through the engine",
}  # fmt: skip


@pytest.mark.parametrize("first", range(0, PAIRS, 20))
def test_one_unit_moves_counts_by_0_to_k_and_nothing_else(first):
    found = played(neighbours, range(first, first + 20))
    assert not found.failures
    assert found.tally.keys() >= FAULTS


def test_the_first_look_serves_the_ticks_before_it_of_the_window_in_which_the_counter_began():
    assert not problem_of(history_of(2201))  # then producers stamp the topic


def test_pairs_end_at_the_first_violation_and_name_its_seed():
    [uncut] = [one for one in MUTANTS if one.name == "copies of a key are not cut"]
    with uncut.made():
        found = played(neighbours, range(100), most=1)
    [(name, _)] = found.failures
    assert name == f"seed {found.count - 1}"


def is_caught(mutant: Mutant, pairs: int, **histories: object) -> bool:
    for seed in range(pairs):
        history = Making(seed, **{"longer_ms": 0} | mutant.histories | histories).history()
        with mutant.made():
            found = problem_of(history)
        if found and (mutant.is_inexact or found.startswith("neighbours")):
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_counter_with_one_mistake_is_caught(mutant: Mutant):
    assert is_caught(mutant, MOST_PAIRS)


def test_mistakes_with_schemas_are_caught_by_avro_streams_alone():
    mutants = [one for one in MUTANTS if one.histories.get("format") == "avro"]
    assert len(mutants) == 4
    assert not any(is_caught(mutant, 4, format="json") for mutant in mutants)


def test_alerts_about_raw_events_are_the_same_with_and_without_a_unit_once_noise_is_moved():
    summary = Summary()
    for seed in range(25):
        assert not CountedAlerts(seed).problem(summary), f"seed {seed}"
    assert summary.alerts > 50
    assert summary.largest_cost > 0.1
    assert summary.unaligned < 10


def test_the_engine_would_show_counts_that_move_in_the_other_direction():
    for seed in range(40):
        pair = CountedAlerts(seed)
        first, second = ([query_of(one).values for one in play.counts] for play in pair.plays)
        if first != second and pair.turned().problem(Summary()):
            return
    pytest.fail("nothing was shown")
