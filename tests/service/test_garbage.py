from __future__ import annotations

import asyncio
import gc
import weakref

from stream_svt.service import garbage


class Cyclic:
    def __init__(self) -> None:
        self.me = self


async def test_what_a_tenure_left_in_a_cycle_is_gone_soon_and_tenures_share_one_look(monkeypatch) -> None:
    monkeypatch.setattr(garbage, "DELAY", 0.05)
    monkeypatch.setattr(garbage, "_next", None)
    looks: list[int] = []

    def looked(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            looks.append(info["generation"])

    gc.disable()
    gc.callbacks.append(looked)
    try:
        left = weakref.ref(Cyclic())
        assert left() is not None
        garbage.collect_soon()
        garbage.collect_soon()
        await asyncio.sleep(0.2)
        assert left() is None
        assert len(looks) == 1
        again = weakref.ref(Cyclic())
        garbage.collect_soon()
        await asyncio.sleep(0.2)
        assert again() is None
    finally:
        gc.callbacks.remove(looked)
        gc.enable()
