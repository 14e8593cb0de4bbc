"""Marks and distances in the bytes of many messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stream_svt.columns import byte_buffer
from stream_svt.columns.byte_buffer import MARGIN, ByteBuffer

BYTES = b"a\x7f\x80\xbf\xc1\xc2\xdf\xe0\xe1\xed\xef\xf0\xf4\xf5\xff\x8f\x90\x9f\xa0"
CHARACTERS = [bytes([byte]) for byte in BYTES] + [text.encode() for text in "é日😀"]


@settings(max_examples=300)
@given(st.lists(st.sampled_from(CHARACTERS), max_size=8).map(b"".join))
def test_a_text_ends_before_what_is_no_utf8(text):
    text_and_end = ByteBuffer(text + b'"')
    length = int(text_and_end.distance(text_and_end.unicode_ends, np.array([MARGIN]))[0])
    assert text[:length].decode() is not None
    assert (length == len(text)) == (text.decode(errors="replace").encode() == text)


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), min_size=1, max_size=12), st.sampled_from([b'"', b"\\", b"\n"]))
def test_a_distance_is_counted_up_to_the_next_mark(lengths, mark):
    text = ByteBuffer(mark.join(b"x" * length for length in lengths))
    ends = np.cumsum(np.array(lengths) + 1) + MARGIN - 1
    starts = ends - lengths
    assert text.distance(text.text_ends, starts).tolist() == lengths
    assert text.distance(text.text_ends, ends, backwards=True).tolist() == lengths
    assert text.distance(text.unicode_ends, starts).tolist() == lengths


@settings(deadline=None)
@given(st.lists(st.sampled_from([*CHARACTERS, b"xxxxxxx", "日é".encode()]), max_size=40).map(b"".join))
def test_marks_are_the_same_however_many_bytes_are_looked_at_at_once(text):
    whole = ByteBuffer(text).unicode_ends
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_buffer, "_AT_ONCE", 5)
        assert ByteBuffer(text).unicode_ends.tolist() == whole.tolist()
