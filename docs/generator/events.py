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
    sometimes
        Schemas of what stands in ``detail`` in some events only.
    is_proved
        Whether the event carries a proof where a sealing key is configured.
    about
        What the event is about. One about a shard has no account.
    """

    meaning: str
    reasons: tuple[str, ...] = ()
    detail: Mapping[str, Schema] = field(default_factory=dict)
    sometimes: Mapping[str, Schema] = field(default_factory=dict)
    is_proved: bool = False
    about: Literal["monitor", "dataset", "shard", "dataset or shard"] = "monitor"


EVENTS: Final[Mapping[EventType, Event]] = {
    EventType.STATE_BEGUN: Event(
        "The shard's state begins: the first event of its partition, and never another one.",
        ("first-start",),
        detail={
            "partitions": count("Number of shards: it fixes where each dataset is at home.", 1),
            "cluster": text("Id of the cluster."),
        },
        sometimes={
            "carried_from": text("The application whose budgets this one goes on with."),
            "carried_digest": text("Digest of the file that was carried over."),
        },
        about="shard",
    ),
    EventType.ALERT: Event("A query reached the noisy threshold: a top, charged and durable."),
    EventType.DECLARED: Event(
        "The dataset's ledger was opened with its limit.",
        ("first-start",),
        detail={"unit": text("The privacy unit, in the words of the configuration.")},
        sometimes={
            "spent_before": {
                "type": "number",
                "minimum": 0,
                "description": "What earlier applications spent of the limit.",
            }
        },
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
        "now declares a larger one, or is no longer monotonic; `application-closed`: the application was closed. "
        "With `loss`, `retired` (its dataset is declared no longer), `unread` (queries of it were left unread), "
        "`paused` (`pause --now`) and `incompatible` (another release cannot repeat its outcomes) it was closed at "
        "its full price.",
        (
            "command",
            "schedule",
            "removed",
            "sensitivity",
            "application-closed",
            "loss",
            "retired",
            "period-over",
            "unread",
            "paused",
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
        "A monitor was added, changed or removed by another configuration.",
        ("added", "changed", "removed"),
        detail={
            "spec_hash": text("Digest of what decides outcomes; empty for a monitor that was removed."),
            "fields": {"type": "array", "items": {"type": "string"}, "description": "Keys that changed."},
        },
        about="shard",
    ),
    EventType.TOPIC_DECLARED: Event(
        "What holds of the answers on a query topic from now on: the most cautious declaration so far.",
        ("configuration",),
        detail={
            "topic": text("The query topic."),
            "sensitivity": text("The sensitivity: a number or a fraction."),
            "monotonic": {"type": "boolean", "description": "Whether all monitors always declared it."},
        },
        about="shard",
    ),
    EventType.CONFIGURATION_ADOPTED: Event(
        "The shard goes on with a version of the configuration that was applied.",
        ("configuration",),
        detail={
            "number": count("The version's number.", 1),
            "digest": text("SHA-256 of its content, as hex digits."),
        },
        about="shard",
    ),
    EventType.LOSS_ACCEPTED: Event(
        "An operator let the shard go on although queries were lost.",
        ("command",),
        detail={"topic": text("The query topic."), "offset": count("Where reading goes on.")},
        about="shard",
    ),
    EventType.COMMAND_REPLY: Event(
        "The answer to a command. About the shard, and without an account, where the command names no dataset.",
        ("accepted", "refused"),
        detail={
            "command": text("Id of the command."),
            "number": count("Its number.", 1),
            "action": text("What was asked."),
            "message": text("What was done, or why nothing was."),
        },
        about="dataset or shard",
    ),
    EventType.RETIRED: Event(
        "The dataset is declared no longer, or its period is over: what it spent in the end. Its name is never "
        "used again.",
        ("configuration", "period-over"),
        detail={"unit": text("The privacy unit, in the words of the configuration.")},
        about="dataset",
    ),
    EventType.BALANCE: Event(
        "The application was closed: what the dataset spent in the end. Nothing is reserved any more.",
        ("application-closed",),
        detail={"unit": text("The privacy unit, in the words of the configuration.")},
        is_proved=True,
        about="dataset",
    ),
    EventType.APPLICATION_CLOSED: Event(
        "The shard is closed for ever: the last event of its partition. Reason `command`: its owner closed it; "
        "`given-up`: its state could not be proved and was given up, so there are no balances and no proof.",
        ("command", "given-up"),
        detail={
            "successor": text("Name of the application that goes on."),
            "balances": count("How many balances the shard published."),
        },
        sometimes={"command": text("With `given-up`: id of the command.")},
        is_proved=True,
        about="shard",
    ),
}
