"""Where commands go, and which events answer them."""

from __future__ import annotations

from itertools import chain
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from aiokafka import TopicPartition

from stream_svt.application.config import parse_config
from stream_svt.application.facts import ShardFacts
from stream_svt.monitor.operations import Action, Command
from stream_svt.monitor.released import EventType, decode
from stream_svt.operate import control
from stream_svt.operate.control import Addressed, _Dialog
from tests.support.alerts import alert, encoded, lifecycle
from tests.support.partition_reader import Reader
from tests.support.partitioning import partition_of
from tests.support.shop import SPEC

CONFIG_TEXT = SPEC.replace("a, b, c", "today, tomorrow, later") + "topics: {partitions: 5}\n"
CONFIG = parse_config(CONFIG_TEXT)


def test_a_command_goes_to_the_home_of_its_dataset():
    commands = control.for_datasets(CONFIG, ["today", "later"], Command("", Action.PAUSE, monitor="hot"))
    assert [one.shard for one in commands] == [partition_of(b"today", 5), partition_of(b"later", 5)]
    assert [(one.command.action, one.command.dataset, one.command.monitor) for one in commands] == [
        (Action.PAUSE, "today", "hot"),
        (Action.PAUSE, "later", "hot"),
    ]
    assert len({one.command.id for one in commands}) == 2
    assert all(one.command.issued_by for one in commands)


def _named(commands: list[Addressed]) -> dict[int, list[str]]:
    return {one.shard: [*(one.command.datasets or [one.command.dataset])] for one in commands}


def test_several_datasets_are_one_command_to_each_of_their_shards() -> None:
    names = [f"web-{number:03}" for number in range(400)]
    many = parse_config(
        CONFIG_TEXT.replace("today, tomorrow, later", ", ".join(["mail", *names])), source="shop.yaml"
    )
    for asked in (names, ["web-*"], ["web-*", "web-1??", "web-007"]):
        found = control.for_datasets(many, asked, Command("", Action.PAUSE))
        assert len(found) == 5
        assert sorted(chain.from_iterable(_named(found).values())) == names
        assert all(many.home(name) == shard for shard, own in _named(found).items() for name in own)
        assert all(not one.command.dataset and one.command.for_many for one in found)
    raised = control.for_datasets(many, ["web-00?"], Command("", Action.RAISE_BUDGET, limit="9"))
    assert [one.command.dataset for one in raised] == names[:10]
    with pytest.raises(control.NotDeclared, match=r"no dataset 'wet-\*' is declared"):
        control.for_datasets(many, ["wet-*"], Command("", Action.PAUSE))


def test_a_command_names_no_more_datasets_than_a_record_holds(monkeypatch) -> None:
    monkeypatch.setattr(control, "MOST_NAMED", 30)
    names = [f"web-{number:03}" for number in range(40)]
    many = parse_config(CONFIG_TEXT.replace("today, tomorrow, later", ", ".join(names)), source="shop.yaml")
    found = control.for_datasets(many, names, Command("", Action.PAUSE))
    assert all(len(one.command.datasets) <= 3 for one in found)
    assert sorted(name for one in found for name in one.command.datasets or [one.command.dataset]) == names


def test_application_wide_commands_are_fanned_out():
    command = Command("", Action.ACCEPT_LOSS)
    assert [one.shard for one in control.for_shards(CONFIG, None, command)] == [0, 1, 2, 3, 4]
    assert [one.shard for one in control.for_shards(CONFIG, [3], command)] == [3]


def test_of_many_declared_names_some_are_listed():
    names = ", ".join(f"d{number:02}" for number in range(14))
    many = parse_config(CONFIG_TEXT.replace("today, tomorrow, later", names), source="shop.yaml")
    with pytest.raises(control.NotDeclared) as refused:
        control.for_datasets(many, ["x"], Command("", Action.PAUSE))
    assert str(refused.value).endswith(" is declared in shop.yaml. Declared: " + names[:48] + " and 4 more")


def test_all_datasets_are_one_command_for_each_shard_that_has_any() -> None:
    found = control.for_all(CONFIG, Command("", Action.PAUSE, monitor="hot", now=True))
    assert [one.shard for one in found] == sorted(
        {partition_of(name, 5) for name in (b"today", b"tomorrow", b"later")}
    )
    assert all(one.command.for_many and one.command.now for one in found)
    with pytest.raises(control.NotDeclared, match="no monitor 'cold'"):
        control.for_all(CONFIG, Command("", Action.PAUSE, monitor="cold"))


# --- commands to one shard


def event(
    number: int,
    *,
    state: str = "5e",
    reply: str = "",
    of: int = 0,
    reason: str = "accepted",
    action: str = "pause",
) -> bytes:
    """An event after command `number`; with `reply` the answer to this id."""
    detail = {"command": reply, "number": of or number, "action": action, "message": "done"}
    data = lifecycle(reason, detail=detail)
    kind = EventType.COMMAND_REPLY if reply else EventType.PAUSED
    released = encoded(1, data, kind=kind)
    return msgspec.json.encode(msgspec.json.decode(released) | {"stateid": state, "command": number})


