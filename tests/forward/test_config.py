"""The forwarder's file: all problems are found, secrets are never printed, schema and loader agree."""

from __future__ import annotations

import logging
import re

import jsonschema
import pytest
import yaml

from stream_svt.errors import ConfigError
from stream_svt.forward.config import json_schema
from tests.support.forwarding import KEY, OLD_KEY, configured, loaded, write_keys
from tests.support.keys import write_secrets

EVERYTHING = """
kafka: {bootstrap_servers: "127.0.0.1:9092", session_timeout: 6s}
topic: retail.alerts
group: onward
park_topic: retail.refused
web: {host: 127.0.0.1, port: 6070}
destinations:
  - name: pager
    types: [alert, monitor.exhausted]
    monitors: ["hot-*"]
    datasets: ["retail-*"]
    alertmanager:
      urls: ["http://127.0.0.1:9093/am/", "http://127.0.0.1:9094"]
      resolve_after: 2h
      labels: {team: privacy}
  - name: tickets
    types: ["*"]
    on_refused: park
    timeout: 5s
    concurrency: 2
    retry: {first: 1s, most: 1m, give_up_after: 1d}
    authorization_file: token
    webhook: {url_file: address, key_files: [hook.key, old.key]}
"""
SMALL = """
topic: retail.alerts
destinations:
  - {name: hook, webhook: {url: "https://example.org/hook", key_files: [hook.key]}}
"""


@pytest.fixture
def directory(tmp_path):
    write_keys(tmp_path)
    write_secrets(
        tmp_path, {"token": "Bearer abc\n", "address": "https://hooks.example/alerts", "torn": "https://["}
    )
    return tmp_path


def test_every_key_is_read(directory):
    config = loaded(directory, EVERYTHING)
    pager, tickets = config.destinations
    assert (config.topic, config.park_topic) == ("retail.alerts", "retail.refused")
    assert pager.urls == (
        "http://127.0.0.1:9093/am/api/v2/alerts",
        "http://127.0.0.1:9094/api/v2/alerts",
    )
    assert (config.group_of(pager), config.group_of(tickets)) == ("onward.pager", "onward.tickets")
    assert pager.types == ("alert", "monitor.exhausted")
    assert tickets.urls == ("https://hooks.example/alerts",)
    assert tickets.keys == (KEY, OLD_KEY)
    assert tickets.authorization == "Bearer abc"
    assert config.notes == ()
    assert config.parks


def test_the_smallest_file_has_safe_defaults(directory):
    config = loaded(directory, SMALL)
    (hook,) = config.destinations
    assert (config.web.host, config.web.port) == ("127.0.0.1", 6067)
    assert config.park_topic == "retail.alerts.parked"
    assert (config.group_of(hook), hook.on_refused) == ("retail.alerts.forward.hook", "stop")
    assert not config.parks


def test_printed_configurations_and_logs_have_no_secret(directory, caplog):
    caplog.set_level(logging.DEBUG)
    text = repr(loaded(directory, EVERYTHING)) + caplog.text
    for secret in ("hooks.example", "Bearer", KEY.hex(), repr(KEY)):
        assert secret not in text


def test_the_environment_replaces_keys_of_kafka_and_web_only(directory):
    environ = {"STREAM_SVT_KAFKA_BOOTSTRAP_SERVERS": "b:1,c:2", "STREAM_SVT_WEB_PORT": "7000"}
    config = loaded(directory, SMALL, environ)
    assert config.cluster.arguments["bootstrap_servers"] == ["b:1", "c:2"]
    assert config.web.port == 7000
    with pytest.raises(ConfigError, match="STREAM_SVT_WEB_PROT: environment variable names no key of web"):
        loaded(directory, SMALL, {"STREAM_SVT_WEB_PROT": "1"})


WEBHOOK = 'webhook: {url: "https://example.org/hook", key_files: [hook.key]}'
URL = 'url: "https://example.org/hook"'
LABELS = "alertmanager: {urls: ['http://a'], labels: {%s}}"


