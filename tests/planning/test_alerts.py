"""What `explain` says about an alert, against closed forms and the released event."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import ValidationError, structs

from stream_svt.mechanisms import estimates
from stream_svt.mechanisms.accuracy import report_probability
from stream_svt.monitor.released import (
    Account,
    Event,
    EventType,
    Lifecycle,
    NoiseLaw,
    Position,
    decode,
    encode,
)
from stream_svt.monitor.state.plan import silent_margin
from stream_svt.planning.alerts import explain_alert
from stream_svt.planning.budget import explain
from stream_svt.planning.sources import explain_sources
from stream_svt.settings.application import ApplicationSpec, load_spec
from tests.support import ended
from tests.support.alerts import TIME, account_of, alert, event
from tests.support.sources import ANSWERS, WEB, changed

WINDOW = "2026-11-28T09:00:00Z/2026-11-28T10:01:00Z"
SERIES = ["/", "/search", "/product", "/cart", "/checkout"]


def explained(text: str = WEB, *, monitor: int = 0, known: bool = True, **changes: Any) -> dict[str, str]:
    """Return the parts of the explanation of an alert, by their first words."""
    spec = load_spec(text)
    return parts_of(spec, monitor, known=known, **changes)


def parts_of(spec: ApplicationSpec, index: int, *, known: bool = True, **changes: Any) -> dict[str, str]:
    monitor = spec.monitors[index]
    usual: dict[str, Any] = {
        "dataset": "web-2026-11-28",
        "monitor": monitor.name,
        "series": "/cart",
        "position": Position(monitor.topic, 0, -1, 3, WINDOW),
        "spec_hash": monitor.hash() if known else "0f0f",
    }
    head, *lines = explain_alert(spec, event(alert(**usual | changes)))
    assert head == "Alert web-2026-11-28-1 of 2026-01-05 10:00:00 UTC:" or "dataset" in changes
    return dict(line.split(maxsplit=1) for line in lines)


def test_it_names_the_count_the_series_and_the_window() -> None:
    found = explained()["Found"]
    assert found.startswith(
        "the number of different `user` (measure visitors of source requests) of series /cart from 2026-11-28 09:00:00 "
        "UTC to 2026-11-28 10:00:00 UTC was found above 500."
    )
    parts = explained(severity="page", bound=540.0)
    assert [*parts][:3] == ["Found", "Estimate", "Bound"]
    assert parts["Estimate"] == "562; severity page."
    assert [*parts][-1] == "Noise", "what an alert is made of comes last"
    assert parts["Noise"] == (
        "with noise of scale 10 the value was 12 above the noisy threshold: 500, plus a correction of 60, plus noise "
        "of scale 10."
    )
    assert explained(dataset="gone")["Protects"] == "unknown: the file does not declare dataset gone."
    assert explained(estimate=796.223515789)["Estimate"] == "796.224."
    assert explained(estimate=None)["Estimate"] == "none, without a bound."
    several = ("{name: visitors}", "{name: visitors, of: {events: {at_most: 7}}}")
    assert explained(changed(several))["Found"].startswith("the number of events, 7 of each `user` at most (")
    ticking = explained(changed(("window: 1h", "window: 1h\n    ask: tick")))["Found"]
    assert "10:00:00 UTC, as of 2026-11-28 10:01:00 UTC, was" in ticking


def test_answers_of_a_topic_and_of_a_source_are_named_by_their_id() -> None:
    parts = explained(ANSWERS, dataset="north", position=Position("shop.hits.counts", 0, -1, 3, "q1"))
    assert parts["Found"].startswith("the answer q1 of shop.hits.counts of series /cart was")
    assert parts["Protects"] == "one user, in dataset north."


def often(odds: str) -> list[float]:
    """Return the probabilities that a text has, in its order."""
    texts = re.findall(r"\) (?:once in ([\d,]+) tests|([\d.]+) times in 100)", odds)
    return [1 / float(rare.replace(",", "")) if rare else float(common) / 100 for rare, common in texts]


@pytest.mark.parametrize("law", ["exponential", "laplace"])
@pytest.mark.parametrize("rule", ["exposure", "none"])
def test_the_odds_are_those_of_the_noise_in_closed_form(law: str, rule: str) -> None:
    """The probability that query noise less threshold noise reaches the correction and the distance."""
    keys = f"threshold: 500, mute: 1h, query_noise: {law}, correction: {rule}"
    spec = load_spec(changed(("threshold: 500, mute: 1h", keys)))
    mechanism = spec.monitors[0].mechanism()
    (query,), bar = mechanism.branch_laws, mechanism.branches[0].correction(0)
    scale = 8.0
    noise = NoiseLaw(family=law, scale=scale)
    odds = parts_of(spec, 0, query_noise=noise, threshold=700.0)["Odds"]
    assert re.findall(r"(\d+) \(", odds) == ["700", "692", "676"]
    wanted = [
        estimates.survival(query, mechanism.threshold_law, bar + below) for below in (0, int(scale), 24)
    ]
    assert often(odds) == pytest.approx(wanted, rel=0.06)


def test_silence_names_the_values_that_are_reported_surely_and_half_of_the_time() -> None:
    spec = load_spec(WEB)
    mechanism = spec.monitors[0].mechanism()
    (query,), bar = mechanism.branch_laws, mechanism.branches[0].correction(0)
    texts = re.findall(
        r"([\d,]+) (?:would have been reported )?(95%|half) of the time", parts_of(spec, 0)["Silence"]
    )
    assert len(texts) == 2
    for (text, _), chance in zip(texts, (0.95, 0.5), strict=True):
        distance = int(text.replace(",", "")) - 500
        reached, before = (
            estimates.survival(query, mechanism.threshold_law, bar - one) for one in (distance, distance - 1)
        )
        assert before < chance <= reached


def test_odds_of_a_monitor_that_was_declared_otherwise_are_unknown() -> None:
    other = explained(known=False)
    assert other.keys() & {"Wastes", "Silence"} == set()
    assert other["Odds"].startswith("unknown: the file declares monitor many-users otherwise, and this was")
    assert "with digest 0f0f" in other["Odds"]
    spec = load_spec(WEB)
    gone = dict(line.split(maxsplit=1) for line in explain_alert(spec, event(alert(monitor="gone")))[1:])
    assert gone["Odds"].startswith(
        "unknown: the file declares no monitor gone, and this was tested with digest 5f0c."
    )


def test_a_bound_is_given_where_it_was_released() -> None:
    assert explained()["Bound"].startswith("none: the gap is too small for one at 95%")
    bound = explained(bound=540.0, beta=0.01)["Bound"]
    assert bound.startswith("that value is at least 540, at 99%. One such bound in 100 may be wrong")


def test_the_price_is_that_of_the_event() -> None:
    account = account_of(charge=0.08, spent=0.5, reserved=0.25, limit=4.0)
    assert explained(account=account, number=2, run=3)["Price"] == (
        "epsilon 0.08; alert 2 of run 3. After it epsilon 0.5 of 4 was spent: 3.5 is left, 0.25 of it reserved by open "
        "runs."
    )
    whole = Account(measure="rho", charge=0.0, spent=0.5, reserved=0.0, limit=2.0)
    assert explained(account=whole)["Price"].startswith(
        "paid with its run; alert 1 of run 1. After it rho 0.5 of 2 was"
    )


def test_a_question_is_named_as_check_names_it_with_the_time_of_all_windows_read() -> None:
    keys = "thresholds: t, share: {of: errors, above: 1.5%}, over: [1h, 6h], for: {windows: 5, at_least: 4}"
    spec = load_spec(
        changed(("cutoff: 5, threshold: 500", f"cutoff: 5, {keys}")),
        read_names=lambda _: [f"7 {one}" for one in SERIES],
    )
    found = parts_of(spec, 0)["Found"]
    asked = found.partition(" (visitors of source requests: different `user`) of series /cart ")
    assert asked[0].startswith("the 4th largest of 5 windows of the smaller of the means over 1h and 6h of ")
    assert f"many-users tests {asked[0]}: one `user` moves" in "\n".join(explain_sources(spec.at(NOW_MS)))
    # Four earlier windows of `for`, of which the first reads five more of the long mean.
    assert asked[2].startswith("from 2026-11-28 00:00:00 UTC to 2026-11-28 10:00:00 UTC was found")
    plain = explained(changed(("threshold: 500, mute", "threshold: 500, for: 3, mute")))["Found"]
    assert "from 2026-11-28 07:00:00 UTC to 2026-11-28 10:00:00 UTC was" in plain


def test_what_is_usual_names_how_far_back_it_compares() -> None:
    usual = changed(
        ("threshold: 500, mute", "threshold: 500, usual: {every: 7d, times: 2}, mute"),
        ("from: 2026-11-28", "every: 15d, from: 2026-11-28, looks_back: 14d"),
        ("{epsilon: 2}", "{epsilon: 8, per: 30d}"),
    )
    found = explained(usual)["Found"]
    assert found.startswith(
        "visitors, less its mean of 2 times every 1w before (visitors of source requests: "
    )
    times = "from 2026-11-28 09:00:00 UTC to 2026-11-28 10:00:00 UTC"
    assert f"{times}, compared with windows back to 2026-11-14 09:00:00 UTC, was found" in found


def test_values_have_the_digits_that_the_noise_has() -> None:
    odds = explained(query_noise=NoiseLaw(family="exponential", scale=34.7912), threshold=100.0)["Odds"]
    assert re.findall(r"(-?[\d.,]+) \(", odds) == ["100", "65.2", "-4.4"]


@pytest.mark.parametrize(
    ("until", "says"),
    [
        ("period", "not tested as long as its dataset lives"),
        ("run", "not tested for the rest of the run"),
        (1_796_000_000_000, "not tested until 2026-11-30 00:53:20 UTC: its silence means nothing"),
    ],
)
def test_the_mute_is_the_end_of_what_silence_of_the_series_may_mean(until: Any, says: str) -> None:
    assert says in explained(muted_until=until)["Mute"]
    assert "Mute" not in explained(muted_until=None)


def end_of_an_incident(more: str = "") -> tuple[ApplicationSpec, Event[Lifecycle]]:
    """Return a configuration, and the end of an incident that an engine released under it."""
    spec = ended.application(more=more)
    events = ended.Feed(spec).read(ended.written(spec, [ended.HIGH] * 3 + [ended.QUIET] * 4)).play.events
    (found,) = (one for one in events if one.type == EventType.ALERT_ENDED)
    return spec, decode(encode(found, application="web", shard=0, time=TIME, origin="o"))


def test_the_end_of_an_incident_is_explained_with_the_sides_of_an_alert_turned() -> None:
    spec, event = end_of_an_incident("for: 2,")
    head, *lines = explain_alert(spec, event)
    parts, detail = dict(line.split(maxsplit=1) for line in lines), event.data.detail
    assert head == f"End {event.id} of 2026-01-05 10:00:00 UTC:"
    assert parts["Found"].startswith(
        "the largest of 2 windows of all (all of source s: different `user`) of series /"
    )
    assert parts["Found"].endswith(" was found below 400.")
    assert parts["Estimate"] == f"{detail['estimate']:,.6g}."
    assert parts["Bound"].startswith(f"that value is at most {detail['bound']:g}, at 95%.")
    assert parts["Price"].startswith(f"epsilon {event.data.account.charge:.9g}; end 1 of run 1. After it")
    assert parts["Mute"] == "over: this series is tested for alerts of m again."
    assert (
        f"{detail['gap']:g} below the noisy threshold: 400, less a correction of 6, less noise"
        in parts["Noise"]
    )
    shown = re.findall(r"([\d.]+) \((at the threshold|\w+ noise scales? above)\)", parts["Odds"])
    assert [float(value) for value, _ in shown] == pytest.approx([400, 400.7, 402.1], abs=0.05)
    surely = re.search(r"(\d+) would have been reported 95%", parts["Silence"])
    assert surely is not None
    assert f"incident of m at a value of {surely[1]} at its first test 95%" in " ".join(explain(spec))


def test_an_end_at_zero_has_no_sign_and_one_that_lacks_a_detail_is_refused() -> None:
    spec, event = end_of_an_incident()
    zero = structs.replace(event.data, detail=event.data.detail | {"below": 0.0, "bound": 0.0})
    text = "\n".join(explain_alert(spec, structs.replace(event, data=zero)))
    assert "found below 0." in text
    assert "at most 0, at" in text
    lacking = structs.replace(event.data, detail=event.data.detail | {"below": None})
    with pytest.raises(ValidationError, match="threshold"):
        explain_alert(spec, structs.replace(event, data=lacking))


def test_an_alert_whose_incident_has_an_end_says_that_the_series_is_tested_for_it() -> None:
    ending = changed(
        ("threshold: 500, mute: 1h", "threshold: 500, end: {below: 400, longest: 7d}"),
        ("{epsilon: 2}", "{epsilon: 4}"),
    )
    assert explained(ending, watched_until=1_700_000_000_000)["Watched"] == (
        "until 2023-11-14 22:13:20 UTC the series is tested for a value below 400 instead: alert.ended follows where "
        "one is found."
    )


NOW_MS = 1_795_900_000_000
WATCHING = changed(("threshold: 500, mute: 1h", "threshold: 500, mute: 1h, not_renewed: 3"))


def test_a_watched_alert_has_the_odds_that_what_goes_on_is_silent() -> None:
    monitor = load_spec(WATCHING).monitors[0]
    found = explained(WATCHING, watched_until=1_700_000_000_000)["Watched"]
    assert found.startswith(
        "until 2023-11-14 22:13:20 UTC alert.not-renewed follows if the first 3 windows after"
    )
    shown = r"value of (\d+) \((\d+) above the threshold\), .*, of (\d+) \((\d+) above the threshold\) 5%"
    half, half_above, rare, rare_above = map(float, re.search(shown, found).groups())  # type: ignore[union-attr]
    released = [silent_margin(monitor, 3, chance) for chance in (0.5, 0.05)]
    assert [half_above, rare_above] == released == [half - 500, rare - 500], "as in the event"
    assert (
        f"after an alert, alert.not-renewed: if each of 3 windows has a value of {half:,.12g}"
        in "\n".join(explain(load_spec(WATCHING).at(NOW_MS)))
    )
    mechanism, threshold = monitor.mechanism(), monitor.threshold
    for value, chance in ((half, 0.5), (rare, 0.05)):
        law, (query,) = mechanism.threshold_law, mechanism.branch_laws
        corrections = [mechanism.branches[0].correction(0)] * 3
        below, at = (
            1
            - report_probability(
                int(value - threshold) - step, corrections=corrections, query=query, threshold=law
            )
            for step in (1, 0)
        )
        assert at <= chance < below
    assert "Watched" not in explained(WATCHING)
