"""A version is parsed by a process of its own, and what it says arrives whole, in small pieces."""

from __future__ import annotations

import signal

import pytest

from stream_svt.errors import ConfigError
from stream_svt.protocol.configuration import Bundle, Version
from stream_svt.service import reading
from stream_svt.service.config import spec_of
from stream_svt.service.reading import read

NAMES = [f"d{number}" for number in range(1_200)]
TEXT = """
application: shop
datasets:
  - {file: names.txt, limit: 4, unit: one basket}
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
     correction: none}
"""


def version(text: str = TEXT) -> Version:
    return Version(7, Bundle(text, {"names.txt": "\n".join(NAMES)}))


async def test_what_another_process_read_is_what_the_version_says(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = spec_of(version().bundle)
    monkeypatch.setattr(reading, "spec_of", None)  # not here
    found = await read(version())
    assert found.version == version()
    assert found.spec == wanted
    assert found.spec_hash == wanted.hash() == found.spec.hash()


async def test_it_arrives_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    loads = reading.pickle.loads

    def counted(piece: bytes):
        found = loads(piece)
        pieces.append(len(found) if isinstance(found, tuple) else 0)
        return found

    monkeypatch.setattr(reading.pickle, "loads", counted)
    await read(version())
    assert pieces == [0, 500, 500, 200]


async def test_what_is_wrong_with_it_is_said_as_if_it_were_read_here() -> None:
    wrong = version(TEXT.replace("cutoff: 3", "cutoff: none").replace("limit: 4", "limit: -4"))
    with pytest.raises(ConfigError) as here:
        spec_of(wrong.bundle, "version 7 of the configuration")
    with pytest.raises(ConfigError) as there:
        await read(wrong)
    assert str(there.value) == str(here.value)
    assert len(there.value.problems) == 2


async def test_problems_that_are_only_counted_arrive_as_a_number() -> None:
    names = ", ".join(f"'d {number}'" for number in range(50))
    wrong = version(TEXT.replace("file: names.txt", f"names: [{names}]"))
    with pytest.raises(ConfigError) as here:
        spec_of(wrong.bundle, "version 7 of the configuration")
    with pytest.raises(ConfigError, match=str(here.value.more)) as there:
        await read(wrong)
    assert str(there.value) == str(here.value)


async def test_a_process_that_is_killed_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = f"import os; os.kill(os.getpid(), {signal.SIGKILL})"
    monkeypatch.setattr(reading, "_PROGRAM", program)
    with pytest.raises(ConfigError, match=r"ended early, with -?\d+; nothing was changed"):
        await read(version())
