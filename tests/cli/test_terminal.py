"""No text from outside reaches a terminal raw, whichever command prints it; JSON stays as it is."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import msgspec
import pytest
from aiokafka.structs import ConsumerRecord
from click import BadParameter

from stream_svt import plain_text, terminal
from stream_svt.cli import common, configuring, main, showing
from stream_svt.cli.whole import show_whole, show_worker
from stream_svt.errors import ConfigError, Problem, StreamSvtError
from stream_svt.logs import TEXT, TextFormatter
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType
from stream_svt.operate.control import Addressed, Reply
from stream_svt.operate.findings import note, ok, problem
from stream_svt.operate.lint import Sample
from stream_svt.operate.rejects import Rejects
from stream_svt.planning.difference import Difference
from stream_svt.privacy.loss import Kind
from stream_svt.protocol.history.audit import Audit, DatasetTally
from stream_svt.subscription import Event
from tests.support.alerts import account_of, alert, event, lifecycle
from tests.support.status_page import STATUS

PACKAGE = Path(__file__).parents[2] / "stream_svt"
HOSTILE = (
    "x\x1b[2J\x1b[5m\x1b]0;title\x07\x1b]8;;http://x\x1b\\\r\nFORGED\x0b\x85\u2028FORGED\u202e\u2066\u200b\u200f\ufeff"
    "\x00\x08\x7f\x9b2J\u3164\ufe0f\U000e0041\ue000"
)
CLOSED = {"branch", "muted_until", "measure"}
"""Fields of an event with a few values."""
_OWN = re.compile(r"\x1b\[(0|1|2|3[1-6])m")


def spoiled(value: Any) -> Any:
    """Return data in which every text and every key that is not a field's name ends with what a terminal obeys."""
    if isinstance(value, str):
        return value + HOSTILE
    if isinstance(value, dict):
        return {key: spoiled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [spoiled(inner) for inner in value]
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(
            value,
            **{name: spoiled(getattr(value, name)) for name in value.__struct_fields__ if name not in CLOSED},
        )
    return value


def require_harmless(text: str) -> None:
    plain = _OWN.sub("", text)
    assert {one for one in plain if one != "\n" and not plain_text.is_visible(one)} == set()
    assert not [line for line in plain.split("\n") if line.strip("│ ").startswith("FORGED")]


@pytest.fixture
def printed(monkeypatch, capfd):
    """Return what was printed so far, as on a terminal: click removes escape codes elsewhere."""
    monkeypatch.setattr(click.utils, "should_strip_ansi", lambda *_: False)
    monkeypatch.setattr(click._compat, "should_strip_ansi", lambda *_: False)

    def harmless() -> str:
        out, err = capfd.readouterr()
        require_harmless(out + err)
        assert "x\\x1b[2J" in out + err
        return out + err

    return harmless


# --- one function


def test_every_line_for_people_goes_through_one_function():
    writers = {
        "terminal.py": "the function itself",
        "cli/common.py": "tables, of escaped cells",
        "demo/session.py": "the screen of the demo, whose parts are escaped",
    }
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                is_print = called in {"print", "click.echo", "click.secho", "click.style", "rich.print"}
                if is_print or re.fullmatch(
                    r"(self\.)?console\.(print|out|log)|sys\.(stdout|stderr)\.write", called
                ):
                    found.setdefault(str(path.relative_to(PACKAGE)), set()).add(called)
    assert found.keys() == writers.keys()
    assert found["cli/common.py"] == {"console.print"}


def test_own_colours_are_kept_and_no_others():
    assert (
        terminal.line(terminal.styled("note", fg="yellow"), " a\x1b[33mb\n")
        == "\x1b[33mnote\x1b[0m a\\x1b[33mb\\n"
    )


# --- events, pages and records


class Stream:
    """A subscription that receives one event."""

    def __init__(self, received: Event) -> None:
        self._received = received

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        return None

    async def __aiter__(self):
        yield self._received


def run(*arguments: object) -> None:
    with pytest.raises(SystemExit):
        main([*map(str, arguments)])


@pytest.mark.parametrize(
    "received",
    [
        event(spoiled(alert(muted_until="run"))),
        event(
            spoiled(lifecycle("resampled", account=account_of(), detail={"until": "x", "b": "y"})),
            EventType.LIMITED,
        ),
    ],
    ids=["alert", "lifecycle"],
)
def test_watch_prints_an_event_as_one_line(received: Event, printed):
    asyncio.run(
        showing._follow(
            Stream(received), lifecycle=True, as_json=False, limit=1, greeting=f"Waiting on {HOSTILE}"
        )
    )
    assert printed().count("\n") == 2


def test_watch_prints_json_as_it_is(capfd):
    asyncio.run(
        showing._follow(Stream(event(spoiled(alert()))), lifecycle=False, as_json=True, limit=1, greeting="")
    )
    assert json.loads(capfd.readouterr().out)["data"]["series"] == f"milk{HOSTILE}"


def test_status_prints_any_answer_of_a_page(printed):
    refused = {"topic": "t", "reasons": {"not-json": 1, HOSTILE: 2}, "remedy": "r"}
    fault = {"cause": "c", "reason": "r"}
    show_worker(spoiled(STATUS | {"refused": refused, "fault": fault, "lacks": "a key"}))
    printed()


def test_status_prints_any_event_of_a_topic(printed):
    shard = {"shard": 0, "events": 1, "time": "2026-01-05T00:00:00+00:00", "command": 1}
    data = {
        "application": "shop",
        "workers": ["a"],
        "shards": [shard | {"version": HOSTILE, "successor": HOSTILE}],
        "declared": 2,
        "pages": [spoiled(STATUS)],
        "without_page": HOSTILE,
        "datasets": [{"dataset": HOSTILE, "measure": HOSTILE, "limit": 1.0, "spent": 1.0, "reserved": 0.0}],
    }
    show_whole(data)
    printed()


def test_audit_prints_any_event(printed):
    account = DatasetTally(HOSTILE, Kind.PURE, 4 * 10**9, charged=10**9, events=1)
    audit = Audit(events=1, datasets={HOSTILE: account}, unreadable=[HOSTILE])
    audit.report(HOSTILE, HOSTILE)
    showing._print(audit, HOSTILE)
    printed()


def record(**changes: Any) -> ConsumerRecord:
    value = b'{"id": "q", "value": 1}'
    whole = {"key": HOSTILE.encode(), "value": value, "headers": ((HOSTILE, HOSTILE.encode()),)} | changes
    return ConsumerRecord(
        "counts", 0, 7, 0, 0, whole["key"], whole["value"], None, -1, len(value), whole["headers"]
    )


def test_rejects_prints_any_record(printed, monkeypatch, config):
    async def record_at(*_: object) -> ConsumerRecord:
        return record(value=HOSTILE.encode())

    async def read_rejects(*_: object) -> Rejects:
        found = Rejects({})
        text = json.dumps({"topic": HOSTILE, "partition": 0, "offset": 7, "reason": "not-json"})
        found.take(record(value=text.encode()))
        return found

    monkeypatch.setattr("stream_svt.operate.rejects.record_at", record_at)
    monkeypatch.setattr("stream_svt.operate.rejects.read_rejects", read_rejects)
    position = ("--topic", "counts", "--partition", "0", "--offset", "7")
    for arguments in (("show", "-c", str(config), *position), ("list", "-c", str(config))):
        run("rejects", *arguments)
        printed()


def test_lint_prints_any_record(printed, monkeypatch, config):
    async def examine(loaded: Any, *_: object) -> dict[str, Sample]:
        found = Sample(loaded.spec, "counts", loaded.partitioning)
        for partition in range(2):
            found.add(partition, [record(key=f"today{HOSTILE}".encode()), record()])
            found.add(partition, [record(key=b"today", headers=(("content-type", HOSTILE.encode()),))])
        return {f"counts{HOSTILE}": found}

    monkeypatch.setattr("stream_svt.operate.lint.sample", examine)
    run("lint", "-c", config)
    printed()


# --- answers of brokers, shards and receivers; contents of files


def test_check_and_apply_print_any_finding_and_difference(printed, config):
    configuring._print([kind(HOSTILE, HOSTILE) for kind in (ok, note, problem)])
    loaded = common.load(config)
    proposal: Any = SimpleNamespace(
        config=loaded,
        before=SimpleNamespace(number=1),
        refused=HOSTILE,
        is_new=True,
        difference=Difference([HOSTILE]),
    )
    configuring._show(loaded, proposal)
    printed()


def test_control_prints_any_reply(printed, monkeypatch, config):
    async def send(*_: object, **__: object) -> list[Reply]:
        return [
            Reply(Addressed(0, Command("", Action.PAUSE, dataset=HOSTILE)), is_good, HOSTILE)
            for is_good in (True, False)
        ]

    monkeypatch.setattr("stream_svt.cli.controlling.send", send)
    run("control", "pause", "-c", config, "today")
    printed()


def test_config_prints_any_version(printed, monkeypatch, config):
    async def read_versions(*_: object) -> None:
        return None

    text = HOSTILE.replace("\n", "")
    bundle = SimpleNamespace(text=f"a: {text}\n", files={})
    version = SimpleNamespace(number=1, digest=HOSTILE, bundle=bundle)
    monkeypatch.setattr("stream_svt.worker.config_versions.read_versions", read_versions)
    monkeypatch.setattr("stream_svt.worker.config_versions.newest", lambda *_: version)
    run("config", "-c", config)
    assert "\\u202e" in printed()


@pytest.mark.parametrize(
    "error",
    [
        StreamSvtError(f"the broker said {HOSTILE}".replace("\n", "")),
        ConfigError([Problem(1, HOSTILE, HOSTILE)], HOSTILE),
        BadParameter(HOSTILE.replace("\n", "")),
    ],
    ids=["error", "problems", "usage"],
)
def test_an_error_prints_any_text(printed, monkeypatch, config, error):
    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(common, "load", load)
    run("check", "-c", config)
    printed()


def test_a_question_prints_any_text(printed, monkeypatch):
    monkeypatch.setattr("click.termui.visible_prompt_func", lambda prompt: print(prompt, end="") or "y")
    common.confirm(f"Close {HOSTILE}?")
    printed()


@pytest.mark.parametrize("name", [f"today{HOSTILE}", HOSTILE])
def test_a_name_on_the_command_line_is_quoted(printed, config, name):
    for arguments in (("pause",), ("raise-budget", "--limit", "5", "--yes")):
        run("control", arguments[0], "-c", config, name.replace("\0", ""), *arguments[1:])
        printed()


# --- logs


def test_a_warning_of_a_command_that_logs_nothing_is_one_line(printed, monkeypatch, config):
    def load(*_: object, **__: object) -> None:
        monkeypatch.setattr(logging.getLogger(), "handlers", [])
        logging.getLogger("stream_svt.queries.avro.records").warning("event=x fields=%s", HOSTILE)
        raise StreamSvtError("stop")

    monkeypatch.setattr(common, "load", load)
    run("check", "-c", config)
    assert printed().count("\n") == 2


def test_a_line_of_the_log_is_one_line_and_a_trace_is_indented():
    formatter = TextFormatter(TEXT)
    record = logging.LogRecord("n", logging.WARNING, __file__, 1, "event=refused reason=%s", (HOSTILE,), None)
    require_harmless(formatter.format(record))
    assert "\n" not in formatter.format(record)
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        record.exc_info = (type(error), error, error.__traceback__)
    text = formatter.format(record)
    _, *rest = text.split("\n")
    assert {one for one in text if one != "\n" and not plain_text.is_visible(one)} == set()
    assert all(line.startswith("  ") for line in rest)
