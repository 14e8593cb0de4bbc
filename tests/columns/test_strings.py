"""Texts of many rows: every form of the same texts is the same."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns import strings as texts_module
from stream_svt.columns.strings import TextCodes, TextList, TextParts, Texts, TextSlices, hash_of, hashes_of

rows = st.lists(st.none() | st.text(max_size=40), max_size=30)


def slices(texts: list[str | None], before: bytes = b"") -> TextSlices:
    """Return texts as slices of a buffer without padding, the last text first."""
    parts = [(text or "").encode() for text in texts]
    buffer, start = before, []
    for part in reversed(parts):
        start.append(len(buffer))
        buffer += part
    length = [-1 if text is None else len(part) for text, part in zip(texts, parts, strict=True)]
    return TextSlices(buffer, np.array(start[::-1], np.int64), np.array(length, np.int64))


@given(rows, st.binary(max_size=9))
def test_a_text_and_its_hash_are_the_same_in_every_form(texts: list[str | None], before: bytes) -> None:
    entries = sorted({text for text in texts if text is not None})
    codes = np.array([-1 if text is None else entries.index(text) for text in texts], np.int64)
    forms = [TextList(texts), slices(texts, before), TextCodes(slices(list(entries)), codes)]
    for form in forms:
        assert [form[row] for row in range(len(form))] == texts
        assert form.hashes().tolist() == forms[0].hashes().tolist()
        for text, hashed in zip(texts, form.hashes().tolist(), strict=True):
            assert hashed == (0 if text is None else hash_of(text.encode()))


@pytest.mark.parametrize("few", [0, 3])
@settings(max_examples=40)
@given(data=st.data(), texts=rows, before=st.binary(max_size=9))
def test_texts_are_compared_as_python_compares_them_in_every_form(
    few: int, data: st.DataObject, texts: list[str | None], before: bytes
) -> None:
    entries = sorted({text for text in texts if text is not None})
    codes = np.array([-1 if text is None else entries.index(text) for text in texts], np.int64)
    forms: list[Texts] = [TextList(texts), slices(texts, before), TextCodes(slices(list(entries)), codes)]
    forms.append(TextParts([form.coded(0, len(texts) // 2)[0] for form in forms]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "_FEW", few)
        for form in forms:
            among = st.integers(0, max(len(form) - 1, 0))
            chosen = data.draw(st.lists(among, max_size=20)) if len(form) else []
            others = [data.draw(st.sampled_from([form[row], *texts, "", None])) for row in chosen]
            same = form.same(np.array(chosen, np.int64), slices(others))
            expected = [form[row] == other for row, other in zip(chosen, others, strict=True)]
            assert same.tolist() == expected


def test_parts_of_few_rows_cost_no_arrays_each(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("arrays of one row")

    names: list[str | None] = [f"s{number}" for number in range(300)]
    parts = TextParts([slices([name]) for name in names])
    monkeypatch.setattr(TextSlices, "same", refused)
    assert parts.same(np.arange(300), slices(names)).all()


@given(st.lists(st.text(max_size=20), unique=True, max_size=50))
def test_different_texts_have_different_hashes(texts: list[str]) -> None:
    assert len(set(TextList(texts).hashes().tolist())) == len(texts)


def test_a_long_text_among_short_ones_is_hashed_whole() -> None:
    texts = ["s", "x" * 1000, "x" * 999 + "y", ""]
    assert len(set(TextList(texts).hashes().tolist())) == 4
    assert TextList(texts).hashes().tolist() == [hash_of(text.encode()) for text in texts]


def test_no_rows_have_no_hashes() -> None:
    none = np.zeros(0, np.int64)
    assert hashes_of(b"", none, none).tolist() == []
    assert TextList(()).hashes().tolist() == []


def test_another_process_hashes_otherwise_so_that_nobody_can_choose_texts_that_collide() -> None:
    program = "from stream_svt.columns.strings import hash_of; print(hash_of(b's'))"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    found = {
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(found) == 2