def record_of(value: bytes | None) -> Any:
    return SimpleNamespace(value=value)


FOURTH = ShardFacts(state="5e", command=4)


def talk(*ids: str, standing: ShardFacts | None = FOURTH) -> _Dialog:
    made = _Dialog(2, "shop.alerts", standing)
    made.queue.extend(Addressed(2, Command(one, Action.PAUSE, dataset="today")) for one in ids)
    return made


EXPIRES = 1_790_000_000_000


def sent(made: _Dialog) -> tuple[str, str, int] | None:
    following = made.next(EXPIRES - 30_000, 30_000)
    if following is None:
        return None
    return following.id, following.state, following.number


def test_the_end_of_a_pause_is_counted_from_the_brokers_time_at_which_it_is_sent() -> None:
    made = talk("a", "b")
    made.queue[0] = made.queue[0]._replace(lasts_ms=7_200_000)
    first = made.next(EXPIRES, 30_000)
    assert first is not None
    assert (first.until, first.expires) == (EXPIRES + 7_200_000, EXPIRES + 30_000)
    assert made.take(record_of(event(5, reply="a")))
    second = made.next(EXPIRES, 30_000)
    assert second is not None
    assert second.until == 0


def test_commands_to_a_shard_go_one_after_the_other_each_with_the_next_number() -> None:
    made = talk("a", "b")
    assert (sent(made), sent(made)) == (("a", "5e", 5), None)
    assert made.take(record_of(event(5, reply="a")))
    assert sent(made) == ("b", "5e", 6)
    assert made.take(record_of(event(6, reply="b", reason="refused")))
    assert [(one.accepted, one.message) for one in made.all_replies()] == [(True, "done"), (False, "done")]
    assert made.sent is None


@pytest.mark.parametrize("news", [event(5, reply="other"), event(0, state="5f")])
def test_a_command_whose_number_another_one_took_is_not_carried_out_and_the_next_goes_on(news: bytes) -> None:
    made = talk("a", "b")
    assert sent(made) == ("a", "5e", 5)
    assert not made.take(record_of(event(4, reply="older", of=3)))
    assert sent(made) is None
    assert made.take(record_of(news))
    assert sent(made) in (("b", "5e", 6), ("b", "5f", 1))
    first, _ = made.all_replies()
    assert (first.accepted, "another command came before it; give it again" in first.message) == (False, True)


def test_events_of_a_command_to_all_datasets_are_signs_of_life_and_no_answer() -> None:
    made = talk("a")
    assert sent(made) == ("a", "5e", 5)
    assert made.take(record_of(event(5)))
    # An accept-loss may come before it is done.
    assert made.take(record_of(event(6, reply="loss")))
    assert sent(made) is None
    assert made.take(record_of(event(6, reply="a", of=5)))
    assert made.all_replies()[0].accepted


def test_what_is_not_answered_says_what_can_still_happen() -> None:
    made = talk("a", "b")
    assert sent(made) == ("a", "5e", 5)
    late, unsent = made.all_replies()
    assert late.message == (
        "no answer in time: 'stream-svt status -c FILE' shows whether a worker runs; it expires at 2026-09-21 14:13:20 "
        "UTC by the brokers' clock; a shard that comes to it later changes nothing"
    )
    assert unsent.message == "not sent: the command before it was not answered"


def test_a_command_that_has_begun_is_not_said_to_expire() -> None:
    made = talk("a")
    sent(made)
    assert made.take(record_of(event(5)))
    assert made.all_replies()[0].message == (
        "no answer in time; the shard has begun it and goes on with it, after a takeover, too"
    )


@pytest.mark.parametrize(
    ("news", "said"),
    [
        ({"reason": "accepted"}, (False, "already carried out: done")),
        ({"reason": "expired"}, (True, "already expired: done")),
        ({"reason": "refused"}, (True, "already refused: done")),
        ({"action": "withdraw"}, (True, "done")),
    ],
    ids=["carried out", "expired", "refused", "withdrawn by another"],
)
def test_a_withdrawal_that_comes_too_late_says_what_happened(news: Any, said: tuple[bool, str]) -> None:
    made = withdrawal()
    assert made.take(record_of(event(5, reply="other", **news)))
    assert [one[1:3] for one in made.all_replies()] == [said]


def test_a_withdrawal_does_not_expire_and_says_so_where_nobody_answers() -> None:
    made = withdrawal()
    assert made.sent is not None
    assert made.sent.expires == 0
    assert made.all_replies()[0].message.startswith("no answer in time; the withdrawal stays")
    assert made.take(record_of(event(5)))  # the command before it is one to all datasets, and has begun
    assert "the shard has begun the command before it and goes on" in made.all_replies()[0].message


def test_whoever_waits_for_a_withdrawn_command_is_told() -> None:
    made = talk("a")
    sent(made)
    made.take(record_of(event(5, reply="w", action="withdraw")))
    assert [one[1:3] for one in made.all_replies()] == [(False, "withdrawn before a shard carried it out")]


