"""Reads fields of Avro records as columns: all records of one schema take each step together, in numpy.

A `RecordSchema` is compiled from a writer's schema for some paths. It first locates: for each record, where the data
at each path is and which type of the schema it has, a branch of a union being the one that was written. Only then are
columns of numbers or texts read.

A record is malformed only in its structure: a length is negative, a branch does not exist, one of both or a count of
items has more than 64 bits, or its fields do not end where the record ends. No data is checked on the way: integers of
too many bits, text that is no UTF-8 and numbers of an enum without a symbol stand where they are. Each record is
located as it would be alone.

Work and memory are bounded by the bytes of a record and the types of its schema. A schema that is recursive where a
path ends is refused: what stands there would decide how deep a record is. Elsewhere depth is limited. Items without
bytes are skipped by multiplication, others take at least a byte each. A few records, and a few that are left among
many, are located one by one: that takes less than arrays do.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_svt.columns import decimals
from stream_svt.columns.byte_buffer import Integers, Mask, Words
from stream_svt.columns.strings import first_words, words_at

Path: TypeAlias = tuple[str, ...]
"""Names of fields, from the outermost record inwards."""

MAX_NODES: Final = 5_000
"""Most types in a schema; a named one counts each time it is used."""
MAX_DEPTH: Final = 64
"""Most types around a type."""
MAX_RECURSION: Final = 128
"""Most types around data of a recursive type, from where it begins; deeper records are malformed."""
MAX_SCALE: Final = 1_000
"""Largest scale of a decimal; one of a larger scale is no number."""
FEW: Final = 100
"""Records that are located one by one."""
FEW_ITEMS: Final = 30
"""Records whose items are located one by one."""
_FEW_BRANCHES: Final = 8
"""Branches that are looked for one after the other."""
_WORDS: Final = 4
"""Most words of 64 bits of decimals that are read together; longer ones are read one by one."""
_FAR: Final = 1 << 36
"""An index behind any buffer: where a malformed record goes on, and stays."""
_LARGEST: Final = 1 << 21
"""Stands for larger sizes: more bytes than a record has."""
_MARGIN: Final = 64
_ZEROS: Final = bytes(_MARGIN)
_IN_MARGIN: Final = _MARGIN // 2
_CHARACTER: Final = 4
"""Most bytes of a character."""
_BITS_A_DIGIT: Final = 3.33
_LOW: Final = 0x7F
_HIGHS: Final = np.uint64(0x8080808080808080)
_ONES: Final = np.uint64(0x0101010101010101)
_ALL_HIGHS: Final = 0x80808080808080808080
_JOINS: Final = tuple(
    (np.uint64(low), np.uint64(low << shift << bits), np.uint64(shift))
    for low, bits, shift in (
        (0x007F007F007F007F, 7, 1),
        (0x00003FFF00003FFF, 14, 2),
        (0x000000000FFFFFFF, 28, 4),
    )
)
"""Masks of the lower and the upper of two neighbouring groups of bits, and by how much the upper one is moved."""
_LAST_BYTE: Final = re.compile(rb"[\x00-\x7f]")
_ENDS_OF_TYPES: Final = {"boolean": 1, "float": 4, "double": 8}


class UnusableSchema(Exception):
    """A schema that cannot be used; the argument is why, without names from the schema."""


class LeafKind(Enum):
    """What a type of a schema holds. Logical types other than decimals do not count."""

    INTEGER = "integer"
    REAL = "real"
    DECIMAL = "decimal"
    TEXT = "text"
    ENUM = "enum"
    BOOLEAN = "boolean"
    OTHER = "other"
    """Bytes, fixed, records, arrays, maps."""


class Leaf(NamedTuple):
    """A type of a schema at the end of a path.

    Attributes:
        kind: What it holds.
        size: Bytes of a real or a fixed decimal; 0 where the data begin with their length.
        scale: Of a decimal.
        words: Words of 64 bits in which every valid number of a decimal fits, at most `_WORDS`.
        symbols: Of an enum, in UTF-8; None for one that is no text.
    """

    kind: LeafKind
    size: int = 0
    scale: int = 0
    words: int = 0
    symbols: tuple[bytes | None, ...] = ()


class Source:
    """Bytes of many records, with zeros before and behind them; an index counts from the first of these zeros."""

    def __init__(self, buffer: bytes, start: Integers, length: Integers) -> None:
        """Take slices of ``buffer``, at least one; ``start`` and ``end`` are where they are now."""
        first = int(start.min())
        last = int((start + length).max())
        self.data = b"".join([_ZEROS, memoryview(buffer)[first:last], _ZEROS])
        self.start = start + (_MARGIN - first)
        self.end = self.start + length
        self._characters = np.frombuffer(self.data, np.uint8)
        self._last = _MARGIN + last - first
        self._more: list[bytes] = []
        self._size = len(self.data)

    @property
    def buffer(self) -> bytes:
        """The bytes, with those that were added behind them."""
        return b"".join([self.data, *self._more]) if self._more else self.data

    def add(self, text: bytes) -> int:
        """Add bytes behind the others; return where they are."""
        start = self._size
        self._more.append(text)
        self._size += len(text)
        return start

    def words(self, at: Integers, count: int = 1) -> Words:
        """Return `words_at` some indexes, zeros from beyond the end."""
        return words_at(self.data, np.minimum(at, self._last), count)

    def bytes_at(self, at: Integers) -> NDArray[np.uint8]:
        """Return the byte at each index, 0 beyond the end."""
        return self._characters[np.minimum(at, self._last)]

    def codes(self, at: Integers, *, steady: bool) -> tuple[Integers, Integers]:
        """Return zigzag codes, and the index behind each: beyond the end if the code has more than 64 bits.

        ``steady`` ones take the same steps whatever their sizes are.
        """
        if steady:
            code, size, is_odd = self._varints(at)
            behind = at + size
        else:
            first = self.bytes_at(at)
            code, behind = first.astype(np.int64), at + 1
            rows = np.flatnonzero(first > _LOW)
            if not len(rows):
                return code, behind
            is_odd = np.zeros(len(at), np.bool_)
            code[rows], size, is_odd[rows] = self._varints(at[rows])
            behind[rows] += size - 1
        np.putmask(code, is_odd, 0)
        np.putmask(behind, is_odd, _FAR)
        return code, behind

    def behind(self, at: Integers, end: Integers, *, steady: bool) -> Integers:
        """Return the index behind integers of any number of bytes, beyond the end for one without an end."""
        if not steady and self.bytes_at(at).max(initial=0) <= _LOW:
            return at + 1
        _, size, is_odd = self._varints(at)
        behind = at + size
        for row in np.flatnonzero(is_odd).tolist():
            behind[row] = _behind(self.data, at.item(row), end.item(row))
        return behind

    def integers(self, at: Integers) -> tuple[Integers, Mask]:
        """Return integers, and a mask of those that have more than 64 bits."""
        code, _, is_odd = self._varints(at)
        return _signed(code), is_odd

    def _varints(self, at: Integers) -> tuple[Integers, Integers, Mask]:
        """Return the 64 bits of integers, their bytes up to 10, and a mask of those with more bits."""
        word, more = self.words(at, 2).T
        stop = ~word & _HIGHS
        kept = stop ^ (
            stop - np.uint64(1)
        )  # up to the first byte with a high bit of 0: all, if there is none
        size = (kept & _ONES) * _ONES >> np.uint64(56)
        number = word & kept & ~_HIGHS
        for low, high, shift in _JOINS:
            number = number & low | (number & high) >> shift
        is_long = stop == 0
        eighth, ninth = more & np.uint64(0xFF), more >> np.uint64(8) & np.uint64(0xFF)
        is_longest = is_long & (eighth > _LOW)
        number |= (eighth & np.uint64(_LOW)) * is_long << np.uint64(56)
        number |= ninth * is_longest << np.uint64(63)
        size += is_long
        size += is_longest
        return number.view(np.int64), size.view(np.int64), is_longest & (ninth > 1)


def _signed(code: Integers) -> Integers:
    """Return the integers of zigzag codes."""
    bits = code.view(np.uint64)
    found: Integers = (bits >> np.uint64(1)).view(np.int64) ^ -(code & 1)
    return found


def _behind(data: bytes, at: int, end: int) -> int:
    """Return the index behind an integer of any number of bytes."""
    found = _LAST_BYTE.search(data, at, end)
    return _FAR if found is None else found.end()


class _Malformed(Exception):
    """A record is malformed."""


class _One:
    """A record that is located alone."""

    __slots__ = ("at", "data", "depth", "end", "entered", "leaf")

    def __init__(self, data: bytes, end: int, slots: int) -> None:
        self.data, self.end = data, end
        self.depth, self.entered = 0, -1  # of recursive types
        self.leaf, self.at = [0] * slots, [0] * slots

    def code(self, at: int) -> tuple[int, int]:
        """Return a zigzag code, and the index behind it."""
        code = self.data[at]
        if code <= _LOW:
            return code, at + 1
        code &= _LOW
        for shift in range(7, 70, 7):
            at += 1
            byte = self.data[at]
            code |= (byte & _LOW) << shift
            if byte <= _LOW:
                if code >> 64:
                    break
                return code, at + 1
        raise _Malformed

    def size(self, at: int) -> tuple[int, int]:
        """Return a length, and the index behind it."""
        code, at = self.code(at)
        if code & 1:
            raise _Malformed
        return code >> 1, at


def _alone(run: _Together, skip: Callable[[_One, int], int], end: int, at: int) -> int:
    """Return where a step of a record that is located alone leads, `_FAR` for one that leads out of it."""
    try:
        return min(skip(_One(run.source.data, end, 0), at), _FAR)
    except (_Malformed, IndexError):
        return _FAR


class _Together:
    """Records that are located together; ``leaf`` and ``at`` have the shape (paths, records)."""

    __slots__ = ("at", "end", "leaf", "source")

    def __init__(self, source: Source, end: Integers, leaf: NDArray[np.uint16], at: Integers) -> None:
        self.source, self.end, self.leaf, self.at = source, end, leaf, at


class _Type(ABC):
    """A type of a schema; ``size`` are its bytes, None if these depend on the data."""

    size: int | None = None

    @abstractmethod
    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        """Return the index behind the data of some records, and note where the data at paths is."""

    @abstractmethod
    def skip_one(self, one: _One, at: int) -> int:
        """Do the same for one record; raise `_Malformed` or IndexError."""


class _Fixed(_Type):
    def __init__(self, size: int) -> None:
        self.size: int = min(size, _LARGEST)

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        del run, rows
        return at + self.size

    def skip_one(self, one: _One, at: int) -> int:
        del one
        return at + self.size


class _Integer(_Type):
    def __init__(self, *, steady: bool) -> None:
        self._steady = steady

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        return run.source.behind(at, run.end[rows], steady=self._steady)

    def skip_one(self, one: _One, at: int) -> int:
        if not self._steady and one.data[at] <= _LOW:
            return at + 1
        stop = ~int.from_bytes(one.data[at : at + 10], "little") & _ALL_HIGHS
        if not stop:
            return _behind(one.data, at, one.end)
        return at + ((stop & -stop).bit_length() >> 3)


class _Bytes(_Type):
    def __init__(self, *, steady: bool) -> None:
        self._steady = steady

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        del rows
        code, behind = run.source.codes(at, steady=self._steady)
        return _beyond(behind, code)

    def skip_one(self, one: _One, at: int) -> int:
        code = one.data[at]
        if code > _LOW:
            size, at = one.size(at)
            return at + size
        if code & 1:
            raise _Malformed
        return at + 1 + (code >> 1)


def _beyond(at: Integers, code: Integers) -> Integers:
    """Return the index behind lengths in bytes from indexes: ``at``, changed."""
    at += code >> 1
    np.putmask(at, (code & 1 | code >> 37) != 0, _FAR)
    return at


class _Sequence(_Type):
    """The fields of a record."""

    def __init__(self, parts: Iterable[_Type]) -> None:
        """Join the parts of records, and parts of fixed sizes."""
        joined: list[_Type] = []
        self.parts = joined
        for each in parts:
            for part in each.parts if isinstance(each, _Sequence) else [each]:
                if isinstance(part, _Fixed) and joined and isinstance(joined[-1], _Fixed):
                    joined[-1] = _Fixed(joined[-1].size + part.size)
                elif part.size != 0 or isinstance(part, _Located):
                    joined.append(part)
        if all(isinstance(part, _Fixed) for part in joined):
            self.size = sum(part.size or 0 for part in joined)

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        for part in self.parts:
            at = part.skip(run, rows, at)
        return at

    def skip_one(self, one: _One, at: int) -> int:
        for part in self.parts:
            at = part.skip_one(one, at)
        return at


class _Union(_Type):
    def __init__(self, branches: Sequence[_Type], *, steady: bool) -> None:
        self._branches, self._steady = branches, steady
        self._sizes = [branch.size for branch in branches]

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        code, at = run.source.codes(at, steady=self._steady)
        count = len(self._branches)
        np.putmask(at, (code & 1 != 0) | (code < 0) | (code >= 2 * count), _FAR)
        numbers = range(count)
        if not self._steady and count > _FEW_BRANCHES:
            numbers = np.unique(code[(code >= 0) & (code < 2 * count)] >> 1).tolist()
        for number in numbers:
            branch = self._branches[number]
            if branch.size == 0:
                continue
            chosen = np.flatnonzero(code == 2 * number)
            if len(chosen) or self._steady:
                at[chosen] = branch.skip(run, rows[chosen], at[chosen])
        return at

    def skip_one(self, one: _One, at: int) -> int:
        code = one.data[at]
        if code > _LOW:
            code, at = one.code(at)
            at -= 1
        if code & 1 or code >> 1 >= len(self._branches):
            raise _Malformed
        size = self._sizes[code >> 1]
        return self._branches[code >> 1].skip_one(one, at + 1) if size is None else at + 1 + size


class _Items(_Type):
    """An array or map: blocks of items, each after their number, and a last block of none."""

    def __init__(self, item: _Type) -> None:
        self._item = item

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        at, end = at.copy(), run.end[rows]
        left = np.zeros(len(at), np.int64)  # items of the block, -1 after the last one
        going = np.arange(len(at))
        while len(going) > FEW_ITEMS:
            begins = left[going] == 0
            blocks, others = going[begins], going[~begins]
            left[blocks], at[blocks] = self._begin(run, at[blocks])
            if len(others):
                at[others] = self._item.skip(run, rows[others], at[others])
                left[others] -= 1
            going = going[(left[going] >= 0) & (at[going] <= end[going])]
        for row in going.tolist():
            go_on = partial(self._go_on, left=left.item(row))
            at[row] = _alone(run, go_on, end.item(row), at.item(row))
        return at

    def _begin(self, run: _Together, at: Integers) -> tuple[Integers, Integers]:
        """Return how many items the blocks have that are not skipped, -1 if there is no block, and where they begin."""
        code, at = run.source.codes(at, steady=False)
        count = np.minimum(_signed(code), _FAR)
        left = np.where(count == 0, -1, np.maximum(count, 0))
        if self._item.size is not None:
            at += left * (left > 0) * self._item.size
            np.putmask(left, left > 0, 0)
        sized = np.flatnonzero(count < 0)
        if len(sized):
            code, behind = run.source.codes(at[sized], steady=False)
            at[sized] = _beyond(behind, code)
        return left, at

    def skip_one(self, one: _One, at: int) -> int:
        return self._go_on(one, at, 0)

    def _go_on(self, one: _One, at: int, left: int) -> int:
        """Skip the items that are left of a block, and the further blocks."""
        skip_one, end, size = self._item.skip_one, one.end, self._item.size
        while True:
            for _ in range(left):
                at = skip_one(one, at)
                if at > end:
                    raise _Malformed
            left = 0
            code, at = one.code(at)
            if at > end:
                raise _Malformed
            if not code:
                return at
            if code & 1:
                length, at = one.size(at)
                at += length
            elif size is not None:
                at += (code >> 1) * size
            else:
                left = code >> 1


class _Recursive(_Type):
    """A type that is part of itself, off all paths: its data is skipped record by record.

    Each level begins behind the one around it, so that there are no more levels than bytes.
    """

    inner: _Type
    weight = 1

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        at = at.copy()
        for index, end in enumerate(run.end[rows].tolist()):
            at[index] = _alone(run, self.skip_one, end, at.item(index))
        return at

    def skip_one(self, one: _One, at: int) -> int:
        before = one.entered
        one.depth += self.weight
        if not before < at <= one.end or one.depth > MAX_RECURSION:
            raise _Malformed
        one.entered = at
        at = self.inner.skip_one(one, at)
        one.entered = before
        one.depth -= self.weight
        return at


class _Located(_Type):
    """A type at the end of paths, by its number among the leaves."""

    def __init__(self, inner: _Type, leaf: int, slots: Sequence[int]) -> None:
        self._inner, self._leaf, self._slots = inner, leaf, slots

    def skip(self, run: _Together, rows: Integers, at: Integers) -> Integers:
        for slot in self._slots:
            run.leaf[slot, rows] = self._leaf
            run.at[slot, rows] = at
        return self._inner.skip(run, rows, at)

    def skip_one(self, one: _One, at: int) -> int:
        for slot in self._slots:
            one.leaf[slot] = self._leaf
            one.at[slot] = at
        return self._inner.skip_one(one, at)


_Rest: TypeAlias = tuple[int, Path]
"""Number of a path, and what is left of it."""


class _Compiler:
    def __init__(self, public: Collection[int]) -> None:
        self._public = public
        self.leaves: list[tuple[Leaf, Sequence[int]]] = []
        self.has_items = False
        self._nodes = 0
        self._named: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._repeated: set[str] = set()
        self._symbols: dict[int, tuple[bytes | None, ...]] = {}  # by the identity of their list
        self._recursive: dict[str, _Recursive] = {}
        self._deepest = 0
        self._ends = 0  # paths that end around the type

    def type(self, schema: Any, paths: Sequence[_Rest], space: str = "", around: Path = ()) -> _Type:  # noqa: ANN401
        """Return a type in a name ``space``, given the paths from here and the names of the types around."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise UnusableSchema(f"it has more than {MAX_NODES} types")
        if len(around) > MAX_DEPTH:
            raise UnusableSchema(f"it is nested more than {MAX_DEPTH} deep")
        self._deepest = max(self._deepest, len(around))
        if isinstance(schema, list):
            branches = [self.type(each, paths, space, (*around, "")) for each in schema]
            return _Union(branches, steady=self._steady(paths))
        attributes = schema if isinstance(schema, dict) else {"type": schema}
        kind = attributes.get("type")
        if isinstance(kind, dict | list):
            return self.type(kind, paths, space, (*around, ""))
        if not isinstance(kind, str):
            raise UnusableSchema("a type has no name")
        if kind in {"array", "map"}:
            part = attributes.get("items" if kind == "array" else "values")
            with self._inside(paths):
                item = self.type(part, (), space, (*around, ""))
            self.has_items = True
            if kind == "map":
                item = _Sequence([_Bytes(steady=False), item])
            return self._at_end(_Items(item), Leaf(LeafKind.OTHER), paths)
        if kind in {"record", "error", "enum", "fixed"}:
            return self._definition(attributes, paths, space, around)
        return self._plain(kind, attributes, paths) or self._named_type(kind, paths, space, around)

    def _plain(self, kind: str, attributes: Mapping[str, Any], paths: Sequence[_Rest]) -> _Type | None:
        """Return a type without parts, None if it has a name of its own."""
        steady = self._steady(paths)
        if kind == "null":
            return _Fixed(0)
        if kind in _ENDS_OF_TYPES:
            size = _ENDS_OF_TYPES[kind]
            leaf = Leaf(LeafKind.BOOLEAN) if kind == "boolean" else Leaf(LeafKind.REAL, size)
            return self._at_end(_Fixed(size), leaf, paths)
        if kind in {"int", "long"}:
            return self._at_end(_Integer(steady=steady), Leaf(LeafKind.INTEGER), paths)
        if kind in {"string", "bytes"}:
            leaf = Leaf(LeafKind.TEXT) if kind == "string" else _decimal(attributes)
            return self._at_end(_Bytes(steady=steady), leaf, paths)
        return None

    def _steady(self, paths: Sequence[_Rest]) -> bool:
        return any(slot not in self._public for slot, _ in paths)

    def _at_end(self, found: _Type, leaf: Leaf, paths: Sequence[_Rest]) -> _Type:
        """Return a type that is noted where a path ends with it."""
        slots = [slot for slot, rest in paths if not rest]
        if not slots:
            return found
        self.leaves.append((leaf, slots))
        return _Located(found, len(self.leaves), slots)

    def _named_type(self, name: str, paths: Sequence[_Rest], space: str, around: Path) -> _Type:
        candidates = [name] if "." in name else [f"{space}.{name}", name]
        full = next((one for one in candidates if one in self._named), None)
        if full is None:
            raise UnusableSchema("it uses a type that it does not define")
        if full in self._repeated:
            raise UnusableSchema("it uses a type that it defines twice")
        definition, outer = self._named[full]
        if full not in around or (paths and all(rest for _, rest in paths)):
            return self._definition(definition, paths, outer, around)
        if self._ends or paths:
            raise UnusableSchema("it is recursive at or around the end of a path")
        if full not in self._recursive:
            self._recursive[full] = found = _Recursive()
            self.has_items = True
            deepest, self._deepest = self._deepest, len(around)
            found.inner = self._definition(definition, (), outer, around)
            found.weight += self._deepest - len(around)
            self._deepest = max(self._deepest, deepest)
        return self._recursive[full]

    @contextmanager
    def _inside(self, paths: Sequence[_Rest]) -> Iterator[None]:
        """Count the paths that end around the types inside."""
        ends = sum(not rest for _, rest in paths)
        self._ends += ends
        yield
        self._ends -= ends

    def _definition(
        self, attributes: Mapping[str, Any], paths: Sequence[_Rest], space: str, around: Path
    ) -> _Type:
        kind, name, outer, full = attributes["type"], attributes.get("name"), space, ""
        if isinstance(name, str) and name:
            prefix, dot, last = name.rpartition(".")
            if dot:
                space = prefix
            elif isinstance(attributes.get("namespace"), str):
                space = attributes["namespace"]
            full = f"{space}.{last}" if space else last
            if self._named.setdefault(full, (attributes, outer))[0] is not attributes:
                self._repeated.add(full)
        if kind in {"record", "error"}:
            with self._inside(paths):
                found = self._fields(attributes.get("fields"), paths, space, (*around, full))
            return self._at_end(found, Leaf(LeafKind.OTHER), paths)
        if kind == "enum":
            leaf = Leaf(LeafKind.ENUM, symbols=self._symbols_of(attributes) if paths else ())
            return self._at_end(_Integer(steady=self._steady(paths)), leaf, paths)
        size = attributes.get("size")
        if type(size) is not int or size < 0:
            raise UnusableSchema("a fixed type has no size")
        return self._at_end(_Fixed(size), _decimal(attributes, size), paths)

    def _symbols_of(self, attributes: Mapping[str, Any]) -> tuple[bytes | None, ...]:
        symbols = attributes.get("symbols")
        if not isinstance(symbols, list):
            return ()
        if id(symbols) not in self._symbols:
            self._symbols[id(symbols)] = tuple(map(_utf8, symbols))
        return self._symbols[id(symbols)]

    def _fields(self, fields: Any, paths: Sequence[_Rest], space: str, around: Path) -> _Type:  # noqa: ANN401
        if not isinstance(fields, list) or not all(isinstance(each, dict) for each in fields):
            raise UnusableSchema("a record has no fields")
        names = [each.get("name") for each in fields]
        inner = {
            name: [(slot, rest[1:]) for slot, rest in paths if rest and rest[0] == name]
            for name in {rest[0] for _, rest in paths if rest}
        }
        if any(names.count(name) > 1 for name in inner):
            raise UnusableSchema("two fields have one name")
        return _Sequence(
            self.type(each.get("type"), inner.get(name, ()) if isinstance(name, str) else (), space, around)
            for each, name in zip(fields, names, strict=True)
        )


