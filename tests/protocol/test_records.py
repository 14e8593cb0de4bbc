"""Records as columns: the same records as objects, sliced and joined."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stream_svt.protocol.records import OneRecord, Records

contents = st.none() | st.binary(max_size=6)
records = st.builds(
    OneRecord,
    st.integers(0, 2**50),
    st.integers(0, 2**50),
    contents,
    contents,
    st.sampled_from([(), (("name", b"content"),)]),
)


@given(st.lists(st.lists(records, max_size=5), min_size=1, max_size=4), st.data())
def test_columns_give_the_records_back_whole_sliced_or_joined(parts, data):
    whole = [one for part in parts for one in part]
    joined = Records.concatenated([Records.of(part) for part in parts])
    assert list(joined) == whole
    assert joined.keys() == [one.key for one in whole]
    assert joined.values() == [one.value for one in whole]
    first = data.draw(st.integers(0, len(whole)))
    last = data.draw(st.integers(first, len(whole)))
    assert list(joined[first:last]) == whole[first:last]
    assert list(joined[first:][: last - first]) == whole[first:last]
    again = Records.concatenated([joined[:first], joined[first:]])
    assert list(again) == whole
    assert again.buffer is joined.buffer  # not one copy for each part
    if whole:
        assert joined[-1] == whole[-1]
    assert Records.of(joined) is joined
