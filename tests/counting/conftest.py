"""Sources of a test's own on the session's broker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.support.counting import Counting


@pytest.fixture
async def counting(broker, topics, tmp_path) -> AsyncIterator[Callable[..., Awaitable[Counting]]]:
    """Put sources on the broker; all that they started ends with the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**options: Any) -> Counting:
            usual = {"servers": broker.bootstrap_servers, "application": topics.name("web")}
            made = Counting(**usual | {"directory": tmp_path} | options)
            return await stack.enter_async_context(made.on_stage())

        yield make


@pytest.fixture
async def scene(counting) -> Counting:
    """A source whose raw topic has brokers' timestamps."""
    return await counting()
