"""Malformed input in bulk: ``tests/run soak fuzz [--count N] [--first SEED]``.

Query records (JSON and Arrow), control commands, configurations and state records are made up, or valid ones are
mutated. Nothing may crash, hang or grow; a record that is refused is refused for a public reason; whoever stands
beside a malformed record is read as if it were not there.
"""

from __future__ import annotations

import argparse
import faulthandler
import io
import json
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from stream_svt.errors import ConfigError, StreamSvtError, UnreadableState
from stream_svt.monitor.batch import QueryBatch
from stream_svt.monitor.commands import Action, Command
from stream_svt.monitor.engine import Engine
from stream_svt.monitor.spec import load_spec
from stream_svt.protocol.controls import parse
from stream_svt.protocol.sealing import Place, Sealing
from stream_svt.service import columnar
from stream_svt.service.config import parse_config
from stream_svt.service.wire import Directory, QueryDecoder, Reason

DEFAULT_COUNT = 20_000
BATCH = 50
PATIENCE = 20.0
"""Seconds after which a single batch counts as hanging: the process prints where and ends."""
GROWTH = 400 << 20
"""Bytes by which the process may grow over all messages."""

REASONS = frozenset(reason.value for reason in Reason)
COMMAND_REASONS = frozenset({"command-empty", "command-too-large", "command-bad-field", "command-not-json"})
SPEC = """
application: app
datasets:
  - {names: [a, b], limit: 50, unit: one basket}
monitors:
  - {name: hot, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 100000],
     threshold: 500, expected_queries: 1000}
  - {name: swept, topic: t, epsilon: 1, cutoff: 3, sensitivity: 1, monotonic: true, bounds: [0, 100000],
     threshold: 500, correction: {annealed: {start: 6, end: 2}}, append: sweep}
"""
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
    b"1", b"0", b"-7", b"499.5", b"1e3", b"1E-400", b"1e999", b"NaN", b"null", b'"12"', b"[1,2]", b'{"v":[]}', b"true",
    b"123456789012345678901234567890", b"-0", b"0.1e1", b"Infinity",
)  # fmt: skip


