"""What a successor takes over from a closed application, and the file that it travels in.

The file has one JSON document a line, in ASCII: a head, then a line for each dataset with its balance, for each shard
with its positions, and for the series that a monitor has muted on a dataset. The last line has a digest of the others:
a file that was changed or cut off is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stream_svt.mechanisms.numbers import exact
from stream_svt.privacy.ledger import MAX_UNITS
from stream_svt.privacy.loss import KINDS, amount_text
from stream_svt.settings import fields
from stream_svt.settings.datasets import (
    Balance,
    DatasetDeclaration,
    DatasetSpec,
    Generator,
    generator_pattern,
)
from stream_svt.settings.document import quote
from stream_svt.settings.monitors import Declared, MonitorSpec
from stream_svt.settings.periods import END_OF_TIME_MS, is_over, length_ms, period_at, period_end, written

SERIES_IN_LINE = 1_000
"""Muted series in a line of the file: a shard takes one line over between two commits."""
_WRITE_AGAIN = "run 'stream-svt carry-over' again, and leave the file as it writes it"

_Whole = Annotated[int, Meta(ge=0, le=2**62)]
_Units = Annotated[int, Meta(ge=0, le=MAX_UNITS)]
_Time = Annotated[int, Meta(ge=0, le=fields.LAST_MS)]
_Ends = Annotated[
    list[tuple[str, Annotated[int, Meta(ge=-1, le=fields.LAST_MS)]]],
    Meta(min_length=1, max_length=SERIES_IN_LINE),
]
"""Series with the ends of their mutes: a clock, or -1 for that of the dataset's period."""


class MonitorPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a monitor stopped on a partition of its topic, whose id is ``topic_id``, where brokers have ids.

    ``clock_ms`` is the largest timestamp that it has read.
    """

    topic: str
    offset: _Whole
    row: _Whole
    clock_ms: _Time
    topic_id: str = ""


class _DatasetLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="line", tag="dataset"):
    name: str
    unit: str
    measure: Literal["epsilon", "rho"]
    declared: _Units
    limit: _Units
    spent: _Units


class _ShardLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="line", tag="positions"):
    shard: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    monitors: dict[str, MonitorPosition]


class MutedSeries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="line", tag="mutes"):
    """Series that a monitor has muted on a dataset, kept encoded: most workers never use them."""

    dataset: str
    monitor: str
    series: msgspec.Raw

    @classmethod
    def of(cls, dataset: str, monitor: str, ends: Mapping[str, int]) -> Iterator[MutedSeries]:
        """Yield lines for series with the ends of their mutes, oldest first: see `_Ends`."""
        pairs = list(ends.items())
        for start in range(0, len(pairs), SERIES_IN_LINE):
            part = _encoded(pairs[start : start + SERIES_IN_LINE])
            yield cls(dataset, monitor, msgspec.Raw(part.encode()))

    @property
    def ends(self) -> list[tuple[str, int]]:
        """The series with the ends of their mutes, oldest first."""
        return msgspec.json.decode(self.series, type=_Ends)


class _EndLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="line", tag="end"):
    digest: str


_Line = _DatasetLine | _ShardLine | MutedSeries | _EndLine


class _Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The closed application, the cluster and alert topic that it was read from, and its one ``successor``.

    ``complete``: whether every dataset that ever spent anything is included. By pattern of a generator,
    ``watermarks`` are the end of the last period that is over, and ``begun`` the end of the last one that had begun: of
    the periods between, only the datasets in the file go on.
    """

    application: str
    cluster: str
    alerts: str
    successor: str
    complete: bool
    topics: dict[str, Declared]
    watermarks: dict[str, int]
    begun: dict[str, int]


class _Head(_Origin, frozen=True, forbid_unknown_fields=True, tag_field="carry_over", tag=1):
    pass


