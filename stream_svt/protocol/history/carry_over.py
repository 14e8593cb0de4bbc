"""The rest of each budget of a closed application, computed from its alert partitions.

A shard closed by its owner has published a balance of every dataset, proved with its sealing key: those balances
count. For any other shard all events are read, including uncommitted ones, and for each dataset the highest sum of
spent and reserved counts as spent. The start of a run is published before its outcomes, so unpublished outcomes
cannot cost more. If events may be missing, the budget that they could have charged counts as spent. Of the periods
that had begun, only the datasets in the file continue, each with its balance. The series that alerts muted stay
muted, and those of an incident are tested for its end. Each monitor continues at the position in the event that
closed its shard.
"""

from __future__ import annotations

import contextlib
from array import array
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Any

import msgspec

from stream_svt.errors import StreamSvtError
from stream_svt.monitor.operations import utc
from stream_svt.monitor.released import (
    LARGEST_SEQUENCE,
    PERIOD_OVER,
    SOURCE,
    Account,
    Alert,
    AnyEvent,
    EventType,
    Lifecycle,
    event_in,
    proved_content,
)
from stream_svt.monitor.state.mutes import FOR_EVER, clock_of
from stream_svt.privacy.ledger import MAX_UNITS
from stream_svt.privacy.loss import KINDS, Kind, as_text
from stream_svt.protocol.records import Record
from stream_svt.protocol.state_records import Closed
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.carried import Carried, MonitorPosition, MutedSeries
from stream_svt.settings.datasets import Balance, DatasetSpec
from stream_svt.settings.document import quote
from stream_svt.settings.fields import END, LAST_MS
from stream_svt.settings.monitors import Declared, declared_by
from stream_svt.settings.periods import is_over, length_ms, period_at, period_end, written
from stream_svt.wording import listed, more

_EXACT = 2**50
"""Units up to which a released amount is exact; larger amounts are rounded up by a few units."""
SHOWN = 10
"""Largest number of a generator's datasets, of named datasets, and of a topic's partitions that a summary lists."""
SOON_MS = 600_000
"""Milliseconds that a query's timestamp may be ahead of its worker's clock."""


class CarryOverRefused(StreamSvtError):
    """An application cannot be carried over; nothing was written."""


@dataclass(slots=True)
class Shown:
    """Amounts of one dataset by its events, in ledger units.

    ``highest`` is the largest sum of spent and reserved; ``last`` is the number of the newest event. ``balance`` has
    the final amount spent and the limit, if the owner proved them; ``ended``: whether the period is over.
    """

    kind: Kind
    unit: str = ""
    highest: int = 0
    limit: int = 0
    last: int = 0
    balance: tuple[int, int] | None = None
    ended: bool = False


_ENDED = 0
Ends = dict[str, int]
"""Ends of the mutes of series, as `stream_svt.monitor.state.mutes` stores them, oldest first."""


