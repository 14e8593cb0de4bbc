"""Characters that nobody sees are no part of a name, a key or a secret, whichever file or key they stand in."""

from __future__ import annotations

import ast
import asyncio
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_svt import plain_text
from stream_svt.application.config import load_config
from stream_svt.application.signatures import signing_key
from stream_svt.errors import ConfigError
from stream_svt.forward.config import load_forward_config
from stream_svt.kafka.tokens import ClientCredentials
from stream_svt.settings.application import load_spec
from stream_svt.worker.parser import spec_of
from tests.support.keys import ed25519_pair

PACKAGE = Path(__file__).parent.parent / "stream_svt"
KEY = bytes(range(32)).hex()
UNSEEN = (
    "\ufeff\u200b\u200c\u200d\u2060\u00ad\u034f\u115f\u3164\uffa0\ufe0f\U000e0100\u180e\u061c\u202e\u2066\u2028\u2029"
    "\x00\x07\x0b\x0c\x1b\x1c\x7f\x85\x9b\ue000\u0378\U000e0041\u2800\ufffe"
)
SPEC = """\
application: shop
datasets: [%s]
monitors: [{name: m, topic: counts, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,
  expected_queries: 10, mute: period}]
"""


def dataset(**keys: object) -> str:
    return SPEC % yaml.safe_dump({"limit": 4, "unit": "one basket", **keys}, default_flow_style=True).strip()


# --- one function reads the text of files


def test_only_one_function_reads_text_from_files():
    r"""`splitlines` also splits at \v, \f, U+0085 and U+2028, and no other way to read skips a byte order mark."""
    inner = {
        "kafka/embedded.py": "the list of checksums and the log of the broker that this package starts",
        "demo/session.py": "the log of the worker that the demo starts",
    }
    modules = {
        str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")
    }
    used = {
        name: {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        for name, text in modules.items()
    }
    others = {"splitlines", "read_text", "readline", "readlines"}
    assert {name for name, attributes in used.items() if attributes & others} == inner.keys()
    readers = {name for name, attributes in used.items() if "read_bytes" in attributes}
    decoders = {name for name, text in modules.items() if "plain_text.decoded" in text}
    assert readers - decoders == {
        "kafka/embedded.py",
        "web/__init__.py",
    }  # the latter sends files of its own


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"\xef\xbb\xbfnorth\r\nsouth", ["north", "south"]),
        (b"\xef\xbb\xbf\xef\xbb\xbfnorth\n\n", ["north", ""]),
        ("a\x0bb\x0cc\x1cd\x85e\u2028f\rg\n".encode(), ["a\x0bb\x0cc\x1cd\x85e\u2028f\rg"]),
    ],
)
def test_lines_end_at_line_feeds_only_and_a_mark_at_the_beginning_is_skipped(content, lines):
    text = plain_text.decoded(content)
    assert plain_text.lines(text) == lines
    assert plain_text.first_line(text) == (lines[0] if lines else "")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_a_file_in_another_encoding_is_refused(encoding):
    content = "\ufeffnörth".encode("utf-16-le") if encoding == "utf-16-le" else "nörth".encode(encoding)
    with pytest.raises(ValueError, match="UTF-16 text: save" if "16" in encoding else "not UTF-8 text"):
        plain_text.decoded(content)


