"""The service's configuration: sections, secrets from files, the environment, and what clients are given."""

from __future__ import annotations

import asyncio
import base64
import re
import ssl
import subprocess
from pathlib import Path

import pytest

from stream_svt.application.config import cluster_of, load_config, parse_config
from stream_svt.application.signatures import signing_key
from stream_svt.errors import ConfigError
from stream_svt.kafka.aiokafka_fixes import connections
from stream_svt.kafka.clients import stop_quietly
from stream_svt.worker.parser import spec_of
from tests.support.keys import ed25519_pair
from tests.support.problems import rows
from tests.support.tls import Authority

SPEC = """\
application: shop
datasets: [{name: week-1, limit: 4, unit: one basket}]
monitors:
  - {name: m, topic: counts, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,
     expected_queries: 10, mute: period}
"""
KEY = bytes(range(32))


PRIVATE, PUBLIC = ed25519_pair()
FILES: dict[str, str | bytes] = {
    "key": KEY.hex(),
    "old": base64.b64encode(KEY),
    "other": bytes(range(1, 33)).hex(),
    "short": KEY.hex()[:-2],
    "long": KEY.hex() + "00",
    "empty": "",
    "blank": "\n",
    "words": "not a key",
    "binary": b"\xff\xfe\x00",
    "alice.pem": PRIVATE,
    "alice.pub": PUBLIC,
    "password": "hunter2 \nrest\n",
    "ca.pem": Authority.new().pem,
}
SASL = """\
kafka:
  bootstrap_servers: broker.example:9093
  security_protocol: SASL_SSL
  sasl_mechanism: SCRAM-SHA-512
  username: me
  password_file: password
  ca_file: ca.pem
"""
OAUTH = "kafka:\n  security_protocol: SASL_SSL\n  sasl_mechanism: OAUTHBEARER\n"
ENDPOINT = """\
  oauth_token_url: https://issuer.example/token
  oauth_client_id: me
  oauth_client_secret_file: password
"""
MSK = "kafka:\n  security_protocol: SASL_SSL\n  sasl_mechanism: AWS_MSK_IAM\n  aws_region: eu-west-1\n"


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("secrets")
    for name, content in FILES.items():
        write(made / name, content)
    return made


def problems(text: str, directory: Path = Path(), environ=None):
    with pytest.raises(ConfigError) as refusal:
        parse_config(SPEC + text, source="shop.yaml", directory=directory, environ=environ)
    return [(problem.line, problem.field, problem.message) for problem in refusal.value.problems]


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_a_file_without_sections_has_safe_defaults():
    config = parse_config(SPEC)
    assert config.kafka.bootstrap_servers == ("127.0.0.1:9092",)
    assert (config.kafka.session_timeout, config.kafka.heartbeat_interval) == (6000, 500)
    assert config.kafka.transaction_timeout == 15_000
    assert (config.topics.alerts, config.topics.state) == ("shop.alerts", "shop.state")
    assert (config.topics.rejects, config.topics.control) == ("shop.rejects", "shop.control")
    assert (config.topics.partitions, config.topics.start_at) == (4, "earliest")
    assert (config.web.host, config.web.port) == ("127.0.0.1", 6066)
    assert (config.commit.interval, config.commit.max_records) == (2000, 20_000)
    assert config.sealing.master_keys == ()
    assert config.notes == ()
    arguments = config.cluster().arguments
    assert {name: value for name, value in arguments.items() if value is not None} == {
        "bootstrap_servers": ["127.0.0.1:9092"],
        "security_protocol": "PLAINTEXT",
        "connections_max_idle_ms": 180_000,
    }


def test_a_connection_without_files_reads_no_authorities_of_the_system(monkeypatch):
    monkeypatch.delattr(ssl, "create_default_context")
    parse_config(SPEC)