def withdrawal() -> _Dialog:
    made = talk()
    made.queue.append(Addressed(2, Command("w", Action.WITHDRAW)))
    assert sent(made) == ("w", "5e", 5)
    return made


def test_a_shard_without_events_is_sent_nothing() -> None:
    made = talk("a", standing=None)
    assert sent(made) is None
    (reply,) = made.all_replies()
    assert reply.accepted is None
    assert reply.message.startswith(
        "not sent: shard 2 has not started yet, or its events are gone: partition 2"
    )


@pytest.mark.parametrize("record", [b"?", None, b"{}", encoded(1, alert()), encoded(1, lifecycle("first"))])
def test_what_does_not_name_a_state_says_nothing(record: bytes | None) -> None:
    made = talk("a")
    sent(made)
    assert not made.take(record_of(record))


# --- the end of an alert partition


async def newest(reader: Reader) -> ShardFacts | None:
    found = await control.newest_events(cast(Any, reader), [TopicPartition("shop.alerts", 2)])
    assert reader.at == reader.end
    return found.get(2)


@pytest.mark.parametrize("first", [0, 7_000])
@pytest.mark.parametrize("behind", [0, 15, 300, 5_000])
async def test_the_newest_event_is_found_behind_markers_and_garbage(behind: int, first: int) -> None:
    more = [b"?" if number % 3 else None for number in range(behind)]
    reader = Reader([*[event(3)] * 20_000, event(4), *more], first)
    found = await newest(reader)
    assert found is not None
    assert (found.state, found.command, found.events) == ("5e", 4, 1)
    assert found.origin == "1-00000000000000aa"
    assert reader.read <= 1_000 + 40 * (behind + 20)


async def test_a_partition_without_events_says_nothing() -> None:
    assert await newest(Reader([])) is None
    assert await newest(Reader([None, b"?"] * 30, 5)) is None


# --- a shard that was closed


def end(*, state: str = "5e", reason: str = "command", of: str = "") -> bytes:
    """The event that closed a shard for successor next; with ``of`` the answer to this id."""
    detail = {"successor": "next", "balances": 0} | ({"command": of} if of else {})
    data = lifecycle(reason, dataset="", monitor="", run=0, detail=detail)
    released = msgspec.json.decode(encoded(7, data, kind=EventType.APPLICATION_CLOSED))
    return msgspec.json.encode(released | {"stateid": state, "command": 4})


def closing(*successors: str, standing: ShardFacts | None, cluster: str = "") -> _Dialog:
    """Return a talk that closes the shard for each of these, and gives it up where a cluster is named."""
    made = talk(standing=standing)
    made.queue.extend(
        Addressed(2, Command(one, Action.CLOSE_APPLICATION, successor=one, cluster=cluster))
        for one in successors
    )
    return made


def closed(*, state: str = "5e", reason: str = "command") -> ShardFacts:
    """Return what the end of a shard says."""
    return ShardFacts().take(decode(end(state=state, reason=reason)))


GIVEN_UP = "the state was given up, and the shard is closed"


def test_a_closed_shard_is_sent_nothing_but_to_be_given_up_for_the_successor_that_it_was_closed_for() -> None:
    made = closing("next", "other", standing=closed())
    made.queue.append(Addressed(2, Command("a", Action.PAUSE, dataset="today")))
    assert sent(made) is None
    message = "the shard is closed permanently, for successor 'next'"
    assert [one[1:3] for one in made.all_replies()] == [(True, message), (False, message), (False, message)]
    assert sent(closing("next", standing=closed(), cluster="c")) == ("next", "5e", 0)
    other = closing("other", standing=closed(), cluster="c")
    assert sent(other) is None
    assert other.all_replies()[0].accepted is False


def test_a_command_to_give_up_names_the_newest_event_and_the_end_answers_it() -> None:
    made = closing("next", standing=ShardFacts(state="5e", command=4, events=8, origin="6-0a"), cluster="c1")
    command = made.queue[0].command
    named = msgspec.structs.replace(command, state="5e", event=8, origin="6-0a", expires=EXPIRES)
    assert made.next(EXPIRES - 30_000, 30_000) == named
    assert made.take(record_of(end(reason="given-up", of="next")))
    assert [one[1:3] for one in made.all_replies()] == [(True, GIVEN_UP)]


def test_a_command_to_give_up_may_name_that_there_is_no_event_and_the_end_answers_it_too() -> None:
    made = closing("next", standing=None, cluster="c")
    following = made.next(EXPIRES - 30_000, 30_000)
    assert following is not None
    assert (following.event, following.state, following.number) == (0, "", 0)
    (reply,) = made.all_replies()
    assert "no worker holds the shard parked with a state that it cannot prove" in reply.message
    # The end names no state, for no event did.
    assert made.take(record_of(end(state="", reason="given-up", of="next")))
    assert [one[1:3] for one in made.all_replies()] == [(True, GIVEN_UP)]
    again = closing("next", standing=closed(state="", reason="given-up"), cluster="c")
    assert sent(again) is None
    assert again.all_replies()[0].accepted
