"""Classification of errors; `test_shard_failures` tests what a shard does after them."""

from __future__ import annotations

import pytest

from stream_svt import errors
from stream_svt.errors import BrokerError, ConfigError, MisuseError, StreamSvtError
from stream_svt.kafka import clients as kafka
from stream_svt.kafka.clients import BrokerUnavailable, Denied, Fenced, LoginRefused
from stream_svt.protocol.shard_states import Cause
from stream_svt.worker.failures import classify, ends_start


def _every_error() -> list[type[StreamSvtError]]:
    kinds = [*vars(errors).values(), *vars(kafka).values()]
    return sorted(
        {kind for kind in kinds if isinstance(kind, type) and issubclass(kind, StreamSvtError)},
        key=lambda kind: kind.__name__,
    )


@pytest.mark.parametrize("kind", _every_error(), ids=lambda kind: kind.__name__)
def test_every_error_of_a_shard_has_a_signal_and_a_cause(kind: type[StreamSvtError]) -> None:
    assert classify(kind.__new__(kind))[1] is not Cause.ERROR


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        *((error, True) for error in (ConfigError([]), LoginRefused("x"), Denied("x"), BrokerError("x"))),
        (MisuseError("another aiokafka"), True),
        *((error, False) for error in (BrokerUnavailable("x"), Fenced("x"), ValueError("x"))),
    ],
    ids=repr,
)
def test_at_the_first_start_only_permanent_errors_end_the_process(error: Exception, ends: bool) -> None:
    assert ends_start(error) is ends
