"""A field of many events: as texts, as codes of names, compared with a condition, and as times.

A value of JSON is what msgspec makes of it, a number with a fraction or an exponent a `DecimalText`. Two values are one
text if they are written alike: 1 and "1", true and "true".
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np

from stream_svt.columns import decimals
from stream_svt.columns.byte_buffer import Integers, Mask
from stream_svt.mechanisms.grid import PARTS, WHOLE_LIMIT
from stream_svt.protocol.records import slices
from stream_svt.queries.avro.columns import LeafKind, Located
from stream_svt.settings.sources import LONGEST_TEXT, EventCondition
from stream_svt.sources import times

_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")
_TEXT_TYPES: Final = {str, type(None)}
_BETWEEN: Final = "\0"
"""Stands between texts that are encoded together."""


class DecimalText(str):
    """A number of JSON as it is written, other than an integer of digits alone."""

    __slots__ = ()


class FieldTexts(NamedTuple):
    """Texts in UTF-8 as slices of a buffer, of at most 256 characters; a length below 1 stands for none."""

    buffer: bytes
    start: Integers
    length: Integers


class Numbers(NamedTuple):
    """Numbers as `decimals` has them, exact on a grid of 10^-18 and up to 2^62; a mask of the finite ones."""

    whole: Integers
    fraction: Integers
    is_finite: Mask


class Names:
    """Codes of names; "" has code 0, and no value is that name."""

    def __init__(self) -> None:
        self.codes = {"": 0}
        self.of_texts: dict[str | None, int] = {}
        self.of_bytes: dict[bytes | None, int] = {}

    def code(self, name: str) -> int:
        """Return the code of a name, a new one for a new name."""
        if name not in self.codes:
            self.codes[name] = self.of_texts[name] = self.of_bytes[name.encode()] = len(self.codes)
        return self.codes[name]


class Column(ABC):
    """The values at a path, by event."""

    @property
    @abstractmethod
    def is_integers(self) -> bool:
        """Whether no value is of another type; in Avro there may be none."""

    @property
    @abstractmethod
    def texts(self) -> FieldTexts:
        """Its texts: also those of integers, booleans and enums."""

    @property
    @abstractmethod
    def words(self) -> Sequence[str | None]:
        """The same as a list, in which longer texts may be left."""

    @property
    @abstractmethod
    def numbers(self) -> Numbers:
        """Its numbers; no text is one."""

    @abstractmethod
    def _written(self) -> Numbers:
        """Return its numbers, and those that are written as texts."""

    def codes(self, names: Names) -> Integers:
        """Return the code of each text, -1 for none."""
        return np.fromiter(map(names.of_texts.get, self.words, repeat(-1)), np.int64, len(self.words))

    def among(self, texts: frozenset[str]) -> Mask:
        """Return which values are one of some texts."""
        if self.is_integers and (wanted := _integers(texts)) is not None:
            return np.isin(self.numbers.whole, wanted)
        return np.fromiter(map(texts.__contains__, self.words), np.bool_, len(self.words))

    def matches(self, condition: EventCondition) -> Mask:
        """Return which values match a condition."""
        if condition.texts is not None:
            return self.among(condition.texts)
        found = self.numbers.is_finite
        if condition.at_least is not None:
            found = found & ~_is_below(self.numbers, condition.at_least)
        if condition.below is not None:
            found = found & _is_below(self.numbers, condition.below)
        return found

    def times(self, scale: str) -> Integers:
        """Return times in ms, `times.NO_TIME` for none, of numbers (or texts of them) in a scale, or of iso texts."""
        if scale == "iso":
            return times.of_texts(self.words)
        whole, fraction, is_finite = self._written()
        ms = times.of_numbers(whole, fraction, scale)
        ms[~is_finite] = times.NO_TIME
        return ms


def _is_below(numbers: Numbers, limit: Fraction) -> Mask:
    whole, rest = divmod(limit, 1)
    part = -(-rest.numerator * PARTS // rest.denominator)
    below: Mask = numbers.whole < whole
    return below | (numbers.whole == whole) & (numbers.fraction < part) if part else below


class ValueColumn(Column):
    """Values of JSON, or other texts."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    @cached_property
    def _types(self) -> set[type]:
        return {*map(type, self._values)}

    @property
    def is_integers(self) -> bool:
        """See `Column`."""
        return self._types == {int}

    @cached_property
    def words(self) -> Sequence[str | None]:
        """See `Column`."""
        if self._types <= _TEXT_TYPES:
            return self._values
        return [*map(str if self.is_integers else _text, self._values)]

    @property
    def texts(self) -> FieldTexts:
        """See `Column`."""
        words = [word or "" for word in self.words] if self._types != {str} else self._values
        buffer = _BETWEEN.join(words).encode()
        ends = np.flatnonzero(np.frombuffer(buffer, np.uint8) == ord(_BETWEEN))
        if len(ends) != len(words) - 1:  # a text contains the character itself
            ends = np.cumsum([len(word.encode()) + 1 for word in words])[:-1] - 1
        start, end = np.append(0, ends + 1), np.append(ends, len(buffer))
        length = end - start
        for row in np.flatnonzero(length > LONGEST_TEXT).tolist():
            length[row] = length[row] if len(words[row]) <= LONGEST_TEXT else -1
        return FieldTexts(buffer, start, length)

    @cached_property
    def numbers(self) -> Numbers:
        """See `Column`."""
        values = self._values
        is_finite = np.ones(len(values), np.bool_)
        if not self._types <= {int, DecimalText}:
            is_finite = np.fromiter(
                (type(one) in {int, DecimalText} for one in values), np.bool_, len(values)
            )
            values = [one if known else 0 for one, known in zip(values, is_finite.tolist(), strict=True)]
        if DecimalText not in self._types:
            try:
                whole = decimals.integers(np.array(values, np.int64))
                return Numbers(whole, np.zeros(len(values), np.int64), is_finite)
            except OverflowError:
                pass
        tokens = [_token(one) for one in values]
        return Numbers(*decimals.columns(tokens), is_finite)

    def _written(self) -> Numbers:
        if str not in self._types:
            return self.numbers
        return ValueColumn([_as_number(one) for one in self._values]).numbers


