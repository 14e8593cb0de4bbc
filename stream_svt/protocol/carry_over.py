"""The rest of each budget of a closed application, computed from its alert partitions.

A shard closed by its owner has published a balance of every dataset, proved with its sealing key: those balances count.
For any other shard all events are read, uncommitted ones included, and the highest sum of spent and reserved counts as
spent for each dataset: the start of a run is published before its outcomes, so unpublished outcomes cannot cost more.
Where events may be missing, the budget that they could have charged counts as spent.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from stream_svt.errors import StreamSvtError
from stream_svt.monitor.released import (
    LARGEST_SEQUENCE,
    Account,
    Envelope,
    EventType,
    Lifecycle,
    decode,
    proved_content,
)
from stream_svt.privacy.ledger import MAX_UNITS
from stream_svt.privacy.loss import KINDS, Kind, as_text
from stream_svt.protocol.records import Record
from stream_svt.protocol.state_records import Closed
from stream_svt.settings.application import ApplicationSpec, Balance, Carried
from stream_svt.settings.datasets import is_over, period_at, period_end
from stream_svt.settings.monitors import Declared

_EXACT = 2**50
"""Units up to which a released amount is exact; larger amounts are rounded up by a few units."""
SOON_MS = 600_000
"""Milliseconds that a query may be stamped ahead of its worker's clock."""


class CarryOverRefused(StreamSvtError):
    """An application cannot be carried over; nothing was written."""


@dataclass(slots=True)
class Shown:
    """What the events of one dataset show, in ledger units.

    ``highest`` is the most ever spent and reserved; ``last`` is the number of the newest event. ``balance`` are the
    final amount spent and the limit, if the owner proved them.
    """

    kind: Kind
    unit: str = ""
    highest: int = 0
    limit: int = 0
    last: int = 0
    balance: tuple[int, int] | None = None


