"""A file is read again by a process of its own, and what it says arrives whole, in small pieces."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stream_svt.errors import ConfigError
from stream_svt.service import reading
from stream_svt.service.config import load_config
from stream_svt.service.reading import read_again
from tests.support.keys import ed25519_pair

NAMES = [f"d{number}" for number in range(1_200)]
TEXT = """
application: shop
control: {public_key_files: [alice.pub], hmac_key_files: [shared.key]}
datasets:
  - {file: names.txt, limit: 4, unit: one basket}
monitors:
  - {name: hot, topic: counts, epsilon: 1, cutoff: 3, sensitivity: 1, bounds: [0, 9], threshold: 5,
     correction: none}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "names.txt").write_text("\n".join(NAMES))
    (tmp_path / "alice.pub").write_text(ed25519_pair()[1])
    (tmp_path / "shared.key").write_text("ab" * 32)
    (tmp_path / "shared.key").chmod(0o600)
    path = tmp_path / "shop.yaml"
    path.write_text(TEXT)
    return path


async def test_what_another_process_read_is_what_the_file_says(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = load_config(file)
    monkeypatch.setattr(reading, "load_config", None)  # not here
    monkeypatch.setenv("STREAM_SVT_WEB_PORT", "7777")
    found = await read_again(file)
    assert found.config.web.port == 7777
    assert found.spec_hash == wanted.spec.hash() == found.config.spec.hash()
    assert found.config.spec == wanted.spec
    assert found.config.command_keys == wanted.command_keys
    assert found.config.source == wanted.source


async def test_it_arrives_in_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    whole = reading._pieces

    async def counted(stream: asyncio.StreamReader):
        async for kind, content in whole(stream):
            pieces.append(len(content) if kind == "datasets" else 0)
            yield kind, content

    monkeypatch.setattr(reading, "_pieces", counted)
    await read_again(file)
    assert pieces == [0, 500, 500, 200]


async def test_what_is_wrong_with_the_file_is_said_as_if_it_were_read_here(file: Path) -> None:
    wrong = TEXT.replace("cutoff: 3", "cutoff: none").replace("limit: 4", "limit: -4")
    file.write_text(wrong)  # noqa: ASYNC240  nothing else waits
    with pytest.raises(ConfigError) as here:
        load_config(file)
    with pytest.raises(ConfigError) as there:
        await read_again(file)
    assert str(there.value) == str(here.value)
    assert len(there.value.problems) == 2


async def test_problems_that_are_only_counted_arrive_as_a_number(file: Path) -> None:
    names = ", ".join(f"'d {number}'" for number in range(50))
    file.write_text(TEXT.replace("file: names.txt", f"names: [{names}]"))  # noqa: ASYNC240  nothing else waits
    with pytest.raises(ConfigError) as here:
        load_config(file)
    with pytest.raises(ConfigError) as there:
        await read_again(file)
    assert str(there.value) == str(here.value)
    assert there.value.more == 30


async def test_a_process_that_ends_early_changes_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PROGRAM", "import sys; sys.stdout.write('half'); sys.exit(3)")
    with pytest.raises(ConfigError, match=r"ended early.*nothing was changed"):
        await read_again(file)
