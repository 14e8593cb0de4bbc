"""A real browser on a page of ours."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

expect.set_options(timeout=15_000)  # milliseconds: a machine that runs other tests, too, is slow at times

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
"""The browser looks up no name, so that whatever wants to leave this machine fails, and is recorded."""


@dataclass
class Visit:
    """A page, and what the browser did for it.

    Attributes:
        requests: Every address asked for.
        said: What the console showed, and errors of scripts.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


@contextlib.asynccontextmanager
async def browser(path: str) -> AsyncIterator[Browser]:
    """Start the Chromium at ``path``; none is ever downloaded."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield started
        finally:
            await started.close()


@contextlib.asynccontextmanager
async def visit(
    started: Browser, url: str, *, width: int = 1280, height: int = 900, dark: bool = False, **options: object
) -> AsyncIterator[Visit]:
    """Open a page in a context of its own, and note all that it asks for and complains about."""
    context: BrowserContext = await started.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
    )
    try:
        page = await context.new_page()
        found = Visit(page)
        context.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.said.append(message.text))
        page.on("pageerror", lambda error: found.said.append(str(error)))
        await page.goto(url)
        yield found
    finally:
        await context.close()
