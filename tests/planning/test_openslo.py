"""OpenSLO documents as monitors: what is printed, and what is refused, where it stands."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from stream_svt.errors import ConfigError
from stream_svt.planning.openslo import CHANGE, monitors_in
from stream_svt.settings.application import load_spec
from stream_svt.settings.document import read_all
from tests.support.openslo import SLO
from tests.support.sources import ANSWERS, WEB, changed


def lines_of(*changes: tuple[str, str], config: str = WEB) -> list[str]:
    return monitors_in(changed(*changes, text=SLO).encode(), "slo.yaml", load_spec(config))


def policy_named(name: str) -> str:
    """Return a policy to stand before the condition, in the place of the condition's kind."""
    spec = "spec: {conditions: [{conditionRef: burns}]}"
    rest = f"kind: AlertPolicy\nmetadata: {{name: {name}}}\n{spec}\n---\napiVersion: openslo/v1\n"
    return f"{rest}kind: AlertCondition\n"


def translated(*changes: tuple[str, str]) -> list[dict[str, object]]:
    """Return the monitors as a configuration would be read."""
    found: list[dict[str, object]] = yaml.safe_load("\n".join(lines_of(*changes)))["monitors"]
    return found


def test_a_burn_rate_is_a_share_over_two_times_for_some_windows() -> None:
    assert lines_of() == [
        "monitors:",
        "  - name: checkout-fast-burn",
        "    source: requests",
        "    measure: visitors",
        "    share: {of: errors, above: 1.44%}",
        "    over: [1h, 6h]",
        "    for: 2",
        "    mute: 6h",
        f"    detect: {{above: 0, surely_from: 1000, alerts: 1}}  {CHANGE}",
        "    severity: {page: 0}",
    ]


def test_the_example_of_the_page_is_read_as_it_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "planning.md").read_text(encoding="utf-8")
    section = page.partition("## Monitors from OpenSLO\n")[2].partition("\n## ")[0]
    written, printed = re.findall("```text\n(.*?)```", section, re.DOTALL)
    lines = monitors_in(written.encode(), "slo.yaml", load_spec(WEB))
    assert lines == ["monitors:", *printed.splitlines()]


def test_what_is_printed_is_a_monitor_of_the_configuration() -> None:
    text = changed(("epsilon: 2}", "epsilon: 3}")) + "\n".join([*lines_of()[1:], ""])
    monitor = next(one for one in load_spec(text).monitors if one.asks)
    assert monitor.share is not None
    assert (monitor.share.of, monitor.share.above) == ("errors", Fraction(144, 10_000))
    assert monitor.over == (3_600_000, 6 * 3_600_000)
    assert monitor.for_ is not None
    assert (monitor.for_.windows, monitor.for_.at_least) == (2, 2)
    assert (monitor.threshold, monitor.severity, monitor.mute) == (0, {"page": 0}, 6 * 3_600_000)


def test_what_is_printed_fits_a_limit_that_renews_and_events_of_which_a_unit_has_several() -> None:
    of = "of: {events: {at_most: 3}}"
    several = (("{name: visitors}", f"{{name: visitors, {of}}}"), ("errors, where", f"errors, {of}, where"))
    config = changed(
        *several,
        ("lateness: 1h, limit: {epsilon: 2}", "lateness: 1h, every: 7d, limit: {epsilon: 20, per: 30d}"),
    )
    lines = lines_of(config=config)
    assert f"    detect: {{above: 0, surely_from: 3000, alerts: 1, per: 30d}}  {CHANGE}" in lines
    assert load_spec(config + "\n".join(lines[1:]) + "\n").monitors[-1].name == "checkout-fast-burn"


POLICY = """\
    - metadata: {name: fast-burn}
      kind: AlertPolicy
      spec:
        conditions:
          - metadata: {name: burns}
            spec: {severity: page, condition: {threshold: 14.4, lookbackWindow: 6h, alertAfter: 90m}}
"""


@pytest.mark.parametrize("written", ["    - fast-burn\n", POLICY], ids=["name", "itself"])
def test_a_policy_is_named_or_stands_in_the_slo_itself(written: str) -> None:
    assert lines_of(("    - alertPolicyRef: fast-burn\n", written)) == lines_of()


def test_within_an_object_the_place_of_what_is_refused_is_its_own() -> None:
    within = ("    - alertPolicyRef: fast-burn\n", POLICY.replace("6h", "90m"))
    with pytest.raises(
        ConfigError, match=r"spec\.alertPolicies\[0\]\.spec\.conditions\[0\]\.spec\.condition\.lookback"
    ):
        lines_of(within)


def test_objects_that_decide_nothing_are_read_over() -> None:
    more = "".join(
        f"---\napiVersion: openslo/v1\nkind: {kind}\nspec: {{any: thing}}\n"
        for kind in ("Service", "DataSource", "AlertNotificationTarget")
    )
    assert monitors_in((SLO + more).encode(), "slo.yaml", load_spec(WEB)) == lines_of()