class Carried(_Origin, frozen=True, dict=True):
    """What a successor takes over: balances by dataset, positions by shard and monitor, and muted series."""

    datasets: dict[str, Balance]
    positions: dict[int, dict[str, MonitorPosition]] = {}
    mutes: tuple[MutedSeries, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file."""
        yield from self._content()
        yield _encoded(_EndLine(self.digest))

    def _content(self) -> Iterator[str]:
        yield _encoded(_Head(**{name: getattr(self, name) for name in _Origin.__struct_fields__}))
        for name, one in sorted(self.datasets.items()):
            amounts = (one.declared, one.limit, one.spent)
            yield _encoded(_DatasetLine(name, one.unit, one.kind.measure, *amounts))
        for shard, monitors in sorted(self.positions.items()):
            yield _encoded(_ShardLine(shard, monitors))
        yield from map(_encoded, self.mutes)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits of the content, stored in the state of every shard of the successor; "" for nothing."""
        content = "".join(f"{line}\n" for line in self._content())
        return hashlib.sha256(content.encode()).hexdigest()[:16] if self.application else ""

    def has_ended(self, name: str) -> bool:
        """Return whether a name is of a period that had begun and does not continue."""
        return name not in self.datasets and is_over(name, self.begun)

    def continued(self, declaration: DatasetDeclaration) -> tuple[Iterator[DatasetSpec], Generator | None]:
        """Return the datasets of a declaration with their balances, and the generator of one without an end.

        Both raise ValueError if a dataset cannot be declared so.
        """
        for pattern in self.begun if declaration.generate else ():
            if written(pattern) == declaration.generate and pattern != declaration.pattern:
                message = f"periods of {quote(declaration.generate)} had another length or begin in"
                remedy = "keep its every and from, or give these datasets another name"
                raise ValueError(f"{message} {self.application!r}: {remedy}")
        found, generator = declaration.expand()
        if generator is None:
            return self._with_balances(found, new=declaration.new), None
        begun = 0 if declaration.new else self.begun.get(generator.pattern, 0)
        generator = replace(generator, begun_ms=begun, balances=self.datasets)
        ends = {end for name in self.datasets if (end := period_end(generator.pattern, name)) is not None}
        running = (end - length_ms(generator.pattern) for end in sorted(ends) if end > generator.from_ms)
        for one in chain.from_iterable(map(generator.named, running)):
            if one.name in self.datasets:
                self._require(one, new=declaration.new)
        return self._with_balances(found, new=declaration.new, ended=True), generator

    def _with_balances(
        self, found: Iterable[DatasetSpec], *, new: bool, ended: bool = False
    ) -> Iterator[DatasetSpec]:
        """Yield datasets with their balances; datasets of periods that are over only if ``ended``."""
        for dataset in found:
            self._require(dataset, new=new)
            if ended or new or not self.has_ended(dataset.name):
                known = self.datasets.get(dataset.name)
                yield dataset if known is None else known.continued(dataset)

    def _require(self, dataset: DatasetSpec, *, new: bool) -> None:
        """Raise ValueError if a dataset cannot be declared so, because of unknown spending or earlier terms."""
        terms = dataset.terms
        name, before = f"dataset {quote(dataset.name)}", repr(self.application)
        known = self.datasets.get(dataset.name)
        why = ""
        if self.has_ended(dataset.name):
            if not terms.pattern:
                began = f"had begun when {before} was closed: it cannot be opened again"
                why = f"{name} has the name of a period that {began}"
        elif known is None:  # the periods of a generator that is no longer declared may be unknown
            if not (self.complete or new or terms.pattern in self.begun):
                why = (
                    f"{name} is not in the carried-over file, and alerts of {before} are missing, so its spending is "
                    "unknown. Write new: true if it was never declared there"
                )
        elif new:
            why = f"{name} is not new: {before} declared it. Remove new"
        elif terms.unit != known.unit:
            why = f"{name} must keep its privacy unit {quote(known.unit)}"
        elif terms.kind is not known.kind or terms.limit not in (known.declared, known.limit):
            limit = amount_text(known.limit, known.kind)
            remedy = "'stream-svt control raise-budget' raises it"
            if terms.pattern:
                remedy = (
                    "for a later period give the generator an until, and declare it a second time from there"
                )
            why = f"{name} must keep its limit {limit}, of which a part may be spent: {remedy}"
        if why:
            raise ValueError(why)

    def offsets(self, topic: str) -> dict[int, int]:
        """Return where the first monitor of a topic stopped, by shard."""
        found = {
            shard: [known.offset for known in monitors.values() if known.topic == topic]
            for shard, monitors in sorted(self.positions.items())
        }
        return {shard: min(offsets) for shard, offsets in found.items() if offsets}

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of topics, by topic, as far as they are known."""
        every = (one for monitors in self.positions.values() for one in monitors.values())
        return {one.topic: one.topic_id for one in every if one.topic_id}

    def undercut(self, monitor: MonitorSpec) -> dict[str, str]:
        """Return the fields of a monitor that declare less than earlier ones of its topic, each with a remedy."""
        if (declared := self.topics.get(monitor.topic)) is not None:
            return declared.undercut(monitor)
        if self.complete:
            return {}
        unknown = (
            f"topic {quote(monitor.topic)} is not in the carried-over file, and alerts of {self.application!r} are "
            "missing. Declare a monitor on the topic, with the largest sensitivity it ever had, in the earlier "
            "application's configuration, and run carry-over again"
        )
        return {"topic": unknown}


NOTHING = Carried("", "", "", "", True, {}, {}, {}, {})
"""Nothing is taken over."""


def _encoded(part: Any) -> str:  # noqa: ANN401  what JSON can hold
    """Return a part of the file in ASCII: names from outside may hold separators of lines and of terminals."""
    text = msgspec.json.encode(part, enc_hook=str, order="deterministic").decode()
    return text if text.isascii() else json.dumps(json.loads(text), separators=(",", ":"))


def parse(lines: Sequence[str]) -> Carried:
    """Return the content of a file that ``stream-svt carry-over`` wrote; ValueError names an invalid line."""
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError("the file is empty: run 'stream-svt carry-over' again")
    head = _head(found[0])
    datasets: dict[str, Balance] = {}
    positions: dict[int, dict[str, MonitorPosition]] = {}
    mutes: list[MutedSeries] = []
    digest = ""
    for number, line in _decoded(found[1:]):
        if digest:
            raise ValueError(f"line {number}: it follows the last one: {_WRITE_AGAIN}")
        if isinstance(line, _DatasetLine):
            datasets[line.name] = _balance(line, number, datasets)
        elif isinstance(line, MutedSeries):
            if line.dataset not in datasets:
                raise ValueError(f"line {number}: no line before has dataset {quote(line.dataset)}")
            mutes.append(line)
        elif isinstance(line, _EndLine):
            digest = line.digest
        elif line.shard in positions:
            raise ValueError(f"line {number}: a shard occurs twice")
        else:
            positions[line.shard] = line.monitors
    origin = {name: getattr(head, name) for name in _Origin.__struct_fields__}
    carried = Carried(**origin, datasets=datasets, positions=positions, mutes=tuple(mutes))
    if not digest:
        raise ValueError(f"the file is cut off, its last line is missing: {_WRITE_AGAIN}")
    if digest != carried.digest:
        raise ValueError(f"the file was changed after it was written: {_WRITE_AGAIN}")
    return carried


def _head(text: str) -> _Head:
    try:
        head = msgspec.json.decode(text, type=_Head, dec_hook=lambda _, amount: exact(amount))
        if not head.application:
            raise ValueError("the application has no name")
        if any(declared.sensitivity <= 0 for declared in head.topics.values()):
            raise ValueError("a sensitivity must be greater than 0")
        for pattern, begun in head.begun.items():
            generator_pattern(written(pattern))
            is_end = 0 < begun <= END_OF_TIME_MS and period_at(pattern, begun)[0] == begun
            if not is_end or not 0 <= head.watermarks.get(pattern, 0) <= begun:
                raise ValueError(f"begun and watermarks of {quote(pattern)} must be ends of its periods")
        if not head.watermarks.keys() <= head.begun.keys():
            raise ValueError("a generator has a watermark, and none of its periods has begun")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"line 1: {error}: run 'stream-svt carry-over' of this version again") from None
    return head


def _decoded(lines: Iterable[str]) -> Iterator[tuple[int, _Line]]:
    """Yield the lines behind the head with their numbers; ValueError names an invalid one."""
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, start=2):
        try:
            line = decoder.decode(text)
            if isinstance(line, MutedSeries):
                line.ends  # noqa: B018  decoded for its errors
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from None
        yield number, line


def _balance(line: _DatasetLine, number: int, known: Container[str]) -> Balance:
    try:
        if fields.dataset_name(line.name) in known:
            raise ValueError("a dataset occurs twice")
        if not (line.spent <= line.limit and 0 < line.declared <= line.limit):
            raise ValueError("expected spent <= limit and 0 < declared <= limit")
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
    return Balance(line.unit, KINDS[line.measure], line.declared, line.limit, line.spent)
