"""Queries as this service's own JSON messages, with options, decoded with msgspec.

Messages are decoded in one call if each line holds exactly one, else message by message. A `value` never leads to a
rejection: what is not a number becomes the monitor's lower bound, and is not counted or logged.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Final

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from stream_svt.columns import decimals
from stream_svt.columns.strings import TextList
from stream_svt.queries.fast_json.columns import Columns, Options
from stream_svt.queries.fast_json.templates import Paths
from stream_svt.queries.json_lines import UNDECODABLE, bad_size, decode_lines, decode_one, reason_of
from stream_svt.queries.reasons import MAX_TEXT, Reason

_Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]
_NOTHING: Final = Raw(b"")
_NO_THRESHOLD: Final = (_NOTHING, Raw(b"null"))
_Time = str | int | float | None


class PlainQuery(Struct, gc=False, forbid_unknown_fields=True):
    """A query without options."""

    id: _Text
    value: Raw = _NOTHING
    series: _Text | None = None
    time: _Time = None


class Query(Struct, gc=False):
    """A query with options, or the marker that closes a set."""

    id: _Text | None = None
    value: Raw = _NOTHING
    series: _Text | None = None
    set: _Text | None = None
    closed: bool = False
    threshold: Raw = _NOTHING
    monitor: str | None = None
    time: _Time = None


FIELDS: Final = frozenset(Query.__struct_fields__)
"""Fields of a query."""

_PLAIN = Decoder(PlainQuery)
_QUERY = Decoder(Query)
_FIELD_REASONS: Final = {
    "id": Reason.BAD_ID,
    "series": Reason.BAD_SERIES,
    "set": Reason.BAD_SET,
    "closed": Reason.BAD_SET,
    "monitor": Reason.UNKNOWN_MONITOR,
    "time": Reason.BAD_TIME,
}
_BLANK: Final = Query()
_GROUP: Final = 256
_VALUE: Final = ("value",)


class JsonQueries:
    """Decodes messages for the monitors that read them; see `RowDecoder`."""

    paths: Final = Paths(
        _VALUE,
        {name: (name,) for name in ("id", "series", "set")},
        ("threshold",),
        (("closed",), ("monitor",)),
    )

    def __init__(self, monitors: Collection[str]) -> None:
        self._monitors = frozenset(monitors)

    def decode(self, values: Sequence[bytes | None]) -> Columns:
        """Return the fields of messages."""
        plain = decode_lines(values[:1], _PLAIN) and decode_lines(values, _PLAIN)
        if plain is not None:
            ids, series = TextList([query.id for query in plain]), TextList([query.series for query in plain])
            found = decimals.columns([query.value for query in plain])
            return Columns(found, {"id": ids, "series": series}, {}, Options.none())
        queries, rejects = self._with_options(values)
        whole, fraction = decimals.columns([query.value for query in queries])
        options = Options.none()
        for row, query in enumerate(queries):
            if query.closed and query.set is not None:
                options.markers[row] = query.set
                whole[row] = fraction[row] = 0
                query.series = None
                continue
            if query.monitor is not None:
                options.monitor[row] = query.monitor
            limit = None if query.threshold is _NOTHING else decimals.threshold(bytes(query.threshold))
            if limit is not None:
                options.threshold[row] = limit
        names = {name: TextList([getattr(query, name) for query in queries]) for name in self.paths.texts}
        return Columns((whole, fraction), names, rejects, options)

    def _with_options(self, values: Sequence[bytes | None]) -> tuple[list[Query], dict[int, Reason]]:
        """Decode messages in groups, one by one in a group with an invalid message; return queries and rejects."""
        queries: list[Query] = []
        rejects: dict[int, Reason] = {}
        for start in range(0, len(values), _GROUP):
            group = values[start : start + _GROUP]
            decoded = decode_lines(group, _QUERY)
            if decoded is None:
                results = [_decode_one(value or b"") for value in group]
                malformed = {row: found for row, found in enumerate(results) if isinstance(found, Reason)}
                rejects |= {start + row: reason for row, reason in malformed.items()}
                decoded = [_BLANK if isinstance(found, Reason) else found for found in results]
            for index, query in enumerate(decoded, start):
                if (reason := self._fault(query)) is not None:
                    rejects.setdefault(index, reason)
            queries += decoded
        return queries, rejects

    def _fault(self, query: Query) -> Reason | None:
        if query.closed:
            return Reason.BAD_SET if query.set is None else None
        if query.id is None:
            return Reason.MISSING_ID
        if query.threshold not in _NO_THRESHOLD and decimals.threshold(bytes(query.threshold)) is None:
            return Reason.BAD_THRESHOLD
        if query.monitor is not None and query.monitor not in self._monitors:
            return Reason.UNKNOWN_MONITOR
        return None


def _decode_one(value: bytes) -> Query | Reason:
    if (reason := bad_size(value)) is not None:
        return reason
    try:
        return decode_one(value, _QUERY, _VALUE)
    except UNDECODABLE as error:
        return reason_of(error, _FIELD_REASONS)
