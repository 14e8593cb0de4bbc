"""Versions of a configuration on their topic: what is followed, what is not, and what is yet to come."""

from __future__ import annotations

import random
from functools import partial

import msgspec
import pytest

from stream_svt.protocol import configuration
from stream_svt.protocol.configuration import (
    CURRENT,
    LISTS_KEPT_MS,
    Bundle,
    Current,
    Version,
    VersionFault,
    Versions,
    records,
)
from stream_svt.settings.sources import ListedMeasure, WindowList
from tests.simulation.log import Entry

written = partial(Entry, "config", 0, 0)


def version(number: int, text: str = "application: shop", **files: str) -> Version:
    return Version(number, Bundle(text, files))


def shown(*versions: Version, compacted: bool = False) -> list[Entry]:
    """Return the records that write these versions one after the other."""
    found: list[Entry] = []
    before = None
    for one in versions:
        parts = [written(*pair) for pair in records(one, before)]
        before = next(
            msgspec.json.decode(each.value or b"", type=Current) for each in parts if each.key == CURRENT
        )
        found += parts
    if compacted:
        newest = {entry.key: entry for entry in found}
        found = [entry for entry in found if newest[entry.key] is entry and entry.value is not None]
    return found


def read(entries: list[Entry], **options: object) -> Versions:
    versions = Versions(**options)  # type: ignore[arg-type]
    for entry in entries:
        versions.take(entry)
    return versions


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "PART_BYTES", 50)


NOISE = "".join(random.Random(1).choices("abcdefghij", k=400))


@pytest.mark.parametrize("compacted", [False, True])
def test_the_newest_version_is_read_as_it_was_written_and_nothing_else_is_kept(compacted: bool) -> None:
    first, second = version(1, NOISE), version(2, "monitors: []", **{"names.txt": NOISE})
    entries = shown(first, second, compacted=compacted)
    assert len(entries) > 5
    found = read(entries)
    assert found.newest() == second
    assert found.refused is None
    if compacted:
        assert {entry.key for entry in entries} == {key for key, _ in records(second)}


def test_nothing_counts_before_all_of_its_parts_are_there() -> None:
    entries = shown(version(1, NOISE))
    assert read([]).newest() is None
    for missing in range(len(entries)):
        assert read(entries[:missing] + entries[missing + 1 :]).newest() is None


def test_a_part_of_something_else_is_noticed() -> None:
    *parts, current = shown(version(1, NOISE))
    for index in range(len(parts)):
        changed = [*parts]
        changed[index] = written(parts[index].key, b"\0" + (parts[index].value or b"")[1:])
        assert read([*changed, current]).newest() == VersionFault.DIGEST
    cut = [written(parts[0].key, (parts[0].value or b"")[:-64]), *parts[1:]]
    assert read([*cut, current]).newest() == VersionFault.DIGEST


@pytest.mark.parametrize("elsewhere", [False, True])
def test_numbers_only_rise_and_name_one_version_also_where_one_is_known_from_elsewhere(elsewhere):
    known = version(2, "a")
    before = [] if elsewhere else shown(known)
    options = {"known": (2, known.digest)} if elsewhere else {}
    versions = (version(1, "c"), version(2, "b"), known, version(3))
    lower, other, again, following = (read([*before, *shown(one)], **options) for one in versions)
    assert (repr(lower.refused), repr(other.refused)) == (
        repr(str(VersionFault.LOWER)),
        repr(str(VersionFault.OTHER)),
    )
    assert lower.newest() == (None if elsewhere else known)
    assert (again.newest(), again.refused) == (known, None)
    assert following.newest() == version(3)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, VersionFault.MALFORMED),
        (b"", VersionFault.MALFORMED),
        (b"{}", VersionFault.MALFORMED),
        (b'{"number":0,"digest":"","parts":0}', VersionFault.MALFORMED),
        (b'{"number":3,"digest":"","parts":0,"more":1}', VersionFault.MALFORMED),
        (b'{"number":3,"digest":"","parts":0,"format":2}', "it has format 2, this version reads 1"),
    ],
)
def test_what_is_no_version_changes_nothing(value: bytes | None, why: str) -> None:
    found = read([*shown(version(2)), written(CURRENT, value)])
    assert (found.newest(), found.refused) == (version(2), why)


def test_the_digest_tells_texts_and_files_apart() -> None:
    one = version(1, "a", x="b")
    assert one.digest == version(5, "a", x="b").digest
    others = [version(1, "b", x="b"), version(1, "a", y="b"), version(1, "a", x="c"), version(1, "a")]
    assert len({one.digest, *(other.digest for other in others)}) == 5
    assert version(1, "", x="1", y="2").digest == version(1, "", y="2", x="1").digest


# --- the lists of sources


def listed(*series: str) -> WindowList:
    return WindowList(("",), (ListedMeasure("users", 1),), series)


DAY_MS = 86_400_000
A, B, C = listed("a"), listed("a", "b"), listed("c")


def applied_in_turn(*lists: tuple[int, WindowList | None]) -> Version:
    """Return the last of versions that were stored at these moments, the source having these lists."""
    found: Version | None = None
    for number, (stored_ms, _) in enumerate(lists, 1):
        before = lists[number - 2][1] if found else None
        declared = {} if before is None else {"web": before}
        earlier = found.histories(declared, stored_ms) if found else {}
        entries = shown(Version(number, Bundle(f"version: {number}", earlier=earlier)))
        for entry in entries:
            entry.timestamp = stored_ms
        newest = read(entries).newest()
        assert isinstance(newest, Version)
        found = newest
    assert found is not None
    return found


def test_a_version_knows_which_lists_a_source_had_and_since_when():
    version = applied_in_turn((10, A), (20, A), (30, B), (40, A), (50, C))
    assert version.bundle.earlier == {"web": [(10, A), (30, B), (40, A)]}
    assert version.history("web", C) == [(10, A), (30, B), (40, A), (50, C)]
    assert version.history("web", A) == [(10, A), (30, B), (40, A)]
    assert version.history("other", A) == [(50, A)]


def test_of_lists_from_long_ago_the_one_that_was_valid_is_kept():
    version = applied_in_turn((0, A), (1, B), (2, C), (40 * DAY_MS, A), (41 * DAY_MS, B), (42 * DAY_MS, C))
    assert version.history("web", C) == [
        (2, C),
        (40 * DAY_MS, A),
        (41 * DAY_MS, B),
        (42 * DAY_MS, C),
    ]
    exactly = applied_in_turn((0, A), (10, B), (10 + LISTS_KEPT_MS, C))
    assert exactly.bundle.earlier == {"web": [(10, B)]}
    nearly = applied_in_turn((0, A), (10, B), (9 + LISTS_KEPT_MS, C))
    assert nearly.bundle.earlier == {"web": [(0, A), (10, B)]}


def test_lists_survive_a_removed_source_and_a_brokers_clock_that_goes_back():
    version = applied_in_turn((10, A), (20, B), (15, C), (30, None), (40, A))
    assert version.history("web", A) == [(10, A), (20, B), (20, C), (40, A)]


def test_a_version_without_sources_has_the_bytes_that_earlier_releases_gave_it():
    bundle = Bundle("a: 1", {"b": "2"}, ["c"], "crc32")
    wanted = b'{"text":"a: 1","files":{"b":"2"},"retired":["c"],"partitioner":"crc32"}'
    assert bundle.to_bytes() == wanted
    with_lists = msgspec.structs.replace(bundle, earlier={"web": [(1, A)]})
    assert msgspec.json.decode(with_lists.to_bytes(), type=Bundle) == with_lists
