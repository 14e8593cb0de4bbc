"""Commands on a modelled log: to all datasets in slices and over takeovers, and what nobody may do with old ones."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from stream_svt.monitor.operations import Action
from stream_svt.monitor.released import EventType
from stream_svt.protocol.committer import REPORTED
from tests.simulation.model import PLAIN, Feed, Model, declared, has

NAMES = [f"d{number:03}" for number in range(60)]
SPEC = declared(PLAIN, names=", ".join(NAMES))


def refused(model: Model) -> list[bytes | None]:
    return [entry.value for entry in model.broker.read("rejects")]


@pytest.fixture
def model(few_at_once: None) -> Model:
    made = Model(SPEC)
    made.serve()
    return made


def nth(number: int) -> Callable[[Any], bool]:
    """Return what is true of the commit with this number."""
    count = itertools.count()
    return lambda content: next(count) == number


def test_a_command_to_all_datasets_is_answered_once_with_what_came_of_it(model: Model) -> None:
    model.command("one", action=Action.PAUSE, dataset="d007")
    model.serve()
    model.command("all", action=Action.PAUSE)
    model.serve()
    paused = [event["dataset"] for event in model.told(EventType.PAUSED)]
    assert paused == ["d007", *(name for name in NAMES if name != "d007")]
    why = "monitor 'm0' on dataset 'd007' is already paused; nothing was changed"
    assert model.replies()[1:] == [("accepted", 2, f"pause carried out on 59 datasets, refused on 1: {why}")]
    assert model.last_command()[1] == 2


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(2, 10))
def test_a_takeover_goes_on_with_a_command_to_all_datasets_and_does_nothing_twice(
    model: Model, number: int, after: bool
) -> None:
    model.command("all", action=Action.CLOSE)
    model.dies_at(nth(number), after=after)
    model.serve(2)
    assert [event["dataset"] for event in model.told(EventType.RUN_CLOSED)] == NAMES
    assert model.replies() == [("accepted", 1, "close carried out on 60 datasets, refused on 0")]
    assert model.last_command()[1] == 1


@pytest.mark.parametrize("slices", [2, 4, 5])
def test_a_takeover_replays_lost_tests_before_it_goes_on_with_a_command_to_all_datasets(
    model: Model, slices: int
) -> None:
    """A run that it closed before would end without the top that a dead owner has found in it."""
    last = NAMES[-1]
    model.send(1, "low", dataset=last, value=0)
    model.serve()
    model.command("all", action=Action.CLOSE)

    class Late(Feed):
        rounds, most = 99, 5

        def hook(self, number: int) -> None:
            if number == slices:
                model.send(1, "high", dataset=last)

    model.dies_at(has(EventType.ALERT), feed=Late)
    assert 0 < len(model.told(EventType.RUN_CLOSED)) < len(NAMES)
    model.serve(3)
    about = [event["type"] for event in model.events if event["data"]["dataset"] == last]
    assert about[-2:] == [EventType.ALERT, EventType.RUN_CLOSED]
    assert len(model.told(EventType.RUN_CLOSED)) == len(NAMES)


def test_queries_are_tested_between_two_slices_of_a_command_to_all_datasets(model: Model) -> None:
    model.command("all", action=Action.PAUSE)
    late = lambda number: number == 2 and model.send(3, "late", dataset=NAMES[-1])  # noqa: E731
    model.serve_a_while(12, late, interval="100ms")
    kinds = [event["type"] for event in model.events]
    last = len(kinds) - 1 - kinds[::-1].index(EventType.PAUSED)
    assert kinds.index(EventType.RUN_STARTED) < last


def test_where_no_monitor_that_is_meant_runs_a_command_to_all_is_refused(model: Model) -> None:
    model.command("all", action=Action.PAUSE, monitor="m7")
    model.serve()
    message = "no such monitor runs on a dataset of shard 0; nothing was changed"
    assert model.replies() == [("refused", 1, message)]
    assert model.last_command()[1] == 1


def test_a_flood_of_refused_commands_holds_up_nothing_and_names_a_few(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    state, _ = model.last_command()
    before = len(msgspec.msgpack.encode(model.stored_meta().commands))
    for number in range(3_000):
        wrong = {"number": 5} if number % 2 else {"state": "00"}
        text = {"id": f"f{number}", "action": "resample", "dataset": "d000", "state": state, "number": 1}
        model.broker.write("control", None, msgspec.json.encode(text | wrong) if number % 5 else b"{")
    sent = model.command("pause", action=Action.PAUSE, dataset="d000")
    model.send(1, "high", dataset="d001")
    with caplog.at_level(logging.WARNING):
        model.serve()
    assert [reason for reason, *_ in model.replies()] == ["accepted"]
    assert [event["dataset"] for event in model.told(EventType.ALERT)] == ["d001"]
    assert REPORTED < len(refused(model)) <= REPORTED + 60  # the model's clock goes on while it works
    assert len([record for record in caplog.records if "command" in record.message]) <= REPORTED + 80
    found = model.stored_meta().commands
    assert (found.number, found.id) == (1, sent.id)
    assert len(msgspec.msgpack.encode(found)) < before + 20


def test_a_flood_of_copies_of_the_last_command_is_answered_a_few_times(model: Model) -> None:
    sent = model.command("pause", action=Action.PAUSE, dataset="d000")
    for _ in range(1_000):
        model.broker.write("control", None, msgspec.json.encode(sent))
    model.serve()
    assert len(model.told(EventType.PAUSED)) == 1
    assert 1 < len(model.replies()) <= REPORTED + 60
    assert model.replies()[1] == ("accepted", 1, "it was carried out before")
