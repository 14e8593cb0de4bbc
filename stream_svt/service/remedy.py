"""Decides what follows an error; shard, worker and process carry it out.

==========  ==================================================================================================
retry       it may pass: open again, later and later, for ever
park        it cannot mend itself: keep the place in the group, do nothing else until something has changed
step back   somebody else may own the shard: prove group membership first
leave       the worker cannot take part: leave the group whole, join again once that may succeed
end         nothing at all can go on: end the process
==========  ==================================================================================================

No error of a shard ends the process or the membership of its worker. Where the cause may be the worker's own (its key,
its clock), the worker tests itself (`stream_svt.service.self_test`) and leaves if a test fails; the shard is parked
meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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
    """What to do, and the cause to show."""

    remedy: Remedy
    cause: Cause


MAYBE_LOCAL: Final = {Cause.SEALING_KEY, Cause.TIMESTAMP_AHEAD}
"""Causes that may be the worker's own."""

_OF_SHARD: Final[tuple[tuple[type[BaseException], Decision], ...]] = (
    (Fenced, Decision(Remedy.STEP_BACK, Cause.FENCED)),
    (BrokerUnavailable, Decision(Remedy.RETRY, Cause.UNAVAILABLE)),
    (LoginRefused, Decision(Remedy.RETRY, Cause.UNAVAILABLE)),
    (ConfigurationBehind, Decision(Remedy.RETRY, Cause.CONFIGURATION)),
    # The next session finds out which, and waits with its state proved.
    (RecordsLost, Decision(Remedy.RETRY, Cause.RECORDS_LOST)),
    (ApplicationClosed, Decision(Remedy.PARK, Cause.CLOSED)),
    (UnknownKey, Decision(Remedy.PARK, Cause.SEALING_KEY)),
    (StateRolledBack, Decision(Remedy.PARK, Cause.STATE_ROLLED_BACK)),
    (UnreadableState, Decision(Remedy.PARK, Cause.STATE_UNREADABLE)),
    (TimestampAhead, Decision(Remedy.PARK, Cause.TIMESTAMP_AHEAD)),
    (ConfigError, Decision(Remedy.PARK, Cause.CONFIGURATION)),
    (TopicMissing, Decision(Remedy.PARK, Cause.TOPIC_MISSING)),
    (Denied, Decision(Remedy.PARK, Cause.PERMISSION)),
    (BrokerError, Decision(Remedy.PARK, Cause.BROKER_REFUSED)),
    (StreamSvtError, Decision(Remedy.PARK, Cause.REFUSED_DATA)),
    (BaseException, Decision(Remedy.RETRY, Cause.ERROR)),
)
"""What follows an error of a shard: the first line that fits."""


def classify(error: BaseException, scope: Scope = Scope.SHARD) -> Decision:
    """Return what follows an error."""
    found = next(decision for kind, decision in _OF_SHARD if isinstance(error, kind))
    if scope is Scope.SHARD:
        return found
    cause = Cause.GROUP if found.cause is Cause.ERROR else found.cause
    may_pass = isinstance(error, StreamSvtError) and error.retriable
    ends = (
        scope is Scope.START and isinstance(error, ConfigError | BrokerError | MisuseError) and not may_pass
    )
    return Decision(Remedy.END if ends else Remedy.LEAVE, cause)
