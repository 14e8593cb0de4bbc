"""Compares a configuration, and the stored states, with what the newest released events show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal, NamedTuple

from stream_svt.errors import UnreadableState
from stream_svt.monitor.released import Account
from stream_svt.privacy.loss import KINDS, as_text
from stream_svt.protocol.state_records import other_homes
from stream_svt.service.config import Config
from stream_svt.service.ports import open_meta
from stream_svt.service.shown import ApplicationShown
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.wording import listed, named

SHOWN = 5
"""Datasets or shards that one message names."""


class Finding(NamedTuple):
    """Result of one check: ok, a note about what may not be intended, or a problem that stops the service."""

    level: Literal["ok", "note", "problem"]
    subject: str
    message: str


ok, note, problem = (partial(Finding, level) for level in ("ok", "note", "problem"))


def differences(
    config: Config, shown: ApplicationShown, *, version: tuple[int, str] = (0, "")
) -> Iterator[Finding]:
    """Yield what the configuration declares otherwise than events show.

    ``version`` is number and digest of the version applied last.
    """
    if wrong := shown.homes - {tuple(config.homes)}:
        yield problem("topics", other_homes(min(wrong), config.topics))
    yield from _topics(config, shown)
    yield from _datasets(config, shown)
    known = {number: one.version for number, one in shown.shards.items() if one.version[0]}
    if why := not_adopted(version, known):
        yield problem("configuration", why)
    if behind := [number for number, adopted in known.items() if adopted[0] < version[0]]:
        message = f"{named('shard', behind, SHOWN)} did not adopt version {version[0]} yet"
        yield note("configuration", message)


def not_adopted(version: tuple[int, str], adopted: Mapping[int, tuple[int, str]]) -> str:
    """Return why shards refuse a version, given number and digest of those that they adopted; "" if none does."""
    number, digest = version
    refusing = {
        shard: newest
        for shard, (newest, other) in sorted(adopted.items())
        if newest > number or (newest == number and other != digest)
    }
    if not refusing:
        return ""
    newest = max(refusing.values())
    which = "another version" if newest == number else "version"
    comes = f"version {number} would be refused" if number else "the configuration topic holds none"
    return (
        f"{named('shard', list(refusing), SHOWN)} adopted {which} {newest}, and {comes}: the topic was deleted or "
        f"created again. Apply with --above {newest}"
    )


def _topics(config: Config, shown: ApplicationShown) -> Iterator[Finding]:
    for number, monitor in enumerate(config.spec.monitors):
        declared = shown.topics.get(monitor.topic)
        if declared is None:
            continue
        for field, message in declared.undercut(monitor).items():
            yield problem(f"monitors[{number}].{field}", f"{monitor.name}: {message}")


def _datasets(config: Config, shown: ApplicationShown) -> Iterator[Finding]:
    declared = {one.name: one for one in config.current.datasets}
    other: dict[tuple[str, bool], list[str]] = {}
    for name, account in shown.accounts.items():
        for subject, refused, words in _differs(declared[name], account, shown.units.get(name)):
            other.setdefault((subject, refused), []).append(f"{name} {words}")
    for (subject, refused), found in other.items():
        finding = problem if refused else note
        yield finding(f"datasets.{subject}", listed(found, SHOWN, "; "))


def _differs(dataset: DatasetSpec, account: Account, unit: str | None) -> Iterator[tuple[str, bool, str]]:
    """Yield the key that a dataset declares otherwise than its ledger has it, whether that is refused, and how."""
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


def behind(
    config: Config, cluster_id: str, stored: Mapping[int, bytes], shown: ApplicationShown
) -> Iterator[Finding]:
    """Yield the shards whose newest state, read after the events, does not account for these events."""
    for number, one in shown.shards.items():
        if not one.events or one.successor:
            continue
        if (record := stored.get(number)) is None:
            state = "nothing is stored"
        else:
            try:
                meta = open_meta(config, cluster_id, number, record)
            except UnreadableState:
                continue  # reported with the states
            if meta.state_id.hex() == one.state and meta.last_event >= one.events:
                continue
            state = f"its state ends with event {meta.last_event}"
            if meta.state_id.hex() != one.state:
                state = "its state is another one than the events name"
        message = (
            f"shard {number}: {state}, and alert partition {number} shows event {one.events}: it would park"
        )
        yield problem("topics.state", message)
