"""The ksqlDB example names columns that events have, with types that hold them; ksqlDB itself is not run here."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from stream_svt.monitor.released import Account, Alert, Event, EventType
from tests.support.alerts import alert, encoded

TEXT = re.sub(r"--.*", "", (Path(__file__).parents[1] / "examples" / "ksqldb" / "alerts.sql").read_text())
SQL_TYPES = {str: {"VARCHAR"}, datetime: {"VARCHAR"}, float: {"DOUBLE"}, int: {"BIGINT", "INTEGER"}}
NARROW = {"shard"}  # a partition's number, which Kafka keeps in 32 bits
RECORDS = {"": Event, "data": Alert, "data.account": Account}
"""Whose fields the columns are, by the STRUCT that holds them."""


def declared(text: str) -> dict[str, str]:
    """Return the columns of the stream with their types, those within a STRUCT by their path."""
    body = text.partition("CREATE STREAM released (")[2].partition(") WITH")[0]
    found, outer = {}, []
    for token in re.finditer(r"`?(\w+)`?\s+(STRUCT<|\w+(?: KEY)?)|>", body):
        if token[0] == ">":
            outer.pop()
        elif token[2] == "STRUCT<":
            outer.append(token[1])
        else:
            found[".".join([*outer, token[1]])] = token[2]
    return found


def misfits(columns: dict[str, str]) -> list[str]:
    """Return the columns that no field of an event fits."""
    wrong = []
    for path, kind in columns.items():
        outer, _, name = path.rpartition(".")
        hint = get_type_hints(RECORDS[outer]).get(name)
        plain = next((one for one in get_args(hint) or (hint,) if one in SQL_TYPES), None)
        fits = kind in SQL_TYPES.get(plain, ()) and (kind != "INTEGER" or name in NARROW)
        if not fits and kind != "VARCHAR KEY":
            wrong.append(f"{path}: {kind}")
    return wrong


def test_every_column_is_a_field_of_an_alert_with_a_type_that_holds_it():
    columns = declared(TEXT)
    assert {path.rpartition(".")[0] for path in columns} == set(RECORDS)
    assert misfits(columns) == []


@pytest.mark.parametrize(
    ("good", "bad", "found"),
    [
        ("gap DOUBLE", "gapp DOUBLE", "data.gapp: DOUBLE"),
        ("gap DOUBLE", "gap VARCHAR", "data.gap: VARCHAR"),
        ("sequence BIGINT", "sequence INTEGER", "sequence: INTEGER"),
        ("spent DOUBLE", "spend DOUBLE", "data.account.spend: DOUBLE"),
    ],
)
def test_a_column_that_is_wrong_would_be_found(good, bad, found):
    assert misfits(declared(TEXT.replace(good, bad, 1))) == [found]


def test_every_path_in_a_query_is_declared_and_the_type_is_that_of_alerts():
    paths = {path.replace("`", "").replace("->", ".") for path in re.findall(r"\bdata(?:->`?\w+`?)+", TEXT)}
    assert len(paths) > 4
    assert paths <= declared(TEXT).keys()
    assert f"type = '{EventType.ALERT}'" in TEXT


def test_the_time_is_written_as_declared():
    time = msgspec.json.decode(encoded(1, alert()))["time"]
    assert "yyyy-MM-dd''T''HH:mm:ss.SSSX" in TEXT
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert datetime.fromisoformat(time).microsecond % 1000 == 0