def _decimal(attributes: Mapping[str, Any], size: int | None = None) -> Leaf:
    """Return the leaf of bytes, or of ``size`` bytes."""
    scale, precision = attributes.get("scale", 0), attributes.get("precision")
    is_decimal = attributes.get("logicalType") == "decimal" and type(scale) is int and 0 <= scale <= MAX_SCALE
    if not is_decimal or size == 0:
        return Leaf(LeafKind.OTHER)
    if size is not None:
        return Leaf(LeafKind.DECIMAL, min(size, _LARGEST), scale, min(-(-size // 8), _WORDS))
    bits = 64 * _WORDS
    if type(precision) is int and 0 < precision < bits:
        bits = int(precision * _BITS_A_DIGIT) + 2
    return Leaf(LeafKind.DECIMAL, 0, scale, min(-(-bits // 64), _WORDS))


def _utf8(symbol: object) -> bytes | None:
    return symbol.encode() if isinstance(symbol, str) else None


class TextColumn(NamedTuple):
    """Texts at a path, slices of the source's `buffer`; a length of -1 stands for none, ``is_bad`` for no valid one."""

    start: Integers
    length: Integers
    is_bad: Mask


class Located:
    """Where records have data at some paths; nothing, where they are malformed.

    Attributes:
        is_valid: Mask of the records that are not malformed.
    """

    def __init__(
        self, source: Source, leaves: Sequence[tuple[Leaf, Sequence[int]]], is_valid: Mask,
        leaf: NDArray[np.uint16], at: Integers,
    ) -> None:  # fmt: skip
        self.is_valid = is_valid
        self._source, self._leaves, self._leaf, self._at = source, leaves, leaf, at
        leaf *= is_valid

    def _found(self, slot: int) -> Iterator[tuple[Leaf, Integers, Integers]]:
        """Yield each type at the end of a path, the rows that have it, which may be none, and where it is."""
        for number, (leaf, slots) in enumerate(self._leaves, 1):
            if slot in slots:
                rows = np.flatnonzero(self._leaf[slot] == number)
                yield leaf, rows, self._at[slot, rows]

    @property
    def buffer(self) -> bytes:
        """The buffer of the texts that were asked for."""
        return self._source.buffer

    def leaves(self, slot: int) -> list[Leaf]:
        """Return the types other than null that the schema has at a path."""
        return [leaf for leaf, slots in self._leaves if slot in slots]

    def finite(self, slot: int) -> Mask:
        """Return a mask of the records that have a finite number at a path."""
        found = np.zeros(len(self.is_valid), np.bool_)
        for leaf, rows, at in self._found(slot):
            if leaf.kind is LeafKind.INTEGER:
                found[rows] = ~self._source.integers(at)[1]
            elif leaf.kind is LeafKind.REAL:
                found[rows] = np.isfinite(self._floats(leaf, at))
            elif leaf.kind is LeafKind.DECIMAL:
                found[rows] = True
        return found

    def numbers(self, slot: int) -> decimals.Columns:
        """Return the numbers at a path; anything else there, or nothing, is no number.

        Every type that the schema has there takes its steps, also where no record has it.
        """
        # The last row stands for a record of each type.
        whole = np.full(len(self.is_valid) + 1, decimals.NO_NUMBER[0], np.int64)
        fraction = np.full(len(self.is_valid) + 1, decimals.NO_NUMBER[1], np.int64)
        for leaf, some, at in self._found(slot):
            if leaf.kind in _NUMBERS:
                rows = np.append(some, len(self.is_valid))
                whole[rows], fraction[rows] = _NUMBERS[leaf.kind](self, leaf, np.append(at, _IN_MARGIN))
        return whole[:-1], fraction[:-1]

    def _integers(self, leaf: Leaf, at: Integers) -> decimals.Columns:
        del leaf
        integers, is_odd = self._source.integers(at)
        whole = np.where(is_odd, decimals.NO_NUMBER[0], decimals.integers(integers))
        return whole, np.zeros(len(at), np.int64)

    def _reals(self, leaf: Leaf, at: Integers) -> decimals.Columns:
        return decimals.doubles(self._floats(leaf, at))

    def _floats(self, leaf: Leaf, at: Integers) -> NDArray[np.floating]:
        words = self._source.words(at)
        return words.view(np.float64) if leaf.size == 8 else words.astype(np.uint32).view(np.float32)

    def _decimals(self, leaf: Leaf, at: Integers) -> decimals.Columns:
        source = self._source
        if leaf.size:
            length = np.full(len(at), leaf.size)
        else:
            code, at = source.codes(at, steady=True)
            length = code >> 1
        stop = at + length
        words = np.empty((len(at), leaf.words), np.int64)
        minus = -((length > 0) & (source.bytes_at(at) > _LOW)).astype(np.int64)
        for word in range(leaf.words):  # the last bytes first: those are the least ones
            more = source.words(stop - 8 * (word + 1)).byteswap().view(np.int64)
            left = length - 8 * word
            unused = 64 - 8 * np.clip(left, 1, 8)
            words[:, word] = np.where(left > 0, more << unused >> unused, minus)
        whole, fraction = decimals.decimals(words.view(np.uint32), leaf.scale)
        for row in np.flatnonzero(length > 8 * leaf.words).tolist():
            unscaled = source.data[at.item(row) : stop.item(row)]
            whole[row], fraction[row] = decimals.long_decimal(unscaled, leaf.scale)
        return whole, fraction

    def texts(self, slot: int, longest: int) -> TextColumn:
        """Return the texts at a path, of 1 to ``longest`` characters; also of integers, booleans and enums."""
        count = len(self.is_valid)
        start, length = np.zeros(count, np.int64), np.full(count, -1, np.int64)
        is_bad = np.zeros(count, np.bool_)
        for leaf, rows, at in self._found(slot):
            if not len(rows):
                continue
            if leaf.kind is LeafKind.TEXT:
                code, start[rows] = self._source.codes(at, steady=False)
                length[rows] = code >> 1
            elif (found := self._written(leaf, at)) is not None:
                start[rows], length[rows] = found
            is_bad[rows] = length[rows] < 1
        self._check(start, length, is_bad, longest)
        length[is_bad] = -1
        return TextColumn(start, length, is_bad)

    def _written(self, leaf: Leaf, at: Integers) -> tuple[Integers, Integers] | None:
        """Return the texts of data that are none in the records, None for those that have no text."""
        source = self._source
        if leaf.kind is LeafKind.BOOLEAN:
            which = source.bytes_at(at).astype(np.int64)
            texts = [b"false", b"true", b""]
        elif leaf.kind is LeafKind.ENUM:
            which, is_odd = source.integers(at)
            texts = [*(symbol or b"" for symbol in leaf.symbols), b""]
            which = np.where(is_odd | (which < 0), len(texts), which)
        elif leaf.kind is LeafKind.INTEGER:
            which, is_odd = source.integers(at)
            texts = [str(one).encode() for one in which.tolist()]
            texts += [b""]
            which = np.where(is_odd, len(texts), np.arange(len(at)))
        else:
            return None
        which = np.minimum(which, len(texts) - 1)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        starts = source.add(b"".join(texts)) + np.cumsum(sizes) - sizes
        return starts[which], sizes[which]

    def _check(self, start: Integers, length: Integers, is_bad: Mask, longest: int) -> None:
        """Mark texts that are too long, or no UTF-8."""
        is_bad |= length > _CHARACTER * longest
        is_wide = np.zeros(len(length), np.bool_)
        buffer = self._source.buffer
        rows = np.flatnonzero(~is_bad & (length > 0))
        if len(rows) <= decimals.SINGLES:
            is_wide[rows] = True
            rows = rows[:0]
        for first in range(0, int(length[rows].max(initial=0)), 8):
            rows = rows[length[rows] > first]
            words = first_words(buffer, start[rows] + first, length[rows] - first)
            is_wide[rows] |= (words & _HIGHS) != 0
        is_bad |= ~is_wide & (length > longest)
        for row in np.flatnonzero(is_wide).tolist():
            begin = start.item(row)
            try:
                is_bad[row] = len(buffer[begin : begin + length.item(row)].decode()) > longest
            except UnicodeDecodeError:
                is_bad[row] = True


_NUMBERS: Final = {
    LeafKind.INTEGER: Located._integers,  # noqa: SLF001  the table of its own methods
    LeafKind.REAL: Located._reals,  # noqa: SLF001
    LeafKind.DECIMAL: Located._decimals,  # noqa: SLF001
}


class RecordSchema:
    """A writer's schema of records, and the paths at which their data is read; raises `UnusableSchema`.

    What takes time is the same whatever stands at a path, as far as that is possible, except at those that are
    ``public``, by their indexes: these take less time.

    Attributes:
        leaves: For each path, the types other than null that stand there; none, where the schema does not have it.
        has_items: Whether there are arrays or maps whose items must be counted.
    """

    def __init__(self, text: str | bytes, paths: Sequence[Path], public: Collection[int] = ()) -> None:
        compiler = _Compiler(public)
        try:
            schema = msgspec.json.decode(text)
            self._type = compiler.type(schema, list(enumerate(paths)))
        except (msgspec.DecodeError, RecursionError):
            raise UnusableSchema("it is not JSON") from None
        if not isinstance(self._type, _Sequence | _Union):
            raise UnusableSchema("it is not a record, or a union of some")
        self._slots, self._leaves, self.has_items = len(paths), compiler.leaves, compiler.has_items
        self.leaves = [
            [leaf for leaf, slots in compiler.leaves if slot in slots] for slot in range(len(paths))
        ]

    def locate(self, source: Source, rows: Integers) -> Located:
        """Return where the data at the paths is, in the records of a source whose indexes are ``rows``."""
        start, end, count = source.start[rows], source.end[rows], len(rows)
        leaf, at = np.zeros((self._slots, count), np.uint16), np.zeros((self._slots, count), np.int64)
        is_valid = np.zeros(count, np.bool_)
        if count <= FEW:
            for row, (first, last) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
                one = _One(source.data, last, self._slots)
                with suppress(_Malformed, IndexError):
                    is_valid[row] = self._type.skip_one(one, first) == last
                if is_valid[row]:
                    leaf[:, row], at[:, row] = one.leaf, one.at
        else:
            for first in range(0, count, decimals.CHUNK):
                here = slice(first, first + decimals.CHUNK)
                run = _Together(source, end[here], leaf[:, here], at[:, here])
                stop = self._type.skip(run, np.arange(len(run.end)), start[here])
                is_valid[here] = stop == run.end
        return Located(source, self._leaves, is_valid, leaf, at)
