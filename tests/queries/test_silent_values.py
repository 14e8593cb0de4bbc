"""No value, however odd its bits, makes the library warn, print or log; `test_contract` tries the decoders."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from functools import partial

import numpy as np
import pytest

from stream_svt.columns import decimals
from stream_svt.errors import MisuseError
from stream_svt.library import quantile, svt, top_k
from tests.support.odd_values import COLUMNS
from tests.support.silence import silence


@pytest.mark.parametrize("kind", ["half", "single", "double"])
def test_the_library_warns_of_no_value(kind, capfd, caplog):
    values = COLUMNS[kind].to_numpy()
    finite = values[np.isfinite(values)]
    finite = finite[abs(finite) < 100]
    with silence(capfd, caplog):
        for given in (values, finite, list(finite), [Decimal("sNaN")], [Decimal("1e-9999"), 5]):
            for call in (partial(svt, threshold=3), partial(top_k, k=1), partial(quantile, level=0.5)):
                for step in (None, 1):
                    with suppress(MisuseError):
                        call(given, granularity=step)


def test_every_bit_pattern_of_a_half_is_read_as_the_double_of_its_value():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    halves = patterns.view(np.float16)
    with np.errstate(all="ignore"):
        expected = decimals.doubles(halves.astype(np.float64))
    with np.errstate(all="warn"):
        found = decimals.doubles(halves)
    assert [one.tolist() for one in found] == [one.tolist() for one in expected]
