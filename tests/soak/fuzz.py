"""Malformed input in bulk: ``tests/run soak fuzz [--count N] [--first SEED]``.

Batches of records, query records (JSON, mapped JSON, Avro and its schemas, Arrow), control commands, configurations,
alerts and state records are made up, or valid ones are mutated. Nothing may crash, hang or grow; a record that is
refused is refused for a public reason; whoever stands beside a malformed record is read as if it were not there.
Counted is only what was malformed: what the package refused, or had to read as no number; what a mutation left
well-formed is handled and not counted.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar
from unittest import mock

import msgspec

from stream_svt.application.config import parse_config
from stream_svt.application.signatures import HEADER, Verifier, shared_key
from stream_svt.columns import decimals
from stream_svt.columns.query_batch import QueryBatch
from stream_svt.errors import ConfigError, StreamSvtError, UnreadableState
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.monitor import operations, released
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.takeover import load
from stream_svt.protocol.controls import (
    CommandPhase,
    CommandState,
    Controls,
    Refusal,
    accept_all,
    decode_command,
)
from stream_svt.protocol.history.audit import Audit
from stream_svt.protocol.records import Records
from stream_svt.protocol.sealing import Sealing
from stream_svt.protocol.state_records import META, OUTBOX
from stream_svt.queries import counts
from stream_svt.queries.avro.columns import RecordSchema, UnusableSchema
from stream_svt.queries.codec import QueryDecoder
from stream_svt.queries.dataset_index import DatasetIndex
from stream_svt.queries.fast_json import columns
from stream_svt.queries.reasons import Reason
from stream_svt.settings.application import load_spec
from stream_svt.settings.records import RecordLayout
from stream_svt.settings.sources import SourceSpec
from tests.simulation.log import CONTEXT, Entry, finish, holding
from tests.soak import poison, report
from tests.soak.stage import Outcome
from tests.support import batches
from tests.support.avro import AtHand, encode, varint
from tests.support.avro import record as schema_of
from tests.support.forgeries import CONTENTS

_T = TypeVar("_T")
DEFAULT_COUNT = 20_000
OUTBOX_FIRST = OUTBOX + b"0"
BATCH = 50
PATIENCE = 20.0
"""Seconds after which a single batch counts as hanging: the process prints where and ends."""
GROWTH, GROWTH_EACH = 160 << 20, 128
"""Bytes by which the process may grow: at once, for what fills in the beginning, and with each message. Measured were
80 MiB after 10,000 messages, 83 after 60,000, 108 after a million."""
SHARES = {
    "query": 0.55, "batch": 0.05, "mapped": 0.06, "avro": 0.06, "columnar": 0.11, "configuration": 0.012,
    "command": 0.06, "alert": 0.04, "state": 0.05,
}  # fmt: skip
"""What is wanted of each kind, a method of the fuzzer; less than nine tenths of it is a violation."""
MASTER = bytes(range(32))
STATE = "5e" * 16

REASONS = frozenset(reason.value for reason in Reason)
COMMAND_REASONS = frozenset(reason.value for reason in Refusal)
SPEC = """
application: app
datasets:
  - {names: [a, b], limit: 50, unit: one basket}
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 100000],
     threshold: 500, max_runs: off, expected_queries: 1000}
  - {name: swept, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 100000],
     threshold: 500, max_runs: off, correction: {annealed: {start: 6, end: 2}}, append: sweep}