def test_all_sections_are_read(tmp_path):
    write(tmp_path / "key", KEY.hex())
    write(tmp_path / "old", bytes(32).hex())
    path = write(
        tmp_path / "shop.yaml",
        SPEC
        + """
kafka:
  bootstrap_servers: [127.0.0.1:9092, "[::1]:9093"]
  session_timeout: 9s
  group_instance_id: worker-1
topics: {alerts: a, state: s, rejects: r, control: c, partitions: 8, replication_factor: 3, start_at: latest}
sealing: {keys: [key, old]}
web: {host: 0.0.0.0, port: 80}
commit: {interval: 500ms, max_records: 10}
""",
    )
    config = load_config(path, {})
    assert config.kafka.bootstrap_servers == ("127.0.0.1:9092", "[::1]:9093")
    assert (config.kafka.session_timeout, config.kafka.group_instance_id) == (9000, "worker-1")
    assert (config.topics.alerts, config.topics.state, config.topics.partitions) == ("a", "s", 8)
    assert config.sealing.master_keys == (KEY, bytes(32))
    assert (config.web.port, config.commit.interval, config.source) == (80, 500, str(path))
    assert config.notes == ()


@pytest.mark.parametrize("form", ["{}", "kafka: {{client_id: &unit one basket}}\n{}web:\n"])
def test_what_is_applied_says_the_same_without_the_sections_of_the_service(tmp_path, form):
    write(tmp_path / "names.txt", "north\nsouth\n")
    text = SPEC.replace("name: week-1", 'file: names.txt, horizon: "1d"')
    anchored = text.replace("one basket", "*unit") if "&unit" in form else text
    bundle = load_config(write(tmp_path / "shop.yaml", form.format(anchored))).bundle
    assert bundle.files == {"names.txt": "north\nsouth\n"}
    assert "kafka" not in bundle.text
    spec = parse_config(text, directory=tmp_path).spec
    assert spec_of(bundle) == spec
    assert [one.name for one in spec.datasets] == ["north", "south"]


def test_a_configuration_that_is_not_there_is_a_problem_of_configuration(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.yaml: 1 problem\n  cannot be read: No such file"):
        load_config(tmp_path / "nowhere.yaml")
    with pytest.raises(ConfigError, match="line 2: the file cannot be read: it is not UTF-8 text"):
        load_config(write(tmp_path / "latin.yaml", b"a:\n  caf\xe9"))


LOGINS = {
    "SCRAM": "security_protocol: SASL_SSL, sasl_mechanism: SCRAM-SHA-512",
    "OAUTH": "security_protocol: SASL_SSL, sasl_mechanism: OAUTHBEARER",
    "MSK": "security_protocol: SASL_SSL, sasl_mechanism: AWS_MSK_IAM",
    "ENDPOINT": "oauth_token_url: https://issuer.example/token, oauth_client_id: me, "
    "oauth_client_secret_file: password",
}
SERVICE = ("kafka", "topics", "sealing", "schema_registry", "web", "commit", "comit", "control")


@pytest.mark.parametrize(("section", "text", "message", "key"), rows(*SERVICE))
def test_a_problem_names_its_line_field_and_remedy_and_no_secret(directory, section, text, message, key):
    text = re.sub("[A-Z]{3,}(?=[,}])", lambda name: LOGINS.get(name[0], name[0]), text)
    found = problems(f"{section}: {text}\n", directory)
    field = f"{section}.{key}".rstrip(".")
    assert (6, field) in [(line, name) for line, name, words in found if message in words], found
    assert not any(secret in words for *_, words in found for secret in ("hunter2", KEY.hex()[:16]))


def test_problems_of_the_specification_and_the_service_come_together():
    with pytest.raises(ConfigError) as refusal:
        parse_config(SPEC.replace("cutoff: 1", "cutoff: 0") + "web: {port: 0}")
    assert [problem.field for problem in refusal.value.problems] == ["monitors[0].cutoff", "web.port"]


def test_an_empty_section_means_its_defaults():
    assert parse_config(SPEC + "kafka:\nweb:\n").web.port == 6066


# --- secrets


@pytest.mark.parametrize(
    "content",
    [KEY.hex(), KEY.hex().upper() + "\n", base64.b64encode(KEY), base64.urlsafe_b64encode(b"\xff" * 32)],
)
def test_a_key_is_read_from_hex_or_base64(tmp_path, content):
    write(tmp_path / "key", content)
    config = parse_config(SPEC + "sealing: {keys: [key]}", directory=tmp_path)
    assert config.sealing.master_keys[0] in {KEY, b"\xff" * 32}


def test_a_missing_key_is_reported_with_the_command_that_makes_one(tmp_path):
    (folder := tmp_path / "my keys").mkdir()
    ((_, _, words),) = problems("sealing: {keys: [key]}", folder)
    subprocess.run(["bash", "-c", words.split("make its first one: ")[1]], check=True)
    parse_config(SPEC + "sealing: {keys: [key]}", directory=folder)
    write(folder / "key", "short")
    ((_, _, words),) = problems("sealing: {keys: [key]}", folder)
    assert "openssl" not in words


def test_a_key_is_what_a_command_prints(directory):
    text = "sealing: {keys: [[printf, '%s', " + "ff" * 32 + "], [cat, key]]}"
    config = parse_config(SPEC + text, directory=directory)
    assert config.sealing.master_keys == (b"\xff" * 32, KEY)


def test_a_key_command_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("stream_svt.application.config.KEY_COMMAND_SECONDS", 0.2)
    ((_, _, words),) = problems("sealing: {keys: [[sleep, '60']]}", tmp_path)
    assert "did not end within 0.2 s" in words


# --- notes, and keys that can be set in the file only


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        ("sealing: {keys: open}", "sealing.keys", "chmod 600"),
        ("sealing: {keys: [key], adopt_plain: true}", "sealing.adopt_plain", "remove it once"),
        (
            "sealing: {keys: [key], key_lost: true}",
            "sealing.key_lost",
            "parks shards that another worker could",
        ),
        ("control: {keys: [alice.pub]}", "control.keys", "written by everybody"),
        ("kafka: {bootstrap_servers: broker.example:9092}", "kafka.security_protocol", "in the clear"),
    ],
)
def test_what_is_accepted_and_should_not_stay_so_is_noted(tmp_path, text, field, message):
    write(tmp_path / "key", KEY.hex())
    write(tmp_path / "open", KEY.hex(), mode=0o644)
    write(tmp_path / "alice.pub", ed25519_pair()[1], mode=0o666)
    (note,) = parse_config(SPEC + text, directory=tmp_path).notes
    assert note.line == 6
    assert note.field.startswith(field)
    assert message in note.message