@pytest.mark.parametrize(
    ("old", "new", "words", "in_schema"),
    [
        (WEBHOOK, "timeout: 1s", "is required, and only one", False),
        ("name: hook", "name: The Hook", "expected a name of lower-case letters", True),
        (URL, "url: https://me:hunter2@example.org/", "without a user or password", False),
        (URL, "url: ftp://example.org/", "expected an address such as https://", True),
        (URL, "url: example.org", "expected an address such as https://", True),
        (URL, "url: 'https://[example.org/'", "expected an address such as https://", False),
        (f"{URL},", "", "or url_file is required, and only one of them", False),
        (URL, "url_file: torn", "file 'torn': expected an address such as https://", False),
        ("[hook.key]", "[hook.key, old.key, hook.key]", "at most 2 in the list", True),
        ("[hook.key]", '["hook\\0"]', "must not contain a NUL character", False),
        ("[hook.key]", "[missing]", "cannot read 'missing': No such file", False),
        ("name: hook,", "name: hook, types: [alerts],", "did you mean 'alert'?", False),
        ("name: hook,", "name: hook, types: [],", "at least 1 in the list", True),
        ("name: hook,", "name: hook, retry: {first: 1h},", "must not be shorter than first", False),
        ("name: hook,", "name: hook, webhok: {},", "webhok: unknown key; did you mean 'webhook'?", True),
        ("name: hook,", f"name: hook, {LABELS % ''},", "and only one of them", False),
        (WEBHOOK, LABELS % "dataset: x", "no label that events set, found 'dataset'", True),
        (WEBHOOK, LABELS % "a-b: x", "expected letters, digits and underscores", True),
        (WEBHOOK, LABELS % "team: 7", "put it in quotes", True),
        ("\ntopic", "\npark_topic: retail.alerts\ntopic", "must differ from topic", False),
        ("topic: retail.alerts\n", "", "1 problem\n  line 2: topic: is required", True),
        ("\ntopic", "\nkafka: {security_protocol: SSL, ca_file: lost}\ntopic", "cannot read 'lost'", False),
        ("ns:\n", "ns:\n  - {name: hook, webhook: {url: 'https://a'}}\n", "two have the name 'hook'", False),
    ],
)
def test_a_problem_is_named_and_the_schema_refuses_what_it_can(
    validator, directory, old, new, words, in_schema
):
    text = SMALL.replace(old, new)
    assert text != SMALL
    with pytest.raises(ConfigError, match=re.escape(words)) as refusal:
        loaded(directory, text)
    assert "hunter2" not in str(refusal.value)
    assert (list(validator.iter_errors(yaml.safe_load(text))) != []) is in_schema


def test_a_setting_that_is_probably_unintended_is_noted(tmp_path):
    config = configured(tmp_path, "[{name: a, webhook: {url: 'http://elsewhere.example/'}}]")
    assert [note.message.split(":")[0] for note in config.notes] == ["uses http", "requests are not signed"]
    (tmp_path / "hook.key").chmod(0o644)
    notes = loaded(tmp_path, SMALL).notes
    assert "can be read or written by everybody" in str(notes[0])


def test_http_is_noted_unless_the_host_is_this_machine(tmp_path):
    remote = ("127.evil.example", "localhost.evil.example", "10.0.0.1")
    for host in (*remote, "127.0.0.1", "LOCALHOST", "[::1]"):
        text = f"[{{name: a, webhook: {{url: 'http://{host}:80/', key_files: [hook.key]}}}}]"
        notes = [note.message for note in configured(tmp_path, text).notes]
        assert any("uses http" in note for note in notes) is (host in remote), host


# The schema


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("text", [SMALL, EVERYTHING])
def test_files_that_the_loader_accepts_are_valid(validator, text):
    assert [error.message for error in validator.iter_errors(yaml.safe_load(text))] == []
