"""The exported JSON Schema agrees with the loader on good files and finds typos."""

from __future__ import annotations

import copy
import re

import jsonschema
import pytest
import yaml

from stream_svt.errors import ConfigError
from stream_svt.service.config import parse_config
from stream_svt.settings.sections import json_schema
from tests.settings.test_application import FULL

SECTIONS = """
kafka: {bootstrap_servers: "127.0.0.1:9092", security_protocol: PLAINTEXT, sasl_mechanism: null,
        username: null, password_file: null, ca_file: null, session_timeout: 6s, heartbeat_interval: 500ms,
        transaction_timeout: 15s, group_instance_id: null}
topics: {alerts: retail.alerts, state: retail.state, rejects: retail.rejects, control: retail.control,
         partitions: 4, replication_factor: 1, start_at: earliest}
sealing: {key_file: null, key_command: null, previous_key_files: [], previous_key_commands: [], adopt_plain: false,
          key_lost: false}
control: {signatures: off, public_key_files: [], hmac_key_files: []}
web: {host: 127.0.0.1, port: 6066}
commit: {interval: 2s, max_records: 20000}
datasets:
  - {name: a, horizon: 90d, limit: "1/3", unit: one basket}
  - {generate: "week-{iso_week}", from: "2026-01-05", until: "2026-01-19", lateness: 1h,
     limit: {rho: 0.1}, unit: one event}
"""
MONITORS = """
  - name: baskets
    topic: retail.counts
    datasets: [other-a, "week-*"]
    epsilon: "1/10"
    cutoff: 10
    sensitivity: 1
    bounds: [0, 100000]
    threshold: 500
    correction: {annealed: {start: 12, end: 3}}
    append: {sweep: {tops_per_set: 10, max_open_sets: 4, max_set_size: 50000}}
    mute: period
  - name: by-hand
    topic: retail.counts
    datasets: [other-b]
    epsilon: 0.25
    cutoff: 3
    sensitivity: 1
    bounds: [0, 100]
    threshold: 5
    correction: {table: [9, 7.5, "1/2"]}
    append: off
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
    "everything": re.sub("\nkafka: .*\ndatasets:\n", SECTIONS, WHOLE) + MONITORS,
}


class Yaml12(yaml.SafeLoader):
    """Booleans as editors read them: `off` is a text."""


Yaml12.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":bool")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$"), list("tf"))


def plain(text: str):
    return yaml.load(text, Yaml12)  # noqa: S506 - a safe loader with fewer booleans


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_the_loader_accepts_is_valid(validator, name):
    parse_config(EXAMPLES[name])
    assert [error.message for error in validator.iter_errors(plain(EXAMPLES[name]))] == []


def mappings(node, path=()):
    if isinstance(node, dict):
        yield path
        for key, value in node.items():
            yield from mappings(value, (*path, key))
    if isinstance(node, list):
        for index, value in enumerate(node):
            yield from mappings(value, (*path, index))


def test_a_typo_in_any_mapping_is_found_by_schema_and_loader(validator):
    good = plain(EXAMPLES["everything"])
    for path in mappings(good):
        bad = copy.deepcopy(good)
        place = bad
        for step in path:
            place = place[step]
        place["typpo"] = 1
        assert list(validator.iter_errors(bad)), path
        with pytest.raises(ConfigError):
            parse_config(yaml.safe_dump(bad))


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