@pytest.mark.parametrize("key", ["SEALING_ADOPT_PLAIN", "SEALING_KEY_LOST", "CONTROL_KEYS"])
def test_what_gives_leave_is_said_in_the_file_only(directory, key):
    ((_, field, words),) = problems("sealing: {keys: [key]}", directory, {f"STREAM_SVT_{key}": "true"})
    assert field == f"STREAM_SVT_{key}"
    assert "in the file only" in words


# --- who may give commands


def test_commands_need_no_signature_unless_a_key_is_named(directory):
    assert not parse_config(SPEC).control.keys
    for more in ("", "sealing: {keys: [key]}\n"):
        text = f"{more}control: {{keys: [alice.pub, other]}}"
        config = parse_config(SPEC + text, directory=directory)
        assert config.control.keys
        names = [signing_key(PRIVATE).name, signing_key(str(FILES["other"])).name]
        assert [key.name for key in config.command_keys] == names
        assert config.notes == ()


def test_secrets_never_show_in_the_text_of_a_configuration(directory):
    text = "sealing: {keys: [key]}\ncontrol: {keys: [other]}\n" + SASL
    shown = repr(parse_config(SPEC + text, directory=directory))
    assert "hunter2" not in shown
    for secret in (KEY, bytes(range(1, 33))):
        assert repr(secret) not in shown
        assert secret.hex() not in shown


# --- what clients are given


