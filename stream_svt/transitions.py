"""Tables of state transitions: their common part."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from stream_svt.errors import MisuseError

_State = TypeVar("_State", bound=StrEnum)
_Signal = TypeVar("_Signal", bound=StrEnum)


def follow(
    transitions: Mapping[tuple[_State, _Signal], _State], state: _State, signal: _Signal, of: str
) -> _State:
    """Return the state to which a signal leads, or raise `MisuseError`; ``of`` names the subject: "a shard"."""
    try:
        return transitions[state, signal]
    except KeyError:
        message = f"{of} that is {state} cannot take the signal '{signal}'; its state is unchanged"
        raise MisuseError(message) from None
