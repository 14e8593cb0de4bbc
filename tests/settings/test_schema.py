"""The exported JSON Schema agrees with the loader on good files and finds typos."""

from __future__ import annotations

import json
import re
from functools import reduce
from operator import getitem

import jsonschema
import pytest

from stream_svt.application.config import parse_config
from stream_svt.errors import ConfigError
from stream_svt.settings.document import read
from stream_svt.settings.sections import ServiceDocument, json_schema
from tests.support.settings import FULL

DEFAULTS = ServiceDocument.model_validate({"application": "retail-watch"}).model_dump(
    mode="json", by_alias=True
)
SECTIONS = "\n".join(f"{name}: {json.dumps(section)}" for name, section in DEFAULTS.items())
DATASETS = """
datasets:
  - {name: a, horizon: 90d, limit: "1/3", unit: one basket}
  - {generate: "week-{iso_week}", from: "2026-01-05", until: "2026-01-19", lateness: 1h,
     limit: {rho: 0.1}, unit: one event}
"""
MONITORS = """
  - {name: baskets, topic: retail.counts, datasets: [other-a, "week-*"], epsilon: "1/10", cutoff: 10, sensitivity: 1,
     monotonic: true, bounds: [0, 100000], threshold: 500, correction: {annealed: {start: 12, end: 3}}, mute: period,
     append: {sweep: {alerts_per_set: 10, max_open_sets: 4, max_set_size: 50000}}}
  - {name: by-hand, topic: retail.counts, datasets: [other-b], epsilon: 0.2, cutoff: 3, sensitivity: 1,
     monotonic: true, bounds: [0, 100], threshold: 5, correction: {table: [9, 7.5, "1/2"]}, append: off}
"""
WHOLE = FULL.replace("1e6", "1000000").replace("lifetime: 10m", "lifetime: 4000")
EXAMPLES = {
    "small": """
application: shop
datasets: [{name: week-1, limit: 4, unit: one basket}]
monitors:
  - {name: m, topic: counts, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,
     expected_queries: 10}
""",
    "a mapping of names that the user chooses": """
application: shop
maintenance: [{every: Mon 22:00-02:00}]
datasets: [{name: week-1, limit: 4, unit: one basket}]
monitors:
  - {name: m, topic: counts, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,
     expected_queries: 10, severity: {page: 8, ticket: 5.5, info: "1/3"}}
""",
    "everything": re.sub("\napplication: .*\ndatasets:\n", f"{SECTIONS}{DATASETS}", WHOLE, flags=re.DOTALL)
    + MONITORS,
}


def plain(text: str):
    return read(text, "configuration").data


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_loader_accepts_is_valid(validator, name):
    parse_config(EXAMPLES[name])
    assert [error.message for error in validator.iter_errors(plain(EXAMPLES[name]))] == []


def test_a_typo_in_any_mapping_is_found_by_schema_and_loader(validator):
    for path in read(EXAMPLES["everything"], "configuration").lines:
        bad = plain(EXAMPLES["everything"])
        parent = reduce(getitem, path, bad)
        if isinstance(parent, dict):
            parent["typpo"] = 1
            assert list(validator.iter_errors(bad)), path
            with pytest.raises(ConfigError):
                parse_config(json.dumps(bad, default=str))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("threshold: 5,", "threshold: [5],"),
        ("threshold: 5,", "threshold: high,"),
        ("cutoff: 1,", "cutoff: 0,"),
        ("limit: 4,", "limit: 0,"),
        ("limit: 4,", "limit: {rho: 0},"),
        ("sensitivity: 1,", "sensitivity: -1,"),
        ("bounds: [0, 9]", "bounds: [0]"),
        ("epsilon: 1,", ""),
        ("expected_queries: 10", "expected_queries: 10, mute: 10"),
        ("expected_queries: 10", "expected_queries: 10, correction: exposre"),
        ("expected_queries: 10", "expected_queries: 10, append: retri"),
        ("expected_queries: 10", "expected_queries: 10, query_noise: gaussian"),
        ("expected_queries: 10", "expected_queries: 10, mechanism: svtt"),
        ("expected_queries: 10", "expected_queries: 10, severity: {page: high}"),
        ("expected_queries: 10", "expected_queries: 10, maintenance: [{every: Sun 2-4}]"),
        ("expected_queries: 10", "expected_queries: 10, maintenance: [{from: 2026-12-01T22:00Z}]"),
        ("name: week-1,", "name: week-1, names: [b],"),
        ("application: shop", "application: The Shop"),
    ],
)
def test_a_wrong_value_is_found_by_schema_and_loader(validator, good, bad):
    text = EXAMPLES["small"].replace(good, bad, 1)
    assert text != EXAMPLES["small"]
    assert list(validator.iter_errors(plain(text)))
    with pytest.raises(ConfigError):
        parse_config(text)
