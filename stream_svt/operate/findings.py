"""Findings of `check` from data read once: differences of configuration and states from the newest events."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from stream_svt.application.config import Config
from stream_svt.application.facts import ApplicationFacts
from stream_svt.application.topology import Topology
from stream_svt.errors import UnreadableState
from stream_svt.kafka.clients import Cluster
from stream_svt.monitor.released import Account
from stream_svt.privacy.loss import KINDS, as_text
from stream_svt.protocol.configuration import Version, Versions
from stream_svt.protocol.state_records import Meta, other_partitioning
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.wording import SHOWN, listed, named
from stream_svt.worker.config_versions import newest, not_adopted, read_versions
from stream_svt.worker.ports import open_meta, stored_metas


class Finding(NamedTuple):
    """Result of one check: ok, a note about a possible mistake, or a problem that stops the service."""

    level: Literal["ok", "note", "problem"]
    subject: str
    message: str


ok, note, problem = (partial(Finding, level) for level in ("ok", "note", "problem"))


@dataclass
class CheckContext:
    """Input of the checks: the configuration, the topics, and data that several checks share and that is read once."""

    config: Config
    cluster: Cluster
    topology: Topology
    _versions: Versions | None = None
    _states: dict[int, bytes] | None = None
    _metas: dict[int, Meta] | None = None

    def fits(self, *topics: str) -> bool:
        """Return whether topics have the configured number of partitions."""
        return all(self.topology.partitions.get(topic) == self.config.topics.partitions for topic in topics)

    async def applied(self) -> Version | None:
        """Return the version applied last; None without one, or without its topic."""
        if self.config.topics.config not in self.topology.partitions:
            return None
        if self._versions is None:
            self._versions = await read_versions(self.config, self.cluster)
        return newest(self._versions, self.config.topics.config)

    async def states(self) -> dict[int, bytes]:
        """Return the newest record `meta` of each shard that has one."""
        if self._states is None:
            self._states = {shard: meta async for shard, meta in stored_metas(self.config, self.cluster)}
        return self._states

    async def metas(self) -> dict[int, Meta]:
        """Return what the records of `states` say, as far as the configured keys open them."""
        if self._metas is None:
            self._metas = {}
            for shard, record in (await self.states()).items():
                with contextlib.suppress(UnreadableState):
                    self._metas[shard] = open_meta(self.config, self.topology.cluster_id, shard, record)
        return self._metas


def differences(
    config: Config, shown: ApplicationFacts, *, version: tuple[int, str] = (0, "")
) -> Iterator[Finding]:
    """Yield the declarations of the configuration that contradict events.

    ``version`` is number and digest of the version applied last.
    """
    if wrong := shown.partitioning - {tuple(config.partitioning)}:
        yield problem("topics", other_partitioning(min(wrong), config.topics))
    yield from _topics(config, shown)
    yield from _datasets(config, shown)
    known = {number: one.version for number, one in shown.shards.items() if one.version[0]}
    if why := not_adopted(version, known):
        yield problem("configuration", why)
    if behind := [number for number, adopted in known.items() if adopted[0] < version[0]]:
        message = f"{named('shard', behind, SHOWN)} did not adopt version {version[0]} yet"
        yield note("configuration", message)


def _topics(config: Config, shown: ApplicationFacts) -> Iterator[Finding]:
    for number, monitor in enumerate(config.spec.monitors):
        declared = shown.topics.get(monitor.topic)
        if declared is None:
            continue
        for field, message in declared.undercut(monitor).items():
            yield problem(f"monitors[{number}].{field}", f"{monitor.name}: {message}")


def _datasets(config: Config, shown: ApplicationFacts) -> Iterator[Finding]:
    declared = {one.name: one for one in config.current.datasets}
    other: dict[tuple[str, bool], list[str]] = {}
    for name in sorted(shown.accounts):  # read from partitions in any order
        for subject, refused, words in _differs(declared[name], shown.accounts[name], shown.units.get(name)):
            other.setdefault((subject, refused), []).append(f"{name} {words}")
    for (subject, refused), found in other.items():
        finding = problem if refused else note
        yield finding(f"datasets.{subject}", listed(found, SHOWN, "; "))


def _differs(dataset: DatasetSpec, account: Account, unit: str | None) -> Iterator[tuple[str, bool, str]]:
    """Yield each key of a dataset that differs from its ledger, whether it is refused, and the difference."""
    measure, kind = dataset.terms.kind.measure, KINDS.get(account.measure, dataset.terms.kind)
    if account.measure != measure:
        yield "measure", True, f"declares {measure}, its ledger is kept in {account.measure}"
        return
    limit = round(account.limit * kind.units)
    if limit != dataset.terms.limit:
        spent = f"{account.spent:g} of it spent"
        was = as_text(dataset.terms.limit, kind)
        refused = dataset.terms.limit > limit  # an operator may have raised it
        yield "limit", refused, f"declares {measure} {was}, its ledger has {as_text(limit, kind)}, {spent}"
    if unit is not None and unit != dataset.terms.unit:
        yield "unit", True, f"declares {dataset.terms.unit!r}, its ledger {unit!r}"


def behind(stored: Container[int], metas: Mapping[int, Meta], shown: ApplicationFacts) -> Iterator[Finding]:
    """Yield the shards whose newest state, read after the events, does not account for these events.

    ``stored`` are the shards with a state, ``metas`` the states that could be opened: others are reported elsewhere.
    """
    for number, one in shown.shards.items():
        meta = metas.get(number)
        if not one.events or one.successor or (meta is None and number in stored):
            continue
        state = "nothing is stored"
        if meta is not None:
            if meta.state_id.hex() == one.state and meta.last_event >= one.events:
                continue
            state = f"its state ends with event {meta.last_event}"
            if meta.state_id.hex() != one.state:
                state = "its state is another one than the events name"
        message = (
            f"shard {number}: {state}, and alert partition {number} shows event {one.events}: it would park"
        )
        yield problem("topics.state", message)
