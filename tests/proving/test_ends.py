"""Neighbouring counts cannot be told apart where tests of their own end incidents; broken rules are detected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import pytest
from msgspec import structs

from stream_svt.monitor.released import EventType
from stream_svt.monitor.runner import Runner
from stream_svt.monitor.state.plan import Plan
from stream_svt.monitor.state.runs import Runs
from stream_svt.monitor.testing.query_tester import QueryTester
from stream_svt.proving import prove
from stream_svt.proving.streams import batch_of_records
from stream_svt.queries.encoding import Encoded
from stream_svt.settings.application import ApplicationSpec
from stream_svt.settings.monitors import MonitorSpec
from tests.support.cases import MAX_CASES, counted_events, sources
from tests.support.counts import ERRORS, SOURCE, VISITORS, counting

AMPLE = "{names: [a, b, c], limit: 300}"
_OFF = ", max_runs: off"
FORMS = {
    "counts": f"{VISITORS}{_OFF}, end: {{below: 400, longest: 1m}}",
    "lasting": f"{VISITORS}{_OFF}, for: 3, end: {{below: 400, longest: 20s}}",
    "burn rate": f"{VISITORS}{_OFF}, mechanism: adaptive, share: {{of: parts, above: 25%}}, over: [1h, 3h], "
    "end: {below: 300, longest: 1m, epsilon: 0.5, cutoff: 2}",
    "limited": f"{ERRORS}, max_runs: 2 per 3s, end: {{below: 450, longest: 1m, cutoff: 1}}",
}
ALONE = ERRORS.replace("epsilon: 1, cutoff: 3", "epsilon: 3, cutoff: 40") + (
    f"{_OFF}, end: {{below: 480, longest: 1m, epsilon: 30}}"
)
"""With few runs and many ends there is little that is charged and not lost."""
DECODED = {"as arrays": lambda *_: batch_of_records, "from bytes": Encoded}


def spec_of(form: str) -> ApplicationSpec:
    source = SOURCE.replace("measures: [", "measures: [{name: parts, where: {status: [500]}}, ")
    return counting(form, VISITORS + _OFF, source=source, datasets=AMPLE)


@pytest.fixture
def ends(monkeypatch) -> Counter[str]:
    """Count the events of each type that engines make durable."""
    return counted_events(monkeypatch, lambda event: event.type)


@pytest.mark.parametrize("decoder", DECODED.values(), ids=DECODED)
@pytest.mark.parametrize("form", FORMS)
def test_neighbouring_streams_cannot_be_distinguished_where_incidents_end(form, decoder, ends):
    summary = prove(spec_of(FORMS[form]), sources(f"ends {form}", 4), decoder)
    assert summary.counterexample is None, summary.counterexample
    assert summary.largest_cost <= 1
    assert ends[EventType.ALERT_ENDED] > 3


def ends_without_a_charge(patch):
    report = Runs.report

    def broken(self, crossing, clock_ms):
        events = self.accounts.next.events
        number, woken = len(events), report(self, crossing, clock_ms)
        if self.ended is not None:
            data = events[number].data
            free = structs.replace(data, account=structs.replace(data.account, charge=0.0))
            events[number] = structs.replace(events[number], data=free)
        return woken

    patch.setattr(Runs, "report", broken)


def takes_a_smaller_sensitivity(patch):
    mechanism = MonitorSpec.mechanism

    def broken(self):
        smaller = {"sensitivity": self.sensitivity - 1} if self.ends else {}
        return mechanism(self.model_copy(update=smaller))

    patch.setattr(MonitorSpec, "mechanism", broken)


def looks_for_ends_where_a_value_is_low(patch):
    """And not by what was released."""
    view = Runner._view

    def broken(self, batch, start, stop):
        found = view(self, batch, start, stop)
        if self.spec.ends:
            found.eligible[start:stop] |= batch.whole[start:stop] > self.spec.threshold
        return found

    patch.setattr(Runner, "_view", broken)


def looks_for_ends_with_the_threshold_of_alerts(patch):
    reached = QueryTester.reached

    def broken(self, tests, *rest, **options):
        kept, runs = self.runs.secrets.copy(), self.runs
        if runs.ended is not None:
            runs.secrets["noise"] = runs.ended.secrets["noise"]
        result = reached(self, tests, *rest, **options)
        runs.secrets[:] = kept
        return result

    patch.setattr(QueryTester, "reached", broken)


MUTANTS = [
    ends_without_a_charge,
    takes_a_smaller_sensitivity,
    looks_for_ends_where_a_value_is_low,
    looks_for_ends_with_the_threshold_of_alerts,
]


@pytest.mark.parametrize("broken", MUTANTS)
def test_a_broken_rule_of_ends_is_detected(broken: Callable[..., None], monkeypatch):
    monkeypatch.setattr(Plan, "of", Plan.of.__wrapped__.__get__(Plan))
    broken(monkeypatch)
    spec = counting(ALONE, datasets=AMPLE)
    assert prove(spec, sources(broken.__name__, MAX_CASES)).counterexample is not None


def test_the_pair_is_not_detected_without_a_mistake(ends):
    summary = prove(counting(ALONE, datasets=AMPLE), sources("alone", 6))
    assert summary.counterexample is None, summary.counterexample
    assert summary.largest_cost > Fraction(1, 2)
    assert ends[EventType.ALERT_ENDED] > 40
