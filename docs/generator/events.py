"""What is known about each type of event, beyond what its Python type says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from docs.generator.schema import Schema, count, text
from stream_svt.monitor.released import EventType


@dataclass(frozen=True)
class Event:
    """One type of event.

    Attributes
    ----------
    meaning
        What happened, in a sentence or two.
    reasons
        The words that ``reason`` may be; none for an alert, which has no reason.
    detail
        Schemas of what stands in ``detail``, all of it always there.
    about
        What the event is about. One about a shard has no account.
    """

    meaning: str
    reasons: tuple[str, ...] = ()
    detail: Mapping[str, Schema] = field(default_factory=dict)
    about: Literal["monitor", "dataset", "shard", "dataset or shard"] = "monitor"


EVENTS: Final[Mapping[EventType, Event]] = {
    EventType.ALERT: Event("A query reached the noisy threshold: a top, charged and durable."),
    EventType.DECLARED: Event(
        "The dataset's ledger was opened with its limit, or came from another shard with a migration: `arrived`.",
        ("first-start", "arrived"),
        detail={"unit": text("The privacy unit, in the words of the configuration.")},
        about="dataset",
    ),
    EventType.BUDGET_RAISED: Event(
        "An operator raised the dataset's limit, for ever.", ("command",), about="dataset"
    ),
    EventType.RUN_STARTED: Event(
        "A run began; its threshold is charged and the rest of it reserved. With rho, all of it is charged.",
        ("first", "resampled"),
        detail={
            "tops_charge_left": {
                "type": "number",
                "minimum": 0,
                "description": "Epsilon that the run may spend on tops.",
            }
        },
    ),
    EventType.RUN_HALTED: Event("The run reported its last top.", ("cutoff",)),
    EventType.RUN_CLOSED: Event(
        "The run ended before its last top. Reason `command`: close or resample; `schedule`: "
        "resample_every; `removed`: its monitor or dataset left the configuration; `sensitivity`: its monitor "
        "now declares a larger one, or is no longer monotonic; `moved`: migration. "
        "With `loss`, `marked-exhausted`, `unread` (queries of it were left unread), `paused` (`pause --now`) and "
        "`incompatible` "
        "(another release cannot repeat its outcomes) "
        "it was closed at its full price.",
        (
            "command",
            "schedule",
            "removed",
            "sensitivity",
            "moved",
            "loss",
            "unread",
            "paused",
            "marked-exhausted",
            "incompatible",
        ),
    ),
    EventType.EXHAUSTED: Event(
        "The ledger cannot pay another run; the monitor skips its queries.", ("budget",)
    ),
    EventType.MUTED: Event(
        "The series of a top is left alone.",
        ("top",),
        detail={
            "series": text("The series."),
            "until": {
                "description": "`period`: for good; `run`: until the run ends; a number: broker time in milliseconds.",
                "oneOf": [{"enum": ["period", "run"]}, {"type": "integer"}],
            },
        },
    ),
    EventType.PAUSED: Event(
        "An operator paused the monitor on the dataset: its queries are skipped.", ("command",)
    ),
    EventType.RESUMED: Event("An operator resumed the monitor on the dataset.", ("command",)),
    EventType.SPEC_CHANGED: Event(
        "A monitor was added, changed or removed by a reload or a restart.",
        ("added", "changed", "removed"),
        detail={
            "spec_hash": text("Digest of what decides outcomes; empty for a monitor that was removed."),
            "fields": {"type": "array", "items": {"type": "string"}, "description": "Keys that changed."},
        },
        about="shard",
    ),
    EventType.LOSS_ACCEPTED: Event(
        "An operator let the shard go on although queries were lost.",
        ("command",),
        detail={"topic": text("The query topic."), "offset": count("Where reading goes on.")},
        about="shard",
    ),
    EventType.MARKED_EXHAUSTED: Event(
        "An operator gave the dataset's budget up: all of it counts as spent.",
        ("command",),
        detail={
            "dataset": text("The dataset."),
            "after": {
                "type": ["integer", "null"],
                "minimum": 0,
                "description": "Where the state was older than the events: numbers go on after this one.",
            },
        },
        about="dataset",
    ),
    EventType.COMMAND_REPLY: Event(
        "The answer to a command. About the shard, and without an account, where the command names no dataset.",
        ("accepted", "refused"),
        detail={
            "command": text("Id of the command."),
            "action": text("What was asked."),
            "message": text("What was done, or why nothing was."),
            "after": {
                "type": ["integer", "null"],
                "minimum": 0,
                "description": "As in `budget.marked-exhausted`, where budgets were given up.",
            },
        },
        about="dataset or shard",
    ),
    EventType.MOVED: Event(
        "A migration gave the dataset another home; later events come from there.",
        ("migrated",),
        detail={
            "shard": count("The new home."),
            "partitions": count("The new number of partitions.", 1),
        },
        about="dataset",
    ),
}
