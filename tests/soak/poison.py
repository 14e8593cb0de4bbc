"""What the fuzz soak makes its messages of: Arrow streams, alerts, odd headers, and the state of a shard in memory."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.monitor.released import EventType, ReleasedEvent
from stream_svt.monitor.state.accounts import Commit
from stream_svt.protocol.controls import CommandState
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.sealing import Sealing
from stream_svt.protocol.state_records import META, Meta, digest, hashing
from tests.simulation.log import CONTEXT, Broker, ModelLog, finish, journal_of
from tests.support.alerts import account_of, alert, encoded, lifecycle
from tests.support.forgeries import ALERTS
from tests.support.query_records import odd_columns

ARROW_TYPE = b"application/vnd.apache.arrow.stream"

ODD_HEADERS: tuple[tuple[tuple[str, bytes | None], ...], ...] = (
    (("content-type", None),),
    (("", None),),
    (("\ufffd\ufffd", b"\xff"),),
    (("CONTENT-TYPE", b"\xff\xfe"),),
    (("content-type", b"text/odd"),),
    (("content-type", b""), ("content-type", ARROW_TYPE)),
    (("content-type", ARROW_TYPE), ("content-type", ARROW_TYPE)),
)


# Arrow


class Streams:
    """Arrow streams: good ones, and such as a good producer never writes."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance

    def good(self, rows: int) -> dict[str, Any]:
        chance = self.chance
        columns: dict[str, Any] = {
            "id": [f"q{row}" for row in range(rows)],
            "value": [chance.randrange(900) for _ in range(rows)],
        }
        options = {
            "series": ["s"] * rows,
            "set": ["w"] * rows,
            "threshold": [5.5] * rows,
            "monitor": ["hot"] * rows,
            "closed": [False] * rows,
            "other": [b"x"] * rows,
        }
        return columns | {name: column for name, column in options.items() if chance.random() < 0.2}

    def written(self, columns: dict[str, Any], *, whole: bool = False, **options: Any) -> bytes:
        import pyarrow as pa

        table = pa.table(columns)
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table, max_chunksize=None if whole else self.chance.choice((1, 2, 1000)))
        return sink.getvalue()

    def poisoned(self) -> tuple[bytes, bool]:
        """Return a stream, and whether only what stands at `value` is odd, so that it has to be read."""
        import pyarrow as pa

        chance, columns = self.chance, self.good(1)
        odd = chance.choice([*odd_columns().values()])
        match chance.randrange(8):
            case 0 | 1:
                columns["value"] = odd
                return self.written(columns), True
            case 2 | 3:
                columns[chance.choice(("id", "series", "set", "threshold", "monitor", "closed"))] = odd
            case 4:
                return self.written(columns, compression=chance.choice(("zstd", "lz4"))), False
            case 5:
                many = chance.choice((50_000, 1 << 20, (1 << 20) + 1))
                empty = {"id": pa.nulls(many), "value": pa.nulls(many)}
                return self.written(empty, whole=True), False
            case 6:
                del columns["id"]
            case _:
                columns |= {"other": odd, "id": [None]}
        return self.written(columns), False


# Alerts

_EVENTS = (
    encoded(1, lifecycle("declared", run=0, monitor="", account=account_of(0, 0)), kind=EventType.DECLARED),
    encoded(2, lifecycle("first", account=account_of(0.1, 0.1, reserved=0.4)), kind=EventType.RUN_STARTED),
    encoded(3, alert(number=1, account=account_of(0.2, 0.3, reserved=0.2))),
    encoded(
        4,
        lifecycle("cutoff", account=account_of(0, 0.5), detail={"a": {"b": [1]}}),
        kind=EventType.RUN_HALTED,
    ),
)
_FORGED: tuple[Any, ...] = (
    -1, 0, 1 << 63, (1 << 64) - 1, 1 << 70, 1e300, -1e300, 1e18, None, "", "x" * 5000, "9" * 5000, "a/" + "9" * 5000,
    "\u0000", [], {}, True, "epsilon", "rho", "io.stream-svt.dataset.moved.v1",
)  # fmt: skip


def alerts(chance: random.Random, mutated: Callable[[bytes], bytes]) -> bytes:
    """Return a record that might stand on the alert topic."""
    match chance.randrange(6):
        case 0:
            return chance.choice([*ALERTS.values(), b""])
        case 1 | 2:
            return mutated(chance.choice(_EVENTS))
        case _:
            event = json.loads(chance.choice(_EVENTS))
            for _ in range(chance.randint(1, 3)):
                inner = event["data"]
                parts = inner.values() if isinstance(inner, dict) else ()
                places = [event, *(part for part in (inner, *parts) if isinstance(part, dict) and part)]
                place = chance.choice(places)
                place[chance.choice(sorted(place))] = chance.choice(_FORGED)
                if not isinstance(event.get("data"), dict):
                    break
            return json.dumps(event).encode()


# State


def journal(broker: Broker, entropy: Callable[[int], bytes], *masters: bytes) -> Journal:
    kept: Journal = journal_of(broker, entropy=entropy, masters=masters, epoch=lambda: 1.8e9)
    return kept


def state_records(
    records: dict[bytes, bytes], progress: bytes, entropy: Callable[[int], bytes], *masters: bytes
) -> dict[bytes, bytes]:
    """Return the raw records of books that hold these, with an event that waits to be published."""
    broker = Broker(now_ms=lambda: 0)
    kept = journal(broker, entropy, *masters)
    finish(kept.open())
    data = lifecycle("first", dataset="a")
    event = ReleasedEvent(type=EventType.RUN_STARTED, id="a/1", sequence=1, subject="a", data=data)
    in_progress = CommandProgress(Command("c", Action.PAUSE, number=4), "a", 1, 1, ("is already paused",))
    kept.meta.commands = CommandState(3, 4, "c", accepted=True, in_progress=in_progress)
    finish(kept.commit(Commit(records=dict(records), progress=progress, events=[event])))
    broker.mark("app-0", everything=True)
    state: dict[bytes, bytes] = finish(ModelLog(broker).read_state())
    return state


def add_up(state: dict[bytes, bytes], entropy: Callable[[int], bytes]) -> None:
    """Make the digest of plain books fit their records: its secret stands in `meta`, for whoever may read it."""
    plain = Sealing(CONTEXT, (), entropy)
    opened = plain.open(META, state[META])
    try:
        meta = msgspec.msgpack.decode(opened.content, type=Meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    mac = hashing(meta.digest_key)
    total = sum(mac(key, record) for key, record in state.items() if key != META)
    content = msgspec.msgpack.encode(msgspec.structs.replace(meta, digest=digest(total)))
    state[META] = plain.seal(META, opened.sequence, content)


FORGED_FIELDS: tuple[Any, ...] = (
    -1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1, b"", bytes(65), b"\xff" * 10, "x", [], [1, -5], {}, None, True, 1e300,
)  # fmt: skip


def forged(chance: random.Random, content: bytes) -> bytes:
    """Return a record's content with one of its fields replaced, or the content of another kind."""
    try:
        fields = msgspec.msgpack.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return content + b"x"
    if isinstance(fields, dict) and fields:
        fields[chance.choice(list(fields))] = chance.choice(FORGED_FIELDS)
    elif isinstance(fields, list) and fields:
        fields[chance.randrange(len(fields))] = chance.choice(FORGED_FIELDS)
    else:
        return msgspec.msgpack.encode(chance.choice(FORGED_FIELDS))
    return msgspec.msgpack.encode(fields)
