"""An undeclared key that looks like the name of a dataset is shown, with what differs and what to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from stream_svt.application.keys import likeness
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.operate.lint import MAX_KEYS, Sample
from stream_svt.operate.rejects import lines_of
from stream_svt.settings.application import load_spec

SPEC = load_spec("""
application: shop
datasets:
  - {names: [north, café], limit: 4, unit: one basket}
  - {generate: "day-{date}", from: 2026-01-05, limit: 4, unit: one basket}
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 10, sensitivity: 1, bounds: [0, 100],
     threshold: 50, expected_queries: 1000}
""")
HOMES = Partitioning(1, "murmur2")
LOOK_ALIKE = [
    (b"\xef\xbb\xbfnorth", "dataset 'north' with U+FEFF ZERO WIDTH NO-BREAK SPACE, which nobody sees"),
    ("no\u200brth".encode(), "dataset 'north' with U+200B ZERO WIDTH SPACE"),
    (b"north\r", "dataset 'north' with U+000D (control character)"),
    (b"north\0", "dataset 'north' with U+0000 (control character)"),
    (b" north ", "dataset 'north' with blanks around it"),
    ("cafe\u0301".encode(), "dataset 'café' in another form than Unicode's normal form C"),
    (b"\xef\xbb\xbfday-2026-03-01", "dataset 'day-2026-03-01' with U+FEFF"),
    (b'"north"', "dataset 'north' in JSON quotes: let the producer write keys as plain text"),
    (b' "caf\\u00e9"\n', "dataset 'café' in JSON quotes"),
    ('"no\u200brth"'.encode(), "dataset 'north' in JSON quotes and with U+200B"),
    (b'{"schema":{"type":"string"},"payload":"north"}', "dataset 'north' in a JSON object"),
    (b"\0\0\0\0\x07\x0anorth", "dataset 'north' behind a schema id"),
    (b'\0\0\0\0\x07"north"', "dataset 'north' behind a schema id and in JSON quotes"),
    (b"\0\0\x01\xff\xfenorth", "dataset 'north' behind a schema id"),
    (b"nort", "key 'nort' is no dataset; did you mean 'north'?"),
    (b"\xfe\xffn", "no UTF-8 text"),
]


@pytest.mark.parametrize(("key", "said"), LOOK_ALIKE)
def test_what_differs_is_named(key: bytes, said: str) -> None:
    found = likeness(key, SPEC)
    assert said in found
    assert found.isprintable()


@pytest.mark.parametrize("key", [b"elsewhere", b"", b"\0\0\0\0\0", b"[" * 10_000, b'{"a":7}', b'"elsewhere"'])
def test_other_keys_look_like_no_dataset(key: bytes) -> None:
    assert likeness(key, SPEC) == ""


@pytest.mark.parametrize("setting", ["StringSerializer", "KEY_FORMAT='KAFKA'", "StringConverter"])
def test_the_settings_of_producers_that_write_quotes_are_named(setting: str) -> None:
    assert setting in likeness(b'"north"', SPEC)


def record(offset: int, key: bytes | None = b"north", headers: Any = (), **fields: object) -> ConsumerRecord:
    value = b'{"id": "q%d", "series": "%s", "value": 1}' % (offset, str(fields.get("series", "s")).encode())
    return ConsumerRecord(
        "counts", 0, offset, 1_767_700_800_000, 0, key, value, None, -1, len(value), headers
    )


def lines(*records: ConsumerRecord) -> list[str]:
    sample = Sample(SPEC, "counts", HOMES)
    sample.add(0, records)
    return list(sample.lines())


def test_lint_shows_a_key_that_looks_like_a_dataset() -> None:
    for key, said in LOOK_ALIKE:
        [line] = lines(record(7, key))
        assert line.startswith("1 of 1: refused, undeclared: key ")
        assert said in line
        assert line.endswith("(first at partition 0, offset 7)")
    [line] = lines(record(7, b"elsewhere"))
    assert "such as key 'elsewhere' (first" in line


def test_lint_compares_few_keys_and_counts_all() -> None:
    found = lines(*(record(number, b"%d" % number) for number in range(1000)))
    assert [line.split(": ")[:2] for line in found] == [["1000 of 1000", "refused, undeclared"]]
    found = lines(*(record(number, b"north" + b"\r" * number) for number in range(1, 1000)))
    assert len(found) == MAX_KEYS + 1


def test_rejects_show_says_what_differs() -> None:
    shown = SimpleNamespace(timestamp=0, key='"north"\u200b'.encode(), headers=(), value=b"{}")
    found = list(lines_of(shown, 100, SPEC))
    assert found[1:3] == ['key: "north"\\u200b', f"note: {likeness(shown.key, SPEC)}"]
    assert not any(
        "note" in line for line in lines_of(SimpleNamespace(**{**vars(shown), "key": b"north"}), 100, SPEC)
    )


@pytest.mark.parametrize(
    "kind",
    [b'"application/json"', b'"application/json;charset=UTF-8"', b'"application/json" ; charset=utf-8'],
)
def test_a_content_type_in_quotes_is_that_content_type(kind: bytes) -> None:
    assert lines(record(0, headers=(("content-type", kind),))) == []


def test_lint_shows_a_content_type_that_is_refused() -> None:
    [line] = lines(record(0, headers=(("content-type", b"text/\x1b[2Jplain"),)))
    assert "refused, unsupported-content-type" in line
    assert "such as 'text/\\x1b[2Jplain' (first" in line


def test_lint_names_series_that_look_the_same() -> None:
    [line] = lines(record(0, series="café"), record(1, series="cafe\u0301"), record(2, series="caf\u200bé"))
    assert line.startswith("2 of 3: the series looks like another one")
    assert lines(record(0, series="ca\u200cfé"), record(1, series="ca\u200cfé")) == []
