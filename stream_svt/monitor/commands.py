"""What an operator may ask of a dataset or monitor; each is an input of the shard, applied at a barrier."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Action(StrEnum):
    """The commands. All but `accept-loss` and `mark-exhausted` address one dataset."""

    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"
    RESAMPLE = "resample"
    RAISE_BUDGET = "raise-budget"
    ACCEPT_LOSS = "accept-loss"
    MARK_EXHAUSTED = "mark-exhausted"


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command as it stands on the control topic (JSON, key = dataset).

    Attributes
    ----------
    id
        Chosen by who issues it; the reply on the alert topic repeats it.
    action
        What to do.
    dataset
        The dataset addressed; empty for a command to a whole shard (`accept-loss`, `mark-exhausted`).
    monitor
        One monitor of the dataset; empty for all of them.
    limit
        For `raise-budget`: the new limit, as exact text in the dataset's own measure ("5", "11/2").
    now
        For `pause`: act before a replay has ended, and close the open run at its full price.
    issued_by
        Free text, copied to the reply.
    """

    id: str
    action: Action
    dataset: str = ""
    monitor: str = ""
    limit: str = ""
    now: bool = False
    issued_by: str = ""
