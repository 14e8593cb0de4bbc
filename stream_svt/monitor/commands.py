"""What an operator may ask of a dataset or monitor; each is an input of the shard, applied at a barrier."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import msgspec

ID_LENGTH = 100
"""Most characters of a command's id: the shard keeps the last one."""
_Id = Annotated[str, msgspec.Meta(max_length=ID_LENGTH)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Action(StrEnum):
    """The commands. `accept-loss` and `close-application` address a shard, all others one dataset or all of a shard."""

    PAUSE = "pause"
    RESUME = "resume"
    CLOSE = "close"
    RESAMPLE = "resample"
    RAISE_BUDGET = "raise-budget"
    ACCEPT_LOSS = "accept-loss"
    CLOSE_APPLICATION = "close-application"


FOR_ALL = frozenset({Action.PAUSE, Action.RESUME, Action.CLOSE, Action.RESAMPLE, Action.CLOSE_APPLICATION})
"""What may be asked of all datasets of a shard at once; the last one of nothing less."""


class Command(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One command as it stands on the control topic (JSON, key = dataset).

    Attributes:
        id: Chosen by who issues it; the reply on the alert topic repeats it.
        dataset: The dataset addressed; empty for all datasets of the shard, and for a command to the shard
            itself (`accept-loss`, `close-application`).
        monitor: One monitor of the dataset; empty for all of them.
        limit: For `raise-budget`: the new limit, as exact text in the dataset's own measure ("5", "11/2").
        now: For `pause`: act before a replay has ended, and close the open run at its full price.
        topic, offset: For `accept-loss`: the query topic, and the offset that the shard wants and the topic
            does not hold.
        successor: For `close-application`: the application that may go on with what is left of each budget.
        cluster, event, origin: For `close-application` of a shard whose state is given up: cluster id, and
            number and origin of the newest event on its alert partition; 0 and empty where it has none.
        state, number: The `stateid` of the shard's events, and the number that follows the last command's: a
            shard carries out nothing else.
    """

    id: _Id
    action: Action
    dataset: str = ""
    monitor: str = ""
    limit: str = ""
    now: bool = False
    topic: str = ""
    offset: _Number = 0
    successor: _Id = ""
    cluster: str = ""
    event: _Number = 0
    origin: str = ""
    issued_by: str = ""
    state: str = ""
    number: _Number = 0

    @property
    def for_all(self) -> bool:
        """Whether it addresses all datasets of the shard."""
        return not self.dataset and self.action in FOR_ALL and not self.gives_up

    @property
    def gives_up(self) -> bool:
        """Whether it closes a shard whose state cannot be proved."""
        return self.action is Action.CLOSE_APPLICATION and bool(self.cluster)


class UnderWay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A command to all datasets of a shard, as far as it was carried out.

    Attributes:
        after: The last dataset that was looked at; they are taken in the order of their names.
        done, refused: Datasets that it was carried out on, and refused on, with ``reasons`` for the first ones.
    """

    command: Command
    after: str = ""
    done: _Number = 0
    refused: _Number = 0
    reasons: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Whether it was carried out on any dataset; an application closes with none, too."""
        return self.done > 0 or self.closes

    @property
    def closes(self) -> bool:
        """Whether it closes the application: nothing is tested any more."""
        return self.command.action is Action.CLOSE_APPLICATION
