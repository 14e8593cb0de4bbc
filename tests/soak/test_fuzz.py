"""The short form of the fuzz soak, and decoders that it has to catch."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from stream_svt.application.signatures import Verifier
from stream_svt.kafka import columns
from stream_svt.protocol import sealing
from stream_svt.queries import columnar
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.reasons import Reason
from tests.soak import fuzz
from tests.soak.fuzz import COMMAND_REASONS, DEFAULT_COUNT, REASONS, Fuzzer


def test_malformed_input_in_bulk_breaks_nothing() -> None:
    fuzzer = Fuzzer(1)
    fuzzer.run(DEFAULT_COUNT)
    assert fuzzer.violations == []
    # The messages reach every way of being refused, and some get through.
    unseen = {"misrouted", "command-withdrawn"}
    handled = {"columnar read", "columnar refused", "record loaded", "configuration refused"}
    assert (REASONS | COMMAND_REASONS | handled) - unseen <= set(fuzzer.outcomes)


def loses_a_neighbour(batch):
    return replace(batch, offset=batch.offset[:-1], whole=batch.whole[:-1]) if batch.rejects else batch


def names_content(batch):
    return replace(batch, rejects=[(offset, f"bad: {offset}") for offset, _ in batch.rejects])


def raises(*_):
    raise TypeError("expected string or bytes-like object")


def refuses(*_):
    raise columnar.MalformedColumns(Reason.NOT_ARROW)


def changed(change):
    decode = QueryDecoder.decode
    return lambda self, records: change(decode(self, records))


UNCHECKED = SimpleNamespace(
    encrypt=lambda nonce, content, bound: content, decrypt=lambda nonce, sealed, bound: sealed
)


@pytest.mark.parametrize(
    ("owner", "name", "broken", "play", "said"),
    [
        (QueryDecoder, "decode", changed(loses_a_neighbour), Fuzzer.query, "times"),
        (QueryDecoder, "decode", changed(names_content), Fuzzer.query, "no public reason"),
        (sealing, "AESGCM", lambda key: UNCHECKED, Fuzzer.state, "a changed record was opened"),
        (fuzz.released, "event_in", raises, Fuzzer.alert, "alert raised TypeError"),
        (Verifier, "__call__", raises, Fuzzer.command, "signed command raised TypeError"),
        (columnar, "_values", refuses, Fuzzer.columnar, "although only its values are odd"),
        (
            columns,
            "_after_lengths",
            lambda data, begin, end: begin + 1,
            Fuzzer.batch,
            "not read as by the client",
        ),
    ],
)
def test_code_that_misbehaves_is_caught(monkeypatch, owner, name, broken, play, said) -> None:
    monkeypatch.setattr(owner, name, broken)
    fuzzer = Fuzzer(5)
    if owner is QueryDecoder:
        monkeypatch.setattr(fuzzer, "_engine", MagicMock())  # which accepts anything
    for _ in range(10):
        play(fuzzer)
    assert any(said in text for text in fuzzer.violations)


# As measured, then with a leak of 5 KB a message in the short form, and of 300 bytes in the full one.
@pytest.mark.parametrize(
    ("count", "grown", "caught"),
    [
        (DEFAULT_COUNT, 83, False),
        (1_000_000, 108, False),
        (DEFAULT_COUNT, 83 + 5000 * DEFAULT_COUNT // (1 << 20), True),
        (1_000_000, 108 + 300_000_000 // (1 << 20), True),
    ],
)
def test_memory_that_a_message_takes_is_caught(count: int, grown: int, caught: bool) -> None:
    fuzzer = Fuzzer(6)
    fuzzer._size -= (grown << 10) - fuzzer.grown // 1024  # in KiB, of the process at its largest
    fuzzer.kinds["query"] = count
    fuzzer.weigh("query")
    assert any("grew by" in text for text in fuzzer.violations) == caught


def test_a_soak_of_one_kind_is_none(monkeypatch) -> None:
    fuzzer = Fuzzer(7)
    monkeypatch.setattr(fuzzer, "columnar", lambda: fuzzer.kinds.update(query=5))
    fuzzer.run(3_000)
    assert any("are of kind 'columnar'" in text for text in fuzzer.violations)
