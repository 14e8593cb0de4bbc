"""After a blow the soaks wait for shards that run, at one worker each, and have read what was sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.soak.stage import Stage

ENDS = {0: 50, 1: 60}


class Worker:
    """One that says of itself what it is told to."""

    alive = True

    def __init__(self, *shards: tuple[int, str, int], ready: bool = True) -> None:
        self._shards = shards
        self._ready = ready

    def shards(self) -> dict[int, dict[str, Any]]:
        """Return what it has open."""
        return {
            number: {"state": state, "offsets": {"shop.counts": offset}}
            for number, state, offset in self._shards
        }

    def status(self) -> dict[str, Any]:
        """Return whether it has joined."""
        return {"ready": self._ready}


def stage(tmp_path: Path, monkeypatch, *workers: Worker) -> Stage:
    async def ends() -> dict[int, int]:
        return ENDS

    made = Stage("127.0.0.1:1", [], "shop", tmp_path)
    made.workers[:] = workers
    monkeypatch.setattr(made, "ends", ends)
    return made


@pytest.mark.parametrize(
    "workers",
    [
        [Worker((0, "running", 50), (1, "running", 60))],
        [Worker((0, "running", 55)), Worker((1, "running", 60)), Worker()],
    ],
)
async def test_shards_that_run_and_are_up_to_date_are_enough(tmp_path, monkeypatch, workers) -> None:
    await stage(tmp_path, monkeypatch, *workers).caught_up(seconds=5)


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param([Worker((0, "running", 50), (1, "replaying", 60))], id="replaying"),
        pytest.param([Worker((0, "running", 49), (1, "running", 60))], id="behind"),
        pytest.param([Worker((0, "running", 50))], id="not-open"),
        pytest.param([Worker((0, "running", 50), (1, "running", 60)), Worker((1, "running", 60))], id="two"),
        pytest.param([Worker((0, "running", 50), (1, "running", 60)), Worker(ready=False)], id="not-joined"),
    ],
)
async def test_anything_less_is_waited_for_in_vain(tmp_path, monkeypatch, workers) -> None:
    with pytest.raises(TimeoutError):
        await stage(tmp_path, monkeypatch, *workers).caught_up(seconds=0.3)


async def test_only_the_workers_that_are_meant_count(tmp_path, monkeypatch) -> None:
    heir, zombie = Worker((0, "running", 50), (1, "running", 60)), Worker((1, "running", 40))
    await stage(tmp_path, monkeypatch, heir, zombie).caught_up([heir], seconds=5)
