"""The short form of the fuzz soak, and decoders that it has to catch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stream_svt.protocol import sealing
from stream_svt.service.wire import QueryDecoder
from tests.soak.fuzz import REASONS, Fuzzer

COUNT = 60_000


def test_malformed_input_in_bulk_breaks_nothing() -> None:
    found = Fuzzer(1).run(COUNT)
    assert found.count >= COUNT
    assert found.violations == []
    # The messages reach every way of being refused, and some get through.
    unseen = {"too-large", "misrouted", "not-arrow"}
    assert REASONS - unseen <= set(found.outcomes)
    assert {"columnar read", "columnar refused", "record loaded", "configuration refused"} <= set(
        found.outcomes
    )


def loses_a_neighbour(batch):
    """A batch without its last row."""
    return replace(batch, offset=batch.offset[:-1], whole=batch.whole[:-1]) if batch.rejects else batch


def names_content(batch):
    """A batch whose refusals repeat what was refused."""
    return replace(batch, rejects=[(offset, f"bad: {offset}") for offset, _ in batch.rejects])


@pytest.mark.parametrize(
    ("change", "said"), [(loses_a_neighbour, "times"), (names_content, "no public reason")]
)
def test_a_decoder_that_misbehaves_is_caught(monkeypatch, change, said) -> None:
    decode = QueryDecoder.decode
    monkeypatch.setattr(QueryDecoder, "decode", lambda self, records: change(decode(self, records)))
    fuzzer = Fuzzer(2)
    monkeypatch.setattr(fuzzer, "_engine", _Deaf())
    for _ in range(4):
        fuzzer.queries()
    assert any(said in text for text in fuzzer.found.violations)


def test_a_seal_that_is_not_checked_is_caught(monkeypatch) -> None:
    class Unchecked:
        def __init__(self, key: bytes) -> None:
            """Keep nothing."""

        def encrypt(self, nonce: bytes, content: bytes, bound: bytes) -> bytes:
            return content

        def decrypt(self, nonce: bytes, sealed: bytes, bound: bytes) -> bytes:
            return sealed

    monkeypatch.setattr(sealing, "AESGCM", Unchecked)
    fuzzer = Fuzzer(3)
    fuzzer.queries()
    fuzzer._keep()
    fuzzer.records()
    assert any("a changed record was opened" in text for text in fuzzer.found.violations)


class _Deaf:
    """An engine that accepts anything."""

    def step(self, batch):
        return type("Done", (), {"done": True})()

    def take_commit(self):
        return type("Nothing", (), {"records": {}, "progress": b""})()

    def committed(self) -> None:
        """Nothing to note."""