@dataclass(slots=True)
class ShardHistory:
    """The alert partition of one shard: a pass over all its records in order of offsets, even uncommitted ones.

    Attributes:
        is_proved: Returns whether a proof fits a content (see `stream_svt.protocol.sealing.proof_checker`).
        closed: How the shard was closed: by its state, or by a proved event of its owner. Later events are ignored
            if that event is proved; otherwise they can only add to the amount that counts as spent.
        gap: Number of the first event after the last gap: earlier events may be missing. 0 if there is no gap; larger
            than every number if later events may be missing, too.
        conflict: Whether the events belong to different histories: two origins of one number, or two states.
        partitions, partitioner, cluster: From the first event of the state; 0 and "" if it is missing.
        lost: Whether the events are a part of unknown extent.
        watermarks, positions: From the event that closed the shard in order: the ends of generated periods that were
            over, and the positions where monitors stopped.
        mutes: Mutes by dataset and monitor, under the name of its ends those of alerts that begin an incident. `_ENDED`
            is the end of a mute that is over, such as a mute until the end of a run.
        removed: Removed datasets and monitors, whose mutes ended; the other name of the pair is empty.
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
    watermarks: dict[str, int] = field(default_factory=dict)
    positions: dict[str, MonitorPosition] = field(default_factory=dict)
    mutes: dict[tuple[str, str], Ends] = field(default_factory=dict)
    removed: set[tuple[str, str]] = field(default_factory=set)
    _state: str = ""
    _base: int = 1
    _origins: array[int] = field(default_factory=lambda: array("Q"))
    _balances: int | None = None
    _over: bool = False
    _value: bytes = b""

    @property
    def complete(self) -> bool:
        """Whether the close of the shard and the balance of every ledger are here and proved."""
        balances = sum(shown.balance is not None for shown in self.datasets.values())
        return self._balances == balances and not self.conflict

    def take(self, record: Record) -> None:
        """Add the next record; records that are not events of the shard are skipped."""
        event = event_in(record.value)
        if event is None or event.source != SOURCE + self.application or event.shard != self.shard:
            return
        data, self._value = event.data, record.value or b""
        self.latest_ms = max(self.latest_ms, record.timestamp)
        if self._over:
            if self._balances is None and data.account is not None:
                self._account(0, data.dataset, data.account)
            return
        self._number(event)
        if data.account is not None:
            self._account(event.sequence, data.dataset, data.account)
        if isinstance(data, Alert):
            self._mute(data.dataset, data.monitor, data.series, data.muted_until)
            if data.watched_until is not None and data.watched_until == data.muted_until:
                self._mute(data.dataset, f"{data.monitor}{END}", data.series, data.muted_until)
        elif event.type in (EventType.MUTED, EventType.UNMUTED, EventType.ALERT_ENDED):
            muting = data.monitor.removesuffix(END)
            series = data.detail.get("series")
            self._mute(data.dataset, muting, series, data.detail.get("muted_until"))
            self._mute(data.dataset, f"{muting}{END}", series, None)
        else:
            self._lifecycle(event, data)
        if self.closed is not None and event.type == EventType.APPLICATION_CLOSED:
            # Only of this type: a forged plain state must not be able to name an earlier event.
            self._over = (event.sequence, event.origin) == (self.closed.event, self.closed.origin)
            if self._over and isinstance(data, Lifecycle):
                self._stopped(data.detail)

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

    def _number(self, event: AnyEvent) -> None:
        """Compare number and origin with those of the events before."""
        self._state = self._state or event.stateid
        self.conflict |= event.stateid != self._state
        origin = int.from_bytes(blake2b(event.origin.encode(), digest_size=8).digest(), "big")
        index = event.sequence - self._base
        if index > len(self._origins):  # earlier origins can no longer be compared
            self.gap = self._base = event.sequence
            self._origins = array("Q", [origin])
        elif index == len(self._origins):
            self._origins.append(origin)
        elif index < 0 or self._origins[index] != origin:
            self.conflict = True

    def _lifecycle(self, event: AnyEvent, data: Lifecycle) -> None:
        detail = data.detail
        match event.type:
            case EventType.STATE_BEGUN:
                partitions = detail.get("partitions")
                self.partitions = partitions if isinstance(partitions, int) else 0
                self.partitioner = str(detail.get("partitioner", ""))
                self.cluster = str(detail.get("cluster", ""))
            case EventType.TOPIC_DECLARED:
                Declared.add_event(self.topics, detail)
            case EventType.APPLICATION_CLOSED if self._is_proved(event):
                balances = detail.get("balances")
                self._balances = balances if isinstance(balances, int) else -1
                successor = str(detail.get("successor", ""))
                self.closed = self.closed or Closed(successor, event.sequence, event.origin)
            case EventType.DECLARED | EventType.BALANCE if data.account is not None:
                shown, account = self.datasets[data.dataset], data.account
                shown.unit = str(detail.get("unit", ""))
                if event.type == EventType.BALANCE and self._is_proved(event):
                    shown.balance = _units(account.spent, shown.kind), _units(account.limit, shown.kind)

            case EventType.RETIRED if data.account is not None:
                self.datasets[data.dataset].ended = data.reason == PERIOD_OVER
                self._end_mutes(data.dataset, "")
            case EventType.SPEC_CHANGED if data.reason == "removed":
                self._end_mutes("", data.monitor)

    def _mute(self, dataset: str, monitor: str, series: object, until: object) -> None:
        """Set the mute of a series from an alert or a command; without an end, remove it."""
        if not isinstance(series, str):
            return
        ends = self.mutes.setdefault((dataset, monitor), {})
        ends.pop(series, None)
        ends[series] = FOR_EVER if until == "period" else _ENDED
        if isinstance(until, int):
            ends[series] = max(_ENDED, min(until, LAST_MS))

    def _end_mutes(self, dataset: str, monitor: str) -> None:
        """End the mutes of a dataset, or of a monitor; the other name is empty."""
        self.removed |= {(dataset, ""), ("", monitor)} - {("", "")}
        self.mutes = {
            (of, by): ends for (of, by), ends in self.mutes.items() if of != dataset and by != monitor
        }

    def _stopped(self, detail: Mapping[str, Any]) -> None:
        """Store positions and watermarks of the event that closed the shard; without a state it has none."""
        with contextlib.suppress(msgspec.ValidationError):
            self.positions = msgspec.convert(detail.get("positions", {}), dict[str, MonitorPosition])
            self.watermarks = msgspec.convert(detail.get("watermarks", {}), dict[str, int])

    def _is_proved(self, event: AnyEvent) -> bool:
        return bool(event.proof) and self.is_proved(event.proof, proved_content(self._value))

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

    def is_running(self, name: str, end: int, pattern: str, soon_ms: int) -> bool:
        """Return whether a generated dataset continues, given its period's end; it had begun before ``soon_ms``.

        A dataset without events continues, unless its period may be over.
        """
        shown = self.datasets.get(name)
        if self.complete:
            return end > self.watermarks.get(pattern, 0) if shown is None else shown.balance is not None
        return end > soon_ms if shown is None else not shown.ended

    def left(self, name: str, limit: int, before: int) -> tuple[int, int]:
        """Return the amount of a declared dataset that counts as spent, and its limit."""
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
    """Return the balances and positions for a successor of an application, and notes for operators.

    ``spec`` was configured last. ``shards`` were read from topic ``alerts`` of the ``cluster``; ``home`` returns the
    shard of a dataset. If no event is left, ``now_ms`` is taken as the time of the close. ``source_ended`` states
    that a mirror has the last event of a source that has ended. Raises `CarryOverRefused` if a shard is not closed,
    or is closed for another successor.
    """
    mirrored = {one.shard for one in shards if one.cluster not in ("", cluster)}
    _require_closed(shards, successor, mirrored)
    for one in shards:
        one.lost = one.shard in mirrored and not one.complete and not source_ended
    notes = [f"shard {one.shard}: {note}" for one in shards if (note := one.note())]
    soon_ms = (max((one.latest_ms for one in shards), default=0) or now_ms) + SOON_MS
    begun = _begun(spec, shards, soon_ms)
    declared = _declared(spec, shards, begun, soon_ms)
    datasets = {name: balance for name, balance in spec.carried.datasets.items() if not is_over(name, begun)}
    for name, dataset in declared.items():
        one, terms, known = shards[home(name)], dataset.terms, spec.carried.datasets.get(name)
        end = period_end(terms.pattern, name) if terms.pattern else None
        if end is not None and not one.is_running(name, end, terms.pattern, soon_ms):
            continue
        spent, limit = one.left(name, terms.limit, terms.spent_before)
        shown = one.datasets.get(name)
        if shown is not None and shown.balance is None and shown.limit > terms.limit:
            raised = f"{terms.kind.measure} {as_text(shown.limit, terms.kind)}"
            notes.append(
                f"dataset {name}: events show a limit of {raised}, which nobody proves: no budget comes of it"
            )
        before = terms.limit if known is None else known.declared
        datasets[name] = Balance(terms.unit, terms.kind, before, limit, spent)
    for one in shards:
        for name, shown in one.datasets.items():
            # Of datasets that are no longer declared, only those with a proved balance continue.
            proved = None if one.conflict else shown.balance
            if name not in declared and (proved is not None or not is_over(name, begun)):
                spent, limit = proved or _nothing_left(shown, 1)
                datasets[name] = Balance(shown.unit, shown.kind, limit, limit, spent)
    topics = dict(spec.carried.topics)
    declarations = declared_by(spec.monitors).items()
    for topic, declared_of in [*declarations, *(pair for one in shards for pair in one.topics.items())]:
        topics[topic] = declared_of | topics.get(topic)
    complete = all(one.complete or not (one.gap or one.conflict or one.lost) for one in shards)
    origin = (spec.application, cluster, alerts, successor, complete, topics)
    positions = {one.shard: one.positions for one in shards if one.positions and one.cluster == cluster}
    mutes = tuple(_mutes(spec, shards, home, datasets))
    return Carried(*origin, _watermarks(begun, datasets), begun, datasets, positions, mutes), notes


def _begun(spec: ApplicationSpec, shards: Sequence[ShardHistory], soon_ms: int) -> dict[str, int]:
    """Return, by pattern, the end of the last period that has events or began until soon after the close."""
    found = dict(spec.carried.begun)
    patterns = {generator.pattern for generator in spec.generators}
    patterns.update(dataset.terms.pattern for dataset in spec.datasets if dataset.terms.pattern)
    patterns.update(pattern for one in shards for pattern in one.watermarks)
    for pattern in patterns:
        ends = (period_end(pattern, name) or 0 for one in shards for name in one.datasets)
        found[pattern] = max(*ends, 0, period_at(pattern, soon_ms)[1], found.get(pattern, 0))
    return found


def _declared(
    spec: ApplicationSpec, shards: Sequence[ShardHistory], begun: Mapping[str, int], soon_ms: int
) -> dict[str, DatasetSpec]:
    """Return the datasets declared by name, and generated ones whose periods had begun and may not be over."""
    found = {one.name: one for one in spec.datasets if not one.terms.pattern or is_over(one.name, begun)}
    for generator in spec.generators:
        pattern = generator.pattern
        after = min(
            one.watermarks.get(pattern, 0) if one.complete else period_at(pattern, soon_ms)[0]
            for one in shards
        )
        for dataset in generator.periods(after, begun[pattern]):
            found[dataset.name] = dataset
    for one in shards:
        for name, shown in one.datasets.items():
            if name not in found and not shown.ended and (generated := spec.find(name)) is not None:
                found[name] = generated
    return found


def _watermarks(begun: Mapping[str, int], datasets: Iterable[str]) -> dict[str, int]:
    """Return, by pattern, the end of the last period without a dataset that continues."""
    found: dict[str, int] = {}
    for pattern, last in begun.items():
        ends = (period_end(pattern, name) for name in datasets)
        found[pattern] = min((end - length_ms(pattern) for end in ends if end is not None), default=last)
    return found


def _mutes(
    spec: ApplicationSpec,
    shards: Sequence[ShardHistory],
    home: Callable[[str], int],
    datasets: Container[str],
) -> Iterator[MutedSeries]:
    """Yield the series of these datasets that are muted when the application ends."""
    found: dict[tuple[str, str], Ends] = {}
    for line in spec.carried.mutes:
        if not {(line.dataset, ""), ("", line.monitor)} & shards[home(line.dataset)].removed:
            found.setdefault((line.dataset, line.monitor), {}).update(line.ends)
    for one in shards:
        for names, ends in one.mutes.items():
            known = found.setdefault(names, {})
            for series, end in ends.items():
                known.pop(series, None)
                known[series] = end
    most = {monitor.name: monitor.max_mutes for monitor in spec.monitors}
    for (dataset, monitor), ends in sorted(found.items()):
        one = shards[home(dataset)]
        if dataset in datasets and not one.conflict:
            stopped = one.positions.get(monitor)
            clock_ms = 0 if stopped is None else stopped.clock_ms
            going_on = [(series, end) for series, end in ends.items() if end != _ENDED]
            newest = going_on[-most.get(monitor, len(ends)) :]
            live = {series: end for series, end in newest if clock_ms < clock_of(end)}
            yield from MutedSeries.of(dataset, monitor, live)


def summary(carried: Carried) -> list[str]:
    """Return lines for operators: what continues where, and with which budget, by generator, dataset and topic."""
    muted = Counter[str]()
    for line in carried.mutes:
        muted[line.dataset] += 0 if line.monitor.endswith(END) else len(line.ends)
    parts = {name: _left(name, one, muted[name]) for name, one in sorted(carried.datasets.items())}
    lines = []
    for pattern, begun in sorted(carried.begun.items()):
        running = [parts.pop(name) for name in [*parts] if period_end(pattern, name) is not None]
        continued = f"continues {listed(running, SHOWN, '; ')}; " if running else ""
        lines.append(
            f"generator {quote(written(pattern))}: {continued}new periods begin from {utc(begun)} on"
        )
    lines += [f"dataset {part}" for part in islice(parts.values(), SHOWN)]
    if hidden := more(len(parts) - SHOWN):
        lines.append(f"{hidden.strip()} datasets")
    return [*lines, *_topics(carried)]


def _left(name: str, balance: Balance, muted: int) -> str:
    kind = balance.kind
    left = f"{as_text(balance.limit - balance.spent, kind)} of {as_text(balance.limit, kind)} left"
    return f"{quote(name)}: {kind.measure} {left}" + (f", {muted} series muted" if muted else "")


def _topics(carried: Carried) -> Iterator[str]:
    """Yield a line for each query topic: where reading continues."""
    for topic in sorted(carried.topics):
        offsets = [f"{offset} of partition {shard}" for shard, offset in carried.offsets(topic).items()]
        at = f"continues on this cluster at offset {listed(offsets, SHOWN)}"
        where = at if offsets else "begins as topics.start_at says"
        yield f"topic {quote(topic)}: {where}"


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
    """Return a released amount in ledger units, rounded up if it is not exact."""
    if not 0 <= amount <= MAX_UNITS / kind.units:
        return MAX_UNITS
    units = round(amount * kind.units)
    return min(MAX_UNITS, units if units <= _EXACT else units + (units >> 50) + 1)
