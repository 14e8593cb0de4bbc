"""`stream-svt rejects`: what was refused, why, what to do, and the record itself for whoever may read it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from stream_svt.operate.rejects import REMEDIES
from tests.support import records

pytestmark = pytest.mark.kafka
BAD = b'{"id": "\x1b[31mred\xe2\x80\xae", "val'


async def test_refused_records_are_counted_with_what_to_do_and_shown_without_escape_codes(scene, stream_svt):
    file = scene.write()
    worker = await scene.start()
    await scene.send("a", 1)
    home = (await scene.read("counts"))[0].partition
    for value in (BAD, BAD, None):
        await scene.producer.send_and_wait(scene.queries, value, key=b"a", headers=[("by", b"\xff\x1b")])
    await scene.producer.send_and_wait(scene.queries, b"{}", key=b"a", partition=1 - home)
    await scene.command("pause", "a", state="other")
    await scene.rejected(5)
    await scene.stop(worker)
    forged = [b"no JSON", b'{"topic": "\\u001b[31m", "partition": 0, "offset": 1, "reason": "forged"}']
    await records.publish(scene.servers, f"{scene.application}.rejects", *((0, None, one) for one in forged))

    found = json.loads((await stream_svt("rejects", "list", "-c", file, "--json")).out)
    assert {(one["topic"], one["partition"], one["reason"], one["count"]) for one in found["rejects"]} == {
        (scene.queries, home, "not-json", 2),
        (scene.queries, home, "empty", 1),
        (scene.queries, 1 - home, "misrouted", 1),
        (f"{scene.application}.control", home, "command-other-state", 1),
    }
    assert (found["unreadable"], found["left_out"]) == (2, 0)
    newest = next(one for one in found["rejects"] if one["reason"] == "not-json")
    age = datetime.now(UTC) - datetime.fromisoformat(newest["newest"])
    assert timedelta() <= age < timedelta(minutes=2)
    assert newest["remedy"] == REMEDIES["not-json"]

    text = await stream_svt("rejects", "list", "-c", file)
    assert text.code == 0
    assert f"{scene.queries}: not-json, 2 records\n  to do: {REMEDIES['not-json']}\n" in text.out
    assert f"  partition {home}: 2, the newest at " in text.out
    assert "2 records of the reject topic cannot be read" in text.err
    some = await stream_svt("rejects", "list", "-c", file, "--limit", 2, "--json")
    assert json.loads(some.out)["left_out"] > 0
    none = await stream_svt("rejects", "list", "-c", file, "--since", "1ms")
    assert none.out == "No record was refused.\n"

    place = ("--topic", scene.queries, "--partition", home, "--offset")
    shown = await stream_svt("rejects", "show", "-c", file, *place, newest["offset"])
    assert "key: a\nheader by: b'\\xff\\x1b'\n" in shown.out
    assert shown.out.endswith('value (26 bytes): {"id": "\\x1b[31mred\\u202e", "val\n')
    cut = await stream_svt("rejects", "show", "-c", file, *place, newest["offset"], "--limit", 3)
    assert cut.out.endswith('value (26 bytes): {"i\n.. and 23 more bytes: give --limit\n')
    for offset in (4711, newest["offset"] + 2):  # the second is beyond what was sent
        missing = await stream_svt("rejects", "show", "-c", file, *place, offset)
        assert (missing.code, "no record at offset" in missing.err) == (1, True)
    await scene.delete_before("counts", newest["offset"] + 1, home)
    gone = await stream_svt("rejects", "show", "-c", file, *place, newest["offset"])
    assert (gone.code, "no record at offset" in gone.err) == (1, True)
    other = ("--topic", f"{scene.application}.state", "--partition", 0, "--offset", 0)
    refused = await stream_svt("rejects", "show", "-c", file, *other)
    assert (refused.code, "is no query topic of the configuration" in refused.err) == (1, True)