@pytest.mark.parametrize(
    ("change", "key", "value"),
    [
        (("alertAfter: 90m", "alertAfter: 1h"), "for", None),
        (("    alertAfter: 90m\n", ""), "for", None),
        (("alertAfter: 90m", "alertAfter: 0m"), "for", None),
        (("alertAfter: 90m", "alertAfter: 2d"), "for", 48),
        (("lookbackWindow: 6h", "lookbackWindow: 1h"), "over", None),
        (("lookbackWindow: 6h", "lookbackWindow: 1w"), "over", ["1h", "1w"]),
        (("target: 0.999", "targetPercent: 99.95"), "share", {"of": "errors", "above": "0.72%"}),
        (("threshold: 14.4", "threshold: 1"), "share", {"of": "errors", "above": "0.1%"}),
        (("severity: page", "severity: sev1"), "severity", {"sev1": 0}),
        (("op: gte", "op: gt"), "measure", "visitors"),
    ],
)
def test_each_key_follows_from_its_own(change: tuple[str, str], key: str, value: object) -> None:
    (monitor,) = translated(change)
    assert monitor.get(key) == value


def test_each_objective_and_policy_is_a_monitor() -> None:
    two = ("    - target: 0.999\n", "    - target: 0.999\n    - target: 0.99\n")
    policy = ("alertPolicies:\n", "alertPolicies:\n    - alertPolicyRef: slow-burn\n")
    slow = ("kind: AlertCondition\n", policy_named("slow-burn"))
    found = {one["name"]: one["share"] for one in translated(two, policy, slow)}
    assert found == {
        f"checkout-{policy}-{number}": {"of": "errors", "above": above}
        for policy in ("slow-burn", "fast-burn")
        for number, above in ((1, "1.44%"), (2, "14.4%"))
    }