@dataclass(slots=True)
class ShardHistory:
    """The alert partition of one shard: a pass over all its records in order of offsets, uncommitted ones included.

    Attributes:
        is_proved: Tells whether a proof fits a content (see `stream_svt.protocol.sealing.proof_checker`).
        closed: How the shard was closed: by its state, or by a proved event of its owner. Later events are ignored if
            that event is proved; otherwise they can only add to what counts as spent.
        gap: Number of the first event after the last gap: earlier events may be missing. 0 if there is no gap; larger
            than every number if later events may be missing, too.
        conflict: Whether the events belong to different histories: two origins of one number, or two states.
        partitions, partitioner, cluster: From the first event of the state; 0 and "" if it is missing.
        lost: Whether the events are a part of unknown extent.
    """

    application: str
    shard: int
    is_proved: Callable[[str, bytes], bool]
    closed: Closed | None = None
    gap: int = 0
    conflict: bool = False
    partitions: int = 0
    partitioner: str = ""
    cluster: str = ""
    latest_ms: int = 0
    lost: bool = False
    datasets: dict[str, Shown] = field(default_factory=dict)
    topics: dict[str, Declared] = field(default_factory=dict)
    _state: str = ""
    _base: int = 1
    _origins: array[int] = field(default_factory=lambda: array("Q"))
    _balances: int | None = None
    _over: bool = False

    @property
    def complete(self) -> bool:
        """Whether the close of the shard and the balance of every ledger are here and proved."""
        balances = sum(shown.balance is not None for shown in self.datasets.values())
        return self._balances == balances and not self.conflict

    def take(self, record: Record) -> None:
        """Take the next record in; records that are no events of the shard are skipped."""
        try:
            envelope, data = decode(record.value or b"")
        except msgspec.DecodeError:
            return
        is_own = envelope.source == f"/stream-svt/{self.application}" and envelope.shard == self.shard
        if not is_own or not 0 < envelope.sequence <= LARGEST_SEQUENCE:
            return
        self.latest_ms = max(self.latest_ms, record.timestamp)
        if self._over:
            if self._balances is None and data.account is not None:
                self._account(0, data.dataset, data.account)
            return
        self._number(envelope)
        if data.account is not None:
            self._account(envelope.sequence, data.dataset, data.account)
        if isinstance(data, Lifecycle):
            self._lifecycle(envelope, data)
        if self.closed is not None and envelope.type == EventType.APPLICATION_CLOSED:
            # Only of this type: a forged plain state must not be able to name an earlier event.
            self._over = (envelope.sequence, envelope.origin) == (self.closed.event, self.closed.origin)

    def end(self) -> None:
        """Finish the pass: decide whether the last events are missing."""
        if self.closed is not None and not self._over:  # the last events are missing
            self.gap = LARGEST_SEQUENCE + 1
        elif not self.partitions:  # the event that begins the state is missing
            self.gap = self.gap or 1
        # Events of one transaction since the gap may have been sent earlier, in an aborted transaction before the gap:
        # only before an event of another transaction is sent, all earlier charges have been published.
        # A state that is given up publishes nothing else.
        own = self._origins[:-1] if self._over else self._origins
        if self.gap and len(set(own)) < 2:
            self.gap = LARGEST_SEQUENCE + 1

    def _number(self, envelope: Envelope) -> None:
        """Compare number and origin with those before."""
        self._state = self._state or envelope.stateid
        self.conflict |= envelope.stateid != self._state
        origin = int.from_bytes(blake2b(envelope.origin.encode(), digest_size=8).digest(), "big")
        index = envelope.sequence - self._base
        if index > len(self._origins):  # earlier origins can no longer be compared
            self.gap = self._base = envelope.sequence
            self._origins = array("Q", [origin])
        elif index == len(self._origins):
            self._origins.append(origin)
        elif index < 0 or self._origins[index] != origin:
            self.conflict = True

    def _lifecycle(self, envelope: Envelope, data: Lifecycle) -> None:
        detail = data.detail
        match envelope.type:
            case EventType.STATE_BEGUN:
                partitions = detail.get("partitions")
                self.partitions = partitions if isinstance(partitions, int) else 0
                self.partitioner = str(detail.get("partitioner", ""))
                self.cluster = str(detail.get("cluster", ""))
            case EventType.TOPIC_DECLARED:
                topic, declared = str(detail.get("topic", "")), Declared.of_event(detail)
                if declared is not None:
                    self.topics[topic] = declared | self.topics.get(topic)
            case EventType.APPLICATION_CLOSED if self._is_proved(envelope):
                balances = detail.get("balances")
                self._balances = balances if isinstance(balances, int) else -1
                successor = str(detail.get("successor", ""))
                self.closed = self.closed or Closed(successor, envelope.sequence, envelope.origin)
            case EventType.DECLARED | EventType.BALANCE if data.account is not None:
                shown, account = self.datasets[data.dataset], data.account
                shown.unit = str(detail.get("unit", ""))
                if envelope.type == EventType.BALANCE and self._is_proved(envelope):
                    shown.balance = _units(account.spent, shown.kind), _units(account.limit, shown.kind)

    def _is_proved(self, envelope: Envelope) -> bool:
        return bool(envelope.proof) and self.is_proved(envelope.proof, proved_content(envelope))

    def _account(self, sequence: int, dataset: str, account: Account) -> None:
        kind = KINDS.get(account.measure, Kind.PURE)
        shown = self.datasets.setdefault(dataset, Shown(kind))
        self.conflict |= account.measure != shown.kind.measure
        shown.last = max(shown.last, sequence)
        shown.highest = max(shown.highest, _units(account.spent + account.reserved, kind))
        shown.limit = max(shown.limit, _units(account.limit, kind))

    def note(self) -> str:
        """Return a note on the rest of the budgets for operators, "" if everything is proved."""
        if self.lost:
            return "this is a mirror, and nothing states that it holds the source's last event"
        if self.complete:
            return ""
        note = "no proved balances; every open run counts in full"
        if self.conflict:
            return f"{note}. Its events belong to different histories: nothing is left of its budgets"
        if self.gap > LARGEST_SEQUENCE:
            return f"{note}. Its last events may be missing: nothing is left of its budgets"
        if self.gap:
            note += f". Events before number {self.gap} are missing: a dataset not shown since then has nothing left"
        return note

    def left(self, name: str, limit: int, before: int) -> tuple[int, int]:
        """Return what counts as spent of a declared dataset, and its limit."""
        shown = self.datasets.get(name)
        if self.conflict:  # the charges of all histories add up
            return _nothing_left(shown, limit)
        if shown is not None and shown.balance is not None:
            return shown.balance
        if self.complete:
            return before, limit
        last, highest = (0, before) if shown is None else (shown.last, max(before, shown.highest))
        if self.lost or last < self.gap:
            return _nothing_left(shown, limit)
        return highest, max(limit, highest)


