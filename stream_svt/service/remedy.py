"""Decides what follows an error, of a shard or of its worker's membership; shard, worker and process carry it out.

No error of a shard ends the process or the membership of its worker. Where the cause may be the worker's own (its key,
its clock), the worker tests itself (`stream_svt.service.self_test`) and leaves if a test fails; the shard is parked
meanwhile. A worker without a membership tries to join again, for ever, once it has been a member.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from stream_svt import errors
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.kafka import BrokerUnavailable, Denied, Fenced, LoginRefused, TopicMissing


class Remedy(StrEnum):
    """What to do about an error of a shard."""

    RETRY = "retry"
    """It may pass: open again, later and later, for ever."""
    PARK = "park"
    """It cannot mend itself: keep the place in the group, do nothing else until something has changed."""
    STEP_BACK = "step back"
    """Somebody else may own the shard: prove group membership first."""


class Decision(NamedTuple):
    """What to do, and the cause to show."""

    remedy: Remedy
    cause: Cause


MAYBE_LOCAL: Final = {Cause.SEALING_KEY, Cause.TIMESTAMP_AHEAD}
"""Causes that may be the worker's own."""

_OF_SHARD: Final[dict[type[BaseException], Decision]] = {
    Fenced: Decision(Remedy.STEP_BACK, Cause.FENCED),
    BrokerUnavailable: Decision(Remedy.RETRY, Cause.UNAVAILABLE),
    LoginRefused: Decision(Remedy.RETRY, Cause.UNAVAILABLE),
    errors.ConfigurationBehind: Decision(Remedy.RETRY, Cause.CONFIGURATION),
    # The next session finds out which, and waits with its state proved.
    errors.RecordsLost: Decision(Remedy.RETRY, Cause.RECORDS_LOST),
    errors.ApplicationClosed: Decision(Remedy.PARK, Cause.CLOSED),
    errors.UnknownKey: Decision(Remedy.PARK, Cause.SEALING_KEY),
    errors.StateRolledBack: Decision(Remedy.PARK, Cause.STATE_ROLLED_BACK),
    errors.UnreadableState: Decision(Remedy.PARK, Cause.STATE_UNREADABLE),
    errors.TimestampAhead: Decision(Remedy.PARK, Cause.TIMESTAMP_AHEAD),
    errors.ConfigError: Decision(Remedy.PARK, Cause.CONFIGURATION),
    TopicMissing: Decision(Remedy.PARK, Cause.TOPIC_MISSING),
    Denied: Decision(Remedy.PARK, Cause.PERMISSION),
    errors.BrokerError: Decision(Remedy.PARK, Cause.BROKER_REFUSED),
    errors.StreamSvtError: Decision(Remedy.PARK, Cause.REFUSED_DATA),
    BaseException: Decision(Remedy.RETRY, Cause.ERROR),
}
"""What follows an error of a shard: the first line that fits."""


def classify(error: BaseException) -> Decision:
    """Return what follows an error of a shard."""
    return next(decision for kind, decision in _OF_SHARD.items() if isinstance(error, kind))


def cause_outside(error: BaseException) -> Cause:
    """Return the cause to show of a worker that an error keeps out of its group."""
    cause = classify(error).cause
    return Cause.GROUP if cause is Cause.ERROR else cause


def ends_start(error: BaseException) -> bool:
    """Tell whether an error ends a worker that has not been a member yet: it cannot pass."""
    return (
        isinstance(error, errors.ConfigError | errors.BrokerError | errors.MisuseError)
        and not error.retriable
    )