"""
COUNTED = SourceSpec.model_validate(
    {"name": "counted", "topic": "raw", "unit": "user", "window": "1h", "dataset": "a"}
)
MAPPED = RecordLayout(value="payload.count", series="payload.page")
AVRO = RecordLayout(format="avro", value="n", series="s")
SCHEMAS = (
    schema_of("r", n=["null", "long", "double"], s=["null", "string"], b="boolean"),
    schema_of(
        "r",
        xs={"type": "array", "items": [schema_of("i", a="boolean", f="float"), "null"]},
        n="long",
        m={"type": "map", "values": {"type": "fixed", "name": "f", "size": 3}},
        s={"type": "enum", "name": "e", "symbols": ["A", "B"]},
    ),
    schema_of("r", n="long", s=["null", "r"]),
)
"""The last one is recursive."""
WORDS = (
    '"long"', '"string"', '"boolean"', '"null"', '"bytes"', '"fixed"', '"r"', "3", '"array"', '"map"', '"xs"', '"n"',
)  # fmt: skip
NASTY = (
    b"",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"0",
    b"{" * 3000,
    b"[" * 20_000,
    b'{"a":' * 2000,
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b'{"id":"q","value":1}{"id":"q","value":1}',
    b'{"id":"q",\n"value":1}',
    b'{"id":"q","value":1}\n{"id":"p","value":2}',
    b'{"id":"\\ud800","value":1}',
    b'{"id":"q","id":"q","value":1,"value":2}',
    b'{"id":"q","value":' + b"9" * 5000 + b"}",
    b'{"id":"q","value":1e999999999}',
    b'{"id":"q","value":-0.0}',
    b'{"id":"q","value":NaN}',
    b'{"id":"q","value":{"value":1}}',
    b'{"id":"' + b"i" * 70_000 + b'","value":1}',
    b'{"id":"q","threshold":1e400}',
    b'{"id":"q","value":1,"threshold":"x"}',
    b'{"id":"q","value":1,"set":"s","closed":"yes"}',
    b'{"id":"\\u0000","value":"\\u0000"}',
    b"\x00" * 64,
)
VALUES = (
    "1", "0", "-7", "499.5", "1e3", "1E-400", "1e999", "NaN", "null", '"12"', "[1,2]", '{"v":[]}', "true",
    "123456789012345678901234567890", "-0", "0.1e1", "Infinity",
)  # fmt: skip
OPTIONS = {
    "series": ('"s1"', '"' + "x" * 30 + '"', "null", "7"),
    "set": ('"w1"', "null", "[]"),
    "threshold": ("5", "5.25", '"x"', "1e999", "null"),
    "monitor": ('"hot"', '"other"', "null"),
    "time": ('"2026-01-01T00:00:00Z"', "17", "{}"),
    "closed": ("true", "false", "1"),
    "else": ("1", '{"deep": [1, {"er": null}]}'),
}


def record_of(
    offset: int, key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...] = ()
) -> Entry:
    """Return what a decoder sees of a Kafka record."""
    return Entry("t", offset, 1_700_000_000_000, key, value, headers)  # type: ignore[arg-type]  # headers may be odd


def together(decoder: QueryDecoder, records: list[Entry]) -> QueryBatch:
    """Decode records, those of a common shape as if they were many."""
    with mock.patch.object(columns, "FEW", 2):
        return decoder.decode(records)


class Fuzzer:
    """Makes malformed messages from one seed and holds the package to its word on each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kinds: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.violations: list[str] = []
        self.spec = load_spec(SPEC)
        directory = DatasetIndex(["a", "b"], partition=0, partitioning=Partitioning(1, "murmur2"))
        self._decoder = QueryDecoder("t", directory, ["hot", "swept"])
        self._counts = QueryDecoder("counts", directory, ["hot", "swept"], source=COUNTED)
        self._mapped = QueryDecoder("t", directory, [], MAPPED)
        known = {256 * number: schema for number, schema in enumerate(SCHEMAS)}
        self._avro = QueryDecoder("t", directory, [], AVRO, AtHand(known))
        self._sealing = Sealing(CONTEXT, (MASTER,), self.chance.randbytes)
        self._plain = Sealing(CONTEXT, (), self.chance.randbytes)
        self._signing, verifying = shared_key(MASTER)
        self._verifier = Verifier(CONTEXT, [verifying])
        self._controls = Controls(CommandState(), STATE, self._verifier)
        self._control_end = 0
        self._copies: list[Entry] = []
        self._streams = poison.Streams(self.chance)
        self._audit = Audit()
        self._next = 0
        self._size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._state: dict[bytes, bytes] = {}
        self._progress = b""
        self._engine = self._fresh_engine()

    def _fresh_engine(self) -> Engine:
        engine = Engine(self.spec, shard=0, datasets=["a", "b"], key=bytes(32), entropy=self.chance.randbytes)
        engine.begin("t", 0)
        return engine

    @property
    def count(self) -> int:
        return self.kinds.total()

    def run(self, count: int, progress: Callable[[int], None] = lambda done: None) -> None:
        while self.count < count:
            # Whichever is furthest behind.
            kind = min(SHARES, key=lambda name: self.kinds[name] / SHARES[name])
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            getattr(self, kind)()
            faulthandler.cancel_dump_traceback_later()
            self.weigh(kind)
            progress(self.count)
        for kind, share in SHARES.items():
            # A batch of commands, each signed badly too, may count twice.
            if self.kinds[kind] < 0.9 * share * self.count - 2 * BATCH:
                self._complain(f"only {self.kinds[kind]} of {self.count} are of kind {kind!r}")

    def weigh(self, kind: str) -> None:
        if self.grown > GROWTH + GROWTH_EACH * self.count:
            self._complain(
                f"the process grew by {self.grown >> 20} MiB, at last over a batch of kind {kind!r}"
            )

    @property
    def grown(self) -> int:
        """Bytes by which the process has grown at most."""
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self._size) * 1024

    def _hold(
        self, kind: str, message: bytes, handle: Callable[[], _T], *named: type[Exception]
    ) -> _T | None:
        """Return what a handler returns; None where it raises one of the errors that have a name for this."""
        try:
            return handle()
        except named:
            return None
        except Exception as error:  # noqa: BLE001  whatever it is, that is the finding
            self._complain(f"{kind} raised {type(error).__name__} ({str(error)[:80]})", message)
            return None

    def _complain(self, text: str, message: bytes | None = b"") -> None:
        if len(self.violations) < 20:
            self.violations.append(f"{text}: {(message or b'')[:200]!r}")

    # Messages

    def valid(self, number: int) -> bytes:
        """Return a query as a producer writes it, with options now and then."""
        chance = self.chance
        parts = [f'"id": "q{number}"', f'"value": {chance.choice(VALUES)}']
        parts += [
            f'"{name}": {chance.choice(values)}' for name, values in OPTIONS.items() if chance.random() < 0.15
        ]
        return ("{" + ", ".join(parts) + "}").encode()

    def mutated(self, message: bytes) -> bytes:
        """Return a message with a few bytes changed, cut, doubled or moved."""
        chance, text = self.chance, bytearray(message)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(text) + 1)
            match chance.randrange(6):
                case 0:
                    text[at : at + 1] = bytes([chance.randrange(256)])
                case 1:
                    del text[at : at + chance.randint(1, 12)]
                case 2:
                    text[at:at] = text[max(0, at - chance.randint(1, 20)) : at]
                case 3:
                    text[at:at] = chance.choice(
                        (b'"', b"{", b"}", b"[", b",", b":", b"\\", b"\n", b"\x00", b"1", b"\xc3")
                    )
                case 4:
                    text = text[at:] + text[:at]
                case _:
                    del text[at:]
        return bytes(text)

    def malformed(self, number: int) -> bytes:
        """Return something that is probably no query."""
        match self.chance.randrange(8):
            case 0:
                return self.chance.randbytes(self.chance.randrange(200))
            case 1:
                return self.chance.choice(NASTY)
            case 2:
                return self.mutated(self.chance.choice(NASTY)[:2000])
            case _:
                return self.mutated(self.valid(number))

    # What is held to its word

    def query(self) -> None:
        """Malformed JSON between good neighbours."""
        first = self._next
        self._next += BATCH
        good = {first + place for place in range(BATCH) if self.chance.random() < 0.3}
        records = []
        for offset in range(first, first + BATCH):
            value = b'{"id":"g","value":77}' if offset in good else self.malformed(offset)
            key = b"a" if offset in good else self.chance.choice((b"a", b"b", b"a", b"b", b"zz", None))
            headers = self.chance.choice(poison.ODD_HEADERS) if key and self.chance.random() < 0.02 else ()
            records.append(record_of(offset, key, value, () if offset in good else headers))
        batch = self._hold("query", b"", lambda: together(self._decoder, records))
        if batch is None:
            return
        self.kinds["query"] += len(batch.rejects) + int((batch.whole == decimals.NO_NUMBER[0]).sum())
        self._check(batch, records, good)
        step = self._engine.step(batch)
        while not step.done:
            self._keep()
            step = self._engine.step(batch)
        if self.chance.random() < 0.05:
            self._keep()

    def batch(self) -> None:
        """Batches whose records are mutated, with checksums that hold: read as columns as by the client."""
        chance = self.chance
        for _ in range(BATCH):
            records = [
                batches.Wire(
                    offset,
                    chance.choice((0, 5, -900, 1 << 40)),
                    chance.choice((b"a", None)),
                    self.valid(offset),
                )
                for offset in range(chance.choice((1, 3, 40)))
            ]
            whole = batches.Batch(
                7, records, chance.randrange(5), chance.choice((0, batches.LOG_APPEND_TIME))
            )
            if chance.random() < 0.8:
                whole = whole.changed(content=self.mutated(whole.plain))
            elif whole.codec:
                whole = whole.changed(compressed=self.mutated(batches.CODECS[whole.codec](whole.plain)))
            content, most = whole.encode(), chance.choice((1, 7, 1 << 20))
            read = partial(batches.disagreement, content, 7, most=[most], text=chance.random() < 0.5)
            if self._hold("batch", content, read) is not None:
                self._complain("a batch is not read as by the client", content)
            self.kinds["batch"] += whole.content is not None or whole.compressed is not None

    def mapped(self) -> None:
        """Records of a topic with other fields: mutated ones between good neighbours."""
        good, chance = b'{"op":"c","payload":{"count":77,"page":"p"}}', self.chance
        odd = [
            lambda: self.mutated(good),
            lambda: chance.choice(NASTY),
            lambda: b'{"payload":{"page":7,"count":%b}}' % chance.choice(VALUES).encode(),
            lambda: self.mutated(
                b'{"payload":{"x":{"payload":[]},"count":{"count":1},"page":null},"payload":{}}'
            ),
        ]
        self._beside("mapped", self._mapped, good, odd)

    def avro(self) -> None:
        """Avro records: mutated ones between good neighbours, and schemas that somebody changed."""
        chance = self.chance
        good = encode(SCHEMAS[0], {"n": 77, "s": "p", "b": True}, 0)
        lists = {"xs": [{"a": True, "f": 1.5}, None] * 3, "n": 7, "m": {"k": b"abc"}, "s": "A"}
        full = encode(SCHEMAS[1], lists, 256)
        odd = [
            lambda: good[:5] + self.mutated(good[5:]),
            lambda: full[:5] + self.mutated(full[5:]),
            lambda: full[:5] + varint(chance.choice((2**62, -(2**62), -1, 10**6))) + chance.randbytes(40),
            lambda: b"\0\0\0\2\0" + chance.randbytes(20),
            lambda: self.mutated(b"\1" + good[1:]) if chance.random() < 0.5 else b"\2" + good,
        ]
        self._beside("avro", self._avro, good, odd)
        text = json.dumps(chance.choice(SCHEMAS))
        for _ in range(chance.randint(1, 3)):
            text = text.replace(*chance.sample(WORDS, 2), chance.randint(1, 2))
        if chance.random() < 0.5:
            text = self.mutated(text.encode()).decode("utf-8", "replace")
        read = self._hold("schema", text.encode(), lambda: RecordSchema(text, [("n",)]), UnusableSchema)
        self.outcomes["schema refused" if read is None else "schema read"] += 1
        changed = QueryDecoder("t", self._avro.dataset_index, [], AVRO, AtHand({0: text}))
        records = [
            record_of(offset, b"a", good[:1] + bytes(4) + body)
            for offset, body in enumerate([full[5:], good[5:], chance.randbytes(200)])
        ]
        self._hold("record", text.encode(), lambda: (changed.lack(records), together(changed, records)))

    def _beside(self, kind: str, decoder: QueryDecoder, good: bytes, odd: list[Callable[[], bytes]]) -> None:
        """Decode odd records between good ones."""
        first = self._next
        self._next += BATCH
        places = {first + place for place in range(BATCH) if self.chance.random() < 0.3}
        records = [
            record_of(offset, b"a", good if offset in places else self.chance.choice(odd)())
            for offset in range(first, first + BATCH)
        ]
        if kind == "avro":
            # Those that name a schema nobody knows would wait.
            records = [one if not decoder.lack([one])[1] else replace(one, value=b"") for one in records]
        batch = self._hold(kind, b"", lambda: together(decoder, records))
        if batch is not None:
            self.kinds[kind] += len(batch.rejects) + int((batch.whole == decimals.NO_NUMBER[0]).sum())
            self._check(batch, records, places)

    def _keep(self) -> None:
        """Make durable what the engine holds, here in memory."""
        commit = self._engine.take_commit()
        self._engine.committed()
        for key, data in commit.records.items():
            self._state.pop(key, None)
            if data is not None:
                self._state[key] = data
        self._progress = commit.progress

    def _check(self, batch: QueryBatch, records: list[Entry], good: set[int]) -> None:
        refused = dict(batch.rejects)
        rows = set(batch.offset.tolist())
        for offset, reason in refused.items():
            self.outcomes[reason] += 1
            if reason not in REASONS:
                of = records[offset - batch.first].value
                self._complain(f"refused for {reason!r}, which is no public reason", of)
        for record in records:
            seen = (record.offset in rows) + (record.offset in refused)
            if seen != 1:
                self._complain(f"is accounted for {seen} times", record.value)
        values = dict(zip(batch.offset.tolist(), batch.whole.tolist(), strict=True))
        for offset in good:
            if values.get(offset) != 77:
                of = records[offset - batch.first].value
                self._complain("a good query was lost beside malformed ones", of)

    def command(self) -> None:
        """Control commands: mutated ones are words of a fixed set, valid ones are answered or refused."""
        chance = self.chance
        for _ in range(BATCH):
            command = Command(
                id=f"c{self.count}",
                action=chance.choice([action for action in Action if action is not Action.ACCEPT_LOSS]),
                dataset=chance.choice(("a", "b", "zz", "")),
                monitor=chance.choice(("", "hot", "none")),
                expires=chance.choice((1, 2**62)),
                limit=chance.choice(("", "60", "-1", "1/0", "x", "1e9999", "9" * 100)),
                # Copies and forgeries: of another shard, stale ones, and numbers that nobody has reached.
                state=STATE if chance.random() < 0.9 else "00" * 16,
                number=self._controls.snapshot.number + chance.choice((0, 1, 1, 1, 2, 2**62)),
            )
            message = msgspec.json.encode(command)
            if chance.random() < 0.5:
                message = self.mutated(message) if chance.random() < 0.8 else self.malformed(0)
            sent = Entry("control", 0, 0, None, message)
            parsed = self._hold("command", message, partial(decode_command, sent, accept_all))
            if isinstance(parsed, Command):
                if parsed.action is not Action.ACCEPT_LOSS:
                    # Whatever it says, it is answered by an event and never by an exception.
                    self._hold("command", message, lambda: operations.apply(self._engine, parsed))  # noqa: B023
            elif parsed is not None:
                self._refused_command(parsed, message)
            self._signed(message)
        # What was sent before, copied in any order: the numbers are used up.
        for record in chance.sample(self._copies, min(len(self._copies), 5)):
            self._hear(record, bad=True)
        self._copies = self._copies[-200:]
        self._keep()

    def _refused_command(self, reason: str, message: bytes) -> None:
        self.kinds["command"] += 1
        self.outcomes[reason] += 1
        if reason not in COMMAND_REASONS:
            self._complain(f"command refused for {reason!r}", message)

    def _signed(self, message: bytes) -> None:
        """The same command, signed, unsigned, or signed badly: heard only with the signature that it was given."""
        chance = self.chance
        name, value = self._signing.header(CONTEXT, message)
        headers: tuple[tuple[str, bytes | None], ...] = ((name, value),)
        if chance.random() < 0.7:
            changed = self.mutated(value)
            odd = chance.choice((None, b"", changed, value + b" ", b"v3 ed25519 " + value[15:], b"9" * 5000))
            headers = chance.choice(
                (
                    ((name, odd),),
                    ((name, value), (name, odd)),
                    ((chance.choice(("", HEADER.upper(), HEADER + " ", "\ufffd" + HEADER)), value),),
                    (*poison.ODD_HEADERS[3], (name, odd)),
                )
            )
        bad = (name, value) not in headers or [known for known, _ in headers].count(name) > 1
        content: bytes | None = message
        match chance.randrange(20):
            case 0:
                content, bad = None, True
            case 1:
                content, bad = message + b" " * 70_000, True
        self._hear(record_of(0, b"a", content, headers), bad=bad)

    def _hear(self, record: Entry, *, bad: bool) -> None:
        record = replace(record, offset=self._control_end)
        self._control_end += 1
        message, before = record.value or b"", self._controls.snapshot
        found = self._hold("signed command", message, lambda: self._controls.read(record, CommandPhase.OPEN))
        if isinstance(found, str):
            self._refused_command(found, message)
        elif isinstance(found, Command):
            if bad or (found.state, found.number) != (STATE, before.number + 1):
                self._complain(f"a command was heard after {before} with headers {record.headers!r}", message)
            self._controls.consume_number(found, accepted=True)
            self._copies.append(record)

    def columnar(self) -> None:
        """Arrow records: good streams with bytes changed anywhere, and streams that no good producer writes."""
        for _ in range(10):
            chance, harmless = self.chance, False
            if chance.random() < 0.5:
                message, harmless = self._streams.poisoned()
            else:
                message = self._streams.written(self._streams.good(chance.randint(1, 6)))
            if (not harmless and chance.random() < 0.5) or chance.random() < 0.2:
                message, harmless = self.mutated(message), False
            record = record_of(self._next, b"a", message, (("content-type", poison.ARROW_TYPE),))
            self._next += 1
            batch = self._hold("columnar", message, lambda: self._decoder.decode([record]))  # noqa: B023
            if batch is None:
                continue
            self.outcomes["columnar refused" if batch.rejects else "columnar read"] += 1
            for _, reason in batch.rejects:
                self.outcomes[reason] += 1
            if batch.rejects or decimals.NO_NUMBER[0] in batch.whole:
                self.kinds["columnar"] += 1
            if any(reason not in REASONS for _, reason in batch.rejects):
                self._complain(f"refused for {batch.rejects}", message)
            if harmless and batch.rejects:
                self._complain(f"refused for {batch.rejects} although only its values are odd", message)
            self._count(message)

    def _count(self, message: bytes) -> None:
        """Decode a stream as a record of counts: of this or another source, measure and clock."""
        chance = self.chance
        headers = (
            ("content-type", poison.ARROW_TYPE),
            (counts.SOURCE_HEADER, chance.choice((COUNTED.digest, "0" * 16)).encode()),
            (counts.MEASURE_HEADER, chance.choice((b"units", b"other", b"\xff"))),
        )
        record = record_of(self._next, b"a", message, headers[: chance.randint(1, 9)])
        records = replace(Records.of([record]), by_broker=chance.random() < 0.2)
        batch = self._hold("counts", message, lambda: self._counts.decode(records))
        for _, reason in () if batch is None else batch.rejects:
            self.outcomes[reason] += 1
            if reason not in REASONS:
                self._complain(f"a record of counts is refused for {reason}", message)

    def alert(self) -> None:
        """Alerts that somebody forged: none gets a number that no event can have, and the audit has findings."""
        for _ in range(BATCH):
            message = poison.alerts(self.chance, self.mutated)
            found = self._hold("alert", message, lambda: released.event_in(message))  # noqa: B023
            number = 0 if found is None else found.sequence
            if not 0 <= number < 1 << 63:
                self._complain(f"an alert with number {number}", message)
            before = self._audit.found
            self._hold("audited alert", message, lambda: self._audit.add(0, self._next, message))  # noqa: B023
            self._next += 1
            if self._audit.found > before or not number:
                self.kinds["alert"] += 1
                self.outcomes["alert no event" if not number else "alert found"] += 1
        if self.chance.random() < 0.1:
            self._audit = Audit()

    def state(self) -> None:
        """State records of every kind, sealed and plain: changed ones open never, or end in an error with a name."""
        if not self._state:
            self._keep()
        sealed = poison.state_records(self._state, self._progress, self.chance.randbytes, MASTER)
        plain = poison.state_records(self._state, self._progress, self.chance.randbytes)
        for _ in range(BATCH // 5):
            for state, play in (sealed, self._sealed_record), (plain, self._plain_record):
                play(state, self.chance.choice((META, OUTBOX_FIRST, *sorted(state)[:40])))

    def _sealed_record(self, state: dict[bytes, bytes], key: bytes) -> None:
        changed = self.mutated(state[key])
        if changed == state[key]:
            return
        self.kinds["state"] += 1
        handlers: dict[str, Callable[[], object]] = {
            "sealed record": lambda: self._sealing.open(key, changed),
            "look": lambda: finish(
                poison.journal(holding(state | {key: changed}), self.chance.randbytes, MASTER).inspect()
            ),
        }
        for what, handle in handlers.items():
            if self._hold(what, changed, handle, UnreadableState) is not None:
                self._complain(f"{what}: a changed record was opened", changed)
        self.outcomes["record refused"] += 1

    def _plain_record(self, state: dict[bytes, bytes], key: bytes) -> None:
        """A plain record that somebody made, with its check: nothing keeps it from being opened."""
        opened = self._plain.open(key, state[key])
        match self.chance.randrange(4):
            case 0:
                content = self.mutated(opened.content)
            case 1:
                content = self.chance.choice([*CONTENTS.values(), b""])
            case _ if key == OUTBOX_FIRST:
                content = zlib.compress(poison.forged(self.chance, zlib.decompress(opened.content)))
            case _:
                content = poison.forged(self.chance, opened.content)
        other = dict(state)
        if self.chance.random() < 0.1 and key not in (META, OUTBOX_FIRST):
            del other[key]
            key = self.chance.choice((b"\xff", b"w/x", b"d/\xff", b"", b"w/" + b"9" * 5000, b"h/"))
        other[key] = self._plain.seal(key, opened.sequence, content)
        if other == state:
            return
        if self.chance.random() < 0.8:
            poison.add_up(other, self.chance.randbytes)

        def look() -> object:
            read = poison.journal(holding(other), self.chance.randbytes)
            return finish(read.inspect() if self.chance.random() < 0.5 else read.open())

        restored = self._hold("plain books", other[key], look, UnreadableState)
        records = {name: self._plain.open(name, record).content for name, record in other.items()}
        progress = self._progress
        if key == META and self.chance.random() < 0.5:
            progress = self.mutated(progress)
        for name in (META, OUTBOX_FIRST):
            records.pop(name, None)
        loaded = restored
        # The journal lets no others through.
        if all(name.decode(errors="ignore").encode() == name for name in records):
            engine = self._fresh_engine()
            loaded = self._hold(
                "engine", other[key], lambda: load(engine, records, progress) or True, StreamSvtError
            )
        self.outcomes["record refused" if None in (restored, loaded) else "record loaded"] += 1
        if None in (restored, loaded):
            self.kinds["state"] += 1

    def configuration(self) -> None:
        """Configurations: every mistake is a listed problem, never another exception."""
        text = CONFIG + SPEC.replace("application: app\n", "")
        for _ in range(5):
            changed = self.mutated(text.encode()).decode("utf-8", "replace")

            def read() -> None:
                try:
                    parse_config(changed, source="fuzz")  # noqa: B023  called at once
                    self.outcomes["configuration read"] += 1
                except ConfigError as error:
                    self.kinds["configuration"] += 1
                    self.outcomes["configuration refused"] += 1
                    if not error.problems:
                        raise AssertionError("refused without a problem") from error

            self._hold("configuration", changed.encode(), read)


CONFIG = 'application: app\nkafka: {bootstrap_servers: "127.0.0.1:9092"}\ntopics: {partitions: 2}\n'


def play(count: int, seed: int) -> Outcome:
    fuzzer = Fuzzer(seed)
    fuzzer.run(count, report.Progress())
    notes = [
        f"{dict(fuzzer.kinds)}, grown by {fuzzer.grown >> 20} MiB",
        f"{dict(fuzzer.outcomes.most_common())}",
    ]
    return Outcome(fuzzer.count, fuzzer.violations, notes)