def plain(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir()
    for name, text in files.items():
        path = directory / name
        path.write_bytes(text.encode())
        path.chmod(0o600)
    return directory


def marked(directory: Path, files: dict[str, str]) -> Path:
    """Write files as an editor on Windows does: with a byte order mark, and lines that end with CR LF."""
    return plain(directory, {name: "\ufeff" + text.replace("\n", "\r\n") for name, text in files.items()})


PRIVATE, PUBLIC = ed25519_pair()
SERVICE = {
    "shop.yaml": dataset(file="names")
    + """\
kafka: {security_protocol: SASL_SSL, sasl_mechanism: PLAIN, username: me, password_file: password}
schema_registry: {url: "http://127.0.0.1:1", username: me, password_file: password}
sealing: {keys: [key, old]}
control: {keys: [alice.pub, other]}
""",
    "names": "# stores\nnorth\nsouth\n",
    "password": "pass\x0bword \n",
    "key": f"{KEY}\n",
    "old": f"{KEY[::-1]}\n",
    "other": f"{KEY[2:]}20\n",
    "alice.pub": PUBLIC,
}
FORWARD = {
    "forward.yaml": """\
topic: retail.alerts
destinations:
  - {name: hook, authorization_file: token, webhook: {url_file: address, key_files: [key]}}
""",
    "token": "Bearer abc\n",
    "address": "https://hooks.example/alerts\n",
    "key": f"{KEY}\n",
}


def test_every_file_of_a_configuration_means_the_same_with_a_mark_and_line_ends_of_windows(tmp_path):
    one = load_config(plain(tmp_path / "plain", SERVICE) / "shop.yaml")
    other = load_config(marked(tmp_path / "marked", SERVICE) / "shop.yaml")
    assert [each.name for each in other.spec.datasets] == ["north", "south"]
    assert other.kafka.password_file.held == "pass\x0bword "
    for name in ("spec", "kafka", "sealing", "command_keys", "schema_registry", "bundle"):
        assert getattr(one, name) == getattr(other, name), name
    assert spec_of(other.bundle).hash() == one.spec.hash()


def test_every_file_of_the_forwarder_means_the_same_with_a_mark_and_line_ends_of_windows(tmp_path):
    one, other = (
        load_forward_config(write(tmp_path / write.__name__, FORWARD) / "forward.yaml")
        for write in (plain, marked)
    )
    assert one.destinations == other.destinations
    assert other.destinations[0].authorization == "Bearer abc"
    assert other.destinations[0].urls == ("https://hooks.example/alerts",)


def test_keys_and_client_secrets_may_begin_with_a_mark(tmp_path):
    marked(tmp_path / "marked", {"alice.pem": PRIVATE, "secret": "s\u2028x\n"})
    content = (tmp_path / "marked" / "alice.pem").read_bytes()
    assert signing_key(plain_text.decoded(content)).name == signing_key(PRIVATE).name
    one = plain(tmp_path / "plain", {"secret": "s\u2028x\n"}) / "secret"
    logins = [
        asyncio.run(ClientCredentials("https://issuer.example", "me", file)._login())
        for file in (one, tmp_path / "marked" / "secret")
    ]
    assert logins[0] == logins[1]


def test_a_certificate_behind_a_mark_is_reported_not_left_out(tmp_path):
    from tests.support.tls import Authority

    text = "kafka: {security_protocol: SSL, ca_file: ca.pem}\n"
    files = {"shop.yaml": dataset(name="north") + text, "ca.pem": 2 * Authority.new().pem.decode()}
    with pytest.raises(ConfigError, match=r"kafka\.ca_file: file 'ca.pem' begins with a byte order mark"):
        load_config(marked(tmp_path / "marked", files) / "shop.yaml")


# --- names


@pytest.mark.parametrize("character", UNSEEN)
def test_a_character_that_nobody_sees_is_not_part_of_a_name(character):
    point = f"U+{ord(character):04X}"
    for name in (f"{character}north", f"no{character}rth", f"north{character}"):
        for declared in (
            dataset(name=name),
            dataset(names=["south", name]),
            dataset(generate=f"{name}-{{date}}", **{"from": "2026-01-05"}),
            dataset(generate="{name}-{date}", names=["south", name], **{"from": "2026-01-05"}),
        ):
            with pytest.raises(ConfigError) as refusal:
                load_spec(declared)
            assert point in str(refusal.value)
            assert character not in str(refusal.value)
        with pytest.raises(ConfigError, match=r"line 2: .*" + point.replace("+", r"\+")):
            load_spec(dataset(file="names"), read_names=lambda _, name=name: ["south", name])


def test_every_character_without_a_shape_is_known():
    """By Unicode's categories; the characters of Default_Ignorable_Code_Point that have others are listed."""
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}:
            assert not plain_text.is_visible(character), hex(number)
    assert not any(map(plain_text.is_visible, UNSEEN))
    assert all(map(plain_text.is_visible, "north é Ω 北 ß 😀 \u0301"))


