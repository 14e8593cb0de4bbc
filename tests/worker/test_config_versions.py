"""Large versions are parsed in a subprocess, which returns the workload in small pieces."""

from __future__ import annotations

import signal

import pytest

from stream_svt.errors import ConfigError
from stream_svt.kafka.partitioning import Partitioning
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.settings.datasets import DatasetSpec
from stream_svt.worker import config_versions, parser
from stream_svt.worker.config_versions import read
from stream_svt.worker.parser import spec_of
from stream_svt.worker.workload import AppliedWorkload
from tests.support.shop import SPEC

NAMES = [f"d{number}" for number in range(1_200)]
MISNAMED = ", ".join(f"'d {number}'" for number in range(50))
TEXT = SPEC.replace("names: [a, b, c], limit: {epsilon: 4}", "file: names.txt, limit: 4")


def version(text: str = TEXT, names: list[str] = NAMES) -> Version:
    return Version(7, Bundle(text, {"names.txt": "\n".join(names)}))


@pytest.fixture(autouse=True)
def _everything_is_large(monkeypatch) -> None:
    monkeypatch.setattr(config_versions, "SMALL", 0)


async def test_a_small_version_starts_no_process_and_is_read_as_in_one(monkeypatch) -> None:
    monkeypatch.setattr(config_versions, "SMALL", len(version().bundle.to_bytes()))
    monkeypatch.setattr(config_versions, "_PROGRAM", "raise SystemExit(9)")
    wanted = spec_of(version().bundle)
    assert await read(version(), 4) == AppliedWorkload(
        wanted, Partitioning(4, "murmur2"), (7, version().digest)
    )
    wrong = version(TEXT.replace("limit: 4", "limit: -4"))
    with pytest.raises(ConfigError, match="version 7 of the configuration"):
        await read(wrong, 4)
    with pytest.raises(ConfigError, match="exit code 9;"):
        await read(version(names=[*NAMES, "one-more"]), 4)


async def test_the_workload_parsed_by_a_subprocess_equals_the_version(monkeypatch):
    wanted = spec_of(version().bundle)
    monkeypatch.setattr(parser, "spec_of", None)  # parse in the subprocess only
    found = await read(version(), 4)
    assert found == AppliedWorkload(wanted, Partitioning(4, "murmur2"), (7, version().digest))
    assert found.known_hash == wanted.hash() == found.declared.hash()


async def test_the_subprocess_imports_what_this_process_imports_and_nothing_of_the_working_directory(
    monkeypatch, tmp_path
):
    """Modules of the same name as one of its own end it, with the number of their place."""
    for place in ("here", "imported"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "msgspec.py").write_text(f"raise SystemExit({len(place)})")
    monkeypatch.chdir(tmp_path / "here")
    assert (await read(version(), 4)).known_hash
    monkeypatch.syspath_prepend(tmp_path / "imported")
    with pytest.raises(ConfigError, match="exit code 8;"):
        await read(version(), 4)


async def test_a_parsed_version_arrives_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    loads = config_versions.pickle.loads

    def counted(piece: bytes):
        found = loads(piece)
        pieces.append(len(found) if isinstance(found[0], DatasetSpec) else 0)
        return found

    monkeypatch.setattr(config_versions.pickle, "loads", counted)
    await read(version(), 4)
    assert pieces == [0, 500, 500, 200]


@pytest.mark.parametrize(
    ("wrong", "problems"),
    [
        (TEXT.replace("cutoff: 3", "cutoff: none").replace("limit: 4", "limit: -4"), 2),
        # Beyond a limit, problems are only counted.
        (TEXT.replace("file: names.txt", f"names: [{MISNAMED}]"), 50),
    ],
)
async def test_problems_of_a_version_are_the_same_as_when_parsed_in_this_process(wrong, problems):
    with pytest.raises(ConfigError) as here:
        spec_of(version(wrong).bundle, "version 7 of the configuration")
    with pytest.raises(ConfigError) as there:
        await read(version(wrong), 4)
    assert str(there.value) == str(here.value)
    assert len(there.value.problems) == problems


async def test_a_killed_parser_is_an_error_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import os; os.kill(os.getpid(), {signal.SIGKILL})"
    monkeypatch.setattr(config_versions, "_PROGRAM", program)
    with pytest.raises(ConfigError, match=r"ended early with exit code -?\d+; nothing was changed"):
        await read(version(), 4)
