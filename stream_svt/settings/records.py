"""Where a query's fields are in the records of a topic that was not made for this service."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Annotated, Literal

from pydantic import AfterValidator, StringConstraints

from stream_svt.settings.document import Strict, consistent, quote
from stream_svt.settings.fields import visible

MAX_DEPTH = 8
"""Most names in a path."""
OFFSET = "offset"
"""Path of an id that is the record's offset."""
KEY = "key"
"""Path, of a source, that is the record's key; a field of that name is ``\\key``."""

_NAME = re.compile(r"(?:[^\\.]|\\.)+", re.DOTALL)


def steps(path: str) -> tuple[str, ...]:
    r"""Return the names in a path, from the outermost object inwards.

    >>> steps(r"payload.hits\.total")
    ('payload', 'hits.total')
    """
    return tuple(re.sub(r"\\(.)", r"\1", name, flags=re.DOTALL) for name in _NAME.findall(path))


def is_inside(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether one of two paths, given as names, continues the other."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter] and len(one) != len(other)


def checked_path(text: str) -> str:
    """Return a path; ValueError if the text is no path."""
    if not re.fullmatch(rf"{_NAME.pattern}(?:\.{_NAME.pattern})*", text, re.DOTALL):
        form = r"names with a dot between them, such as payload.count; \. is a dot within a name"
        raise ValueError(f"expected {form}, found {quote(text)}")
    if len(steps(text)) > MAX_DEPTH:
        raise ValueError(f"must have at most {MAX_DEPTH} names, found {len(steps(text))}")
    return visible(text)


Path = Annotated[str, StringConstraints(strict=True, max_length=500), AfterValidator(checked_path)]


class RecordLayout(Strict):
    r"""Fields of a query in the records of the topic, each a path: ``payload.count`` is ``count`` in ``payload``.

    A backslash takes the next character as part of a name: ``hits\.total``. Paths do not enter arrays.
    """

    format: Literal["json", "avro"] = "json"
    """json, or avro in the wire format of Confluent's Schema Registry (section `schema_registry`). Default json."""
    value: Path
    """Path of the true answer."""
    id: Path = OFFSET
    r"""Path of the query's id, a text, integer or boolean; or offset, the record's offset (a field of that name is
    `\offset`). Default offset."""
    series: Path | None = None
    """Path of the series, a text, integer or boolean; a record without the field has no series. Default: none."""
    set: Path | None = None
    """Path of the set, likewise. Default: none."""

    @property
    def is_text(self) -> bool:
        """Whether records are text."""
        return self.format == "json"

    @property
    def texts(self) -> dict[str, tuple[str, ...]]:
        """Names in the paths of id, series and set, without an id that is the offset."""
        paths = {"id": None if self.id == OFFSET else self.id, "series": self.series, "set": self.set}
        return {name: steps(path) for name, path in paths.items() if path is not None}

    @consistent
    def _problems(self) -> Iterator[tuple[str, str]]:
        paths = {"value": steps(self.value), **self.texts}
        for (one, first), (other, second) in combinations(paths.items(), 2):
            if one == "value" and first == second:
                yield other, "is the path of value, which is private: everything else is public"
            elif is_inside(first, second):
                yield other, f"one of the paths of {one} and {other} is inside the other"
