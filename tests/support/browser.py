"""A real browser on a page of ours, and everything that goes over the line between the two."""

from __future__ import annotations

import asyncio
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
class Line:
    """A port in front of another, that writes down every byte in both directions."""

    target: int
    port: int = 0
    bytes: bytearray = field(default_factory=bytearray)

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Line]:
        tasks: set[asyncio.Task[None]] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            try:
                there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self.target)
                try:
                    await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
                finally:
                    there_writer.close()
            except (OSError, asyncio.CancelledError):
                pass
            finally:
                writer.close()
                tasks.discard(task)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while part := await reader.read(1 << 16):
            self.bytes += part
            writer.write(part)
            await writer.drain()
        writer.close()


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
