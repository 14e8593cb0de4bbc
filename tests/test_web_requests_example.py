"""The example that counts users is right about its unit: no user moves an answer by more than 1, or any question."""

from __future__ import annotations

import importlib.util
import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "examples" / "web_requests" / "count_users.py"
NOW = 1_795_694_400
"""Noon of a day, in seconds since 1970, UTC."""
HOUR = 3600


@dataclass(frozen=True)
class Message:
    """A record of the topic of requests."""

    content: bytes
    number: int = 0

    def value(self) -> bytes:
        return self.content

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.number


def request(user: object, page: object, seconds: float, number: int = 0) -> Message:
    fields = {"user": user, "page": page, "status": 200, "ms": 7, "ts": int(seconds * 1000)}
    return Message(json.dumps(fields).encode(), number)


@pytest.fixture
def program(monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("count_users", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.time, "time", lambda: float(NOW))
    return module


def answers(program: ModuleType, messages: list[Message]) -> list[tuple[str, dict[str, Any]]]:
    """Return the queries of two moments, in the hour that is over and in the next one."""
    users = program.Users()
    open_hour = program.hour_at(NOW)
    for message in messages:
        users.add(message, open_hour)
    return [*users.queries(NOW), *users.queries(NOW + HOUR)]


@pytest.mark.parametrize("seed", range(5))
def test_without_one_user_every_question_is_the_same_and_no_answer_is_more_than_one_less(program, seed):
    rng = random.Random(seed)
    moments = [NOW + rng.uniform(-2 * HOUR, HOUR) for _ in range(2000)]
    pages = [*program.PAGES, "/secret"]
    requests = [(rng.randrange(40), rng.choice(pages), moment) for moment in moments]
    whole = answers(program, [request(*one) for one in requests])
    less = answers(program, [request(*one) for one in requests if one[0] != 7])
    assert [(name, one["id"], one["series"]) for name, one in whole] == [
        (name, one["id"], one["series"]) for name, one in less
    ]
    changes = {one["value"] - other["value"] for (_, one), (_, other) in zip(whole, less, strict=True)}
    assert changes in ({0, 1}, {1})


def test_a_user_counts_once_for_a_page_and_an_hour_and_by_the_time_of_the_request(
    program,
):
    before, after = NOW - 1, NOW + 1
    messages = [
        request("a", "/", before), request("a", "/", before), request("b", "/", after), request("a", "/", after),
        request("a", "/cart", after), request("a", "/", NOW - HOUR - 1), request("a", "/", NOW + 5 * HOUR),
    ]  # fmt: skip
    found = [(name, one["series"], one["value"]) for name, one in answers(program, messages) if one["value"]]
    day = "web-2026-11-26"
    assert found == [(day, "/", 1), (day, "/", 2), (day, "/cart", 1)]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"7", b'{"page": "/", "ts": 1}', b'{"user": 1, "page": [], "ts": 1}', b"\xff",
     b'{"user": 1, "page": "/", "ts": "x"}', b'{"user": 1, "page": "/", "ts": 1e999}', b"[" * 100_000],
    ids=lambda content: repr(content[:40]),
)  # fmt: skip
def test_what_is_no_request_is_skipped(program: ModuleType, content: bytes) -> None:
    assert not any(one["value"] for _, one in answers(program, [Message(content)]))


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (
            request("a", "/", NOW / 1000),
            f"ts is not in milliseconds since 1970, or in the future, such as {NOW}",
        ),
        (request("a", "/", NOW * 1000), "ts is not in milliseconds"),
        (request("a", "/", NOW + 2 * HOUR), "ts is not in milliseconds since 1970, or in the future"),
        (request("a", "/secret\x1b[2J", NOW), r"a page that PAGES lacks, such as '/secret\x1b[2J'"),
        (request("a", "/", NOW - 2 * HOUR), "too late: more than 60 seconds"),
        (Message(b"\xff\x1b"), r"no JSON object with user, page and ts, such as b'\xff\x1b'"),
    ],
)
def test_skipped_requests_are_counted_by_reason(program: ModuleType, made: Message, why: str) -> None:
    users = program.Users()
    for message in [*7 * [made], request("a", "/", NOW)]:
        users.add(message, program.hour_at(NOW))
    [line] = users.report()
    assert line.startswith(f"7 requests skipped: {why}")
    assert line.isprintable()
    assert users.report() == []


def test_the_connection_of_librdkafka_comes_from_a_file(program: ModuleType, tmp_path, monkeypatch) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"\xef\xbb\xbf# ours\r\nbootstrap.servers = broker:9093\r\nsasl.password=a=b\r\n\r\n")
    monkeypatch.setenv("KAFKA_PROPERTIES", str(file))
    assert program.connection() == {"bootstrap.servers": "broker:9093", "sasl.password": "a=b"}


def test_a_query_names_page_hour_and_moment_and_a_day_ends_at_midnight(program: ModuleType) -> None:
    midnight = NOW + 12 * HOUR
    names = [program.Users().queries(at)[0] for at in (midnight + 60, midnight + 59, midnight + 70)]
    assert [(name, one["id"]) for name, one in names] == [
        ("web-2026-11-27", "/ 2026-11-27T00 00:01:00"),
        ("web-2026-11-26", "/ 2026-11-26T23 00:00:59"),
        ("web-2026-11-27", "/ 2026-11-27T00 00:01:10"),
    ]


def test_it_is_read_again_from_the_first_request_of_the_hours_that_are_open(program: ModuleType) -> None:
    users, open_hour = program.Users(), program.hour_at(NOW)
    for number, seconds in enumerate([NOW - 5, NOW + 5, NOW - 4, NOW + 6]):
        users.add(request("a", "/", seconds, number), open_hour)
    assert min(users.first.values()) == 0
    users.forget(open_hour + HOUR)
    assert users.first == {(NOW, 0): 1}
    assert {hour for hour, _ in users.seen} == {NOW}