@dataclass
class Record:
    """What a decoder sees of a Kafka record."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 1_700_000_000_000
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Found:
    """What the messages led to."""

    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class Fuzzer:
    """Makes malformed messages from one seed and holds the package to its word on each."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.found = Found()
        self.spec = load_spec(SPEC)
        directory = Directory(["a", "b"], partition=0, partitions=1)
        self._decoder = QueryDecoder("t", 0, directory, ["hot", "swept"])
        self._sealing = Sealing(Place("c", "app", "s", 0), (bytes(range(32)),), self.chance.randbytes)
        self._state: dict[bytes, bytes] = {}
        self._progress = b""
        self._engine = self._fresh_engine()

    def _fresh_engine(self) -> Engine:
        engine = Engine(self.spec, shard=0, datasets=["a", "b"], key=bytes(32), entropy=self.chance.randbytes)
        engine.begin("t", 0)
        return engine

    def run(self, count: int, report: Callable[[int], None] = lambda done: None) -> Found:
        """Handle so many messages."""
        kinds = (
            (self.queries, 0.80),
            (self.commands, 0.10),
            (self.columns, 0.05),
            (self.records, 0.04),
            (self.configs, 0.01),
        )
        while self.found.count < count:
            for handle, share in kinds:
                if self.chance.random() < share:
                    faulthandler.dump_traceback_later(PATIENCE, exit=True)
                    handle()
                    faulthandler.cancel_dump_traceback_later()
            report(self.found.count)
        return self.found

    def _note(self, kind: str, count: int = 1) -> None:
        self.found.count += count
        self.found.kinds[kind] += count

    def _complain(self, text: str, message: bytes) -> None:
        if len(self.found.violations) < 20:
            self.found.violations.append(f"{text}: {message[:200]!r}")

    # Messages

    def valid(self, number: int) -> bytes:
        """Return a query as a producer writes it, with options now and then."""
        chance = self.chance
        body: dict[str, object] = {"id": f"q{number}"}
        text = json.dumps(body)[:-1] + ', "value": ' + chance.choice(VALUES).decode()
        for name, values in (
            ("series", ('"s1"', '"' + "x" * 30 + '"', "null", "7")),
            ("set", ('"w1"', "null", "[]")),
            ("threshold", ("5", "5.25", '"x"', "1e999", "null")),
            ("monitor", ('"hot"', '"other"', "null")),
            ("time", ('"2026-01-01T00:00:00Z"', "17", "{}")),
            ("closed", ("true", "false", "1")),
            ("else", ("1", '{"deep": [1, {"er": null}]}')),
        ):
            if chance.random() < 0.15:
                text += f', "{name}": {chance.choice(values)}'
        return (text + "}").encode()

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

    def queries(self) -> None:
        """Malformed JSON between good neighbours."""
        first = self.found.count
        good = {first + place for place in range(BATCH) if self.chance.random() < 0.3}
        records = []
        for offset in range(first, first + BATCH):
            value = b'{"id":"g","value":77}' if offset in good else self.malformed(offset)
            key = b"a" if offset in good else self.chance.choice((b"a", b"b", b"a", b"b", b"zz", None))
            headers = (("content-type", b"text/odd"),) if key and self.chance.random() < 0.01 else ()
            records.append(Record(offset, key, value, headers=() if offset in good else headers))
        batch = self._decoder.decode(records)
        self._note("query", BATCH)
        self._check(batch, records, good)
        step = self._engine.step(batch)
        while not step.done:
            self._keep()
            step = self._engine.step(batch)
        if self.chance.random() < 0.05:
            self._keep()

    def _keep(self) -> None:
        """Make durable what the engine holds, here in memory."""
        commit = self._engine.take_commit()
        self._engine.committed()
        for key, data in commit.records.items():
            self._state.pop(key, None)
            if data is not None:
                self._state[key] = data
        self._progress = commit.progress

    def _check(self, batch: QueryBatch, records: list[Record], good: set[int]) -> None:
        refused = dict(batch.rejects)
        rows = set(batch.offset.tolist())
        for offset, reason in refused.items():
            self.found.outcomes[reason] += 1
            if reason not in REASONS:
                self._complain(
                    f"refused for {reason!r}, which is no public reason",
                    records[offset - batch.first].value or b"",
                )
        for record in records:
            seen = (record.offset in rows) + (record.offset in refused)
            if seen != 1:
                self._complain(f"is accounted for {seen} times", record.value or b"")
        values = dict(zip(batch.offset.tolist(), batch.whole.tolist(), strict=True))
        for offset in good:
            if values.get(offset) != 77:
                self._complain(
                    "a good query was lost beside malformed ones", records[offset - batch.first].value or b""
                )

    def commands(self) -> None:
        """Control commands: mutated ones are words of a fixed set, valid ones are answered or refused."""
        chance = self.chance
        for _ in range(BATCH):
            command = Command(
                id=f"c{self.found.count}",
                action=chance.choice(
                    [a for a in Action if a not in (Action.ACCEPT_LOSS, Action.MARK_EXHAUSTED)]
                ),
                dataset=chance.choice(("a", "b", "zz", "")),
                monitor=chance.choice(("", "hot", "none")),
                limit=chance.choice(("", "60", "-1", "1/0", "x", "1e9999", "9" * 100)),
            )
            message = msgspec.json.encode(command)
            if chance.random() < 0.7:
                message = self.mutated(message) if chance.random() < 0.8 else self.malformed(0)
            self._note("command")
            parsed = parse(message)
            if isinstance(parsed, str):
                self.found.outcomes[parsed] += 1
                if parsed not in COMMAND_REASONS:
                    self._complain(f"command refused for {parsed!r}", message)
            elif parsed.action not in (Action.ACCEPT_LOSS, Action.MARK_EXHAUSTED):
                # Whatever it says, it is answered by an event and never by an exception.
                self._engine.apply(parsed)
        self._keep()

    def columns(self) -> None:
        """Arrow records: bytes of a valid stream changed anywhere."""
        if not columnar.available():
            return
        message = self._arrow()
        for _ in range(10):
            offset = self.found.count
            record = Record(offset, b"a", self.mutated(message), headers=(("content-type", ARROW_TYPE),))
            batch = self._decoder.decode([record])
            self._note("columnar")
            self.found.outcomes["columnar refused" if batch.rejects else "columnar read"] += 1
            if any(reason not in REASONS for _, reason in batch.rejects):
                self._complain(f"refused for {batch.rejects}", record.value or b"")

    def _arrow(self) -> bytes:
        import pyarrow as pa

        rows = self.chance.randint(1, 6)
        table = pa.table(
            {"id": [f"q{i}" for i in range(rows)], "value": [self.chance.randrange(900) for _ in range(rows)]}
        )
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    def records(self) -> None:
        """State records: sealed ones do not open once changed; changed plain contents are refused by the engine."""
        if not self._state:
            self._keep()
        for _ in range(BATCH // 5):
            key = self.chance.choice(sorted(self._state)) if self._state else b"d/a"
            content = self._state.get(key, b"x")
            sealed = self._sealing.seal(key, 7, content)
            changed = self.mutated(sealed)
            self._note("sealed record")
            try:
                opened = self._sealing.open(key, changed)
                if changed != sealed or opened.content != content:
                    self._complain("a changed record was opened", changed)
            except UnreadableState:
                self.found.outcomes["record refused"] += 1
            self._note("plain record")
            other = dict(self._state)
            other[key] = self.mutated(content)
            try:
                self._fresh_engine().load(other, self._progress)
                self.found.outcomes["record loaded"] += 1
            except StreamSvtError:
                self.found.outcomes["record refused"] += 1

    def configs(self) -> None:
        """Configurations: every mistake is a listed problem, never another exception."""
        text = CONFIG + SPEC.replace("application: app\n", "")
        for _ in range(5):
            changed = self.mutated(text.encode()).decode("utf-8", "replace")
            self._note("configuration")
            try:
                parse_config(changed, source="fuzz")
                self.found.outcomes["configuration read"] += 1
            except ConfigError as error:
                self.found.outcomes["configuration refused"] += 1
                if not error.problems:
                    self._complain("refused without a problem", changed.encode())


ARROW_TYPE = b"application/vnd.apache.arrow.stream"
CONFIG = 'application: app\nkafka: {bootstrap_servers: "127.0.0.1:9092"}\ntopics: {partitions: 2}\n'


def main() -> int:
    """Fuzz, print the closing line, and return 1 where the package broke its word."""
    parser = argparse.ArgumentParser(prog="tests/run soak fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT, help="messages (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="seed")
    arguments = parser.parse_args()
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    shown = 0

    def report(done: int) -> None:
        nonlocal shown
        if done // 100_000 > shown:
            shown = done // 100_000
            print(f"{done} messages, {time.monotonic() - began:.0f} s", file=sys.stderr)

    found = Fuzzer(arguments.first).run(arguments.count, report)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    if grown > GROWTH:
        found.violations.append(f"the process grew by {grown >> 20} MiB")
    for text in found.violations:
        print(text)
    print(
        f"{dict(found.kinds)}, grown by {grown >> 20} MiB, {time.monotonic() - began:.0f} s", file=sys.stderr
    )
    print(f"{dict(found.outcomes.most_common())}", file=sys.stderr)
    print(f"soak.fuzz count {found.count} violations {len(found.violations)}")
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
