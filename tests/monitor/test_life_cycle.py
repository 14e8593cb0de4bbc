"""The state machine of a monitor: every state follows or refuses every signal."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from stream_svt.errors import MisuseError
from stream_svt.monitor.state import snapshot
from stream_svt.monitor.state.snapshot import FLAGS, TRANSITIONS, RunState, Signal, State
from stream_svt.protocol import shard_states
from stream_svt.worker import worker

_EVERY = list(itertools.product(State, Signal))


@pytest.mark.parametrize(("state", "signal"), _EVERY)
def test_a_signal_leads_to_the_state_in_the_table_or_is_refused_and_changes_nothing(state, signal):
    run_state = RunState(state=state)
    if (state, signal) in TRANSITIONS:
        run_state.signal(signal)
        flags = {"stopped": False, "paused": False} | dict([FLAGS[signal]] if signal in FLAGS else [])
        assert run_state == RunState(state=TRANSITIONS[state, signal], **flags)
        return
    with pytest.raises(MisuseError, match=f"{state} cannot take the signal '{signal}'"):
        run_state.signal(signal)
    assert run_state.state is state


def _named(origins, states):
    others = [state for state in states if state not in origins]
    if len(others) > 1:
        return ", ".join(origins)
    return f"any state but {others[0]}" if others else "any state"


@pytest.mark.parametrize("module", [snapshot, shard_states, worker], ids=lambda module: module.__name__)
def test_the_page_in_the_docs_shows_where_every_signal_leads(module):
    [(state, signal), *_] = module.TRANSITIONS
    states, signals = type(state), type(signal)
    page = (Path(__file__).parents[2] / "docs" / "state-machine.md").read_text(encoding="utf-8")
    for signal in signals:
        ways = {}
        for state in states:
            if (state, signal) in module.TRANSITIONS:
                ways.setdefault(module.TRANSITIONS[state, signal], []).append(state)
        text = "; ".join(
            f"from {_named(origins, states)} to {target}"
            for target, origins in ways.items()
            if len(ways) == 1 or origins != [target]  # a state that a signal does not leave
        )
        assert f"- **{signal}** ({text or 'in any state'}): " in page
    arrows = set(re.findall(r"^    (\S+) --> (\S+): (.*)$", page, flags=re.MULTILINE))
    ways = {(state, target, signal) for (state, signal), target in TRANSITIONS.items()}
    assert arrows == {way for way in ways if way[0] is not way[1] or Signal.TOP in way}
