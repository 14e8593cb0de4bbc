"""What a successor takes over from an application that was closed: the file that ``stream-svt carry-over`` writes.

One JSON document a line: a head, then one dataset a line. Amounts are exact decimal texts in the dataset's measure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import msgspec

from stream_svt.privacy.loss import Kind, as_text, exact, to_loss, to_units
from stream_svt.settings.changes import Declared

FORMAT = 1
DIGEST_LETTERS = 16
_KINDS = {kind.measure: kind for kind in Kind}


class _Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sensitivity: str
    monotonic: bool


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    carry_over: int
    application: str
    cluster: str
    alerts: str
    successor: str
    complete: bool
    topics: dict[str, _Topic]
    watermarks: dict[str, int]
    datasets: int


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    unit: str
    measure: str
    declared: str
    limit: str
    spent: str


@dataclass(frozen=True, slots=True)
class Balance:
    """What is known of one dataset's ledger; amounts in ledger units, ``spent`` at most ``limit``.

    ``declared`` is the limit that the application declared, before commands raised it.
    """

    unit: str
    kind: Kind
    declared: int
    limit: int
    spent: int


@dataclass(frozen=True, slots=True)
class Carried:
    """All balances of an application.

    Attributes:
        application, cluster, alerts: Whose they are; cluster id and alert topic say where that was read.
        successor: The one application that may go on with them.
        complete: Whether every dataset that ever spent anything is among them.
        topics: What was ever declared about the answers on each query topic.
        datasets: By name.
        watermarks: By pattern of a generator, the end of the last period that had begun: it is over for the
            successor.
    """

    application: str
    cluster: str
    alerts: str
    successor: str
    complete: bool
    topics: Mapping[str, Declared]
    datasets: Mapping[str, Balance]
    watermarks: Mapping[str, int] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file."""
        topics = {
            topic: _Topic(str(declared.sensitivity), not declared.general)
            for topic, declared in sorted(self.topics.items())
        }
        head = _Head(
            FORMAT,
            self.application,
            self.cluster,
            self.alerts,
            self.successor,
            self.complete,
            topics,
            dict(sorted(self.watermarks.items())),
            len(self.datasets),
        )
        yield msgspec.json.encode(head).decode()
        for name, balance in sorted(self.datasets.items()):
            amounts = (
                as_text(units, balance.kind) for units in (balance.declared, balance.limit, balance.spent)
            )
            line = _Line(name, balance.unit, balance.kind.measure, *amounts)
            yield msgspec.json.encode(line).decode()

    @property
    def digest(self) -> str:
        """Short digest of the content: the state of every shard of the successor names it."""
        found = hashlib.sha256()
        for line in self.lines():
            found.update(line.encode() + b"\n")
        return found.hexdigest()[:DIGEST_LETTERS]


def parse(lines: Sequence[str]) -> Carried:
    """Return the content of a file.

    Raises:
        ValueError: It is none, or lines are missing; the message names the line.
    """
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError("it is empty: 'stream-svt carry-over' writes it")
    try:
        head = msgspec.json.decode(found[0], type=_Head)
        if head.carry_over != FORMAT:
            raise ValueError(f"line 1: it has format {head.carry_over}, this version reads {FORMAT}")
        topics = {
            topic: Declared(_sensitivity(declared.sensitivity), not declared.monotonic)
            for topic, declared in head.topics.items()
        }
    except msgspec.DecodeError as error:
        raise ValueError(f"line 1: {error}: 'stream-svt carry-over' writes it") from None
    if len(found) - 1 != head.datasets:
        raise ValueError(
            f"it has {len(found) - 1} datasets and says {head.datasets}: lines are missing, or were added"
        )
    datasets = dict(_balances(found[1:]))
    if len(datasets) != head.datasets:
        raise ValueError("a dataset has two lines")
    return Carried(
        head.application,
        head.cluster,
        head.alerts,
        head.successor,
        head.complete,
        topics,
        datasets,
        head.watermarks,
    )


def _balances(lines: Iterable[str]) -> Iterator[tuple[str, Balance]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, start=2):
        try:
            line = decoder.decode(text)
            kind = _KINDS[line.measure]
            declared, limit, spent = (_units(text, kind) for text in (line.declared, line.limit, line.spent))
        except KeyError:
            raise ValueError(f"line {number}: unknown measure {line.measure!r}") from None
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        if not (0 <= spent <= limit and 0 < declared <= limit):
            raise ValueError(f"line {number}: expected 0 <= spent <= limit and 0 < declared <= limit")
        yield line.name, Balance(line.unit, kind, declared, limit, spent)


@lru_cache(maxsize=10_000)
def _units(text: str, kind: Kind) -> int:
    """Return an amount in ledger units; of hundreds of thousands, few differ."""
    amount = exact(text)
    units = to_units(amount, kind)
    if to_loss(units, kind) != amount:
        raise ValueError(f"{text} has more digits than a ledger keeps")
    return units


def _sensitivity(text: str) -> Fraction:
    found = exact(text)
    if found <= 0:
        raise ValueError(f"line 1: a sensitivity is greater than 0, found {text}")
    return found
