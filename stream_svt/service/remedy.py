"""Decides what follows an error; shard, worker and process carry it out.

==========  ==================================================================================================
retry       it may pass: open again, later and later, for ever
park        it cannot mend itself: keep the place in the group, do nothing else until something has changed
step back   somebody else may own the shard: prove group membership first
leave       the worker cannot take part: leave the group whole, join again once that may succeed
end         nothing at all can go on: end the process
==========  ==================================================================================================

No error of a shard ends the process or the membership of its worker. Where the cause may be the worker's own (its key,
its clock), the worker tests itself (`stream_svt.service.self_test`) and leaves if a test fails; the shard is parked or
retried meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stream_svt.errors import (
    ApplicationClosed,
    BrokerError,
    ConfigError,
    ConfigurationBehind,
    MisuseError,
    RecordsLost,
    StateRolledBack,
    StreamSvtError,
    TimestampAhead,
    UnknownKey,
    UnreadableState,
)
from stream_svt.protocol.shard_states import Cause
from stream_svt.service.kafka import BrokerUnavailable, Denied, Fenced, LoginRefused, TopicMissing


class Remedy(StrEnum):
    """What to do about an error."""

    RETRY = "retry"
    PARK = "park"
    STEP_BACK = "step back"
    LEAVE = "leave"
    END = "end"


class Scope(StrEnum):
    """Where an error came up."""

    START = "start"
    """Before the worker joined its group for the first time."""
    GROUP = "group"
    """In the membership, after it had joined."""
    SHARD = "shard"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and the cause to show; ``local``: the worker should test itself, too."""

    remedy: Remedy
    cause: Cause
    local: bool = False


def classify(error: BaseException, scope: Scope = Scope.SHARD) -> Decision:
    """Return what follows an error."""
    if scope is Scope.SHARD:
        return _of_shard(error)
    cause = _CAUSES.get(type(error), Cause.GROUP)
    may_pass = isinstance(error, StreamSvtError) and error.retriable
    if scope is Scope.START and isinstance(error, ConfigError | BrokerError | MisuseError) and not may_pass:
        return Decision(Remedy.END, cause)
    return Decision(Remedy.LEAVE, cause)


def _of_shard(error: BaseException) -> Decision:
    match error:
        case Fenced():
            return Decision(Remedy.STEP_BACK, Cause.FENCED)
        case BrokerUnavailable() | LoginRefused():
            return Decision(Remedy.RETRY, Cause.UNAVAILABLE)
        case ConfigurationBehind():
            return Decision(Remedy.RETRY, Cause.CONFIGURATION)
        case RecordsLost():  # the next session finds out which, and waits with its state proved
            return Decision(Remedy.RETRY, Cause.RECORDS_LOST)
        case ImportError():
            return Decision(Remedy.RETRY, Cause.ERROR, local=True)
        case UnknownKey():
            return Decision(Remedy.PARK, Cause.SEALING_KEY, local=True)
        case TimestampAhead():
            return Decision(Remedy.PARK, Cause.TIMESTAMP_AHEAD, local=True)
        case StreamSvtError():
            for kind in type(error).__mro__:
                if kind in _CAUSES:
                    return Decision(Remedy.PARK, _CAUSES[kind])
    return Decision(Remedy.RETRY, Cause.ERROR)


_CAUSES: dict[type, Cause] = {
    ApplicationClosed: Cause.CLOSED,
    UnreadableState: Cause.STATE_UNREADABLE,
    UnknownKey: Cause.SEALING_KEY,
    StateRolledBack: Cause.STATE_ROLLED_BACK,
    RecordsLost: Cause.RECORDS_LOST,
    TimestampAhead: Cause.TIMESTAMP_AHEAD,
    ConfigError: Cause.CONFIGURATION,
    TopicMissing: Cause.TOPIC_MISSING,
    Denied: Cause.PERMISSION,
    LoginRefused: Cause.PERMISSION,
    BrokerUnavailable: Cause.UNAVAILABLE,
    BrokerError: Cause.BROKER_REFUSED,
    StreamSvtError: Cause.REFUSED_DATA,
}