@pytest.mark.parametrize(
    ("change", "where", "says"),
    [
        (
            ("kind: AlertPolicy", "kind: Alert"),
            "line 27: kind",
            "expected SLO, SLI, AlertPolicy, AlertCondition, Service, DataSource, AlertNotificationTarget, found 'Al",
        ),
        (
            ("openslo/v1\nkind: SLI", "openslo/v2alpha\nkind: SLI"),
            "line 1: apiVersion",
            "expected 'openslo/v1', found 'openslo/v2alpha'",
        ),
        (
            ("    bad:", "    good:"),
            "line 7: spec.ratioMetric.good",
            "has no translation: remove it; expected only counter, bad, total",
        ),
        (
            ("  ratioMetric:\n", "  thresholdMetric: {}\n  ratioMetric:\n"),
            "line 5: spec.thresholdMetric",
            "has no translation",
        ),
        (
            ("counter: false", "counter: true"),
            "line 6: spec.ratioMetric.counter",
            "expected false, found true: a source counts each window anew, and no running counter",
        ),
        (
            ("- alertPolicyRef: fast-burn", "- policy: fast-burn"),
            "line 24: spec.alertPolicies[0]",
            "expected {alertPolicyRef: NAME}, or the AlertPolicy itself",
        ),
        (
            ("- alertPolicyRef: fast-burn", "- 5"),
            "line 24: spec.alertPolicies[0]",
            "expected {alertPolicyRef: NAME}, or the AlertPolicy itself with metadata and spec, found 5",
        ),
        (
            ("type: stream-svt, spec: {m", "type: Prometheus, spec: {m"),
            "line 8: spec.ratioMetric.bad.metricSource.type",
            "expected 'stream-svt', found 'Prometheus'",
        ),
        (
            ("measure: errors", "measure: eror"),
            "line 8: spec.ratioMetric.bad.metricSource.spec",
            "no source 'requests' with a measure 'eror' is declared",
        ),
        (
            ("source: requests, measure", "source: request, measure"),
            "line 10: spec.ratioMetric.total.metricSource.spec",
            "did you mean 'requests'?",
        ),
        (
            ("measure: errors", "measure: visitors"),
            "line 7: spec.ratioMetric.bad",
            "as share.of: must be another measure with the same of, and with all conditions of",
        ),
        (
            ("budgetingMethod: Occurrences", "budgetingMethod: Timeslices"),
            "line 20: spec.budgetingMethod",
            "expected 'Occurrences', found 'Timeslices'",
        ),
        (
            ("isRolling: true", "isRolling: false"),
            "line 19: spec.timeWindow[0].isRolling",
            "expected true, found false",
        ),
        (
            ("isRolling: true", "isRolling: true, calendar: {}"),
            "line 19: spec.timeWindow[0].calendar",
            "has no translation",
        ),
        (
            ("    - target: 0.999\n", "    - target: 0.999\n      op: lt\n"),
            "line 23: spec.objectives[0].op",
            "has no translation",
        ),
        (
            ("target: 0.999", "target: 1"),
            "line 22: spec.objectives[0]",
            "needs one of target, from 0 to below 1",
        ),
        (("target: 0.999", "displayName: none"), "line 22: spec.objectives[0]", "and targetPercent"),
        (
            ("target: 0.999", "{target: 0.9, targetPercent: 90}"),
            "line 22: spec.objectives[0]",
            "needs one of",
        ),
        (
            ("alertPolicyRef: fast-burn", "alertPolicyRef: slow"),
            "line 24: spec.alertPolicies[0]",
            "no document is the AlertPolicy 'slow'",
        ),
        (
            ("  alertPolicies:\n    - alertPolicyRef: fast-burn\n", ""),
            "line 15: spec.alertPolicies",
            "is required",
        ),
        (
            ("alertWhenResolved: false", "alertWhenResolved: true"),
            "line 31: spec.alertWhenResolved",
            "expected false",
        ),
        (
            ("    - conditionRef: burns\n", "    - conditionRef: burns\n    - conditionRef: burns\n"),
            "line 34: spec.conditions[1]",
            "OpenSLO allows one",
        ),
        (("op: gte", "op: lte"), "line 43: spec.condition.op", "expected 'gt' or 'gte', found 'lte'"),
        (
            ("threshold: 14.4", "threshold: 1000"),
            "line 44: spec.condition.threshold",
            "as share.above: expected a share such as 1% or 0.01, below 100%, found '100%'",
        ),
        (
            ("threshold: 14.4", "threshold: 0"),
            "line 44: spec.condition.threshold",
            "found '0%'",
        ),
        (
            ("threshold: 14.4", "threshold: '1/3'"),
            "line 44: spec.condition.threshold",
            "as share.above: must be a decimal",
        ),
        (
            ("lookbackWindow: 6h", "lookbackWindow: 90m"),
            "line 45: spec.condition.lookbackWindow",
            "as over: must be a multiple of the window (1h), found 90m",
        ),
        (
            ("alertAfter: 90m", "alertAfter: 20w"),
            "line 46: spec.condition.alertAfter",
            "as for.windows",
        ),
        (
            ("lookbackWindow: 6h", "lookbackWindow: 0h"),
            "line 45: spec.condition.lookbackWindow",
            "must be between 1ms",
        ),
        (
            ("lookbackWindow: 6h", "lookbackWindow: 1M"),
            "line 45: spec.condition.lookbackWindow",
            "expected a duration such as",
        ),
        (
            ("severity: page", "severity: Page!"),
            "line 40: spec.severity",
            "expected a name of lower-case letters",
        ),
        (
            ("metadata: {name: burns}", "metadata: {name: burns}\nstatus: {}"),
            "line 39: status",
            "has no translation",
        ),
        (
            ("name: fast-burn}", f"name: {'x' * 60}}}"),
            "line 24: spec.alertPolicies[0]",
            "no document is",
        ),
    ],
)
def test_everything_else_is_refused_by_name_with_its_place(
    change: tuple[str, str], where: str, says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        lines_of(change)
    (problem,) = refused.value.problems
    assert f"line {problem.line}: {problem.field}" == where
    assert says in problem.message


def test_measures_of_a_share_count_alike() -> None:
    config = changed(("{name: visitors}", "{name: visitors, of: {events: {at_most: 3}}}"))
    with pytest.raises(ConfigError, match="must be another measure with the same of"):
        lines_of(config=config)
    second = "  - {name: shop, topic: t, unit: user, window: 1h, dataset: x, measures: [{name: all}, {name: errors}]}\n"
    config = changed(("datasets:\n", f"{second}datasets:\n  - {{name: x, limit: 1}}\n"))
    with pytest.raises(
        ConfigError, match=r"line 7: spec\.ratioMetric\.bad: must be a measure of the same source as"
    ):
        lines_of(("errors, source: requests", "errors, source: shop"), config=config)
    renamed = ANSWERS.replace("name: hits", "name: requests").replace("source: hits", "source: requests")
    with pytest.raises(ConfigError, match="no source 'requests' with a measure 'visitors'"):
        lines_of(config=renamed)


def test_names_are_taken_once_and_fit() -> None:
    twice = (
        "    - alertPolicyRef: fast-burn",
        "    - alertPolicyRef: fast-burn\n    - alertPolicyRef: fast-burn",
    )
    with pytest.raises(
        ConfigError, match=r"line 14: metadata\.name: makes a monitor 'checkout-fast-burn', which is"
    ):
        lines_of(twice)
    with pytest.raises(ConfigError, match="another AlertPolicy has this name"):
        lines_of(("kind: AlertCondition\n", policy_named("fast-burn")))
    with pytest.raises(ConfigError, match="which is too long"):
        lines_of(("{name: checkout,", f"{{name: {'c' * 60},"))


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("a: 1\n---\n- b\n", 3), ("a: 1\n---\n---\nb: 1\n", 3), ("a: 1\n---\nb: ]\n", 3)],
)
def test_a_document_that_is_no_mapping_is_named_by_its_line(text: str, line: int) -> None:
    with pytest.raises(ConfigError) as refused:
        read_all(text, "slo.yaml")
    assert [one.line for one in refused.value.problems] == [line]
