"""A dataset that is no longer declared: its ledger ends, its balance is released, and no second one begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from stream_svt.errors import ConfigError
from stream_svt.monitor import operations, takeover
from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.monitor.released import EventType
from stream_svt.monitor.state.accounts import DatasetAccount
from stream_svt.monitor.state.snapshot import State, from_bytes
from stream_svt.settings.application import ApplicationSpec
from tests.support.engine_play import Play, Query, batch_of
from tests.support.monitor_forms import (
    FORMS,
    TOPIC,
    assert_books_balance,
    engine_state,
    spec_of,
    stream,
    transcript,
)


def _spec(names: str = "a, b, c", *forms: str) -> ApplicationSpec:
    return spec_of(
        *(forms or [FORMS["plain"]]), datasets=f"{{names: [{names}], limit: 40, unit: one basket}}"
    )


def _played(*forms: str) -> Play:
    """Three datasets with an open run each."""
    play = Play(_spec("a, b, c", *forms))
    play.play(TOPIC, [Query(k % 3, 0, f"s{k}", "set", time_ms=k) for k in range(12)])
    return play


def test_the_final_balance_is_released_and_ledger_and_name_stay() -> None:
    play = _played()
    events = [event for event in play.retire(_spec("a, c")) if event.data.dataset]
    assert [(event.type, event.data.dataset, event.data.reason) for event in events] == [
        (EventType.RUN_CLOSED, "b", "retired"),
        (EventType.RETIRED, "b", "configuration"),
    ]
    closed, retired = (event.data.account for event in events)
    assert retired.reserved == 0
    assert retired.charge == 0
    assert retired.spent == closed.spent
    assert closed.charge > 0, "an open run costs all that it reserved"
    assert {key for key in play.records if b"/b" in key} == {b"r/b"}
    stored = from_bytes(DatasetAccount, play.records[b"r/b"], key="r/b")
    assert (stored.unit, stored.events) == ("one basket", int(events[-1].id.rpartition("/")[2]))
    assert stored.ledger.reserved == 0
    assert_books_balance(play)


@pytest.mark.parametrize("form", FORMS)
def test_other_datasets_do_not_change(form: str) -> None:
    """The other dataset meets the same noise, whatever waits, is muted or open on the retired one."""
    queries = stream(4, 400, datasets=2)
    play, alone = (Play(_spec("a, b", FORMS[form])) for _ in range(2))
    for each in (play, alone):
        each.feed(TOPIC, queries, 200)
        each.commit()
    play.retire(_spec("a", FORMS[form]))
    assert not [key for key in play.records if key.startswith(b"d/b")]
    for each in (play, alone):
        _feed_first_dataset(each, queries)
    assert transcript(play)["a", "m0"] == transcript(alone)["a", "m0"]
    play.take_over(_spec("a", FORMS[form]))
    assert engine_state(play.engine)["m0", "a"] == engine_state(alone.engine)["m0", "a"]


def _feed_first_dataset(play: Play, queries: Sequence[Query]) -> None:
    """Step through the rest, as the decoder returns it without the second dataset."""
    first = play.engine.next_offset(TOPIC) or 0
    kept = [at for at in range(first, len(queries)) if queries[at].dataset == 0]
    batch = batch_of(TOPIC, [queries[at] for at in kept], 0, len(kept))
    batch.first, batch.end, batch.offset = first, len(queries), np.array(kept)
    batch.query_id = [f"q{at}" for at in kept]
    play.step(batch)
    play.commit()


def test_the_name_is_never_used_again() -> None:
    play = _played()
    play.retire(_spec("a, c"))
    with pytest.raises(ConfigError, match="dataset b was retired at shard 0: its name cannot be used again"):
        play.take_over(_spec("a, b, c"))
    play.take_over(_spec("a, c"))


def test_before_the_adoption_an_older_configuration_continues_the_ledger() -> None:
    """Queries read meanwhile are not tested again: the open run costs all that it reserved."""
    play = _played()
    play.take_over(_spec("a, c"))
    play.commit()
    assert play.events[-1].data.reason == "retired"
    play.take_over(_spec("a, b, c"))
    account = play.engine.accounts.account(1)
    assert (account.run_states["m0"].run, account.run_states["m0"].state, account.ledger.reserved) == (
        1,
        State.HALTED,
        0,
    )
    assert account.ledger.spent == account.run_states["m0"].spent > 0


def test_a_partial_retirement_is_completed() -> None:
    play = _played()
    play.take_over(_spec("a"))
    next(takeover.retire(play.engine))
    play.commit()
    assert len([key for key in play.records if key.startswith(b"r/")]) == 1
    retired = [event.data.dataset for event in play.retire(_spec("a")) if event.type is EventType.RETIRED]
    assert len(retired) == 1
    assert sorted(key for key in play.records if key.startswith(b"r/")) == [b"r/b", b"r/c"]


def test_an_application_is_closed_with_the_balances_of_retired_datasets_too() -> None:
    play = _played()
    play.retire(_spec("a, c"))
    close = Command(id="close", number=1, action=Action.CLOSE_APPLICATION, successor="next")
    *_, last = operations.apply_to_many(play.engine, CommandProgress(close))
    events = play.commit().events
    assert [event.data.dataset for event in events if event.type is EventType.BALANCE] == ["a", "b", "c"]
    assert last.done == 3
    assert_books_balance(play)
