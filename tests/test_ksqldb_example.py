"""The ksqlDB example names columns that events have, with types that hold them; ksqlDB itself is not run here."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from stream_svt.monitor.released import Account, Alert, Envelope, EventType
from tests.support.alerts import alert, encoded

TEXT = re.sub(r"--.*", "", (Path(__file__).parents[1] / "examples" / "ksqldb" / "alerts.sql").read_text())
SQL_TYPES = {str: {"VARCHAR"}, float: {"DOUBLE"}, int: {"BIGINT", "INTEGER"}}
NARROW = {"shard"}  # a partition's number, which Kafka keeps in 32 bits


def columns(text: str) -> dict[str, Any]:
    """Return columns with their types, of a STRUCT those within."""
    found: dict[str, Any] = {}
    depth, start = 0, 0
    for place, character in enumerate(text + ","):
        depth += {"<": 1, ">": -1}.get(character, 0)
        if character == "," and depth == 0:
            name, _, kind = text[start:place].strip().partition(" ")
            struct = re.fullmatch(r"STRUCT<(.*)>", kind.strip(), re.DOTALL)
            found[name.strip("`")] = columns(struct[1]) if struct else kind.strip()
            start = place + 1
    return found


def declared(text: str) -> dict[str, Any]:
    match = re.search(r"CREATE STREAM released \((.*?)\) WITH", text, re.DOTALL)
    assert match
    return columns(match[1])


def compare(found: dict[str, Any], record: type, place: str = "") -> list[str]:
    """Return what does not fit a record's fields."""
    hints = get_type_hints(record)
    wrong = []
    for name, kind in found.items():
        if kind == "VARCHAR KEY":
            continue
        if isinstance(kind, dict):
            inner = {"data": Alert, "account": Account}.get(name)
            wrong += compare(kind, inner, f"{place}{name}.") if inner else [f"{place}{name}: no structure"]
            continue
        hint = hints.get(name)
        plain = next(
            (one for one in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if one in SQL_TYPES),
            None,
        )
        if plain is None or kind not in SQL_TYPES[plain] or (kind == "INTEGER" and name not in NARROW):
            wrong.append(f"{place}{name}: {kind}")
    return wrong


def test_every_column_is_a_field_of_an_alert_with_a_type_that_holds_it():
    assert compare(declared(TEXT), Envelope) == []


@pytest.mark.parametrize(
    ("good", "bad", "found"),
    [
        ("gap DOUBLE", "gapp DOUBLE", ["data.gapp: DOUBLE"]),
        ("gap DOUBLE", "gap VARCHAR", ["data.gap: VARCHAR"]),
        ("sequence BIGINT", "sequence INTEGER", ["sequence: INTEGER"]),
        ("spent DOUBLE", "spend DOUBLE", ["data.account.spend: DOUBLE"]),
    ],
)
def test_a_column_that_is_wrong_would_be_found(good, bad, found):
    assert compare(declared(TEXT.replace(good, bad, 1)), Envelope) == found


def test_every_path_in_a_query_is_declared_and_the_type_is_that_of_alerts():
    known = declared(TEXT)
    paths = re.findall(r"\bdata((?:->`?\w+`?)+)", TEXT)
    assert len(paths) > 5
    for path in paths:
        place: Any = known["data"]
        for step in path.split("->")[1:]:
            place = place[step.strip("`")]
    assert f"type = '{EventType.ALERT}'" in TEXT


def test_the_time_is_written_as_declared():
    time = msgspec.json.decode(encoded(1, alert()))["time"]
    assert "yyyy-MM-dd''T''HH:mm:ss.SSSX" in TEXT
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert datetime.fromisoformat(time).microsecond % 1000 == 0