def _text(value: object) -> str | None:
    """Return the text of a value, None if it is none."""
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    return ("true" if value else "false") if type(value) is bool else None


def _token(value: int | DecimalText) -> bytes:
    """Return a number as it is written; integers beyond those that are told apart as the last one."""
    if isinstance(value, int):
        value = min(max(value, -WHOLE_LIMIT), WHOLE_LIMIT)
    return str(value).encode()


def _as_number(value: object) -> object:
    is_number = type(value) is str and len(value) <= times.LONGEST and _NUMBER.fullmatch(value)
    return DecimalText(value) if is_number else value


@lru_cache(maxsize=256)
def _integers(texts: frozenset[str]) -> list[int] | None:
    """Return the integers that some texts are; None if one is not told apart from others as a number."""
    found = [int(text) for text in texts if _INTEGER.fullmatch(text)]
    return found if max(map(abs, found), default=0) < WHOLE_LIMIT else None


class AvroColumn(Column):
    """Data at a path of Avro records of one schema."""

    def __init__(self, located: Located, slot: int) -> None:
        self._located, self._slot = located, slot
        self._kinds = {leaf.kind for leaf in located.leaves(slot)}

    @property
    def is_integers(self) -> bool:
        """See `Column`."""
        return self._kinds == {LeafKind.INTEGER}

    @cached_property
    def texts(self) -> FieldTexts:
        """See `Column`."""
        start, length, _ = self._located.texts(self._slot, LONGEST_TEXT)
        return FieldTexts(self._located.buffer, start, length)

    @cached_property
    def words(self) -> Sequence[str | None]:
        """See `Column`."""
        return [None if text is None else text.decode() for text in slices(*self.texts)]

    @cached_property
    def numbers(self) -> Numbers:
        """See `Column`."""
        whole, fraction = self._located.numbers(self._slot)
        is_finite = np.abs(whole) < WHOLE_LIMIT
        return Numbers(whole, fraction, is_finite if is_finite.all() else self._located.finite(self._slot))

    def codes(self, names: Names) -> Integers:
        """See `Column`."""
        found = slices(*self.texts)
        return np.fromiter(map(names.of_bytes.get, found, repeat(-1)), np.int64, len(found))

    def _written(self) -> Numbers:
        if LeafKind.TEXT not in self._kinds:
            return self.numbers
        written = ValueColumn([_as_number(word) for word in self.words]).numbers
        return Numbers(
            *(
                np.where(written.is_finite, one, other)
                for one, other in zip(written, self.numbers, strict=True)
            )
        )
