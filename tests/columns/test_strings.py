"""Texts of many rows: every form of the same texts is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_svt.columns import strings
from stream_svt.columns.strings import KeyedHash, TextCodes, TextList, TextParts, Texts, TextSlices

rows = st.lists(st.none() | st.text(max_size=40), max_size=30)
HASHING = KeyedHash(bytes(range(32)))


def slices(texts: list[str | None], before: bytes = b"") -> TextSlices:
    """Return texts as slices of a buffer without padding, the last text first."""
    parts = [(text or "").encode() for text in texts]
    buffer, start = before, []
    for part in reversed(parts):
        start.append(len(buffer))
        buffer += part
    length = [-1 if text is None else len(part) for text, part in zip(texts, parts, strict=True)]
    return TextSlices(buffer, np.array(start[::-1], np.int64), np.array(length, np.int64))


@pytest.mark.parametrize("few", [-1, 8])
@given(texts=rows, before=st.binary(max_size=9))
def test_a_text_and_its_hash_are_the_same_in_every_form(
    few: int, texts: list[str | None], before: bytes
) -> None:
    entries = sorted({text for text in texts if text is not None})
    codes = np.array([-1 if text is None else entries.index(text) for text in texts], np.int64)
    forms: list[Texts] = [TextList(texts), slices(texts, before), TextCodes(slices(list(entries)), codes)]
    hashes = [HASHING.of(None if text is None else text.encode()) for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "_FEW", few)
        forms.append(TextParts(forms[:]))
        for form in forms:
            times = len(form) // len(texts) if texts else 1
            assert [form[row] for row in range(len(form))] == texts * times
            assert form.hashes(HASHING).tolist() == hashes * times


def test_another_key_gives_other_hashes() -> None:
    texts = TextList(["a", None])
    first, other = (texts.hashes(KeyedHash(key)).tolist() for key in (b"a" * 32, b"b" * 32))
    assert not {*first} & {*other}
    assert texts.hashes(KeyedHash(b"a" * 32)).tolist() == first


def test_hashes_never_change_because_states_have_them() -> None:
    texts = [None, "", "s", "warehouse-7/\u00e4", "x" * 500]
    assert TextList(texts).hashes(HASHING).tolist() == [
        180370760898784392,
        1568920784872288205,
        351825185723575694,
        9917358860337609987,
        6986828976244238124,
    ]


@given(st.lists(st.text(max_size=20), unique=True, max_size=50))
def test_different_texts_have_different_hashes(texts: list[str]) -> None:
    assert len({*TextList([None, *texts]).hashes(HASHING).tolist()}) == 1 + len(texts)


def test_no_bits_of_a_word_are_left_out_of_a_hash() -> None:
    """Texts that differ in the highest bits of their words agree in the low halves of both sums."""
    texts = [
        bytes([*before, high, *b"after"]) for before in (b"", b"abc", b"abcdefg") for high in (0, 128, 255)
    ]
    assert len({*TextSlices.of(texts).hashes(HASHING).tolist()}) == len(texts)


def test_a_long_text_among_short_ones_is_hashed_whole() -> None:
    texts = ["s", "x" * 1000, "x" * 999 + "y", ""]
    hashing = KeyedHash(bytes(32))
    assert len({*TextList(texts).hashes(hashing).tolist()}) == 4
    assert TextList(texts).hashes(hashing).tolist() == [hashing.of(text.encode()) for text in texts]


def test_no_rows_have_no_hashes() -> None:
    assert TextList(()).hashes(HASHING).tolist() == slices([]).hashes(HASHING).tolist() == []


@given(st.data(), rows, st.binary(max_size=9))
def test_slices_are_compared_as_python_compares_texts(
    data: st.DataObject, texts: list[str | None], before: bytes
) -> None:
    among = st.integers(0, max(len(texts) - 1, 0))
    chosen = data.draw(st.lists(among, max_size=20)) if texts else []
    others = [data.draw(st.sampled_from([texts[row], *texts, "", None])) for row in chosen]
    same = slices(texts, before).taken(np.array(chosen, np.int64)).same(slices(others))
    assert same.tolist() == [texts[row] == other for row, other in zip(chosen, others, strict=True)]
