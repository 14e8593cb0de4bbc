"""The shipped copy of the baskets."""

from __future__ import annotations

from importlib import resources

import numpy as np

from stream_svt.demo.data import ACKNOWLEDGEMENT, FILE, LAST_ITEM, LINES


def test_the_shipped_copy_has_every_line_and_item_of_the_source(baskets):
    assert len(baskets) == LINES == 88_162
    assert len(baskets.items) == 908_576
    assert np.array_equal(np.unique(baskets.items), np.arange(1, LAST_ITEM + 1))


def test_a_basket_holds_an_item_once_so_that_it_changes_a_count_by_at_most_one(baskets):
    line = np.repeat(np.arange(len(baskets)), np.diff(baskets.start)).astype(np.int64)
    pairs = line * (LAST_ITEM + 1) + baskets.items
    assert len(np.unique(pairs)) == len(pairs)


def test_known_counts_of_the_source_are_found_again(baskets):
    counts = np.bincount(baskets.items)
    assert counts[40] == 50_675
    assert counts[49] == 42_135


def test_the_copy_is_small_and_names_its_source():
    place = resources.files("stream_svt.demo").joinpath("data", FILE)
    assert len(place.read_bytes()) < 1_600_000
    with place.open("rb") as stream, np.load(stream) as packed:
        assert str(packed["source"]) == ACKNOWLEDGEMENT
    assert "Tom Brijs" in ACKNOWLEDGEMENT


def test_private_contents_stay_out_of_reprs(baskets):
    assert "39" not in repr(baskets)
