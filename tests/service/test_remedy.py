"""The decision: what may end a process, and what may not; `test_shard_failures` shows what a shard does."""

from __future__ import annotations

import pytest

from stream_svt import errors
from stream_svt.errors import (
    BrokerError,
    ConfigError,
    MisuseError,
    StreamSvtError,
)
from stream_svt.service import kafka
from stream_svt.service.kafka import BrokerUnavailable, Denied, Fenced, LoginRefused
from stream_svt.service.remedy import Remedy, Scope, classify


def _every_error() -> list[type[StreamSvtError]]:
    kinds = [*vars(errors).values(), *vars(kafka).values()]
    return sorted(
        {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StreamSvtError)},
        key=lambda kind: kind.__name__,
    )


@pytest.mark.parametrize("kind", _every_error(), ids=lambda kind: kind.__name__)
def test_no_error_of_a_shard_ends_the_process_or_the_membership(kind: type[StreamSvtError]) -> None:
    error = kind.__new__(kind)
    assert classify(error).remedy in {Remedy.RETRY, Remedy.PARK, Remedy.STEP_BACK}


@pytest.mark.parametrize("kind", _every_error(), ids=lambda kind: kind.__name__)
def test_nothing_ends_a_process_that_has_been_a_member(kind: type[StreamSvtError]) -> None:
    assert classify(kind.__new__(kind), Scope.GROUP).remedy is Remedy.LEAVE


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ConfigError([]), Remedy.END),
        (LoginRefused("x"), Remedy.END),
        (Denied("x"), Remedy.END),
        (BrokerError("session timeout"), Remedy.END),
        (MisuseError("another aiokafka"), Remedy.END),
        (BrokerUnavailable("x"), Remedy.LEAVE),
        (Fenced("x"), Remedy.LEAVE),
        (ValueError("x"), Remedy.LEAVE),
    ],
    ids=lambda value: type(value).__name__,
)
def test_at_the_first_start_only_what_cannot_pass_ends_the_process(error: Exception, remedy: Remedy) -> None:
    assert classify(error, Scope.START).remedy is remedy
