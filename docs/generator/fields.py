"""What each field of a message means, and what its type does not say of its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from docs.generator.reasons import REASONS
from docs.generator.schema import Schema, optional, words
from stream_svt.mechanisms.noise import MONITORED
from stream_svt.monitor.commands import Command
from stream_svt.monitor.released import Account, Alert, NoiseLaw, Position
from stream_svt.privacy.loss import Kind
from stream_svt.service.codec import MAX_TEXT
from stream_svt.service.shard_log import Reject

TEXT: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": MAX_TEXT}

FIELDS: Final[Mapping[type, Mapping[str, Schema]]] = {
    Alert: {
        "dataset": words("The dataset."),
        "monitor": words("The monitor."),
        "series": words("The series of the query, null where it named none."),
        "query_id": words("Id of the query that was tested."),
        "position": {},
        "threshold": words("The public bar, in real units."),
        "correction": words("How far the bar was raised above the threshold, in real units; public."),
        "gap": words(
            "By how much the noisy value exceeded the noisy, corrected threshold, in real units.", minimum=0
        ),
        "branch": words("The branch of the mechanism that reported: its price is in `account.charge`."),
        "attempt": words("Which test of the query it was; 1 is the first.", minimum=1),
        "threshold_noise": {},
        "query_noise": {},
        "estimate": words(
            "Threshold + correction + gap less the mean noise, in real units. Too high on average, for "
            "only what is reported is seen; null where the bound is."
        ),
        "bound": words(
            "The true value is at least this, in real units; wrong for at most a share `beta` of all "
            "reported alerts. null where nothing can be certified."
        ),
        "beta": words("Level of the bound.", exclusiveMinimum=0, exclusiveMaximum=1),
        "run": words("Number of the run within dataset and monitor.", minimum=1),
        "top": words("Number of the top within the run.", minimum=1),
        "account": {},
        "spec_hash": words("Digest of the settings that the run was opened under."),
    },
    Account: {
        "measure": {
            "enum": [kind.measure for kind in Kind],
            "description": "What the other four are counted in.",
        },
        "charge": words("What this event added to `spent`.", minimum=0),
        "spent": words("Spent by now, for ever.", minimum=0),
        "reserved": words("Set aside for open runs.", minimum=0),
        "limit": words("Most that may ever be spent.", minimum=0),
    },
    Position: {
        "topic": words("The query topic."),
        "partition": words("Its partition, the shard.", minimum=0),
        "offset": words("Offset of the record.", minimum=0),
        "row": words("Row inside a columnar record; 0 for JSON.", minimum=0),
    },
    NoiseLaw: {
        "family": {"enum": [noise.value for noise in MONITORED], "description": "The law."},
        "scale": words("Its scale in real units.", exclusiveMinimum=0),
    },
    Reject: {
        "topic": words("Topic of the refused record."),
        "partition": words("Its partition.", minimum=0),
        "offset": words("Its offset.", minimum=0),
        "reason": {"enum": list(REASONS), "description": "Why it was refused; none depends on a value."},
    },
    Command: {
        "id": words("Chosen by who issues it; the answer repeats it."),
        "action": {},
        "dataset": words(
            "The dataset; empty for all datasets of a shard, and for a command to the shard itself."
        ),
        "monitor": words("One monitor of the dataset; empty for all of them."),
        "limit": words('For `raise-budget`: the new limit in the dataset\'s measure, as text: "5", "11/2".'),
        "now": words("For `pause`: also during a replay; open runs close at their full price."),
        "topic": words("For `accept-loss`: the query topic that lost records."),
        "offset": words("For `accept-loss`: the offset that the shard wants of it."),
        "successor": words("For `close-application`: name of the application that goes on with the budgets."),
        "cluster": words(
            "For `close-application` that gives up a state which cannot be proved: id of the cluster. It makes "
            "`number` unnecessary."
        ),
        "event": words(
            "With `cluster`: `sequence` of the newest event of the shard, read uncommitted; 0 for none."
        ),
        "origin": words("With `cluster`: `origin` of that event; empty for none."),
        "issued_by": words("Free text."),
        "state": words("The `stateid` of the shard's newest event."),
        "number": words("The `command` of that event, plus one."),
    },
}
"""By type and field. A field that is a message of its own has its words there."""

QUERY: Final[Mapping[str, Schema]] = {
    "id": {**TEXT, "description": "Name of the query, repeated in an alert. Public."},
    "value": {
        "description": "The true answer: a number. One too large for a double counts as the bound on its side; "
        "whatever is no number, or is missing, as the lower bound. Neither is a reason to reject."
    },
    "series": {**optional(TEXT), "description": "What the query is about: an item, a region. Public."},
    "set": {
        **optional(TEXT),
        "description": "The finite set that the query belongs to, for `append: sweep`. Public.",
    },
    "threshold": {
        "type": ["number", "null"],
        "description": "A public bar of its own, in place of the monitor's.",
    },
    "monitor": {
        "type": ["string", "null"],
        "description": "The one monitor that is meant. Without it, all of the topic's.",
    },
    "time": {
        "type": ["string", "number", "null"],
        "description": "For people who read the topic; the service ignores it.",
    },
    "closed": {"type": "boolean", "description": "true makes the record the marker that closes its set."},
}
"""Fields of a query record; unknown ones are ignored."""
