"""Upgrade and downgrade: what an older release wrote loads and plays on, what a newer one wrote is refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stream_svt.errors import UnreadableState
from stream_svt.protocol.sealing import Sealing
from stream_svt.protocol.state_records import META, Meta
from tests.golden.regenerate import COMMANDS, CONTEXT, HERE, KEY, journal, rest_of, restored, write_missing
from tests.simulation.log import finish, holding

VERSIONS = sorted(folder.name for folder in HERE.glob("v*"))
PINNED = {
    "v1/journal.json": "267d942173f105bca50ec60f5cffee4c3edfa028ff65e975384912301093d20f",
    "v1/rest.txt": "613574a6ed1e38b66d3d7502de46b26c25a640bb58ac8516509cf7b5c9814568",
    "v1/state.json": "4ba1db9c7b930f63d4c2e9c1f654d8af531f79a1badb09381f9a8579d367a8f5",
}
"""SHA-256 of every snapshot. From the first release on, a new format adds a folder and lines here; no line changes."""


def _sealed(version: str) -> dict[bytes, bytes]:
    content = json.loads((HERE / version / "journal.json").read_text(encoding="utf-8"))
    return {bytes.fromhex(key): bytes.fromhex(record) for key, record in content.items()}


def _look(records: dict[bytes, bytes]) -> Any:
    account = journal(holding(records))
    return account, finish(account.inspect())


def test_no_snapshot_has_changed_since_it_was_written() -> None:
    found = {path.relative_to(HERE).as_posix(): path.read_bytes() for path in HERE.glob("v*/*")}
    assert {name: hashlib.sha256(content).hexdigest() for name, content in found.items()} == PINNED


def test_a_snapshot_that_is_there_is_never_written_again(tmp_path: Path) -> None:
    kept = tmp_path / "v1" / "state.json"
    kept.parent.mkdir()
    kept.write_text("of an older release")
    new = write_missing(tmp_path)
    assert kept.read_text() == "of an older release"
    assert sorted(path.relative_to(tmp_path).as_posix() for path in [*new, kept]) == sorted(PINNED)
    assert write_missing(tmp_path) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sealed_state_of_an_older_release_opens_and_plays_on_to_its_pinned_transcript(
    version,
):
    account, found = _look(_sealed(version))
    content = json.loads((HERE / version / "state.json").read_text(encoding="utf-8"))
    records = {key.decode(): data.hex() for key, data in found.items()}
    assert {"records": records, "progress": account.meta.progress.hex()} == content
    assert account.meta.commands == COMMANDS
    numbers = [number for number, _, _ in account.records.outbox]
    assert numbers == list(range(account.meta.last_event - len(numbers) + 1, account.meta.last_event + 1))
    assert numbers
    assert (
        rest_of(restored(content)) == (HERE / version / "rest.txt").read_text(encoding="utf-8").splitlines()
    )


def _changed(change: Callable[[dict[str, Any]], object]) -> dict[bytes, bytes]:
    """Return the newest golden state with another meta, sealed as its owner would."""
    records = _sealed(VERSIONS[-1])
    sealing = Sealing(CONTEXT, (KEY,), bytes)
    opened = sealing.open(META, records[META])
    meta = msgspec.msgpack.decode(opened.content)
    change(meta)
    records[META] = sealing.seal(META, opened.sequence, msgspec.msgpack.encode(meta))
    return records


def test_what_is_changed_here_would_be_accepted_unchanged() -> None:
    _, found = _look(_changed(lambda meta: None))
    assert found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda meta: meta.update(format=2), "record 'meta' has format 2, this version reads 1"),
        (lambda meta: meta.update(mood="cautious"), "record 'meta' is not of this format"),
        (lambda meta: meta.update(partitions=4), "began with topics.partitions: 4 .*, and this worker has 1"),
        (
            lambda meta: meta.update(partitioner="crc32"),
            "partitioner: crc32, and this worker has 1 and murmur2",
        ),
    ],
)
def test_a_state_of_a_newer_release_or_of_other_homes_is_refused_by_name(change, said):
    with pytest.raises(UnreadableState, match=said):
        _look(_changed(change))


def test_a_frame_of_a_newer_release_is_refused_by_name() -> None:
    records = _sealed(VERSIONS[-1])
    records[META] = b"\x02" + records[META][1:]
    with pytest.raises(UnreadableState, match=r"has format 2\.1, this version reads 1\.0 and 1\.1"):
        _look(records)


def test_every_field_of_meta_is_pinned() -> None:
    """A field more or less is a new format: an older release must be able to tell."""
    assert " ".join(sorted(Meta.__struct_fields__)) == (
        "alert_end alert_offset charged chunks commands digest digest_key format last_event noise_key origin "
        "partitioner partitions progress published published_origin read_to sealed_only sequence state_id "
        "topic_ids"
    )