def test_clients_get_credentials_and_the_authority(directory):
    config = parse_config(SPEC + SASL, directory=directory)
    arguments = dict(config.cluster().arguments)
    context = arguments.pop("ssl_context")
    assert arguments == {
        "bootstrap_servers": ["broker.example:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "hunter2 ",
        "sasl_oauth_token_provider": None,
        "connections_max_idle_ms": 180_000,
    }
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert len(context.get_ca_certs()) == 1
    assert config.kafka.sasl_mechanism == "SCRAM-SHA-512"
    assert config.kafka.security_protocol == "SASL_SSL"
    assert config.notes == ()


def test_every_client_gets_the_tokens_of_one_source(directory):
    config = parse_config(SPEC + OAUTH + ENDPOINT + "  oauth_extensions: {pool: a-1}\n", directory=directory)
    clients = [config.cluster().arguments for _ in range(2)]
    assert [one["sasl_mechanism"] for one in clients] == ["OAUTHBEARER"] * 2
    [tokens] = {one["sasl_oauth_token_provider"] for one in clients}
    assert tokens.extensions() == {"pool": "a-1"}
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize("text", [SASL, OAUTH + ENDPOINT, MSK], ids=["password", "endpoint", "msk"])
def test_what_clients_may_be_told_besides_reaches_each_of_them(directory, text):
    more = (
        "  client_id: quota-a\n  request_timeout: 9s\n  metadata_max_age: 20s\n  connections_max_idle: 4m\n"
    )
    cluster = parse_config(SPEC + text + more, directory=directory).cluster()

    async def made() -> list:
        all_of_them = [cluster.member("shop"), cluster.reader(), cluster.producer("shop-0"), cluster.admin()]
        found = [connections(one) for one in all_of_them]
        for one in all_of_them:
            await stop_quietly(one)
        return found

    clients = asyncio.run(made())
    names = ["quota-a", "quota-a-reader", "quota-a-shop-0", "quota-a-admin"]
    assert [client._client_id for client in clients] == names
    assert {client._connections_max_idle_ms for client in clients} == {240_000}
    assert clients[0]._metadata_max_age_ms == 20_000
    assert [client._request_timeout_ms for client in clients[1:3]] == [9000, 9000]


def test_a_client_secret_over_http_is_advised_against_unless_it_stays_here(directory):
    for address, advised in (("http://issuer.example/", True), ("http://127.0.0.1:1/", False)):
        text = OAUTH + ENDPOINT.replace("https://issuer.example/", address)
        notes = parse_config(SPEC + text, directory=directory).notes
        assert [note.field for note in notes] == ["kafka.oauth_token_url"] * advised


# --- a connection without a file


def test_a_connection_of_keys_is_that_of_a_section(directory):
    keys = {"bootstrap_servers": ["a:1", "b:2"], "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}
    keys |= {"username": "me", "ca_file": directory / "ca.pem", "request_timeout": "7s"}
    for cluster in (
        cluster_of(keys, "hunter3"),
        cluster_of(keys | {"password_file": write(directory / "three", "hunter3")}),
    ):
        assert cluster.arguments["bootstrap_servers"] == ["a:1", "b:2"]
        assert cluster.arguments["sasl_plain_password"] == "hunter3"
        assert cluster.config.request_timeout == 7000


@pytest.mark.parametrize(
    ("keys", "password", "message"),
    [
        ({"sasl_plain_username": "me"}, None, "kafka.sasl_plain_username: unknown key; expected one of"),
        ({"bootstrap_servers": "here"}, None, "kafka.bootstrap_servers: expected host:port"),
        ({}, "hunter2", "kafka.password_file: is used with sasl_mechanism PLAIN"),
        ({"password_file": "x"}, "hunter2", "kafka.password_file: cannot be combined with password"),
    ],
    ids=["unknown", "address", "useless", "both"],
)
def test_what_is_wrong_with_a_connection_of_keys_is_said_without_a_line(keys, password, message):
    with pytest.raises(ConfigError, match="connection: ") as refused:
        cluster_of(keys, password)
    assert f"\n  {message}" in str(refused.value)
    assert "hunter2" not in str(refused.value)


# --- the environment


def test_the_environment_replaces_keys_of_the_service_sections():
    environ = {
        "STREAM_SVT_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1,127.0.0.1:2",
        "STREAM_SVT_WEB_PORT": "7000",
        "STREAM_SVT_COMMIT_INTERVAL": "1s",
        "STREAM_SVT_OTHER": "left alone",
        "HOME": "/root",
    }
    config = parse_config(SPEC + "web: {port: 80, host: localhost}", environ=environ)
    assert config.kafka.bootstrap_servers == ("127.0.0.1:1", "127.0.0.1:2")
    assert (config.web.host, config.web.port, config.commit.interval) == ("localhost", 7000, 1000)


def test_a_wrong_variable_is_named():
    found = problems("", environ={"STREAM_SVT_WEB_PORT": "http", "STREAM_SVT_WEB_PRT": "1"})
    assert found[0][1:] == (
        "STREAM_SVT_WEB_PRT",
        "environment variable names no key of web; did you mean 'port'?",
    )
    assert found[1][:2] == (0, "web.port")
    assert found[1][2].endswith("found 'http' (from environment variable STREAM_SVT_WEB_PORT)")