def carry_over(
    spec: ApplicationSpec,
    shards: Sequence[ShardHistory],
    *,
    cluster: str,
    alerts: str,
    successor: str,
    home: Callable[[str], int],
    now_ms: int,
    source_ended: bool = False,
) -> tuple[Carried, list[str]]:
    """Return the rest of each budget of an application, as last configured, and notes for operators.

    ``shards`` were read from topic ``alerts`` of the ``cluster``; ``home`` returns the shard of a dataset. If no event
    is left, ``now_ms`` is taken as the time of the close. ``source_ended`` states that a mirror holds the last event of
    a source that has ended. Raises `CarryOverRefused` if a shard is not closed, or is closed for another successor.
    """
    mirrored = {one.shard for one in shards if one.cluster not in ("", cluster)}
    _require_closed(shards, successor, mirrored)
    for one in shards:
        one.lost = one.shard in mirrored and not one.complete and not source_ended
    notes = [f"shard {one.shard}: {note}" for one in shards if (note := one.note())]
    earlier, declared_names = spec.carried, {dataset.name for dataset in spec.datasets}
    datasets = dict(earlier.datasets)
    for dataset in spec.datasets:
        known = earlier.datasets.get(dataset.name)
        declared = dataset.terms.limit if known is None else known.declared
        one = shards[home(dataset.name)]
        spent, limit = one.left(dataset.name, dataset.terms.limit, dataset.terms.spent_before)
        shown = one.datasets.get(dataset.name)
        if shown is not None and shown.balance is None and shown.limit > dataset.terms.limit:
            raised = f"{dataset.terms.kind.measure} {as_text(shown.limit, dataset.terms.kind)}"
            notes.append(
                f"dataset {dataset.name}: events show a limit of {raised}, which nobody proves: no budget comes of it"
            )
        datasets[dataset.name] = Balance(dataset.terms.unit, dataset.terms.kind, declared, limit, spent)
    for one in shards:
        for name, shown in one.datasets.items():
            if name not in declared_names:  # no longer declared: only a proved balance leaves anything
                proved = None if one.conflict else shown.balance
                spent, limit = proved or _nothing_left(shown, 1)
                datasets[name] = Balance(shown.unit, shown.kind, limit, limit, spent)
    watermarks = _watermarks(spec, earlier, shards, now_ms)
    datasets = {name: balance for name, balance in datasets.items() if not is_over(name, watermarks)}
    topics = dict(earlier.topics)
    declarations = [(monitor.topic, Declared.by(monitor)) for monitor in spec.monitors]
    for topic, declared_of in [*declarations, *(pair for one in shards for pair in one.topics.items())]:
        topics[topic] = declared_of | topics.get(topic)
    complete = all(one.complete or not (one.gap or one.conflict or one.lost) for one in shards)
    found = Carried(spec.application, cluster, alerts, successor, complete, topics, watermarks, datasets)
    return found, notes


def _watermarks(
    spec: ApplicationSpec, earlier: Carried, shards: Sequence[ShardHistory], now_ms: int
) -> dict[str, int]:
    """Return, by pattern, the end of the last period that events show or that began until soon after the close."""
    closed_ms = max((one.latest_ms for one in shards), default=0) or now_ms
    found = dict(earlier.watermarks)
    patterns = {generator.pattern for generator in spec.generators}
    patterns.update(dataset.terms.pattern for dataset in spec.datasets if dataset.terms.pattern)
    for pattern in patterns:
        ends = (period_end(pattern, name) or 0 for one in shards for name in one.datasets)
        found[pattern] = max(*ends, period_at(pattern, closed_ms + SOON_MS)[1], found.get(pattern, 0))
    return found


def _require_closed(shards: Sequence[ShardHistory], successor: str, mirrored: set[int]) -> None:
    open_shards = [one.shard for one in shards if one.closed is None and one.shard not in mirrored]
    if open_shards:
        named = ", ".join(map(str, open_shards))
        raise CarryOverRefused(
            f"not closed yet: shard {named}. 'stream-svt control close-application -c FILE --successor {successor}' "
            "closes an application; '--shard N --give-up-state' a shard that is parked because its state cannot be used"
        )
    others = sorted({one.closed.successor for one in shards if one.closed is not None} - {successor})
    if others:
        raise CarryOverRefused(
            f"the application was closed for successor {others[0]!r}: a second one would spend its budgets once more"
        )


def _nothing_left(shown: Shown | None, limit: int) -> tuple[int, int]:
    """Return spent and limit, both the highest amount of any event: a later raise must not grant it once more."""
    if shown is not None:
        limit = max(limit, shown.limit, shown.highest)
    return limit, limit


def _units(amount: float, kind: Kind) -> int:
    """Return a released amount in ledger units, rounded up where it is not exact."""
    if not 0 <= amount <= MAX_UNITS / kind.units:
        return MAX_UNITS
    units = round(amount * kind.units)
    return min(MAX_UNITS, units if units <= _EXACT else units + (units >> 50) + 1)
