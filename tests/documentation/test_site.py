"""The documentation as a site: builds without a warning, nothing is fetched from elsewhere."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page

from tests.documentation.pages import ROOT
from tests.support.browser import browser, visit
from tests.support.http_server import serving

pytestmark = [pytest.mark.loopback, pytest.mark.slow, pytest.mark.xdist_group("site")]

_QUIET = {"NO_MKDOCS_2_WARNING": "1"}  # else the theme advertises its successor


def build(top: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout; strict, as mkdocs.yml says."""
    return subprocess.run(
        # Not quietly: what is not said is not counted, and a strict build would pass.
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(site)],
        cwd=top,
        env=os.environ | _QUIET,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("site")
    done = build(ROOT, place)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("INFO")] == []
    return place


def test_the_build_fails_on_a_broken_link_a_missing_anchor_and_a_page_without_a_place(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for page in (tmp_path / "docs").rglob("*.md"):
        page.write_text("# Short, for a quick build\n")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n\n[a](gone.md) [b](index.md#gone)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for said in ("lost.md", "gone.md", "#gone", "not included in the"):
        assert said in done.stderr


# In a browser


class _Pages(http.server.SimpleHTTPRequestHandler):
    """Serves the site, before ``indexed`` with a short index: browsers work through the whole one for every page."""

    indexed = False

    def do_GET(self) -> None:
        if self.indexed or not self.path.endswith("/search_index.json"):
            super().do_GET()
            return
        index = json.loads(Path(self.translate_path(self.path)).read_text())
        content = json.dumps(index | {"docs": index["docs"][:1]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    with serving(functools.partial(_Pages, directory=str(site))) as port:
        yield f"http://127.0.0.1:{port}/"


_WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
_CUT = "[...document.querySelectorAll('.md-typeset__scrollwrap')].some(it => it.scrollWidth > it.clientWidth)"


async def check(page: Page, name: str, *, narrow: bool) -> None:
    said = "wider than a phone" if narrow else "a table is cut"
    assert not await page.evaluate(_WIDE if narrow else _CUT), f"{name}: {said}"


@pytest.mark.debian
async def test_a_browser_shows_every_page_without_an_error_and_fetches_nothing_from_another_host(
    site, address, debian_program, monkeypatch
):
    async with (
        browser(debian_program("chromium")) as chromium,
        visit(chromium, f"{address}index.html", width=390, dark=True) as seen,
    ):
        page = seen.page
        page.on(
            "response", lambda response: seen.said.append(response.url) if response.status >= 400 else None
        )
        narrow = True
        names = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
        for name in names:  # each is first as wide as the last one was
            await page.goto(address + name)
            await check(page, name, narrow=narrow)
            narrow = not narrow
            await page.set_viewport_size({"width": 390 if narrow else 1280, "height": 800})
            await check(page, name, narrow=narrow)
        monkeypatch.setattr(_Pages, "indexed", True)
        await page.reload()
        # The search works without a server of its own.
        await page.locator("[data-md-component=search-query]").press_sequentially("cutoff")
        await page.locator(".md-search-result__link").first.wait_for(timeout=10_000)
        assert seen.said == []
        assert [url for url in seen.requests if not url.startswith((address, "data:", "blob:"))] == []
        assert len(seen.requests) > len(names)


@pytest.mark.debian
async def test_the_folder_is_read_without_a_web_server_all_but_the_search(site, debian_program):
    async with (
        browser(debian_program("chromium")) as chromium,
        visit(chromium, (site / "index.html").as_uri()) as seen,
    ):
        await seen.page.locator("nav.md-tabs a", has_text="Operate").click()
        await seen.page.get_by_role("heading", level=1, name="Deploying").wait_for()
        assert all(url.startswith(("file:", "data:", "blob:")) for url in seen.requests), seen.requests
