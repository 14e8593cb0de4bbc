"""Encoding and loading of state: an old snapshot is still read, and unreadable records are refused by key."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from stream_svt.errors import ConfigError, UnreadableState
from stream_svt.monitor import takeover as module
from stream_svt.monitor.state.snapshot import VERSION
from stream_svt.monitor.takeover import load_in_slices
from tests.golden.regenerate import HERE, played
from tests.support.engine_play import Play, another_release
from tests.support.monitor_forms import FORMS, TOPIC, assert_books_balance, engine_state, spec_of, stream


def _played(*forms: str, limit: str = "100") -> Play:
    play = Play(spec_of(*forms, datasets=f"{{names: [a, b, c], limit: {limit}, unit: one basket}}"))
    play.feed(TOPIC, stream(5, 300), 300)
    play.commit()
    return play


def test_the_newest_snapshot_is_what_this_release_writes():
    play = played()
    content = json.loads((HERE / f"v{VERSION}" / "state.json").read_text(encoding="utf-8"))
    assert content["progress"] == play.progress.hex()
    assert {key.encode(): bytes.fromhex(data) for key, data in content["records"].items()} == play.records


def test_loading_and_saving_again_changes_nothing():
    play = _played(FORMS["sweep"], FORMS["retry"])
    before = dict(play.records), play.progress
    play.crash()
    commit = play.commit()
    assert not commit.records
    assert not commit.events
    assert (play.records, play.progress) == before


def test_a_large_state_is_loaded_in_small_slices_and_complete(monkeypatch):
    names = ", ".join(f"d{number}" for number in range(60))
    forms = FORMS["plain"], FORMS["retry"], FORMS["sweep"]
    play = Play(spec_of(*forms, datasets=f"{{names: [{names}], limit: 100, unit: one basket}}"))
    play.play(TOPIC, stream(5, 600, datasets=60))
    play.crash()
    expected = engine_state(play.engine)
    monkeypatch.setattr(module, "AT_ONCE", 10)
    monkeypatch.setattr(module, "LOADED_AT_ONCE", 1000)
    play.engine = play._new()
    loaded = [
        len(play.engine.accounts.numbers()) for _ in load_in_slices(play.engine, play.records, play.progress)
    ]
    sizes = [len(data) for key, data in play.records.items() if key.startswith(b"d/")]
    assert len(loaded) > len(play.records) // 10 + sum(sizes) // (1000 + max(sizes))
    assert max(later - sooner for sooner, later in pairwise([0, *loaded, 60])) <= 1000 // min(sizes) + 1
    assert engine_state(play.engine) == expected


@pytest.mark.parametrize("kind", ["d/", "w/", "m/"])
def test_a_record_of_an_unknown_format_is_refused_by_key(kind):
    play = _played(FORMS["retry"])
    key = next(key for key in play.records if key.startswith(kind.encode()))
    content = msgspec.msgpack.decode(play.records[key])
    newer = VERSION + 1
    for layout in ([newer, *content[1:], "something new"], [newer, "nothing like the present layout"]):
        play.records[key] = msgspec.msgpack.encode(layout)
        message = f"{key.decode()} has format {newer}, this release reads format {VERSION};"
        with pytest.raises(UnreadableState, match=message):
            play.crash()
    play.records[key] = msgspec.msgpack.encode(content)
    play.progress = msgspec.msgpack.encode([newer, *msgspec.msgpack.decode(play.progress)[1:]])
    with pytest.raises(UnreadableState, match="meta has format"):
        play.crash()


@pytest.mark.parametrize("kind", ["d/", "w/", "m/"])
def test_a_damaged_record_is_refused(kind):
    play = _played(FORMS["retry"])
    key = next(key for key in play.records if key.startswith(kind.encode()))
    intact = play.records[key]
    cuts = [intact[:size] for size in range(0, len(intact), max(1, len(intact) // 40))]
    for damaged in (b"\xc1", b"\x93\x01\x02", b"\xa1\xff", b"\x97\x01\xa1\xffaaaaa", *cuts):
        play.records[key] = damaged
        with pytest.raises(UnreadableState):
            play.crash()


def _edited(kind: bytes, change: Callable[[Any], object]) -> Callable[[dict[bytes, bytes]], None]:
    """Return what changes the content of the first record of a kind."""

    def edit(records: dict[bytes, bytes]) -> None:
        key = next(key for key in records if key.startswith(kind))
        content = msgspec.msgpack.decode(records[key])
        change(content)
        records[key] = msgspec.msgpack.encode(content)

    return edit


def _retry_group(content: list[Any]) -> list[Any]:
    """Return the first group of a retry queue in a record of queues."""
    return next(group for group in content[1] if group[0] == 1)


def _with_mood(spec: str) -> str:
    return json.dumps({**json.loads(spec), "mood": "cautious"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_edited(b"d/a", lambda content: content[6]["m0"].__setitem__(0, "asleep")), "d/a"),
        (_edited(b"d/a", lambda content: content[6]["m0"].__setitem__(4, b"short")), "d/a"),
        (_edited(b"d/a", lambda content: content[4].__setitem__(3, 10**12)), "d/a cannot be decoded"),
        (_edited(b"m/m0", lambda content: content.__setitem__(2, _with_mood(content[2]))), "m/m0"),
        (
            lambda records: records.pop(b"m/m0"),
            r"run \d+ is open under a specification that this release cannot",
        ),
        (
            _edited(b"w/", lambda content: _retry_group(content).__setitem__(1, "m0")),
            r"w/\* are damaged: queries of . wait for monitor m0 in a queue of another kind",
        ),
        (
            _edited(b"w/", lambda content: _retry_group(content)[6][0].__setitem__(4, b"short")),
            r"w/\d+ cannot be decoded",
        ),
        (
            lambda records: records.update({b"w/a/m0/0": records[b"w/0"]}),
            r"w/a/m0/0.* has a key that no release writes",
        ),
    ],
)
def test_a_record_that_no_release_writes_is_refused_by_key(change, message):
    play = _played(FORMS["plain"], FORMS["retry"])
    change(play.records)
    with pytest.raises(UnreadableState, match=message):
        play.crash()


@pytest.mark.parametrize(
    ("declaration", "problem"),
    [
        (
            "{names: [a, b, c], limit: 101, unit: one basket}",
            "Write 100 here; .* raise-budget -c FILE a --limit 101$",
        ),
        (
            "{names: [a, b, c], limit: 99, unit: one basket}",
            "journaled as epsilon 100, the file says 99. Write 100 here; a limit cannot be lowered$",
        ),
        ("{names: [a, b, c], limit: {rho: 100}, unit: one basket}", "the measure cannot change"),
        ("{names: [a, b, c], limit: 100, unit: one user}", "privacy unit is journaled as 'one basket'"),
        (
            "{names: [b, c], limit: 100, unit: one basket}",
            "dataset a, which the configuration does not declare for shard 0",
        ),
    ],
)
def test_a_changed_declaration_is_refused_with_what_to_do(declaration, problem):
    play = _played(FORMS["plain"])
    play.spec = spec_of(FORMS["plain"], datasets=declaration)
    with pytest.raises(ConfigError, match=problem):
        play.crash()


def test_an_open_run_of_another_sampler_is_refused_and_closed_ones_are_accepted():
    form = FORMS["plain"]
    open_run, closed = _played(form), _played(form)
    for number in range(3):
        closed.runs().end_run(number, "command")
    closed.commit()
    message = "use the release that wrote the state, and close the run"
    with another_release():
        with pytest.raises(UnreadableState, match=message):
            open_run.crash()
        closed.crash()
        closed.feed(TOPIC, stream(5, 600), 600)
        closed.commit()
        closed.crash()
    assert not closed.engine.take_commit().records
    assert any(view.reserved for view in closed.views())
    assert_books_balance(closed)
