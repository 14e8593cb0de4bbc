"""Writes the snapshots of state formats that have none.

Run ``python -m tests.golden.regenerate``. A snapshot is never written again: a new format gets a new folder, whose
files `test_releases` then pins by their digests, and the old ones must still load and play on to the same transcript.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stream_svt.monitor.operations import Action, Command, CommandProgress
from stream_svt.monitor.state.accounts import Commit
from stream_svt.monitor.state.snapshot import VERSION
from stream_svt.protocol.controls import CommandState
from stream_svt.protocol.journal import Journal
from stream_svt.protocol.sealing import RecordContext
from stream_svt.settings.application import ApplicationSpec
from tests.simulation.log import Broker, ModelLog, finish, journal_of
from tests.support.engine_play import Play, Query
from tests.support.monitor_forms import FORMS, TOPIC, spec_of, stream, transcript

KEY = bytes(range(32))
COMMANDS = CommandState(
    7,
    9,
    "ninth",
    accepted=True,
    in_progress=CommandProgress(Command("ninth", Action.PAUSE, number=9), "a", 1),
)
CONTEXT = RecordContext("golden-cluster", "golden", "golden.state", 0)
HERE = Path(__file__).parent
CUT = 600
"""Snapshots are taken at this query of the stream; the rest is played from them."""


def golden_spec() -> ApplicationSpec:
    """Return the application whose state is pinned: one monitor of each form of append."""
    forms = [FORMS[name] for name in ("adaptive", "sweep", "retry")]
    return spec_of(*forms, datasets="{names: [a, b, c], limit: 30, unit: one basket}")


def golden_stream() -> list[Query]:
    """Return the queries that are played to a snapshot and on from it."""
    return stream(23, 1000, monitors=["m0", "m1", "m2"])


def played() -> Play:
    """Return the play that a snapshot is taken of."""
    play = Play(golden_spec())
    play.feed(TOPIC, golden_stream(), CUT)
    play.commit()
    return play


def journal(broker: Broker) -> Journal:
    """Return the shard's journal, not opened; its random bytes are always the same."""
    entropy = random.Random(5).randbytes
    kept: Journal = journal_of(
        broker, context=CONTEXT, masters=(KEY,), entropy=entropy, epoch=lambda: 1_767_571_200.0
    )
    return kept


def written(play: Play) -> dict[bytes, bytes]:
    """Return what a partition holds after a play's state was committed, its newest events waiting in the outbox."""
    broker = Broker(now_ms=lambda: 0)
    account = journal(broker)
    finish(account.open())
    newest = next(commit for commit in reversed(play.commits) if commit.events)
    account.meta.commands = COMMANDS
    finish(account.commit(Commit(dict(play.records), play.progress or b"", newest.events)))
    broker.settle()
    live: dict[bytes, bytes] = finish(ModelLog(broker).read_state())
    return live


def snapshot(play: Play) -> dict[str, Any]:
    """Return the stored state of a play as JSON-like content."""
    records = {key.decode(): data.hex() for key, data in sorted(play.records.items())}
    return {"progress": (play.progress or b"").hex(), "records": records}


def restored(content: Mapping[str, Any]) -> Play:
    """Return a play that goes on from a snapshot."""
    play = Play(golden_spec())
    play.records = {key.encode(): bytes.fromhex(data) for key, data in content["records"].items()}
    play.progress = bytes.fromhex(content["progress"])
    play.crash()
    return play


def rest_of(play: Play) -> list[str]:
    """Play to the end of the stream; return what is released from here on, a line for each event."""
    released = Play(play.spec)
    released.events = play.play(TOPIC, golden_stream())
    return [
        f"{dataset}/{monitor}: {line}"
        for (dataset, monitor), lines in sorted(transcript(released).items())
        for line in lines
    ]


def write_missing(place: Path) -> list[Path]:
    """Write the snapshot that this release would write, unless it is there; return its new files."""
    play = played()
    content = snapshot(play)
    sealed = {key.hex(): record.hex() for key, record in sorted(written(play).items())}
    texts = {
        "state.json": json.dumps(content, indent=1),
        "rest.txt": "\n".join(rest_of(restored(content))),
        "journal.json": json.dumps(sealed, indent=1),
    }
    folder, new = place / f"v{VERSION}", []
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        with contextlib.suppress(FileExistsError), (folder / name).open("x", encoding="utf-8") as file:
            file.write(text + "\n")
            new.append(folder / name)
    return new


def main() -> None:
    """Write what is missing, and say which snapshots are new."""
    for path in write_missing(HERE):
        print(f"{path}: new; pin its digest in tests/golden/test_releases.py")


if __name__ == "__main__":
    main()
