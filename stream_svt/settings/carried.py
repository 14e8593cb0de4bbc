"""What a successor takes over from an application that was closed: the file that ``stream-svt carry-over`` writes.

One JSON document a line: a head, then one dataset a line. Amounts are exact decimal texts in the dataset's measure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

import msgspec
from msgspec import structs

from stream_svt.privacy.loss import KINDS, Kind, as_text, exact, to_loss, to_units
from stream_svt.settings.datasets import DatasetSpec, is_over, period_end
from stream_svt.settings.document import quote
from stream_svt.settings.monitors import Declared, MonitorSpec


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    unit: str
    measure: Literal["epsilon", "rho"]
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


class _Whose(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where balances come from and who may go on with them.

    Attributes:
        application, cluster, alerts: Whose they are; cluster id and alert topic say where that was read.
        successor: The one application that may go on with them.
        complete: Whether every dataset that ever spent anything is among them.
        topics: By name.
        watermarks: By pattern of a generator, the end of the last period that is over for the successor.
    """

    application: str
    cluster: str
    alerts: str
    successor: str
    complete: bool
    topics: dict[str, Declared]
    watermarks: dict[str, int]


class _Head(_Whose, frozen=True, forbid_unknown_fields=True, tag_field="carry_over", tag=1):
    datasets: int


class Carried(_Whose, frozen=True, dict=True):
    """All balances of an application, by the name of the dataset."""

    datasets: dict[str, Balance]

    def lines(self) -> Iterator[str]:
        """Yield the lines of the file."""
        head = _Head(**structs.asdict(self) | {"datasets": len(self.datasets)})
        yield msgspec.json.encode(head, enc_hook=str, order="deterministic").decode()
        for name, one in sorted(self.datasets.items()):
            amounts = (as_text(units, one.kind) for units in (one.declared, one.limit, one.spent))
            yield msgspec.json.encode(_Line(name, one.unit, one.kind.measure, *amounts)).decode()

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits for the content, which the state of every shard of the successor names; "" for nothing."""
        if not self.application:
            return ""
        content = "".join(f"{line}\n" for line in self.lines())
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def contradiction(self, dataset: DatasetSpec, *, new: bool) -> str:
        """Return why a dataset cannot be declared so, such as that nobody knows what was spent of it; "" if it can."""
        name, before = f"dataset {quote(dataset.name)}", repr(self.application)
        if is_over(dataset.name, self.watermarks):
            began = f"had begun when {before} was closed: nobody opens it again"
            return "" if dataset.pattern else f"{name} has the name of a period that {began}"
        known = None if dataset.pattern else self.datasets.get(dataset.name)
        if known is None:  # of a generator that was declared no longer, no period is known to be over
            missing = (
                f"{name} is not in the file carried over, and alerts of {before} are missing: nobody knows what was "
                "spent of it. Write new: true where it was never declared there"
            )
            return "" if self.complete or new or dataset.pattern in self.watermarks else missing
        if new:
            return f"{name} is not new: {before} had it"
        if dataset.unit != known.unit:
            return f"{name} had the privacy unit {quote(known.unit)}: write that"
        if dataset.kind is not known.kind or dataset.limit not in (known.declared, known.limit):
            limit = f"{known.kind.measure} {as_text(known.limit, known.kind)}"
            return f"{name} had the limit {limit}, of which it spent a part: write that"
        return ""

    def joined(self, dataset: DatasetSpec) -> DatasetSpec:
        """Return a dataset with what was spent of it before."""
        known = None if dataset.pattern else self.datasets.get(dataset.name)
        return dataset if known is None else replace(dataset, limit=known.limit, spent_before=known.spent)

    def undercut(self, monitor: MonitorSpec) -> dict[str, str]:
        """Return the fields of a monitor that declare less of its topic than was known before, each with what to do."""
        if (declared := self.topics.get(monitor.topic)) is not None:
            return declared.undercut(monitor)
        if self.complete:
            return {}
        unknown = (
            f"topic {quote(monitor.topic)} is not in the file carried over, and alerts of {self.application!r} are "
            "missing: nobody knows the largest sensitivity that its answers had. Declare a monitor on it with that "
            "sensitivity in the configuration that is carried over, and write the file again"
        )
        return {"topic": unknown}

    def begun_again(self, pattern: str) -> str:
        """Return what of the past a generator of a pattern would begin anew; "" if nothing."""
        for name, balance in self.datasets.items():
            if balance.spent and period_end(pattern, name) and not is_over(name, self.watermarks):
                return f"{self.application!r} spent on dataset {quote(name)}, which this would begin anew"
        return ""


NOTHING = Carried("", "", "", "", True, {}, {}, {})
"""Nothing is taken over."""


def parse(lines: Sequence[str]) -> Carried:
    """Return the content of a file.

    Raises:
        ValueError: It is none, or lines are missing; the message names the line.
    """
    found = [line for line in lines if line.strip()]
    if not found:
        raise ValueError("it is empty: 'stream-svt carry-over' writes it")
    try:
        head = msgspec.json.decode(found[0], type=_Head, dec_hook=lambda _, text: exact(text))
    except msgspec.DecodeError as error:
        raise ValueError(f"line 1: {error}: 'stream-svt carry-over' of this version writes it") from None
    if len(found) - 1 != head.datasets:
        raise ValueError(
            f"it has {len(found) - 1} datasets and says {head.datasets}: lines are missing, or were added"
        )
    if any(declared.sensitivity <= 0 for declared in head.topics.values()):
        raise ValueError("line 1: a sensitivity is greater than 0")
    datasets = dict(_balances(found[1:]))
    if len(datasets) != head.datasets:
        raise ValueError("a dataset has two lines")
    return Carried(**structs.asdict(head) | {"datasets": datasets})


def _balances(lines: Iterable[str]) -> Iterator[tuple[str, Balance]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, text in enumerate(lines, start=2):
        try:
            line = decoder.decode(text)
            kind = KINDS[line.measure]
            declared, limit, spent = (_units(text, kind) for text in (line.declared, line.limit, line.spent))
            if not (0 <= spent <= limit and 0 < declared <= limit):
                raise ValueError("expected 0 <= spent <= limit and 0 < declared <= limit")
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
        yield line.name, Balance(line.unit, kind, declared, limit, spent)


@lru_cache(maxsize=10_000)
def _units(text: str, kind: Kind) -> int:
    """Return an amount in ledger units; of hundreds of thousands, few differ."""
    amount = exact(text)
    units = to_units(amount, kind)
    if to_loss(units, kind) != amount:
        raise ValueError(f"{text} has more digits than a ledger keeps")
    return units
