"""Looks at neighbouring counts cannot be told apart, at their charge; noise that is too narrow is detected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from stream_svt.monitor import deciles
from stream_svt.monitor.deciles import NoisyDeciles
from stream_svt.monitor.released import EventType
from stream_svt.proving import prove
from stream_svt.proving.streams import batch_of_records
from stream_svt.queries.encoding import Encoded
from stream_svt.settings.application import ApplicationSpec
from tests.support.cases import MAX_CASES, counted_events, sources
from tests.support.counts import ERRORS, SOURCE, VISITORS, counting

AMPLE = "{names: [a, b, c], limit: 30}"
_OFF = ", max_runs: off"
FORMS = {
    "counts": f"{VISITORS}{_OFF}",
    "events": f"{ERRORS}{_OFF}",
    "shares": f"{VISITORS}{_OFF}, share: {{of: parts, above: 25%}}, for: 2",
    "differences": f"{VISITORS}{_OFF}, usual: {{every: 2h, times: 2, factor: 1.5}}",
}
DECODED = {"as arrays": lambda *_: batch_of_records, "from bytes": Encoded}
RARE = VISITORS.replace("epsilon: 1", "epsilon: 0.001")
"""Runs cost little, so that little of the charges pays for them."""


def spec_of(form: str, datasets: str = AMPLE) -> ApplicationSpec:
    source = SOURCE.replace("measures: [", "measures: [{name: parts, where: {status: [500]}}, ")
    return counting(form, f"{RARE}{_OFF}", source=source, datasets=datasets)


@pytest.fixture
def told(monkeypatch) -> Counter[str]:
    """Count the looks that engines make durable, by reason."""
    return counted_events(
        monkeypatch, lambda event: event.data.reason if event.type == EventType.DECILES else None
    )


@pytest.mark.parametrize("decoder", DECODED.values(), ids=DECODED)
@pytest.mark.parametrize("form", FORMS)
def test_looks_at_neighbouring_counts_cannot_be_distinguished(form, decoder, told):
    summary = prove(spec_of(FORMS[form]), sources(f"looks {form}", 4), decoder)
    assert summary.counterexample is None, summary.counterexample
    assert told["released"] > 4
    assert told["budget"] > 0
    assert summary.largest_cost <= 1


def test_a_look_at_a_limit_in_rho_is_refused(told):
    datasets = "{names: [a, b, c], limit: {rho: 30}}"
    summary = prove(spec_of(FORMS["shares"], datasets), sources("looks rho", 4), Encoded)
    assert summary.counterexample is None, summary.counterexample
    assert {*told} - {None} == {"rho"}


def _narrow(monkeypatch) -> None:
    right = deciles.law_of
    monkeypatch.setattr(deciles, "law_of", lambda units, most: right(9 * units, most))


def _narrow_for_a_difference(monkeypatch) -> None:
    monkeypatch.setattr(deciles, "most_moved", lambda *_: 1)


def _without_noise(monkeypatch) -> None:
    monkeypatch.setattr(NoisyDeciles, "_noisy", lambda self, batch, row, law, values: sorted(values.tolist()))


def _rounded(monkeypatch) -> None:
    """The values choose what is shown."""
    right = NoisyDeciles._noisy
    monkeypatch.setattr(NoisyDeciles, "_noisy", lambda *a: [max(one, int(a[-1][0])) for one in right(*a)])


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "noise for one decile": _narrow,
    "noise for a count": _narrow_for_a_difference,
    "no noise": _without_noise,
    "cut at the least value": _rounded,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_looks_that_tell_too_much_are_detected(name, monkeypatch):
    MUTANTS[name](monkeypatch)
    summary = prove(spec_of(FORMS["differences"]), sources(f"looks {name}", MAX_CASES), Encoded)
    assert summary.counterexample is not None