@pytest.mark.parametrize(
    ("one", "other"), [("café", "cafe\u0301"), ("Å", "\u212b"), ("한", "\u1112\u1161\u11ab")]
)
def test_two_forms_of_one_name_are_never_two_ledgers(one, other):
    assert unicodedata.normalize("NFC", other) == one
    assert load_spec(dataset(name=one)).datasets[0].name == one
    with pytest.raises(ConfigError, match="normal form C") as refusal:
        load_spec(dataset(names=[one, other]))
    assert f"U+{ord(one[-1]):04X}" in str(refusal.value)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("cafe{name}-{date}", ["s", "\u0301"]),
        ("caf{name}\u0301-{date}", ["longer", "e"]),
        ("\u1112{name}-{date}", ["\u1161"]),
    ],
)
def test_what_a_pattern_and_a_name_make_together_has_one_form(pattern, names):
    with pytest.raises(ConfigError, match="normal form C"):
        load_spec(dataset(generate=pattern, names=names, **{"from": "2026-01-05"}))


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029", "\r"])
def test_a_line_of_a_configuration_ends_where_an_editor_ends_it(end):
    text = dataset(name="north").replace("application", f"# old:{end}application", 1)
    with pytest.raises(ConfigError, match=r"line 1: has U\+[0-9A-F]{4} .*which ends a line in YAML"):
        load_spec(text)


# --- every text of a configuration


def texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all texts in plain data, keys that are chosen by users included."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts(inner, (*path, index))
    elif isinstance(value, str):
        yield path


def spoiled(data: Any, path: tuple[Any, ...]) -> Any:
    copy = yaml.safe_load(yaml.safe_dump(data))
    inner = copy
    for step in path[:-1]:
        inner = inner[step]
    text = inner[path[-1]]
    inner[path[-1]] = f"{text[:1]}\u200b{text[1:]}"
    return copy


WHOLE = """\
application: shop
kafka:
  bootstrap_servers: ["broker:9092"]
  security_protocol: SASL_SSL
  sasl_mechanism: OAUTHBEARER
  oauth_token_url: https://issuer.example/token
  oauth_client_id: me
  oauth_client_secret_file: secret
  oauth_scope: a b
  oauth_extensions: {logicalCluster: lkc}
  group_instance_id: first
  client_id: stream-svt
topics: {alerts: a, state: s, rejects: r, control: c, config: d}
schema_registry: {url: "https://registry:8081", username: me, password_file: secret}
web: {host: 127.0.0.1}
datasets:
  - {name: north, limit: 4, unit: one basket}
  - {names: [south], limit: 4, unit: one basket}
  - {generate: "{name}-{date}", names: [east], from: "2026-01-05", limit: 4, unit: one basket}
monitors:
  - {name: m, topic: counts, epsilon: 1, cutoff: 1, sensitivity: 1, bounds: [0, 9], threshold: 5,
     expected_queries: 10, mute: period, datasets: ["nor*", south], record: {value: v.x, id: i, series: s, set: t}}
"""
FORWARDING = """\
kafka: {bootstrap_servers: "broker:9092"}
topic: retail.alerts
group: onward
park_topic: parked
web: {host: 127.0.0.1}
destinations:
  - name: pager
    types: [alert]
    monitors: ["hot*"]
    datasets: ["retail*"]
    alertmanager: {urls: ["http://127.0.0.1:9093"], labels: {team: privacy}}
"""


@pytest.mark.parametrize("text", [WHOLE, FORWARDING], ids=["service", "forwarder"])
def test_no_text_of_a_configuration_has_a_character_that_nobody_sees(tmp_path, text):
    """Names of files alone may have any character: they lead to a file, or to none."""
    data = yaml.safe_load(text)
    (tmp_path / "secret").write_text("s\n")
    load = load_forward_config if text is FORWARDING else load_config
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(data))
    load(file)
    paths = [path for path in texts(data) if not str(path[-1]).endswith("_file")]
    assert len(paths) > 10
    for path in paths:
        file.write_text(yaml.safe_dump(spoiled(data, path), allow_unicode=True))
        with pytest.raises(ConfigError) as refusal:
            load(file)
        assert "\u200b" not in str(refusal.value), path
