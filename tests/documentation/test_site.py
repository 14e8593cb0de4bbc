"""The documentation as a site: builds without a warning, nothing is fetched from elsewhere."""

from __future__ import annotations

import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import lxml.html
import pytest
from markdown_it import MarkdownIt

from docs.generator.hooks import on_page_content
from tests.documentation.pages import ROOT
from tests.support.browser import browser, visit

pytestmark = [pytest.mark.loopback, pytest.mark.xdist_group("site")]

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


def pages(site: Path) -> dict[str, lxml.html.HtmlElement]:
    """Return every page by its address in the site."""
    return {
        str(path.relative_to(site)): lxml.html.parse(path).getroot() for path in sorted(site.rglob("*.html"))
    }


# What is fetched


def from_elsewhere(site: Path) -> list[str]:
    """Return what pages and style sheets fetch from other hosts."""
    found = []
    for name, page in pages(site).items():
        for element, _, address, _ in page.iterlinks():
            only_named = element.tag == "a" or element.get("rel") in {
                "canonical",
                "next",
                "prev",
                "alternate",
            }
            if urlsplit(address).netloc and not only_named:
                found.append(f"{name}: {address}")
    for path in site.rglob("*.css"):
        addresses = re.findall(
            r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)", path.read_text(encoding="utf-8")
        )
        found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found


def test_no_page_fetches_anything_from_another_host(site):
    assert from_elsewhere(site) == []
    # A diagram of that class would wait for a program from elsewhere.
    assert [name for name, page in pages(site).items() if page.find_class("mermaid")] == []


def test_what_is_fetched_from_another_host_is_found(site, tmp_path):
    foreign = '<script src="https://host/x.js"></script><img src="//host/x.png"><a href="https://host/">x</a>'
    text = (site / "index.html").read_text()
    (tmp_path / "index.html").write_text(text.replace("</article>", f"{foreign}</article>"))
    (tmp_path / "more.css").write_text("@font-face { src: url('https://fonts.host/a.woff2') }")
    assert from_elsewhere(tmp_path) == [
        "index.html: https://host/x.js",
        "index.html: //host/x.png",
        "more.css: https://fonts.host/a.woff2",
    ]


def test_the_build_fails_on_a_broken_link_a_missing_anchor_and_a_page_without_a_place(tmp_path):
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for page in (tmp_path / "docs").rglob("*.md"):
        page.write_text("# Short, for a quick build\n")
    (tmp_path / "docs" / "lost.md").write_text("# Lost\n\n[a](gone.md) [b](index.md#gone)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    for said in ("lost.md", "gone.md", "#gone"):
        assert said in done.stderr
    assert "not included in the" in done.stderr


# Pages look on the site as they do on GitHub


def _parts(article: lxml.html.HtmlElement) -> Counter[str]:
    """Count the parts of a page, left out what the theme adds."""
    found = Counter(element.tag for element in article.iter(*_COUNTED))
    found["picture"] = len(article.xpath(".//img | .//svg[@class='drawn']"))
    found["link"] = len(article.xpath(".//a[@href][not(contains(@class, 'headerlink'))]"))
    return found


_COUNTED = ("h1", "h2", "h3", "h4", "li", "tr", "td", "th", "pre", "blockquote", "hr")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_a_page_has_the_same_parts_on_the_site_as_on_github(path, site):
    page = lxml.html.parse((site / path.relative_to(ROOT / "docs")).with_suffix(".html"))
    text = re.sub(
        r"```mermaid\n.*?\n```", "![diagram](a.svg)", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    github = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(text)
    assert _parts(page.find(".//article")) == _parts(lxml.html.fromstring(f"<article>{github}</article>"))


# In a browser


@pytest.fixture(scope="module")
def address(site) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.debian
async def test_a_browser_shows_every_page_from_one_host_without_an_error(site, address, debian_program):
    async with (
        browser(debian_program("chromium")) as chromium,
        visit(chromium, f"{address}index.html", width=390, dark=True) as seen,
    ):
        page = seen.page
        page.on(
            "response", lambda response: seen.said.append(response.url) if response.status >= 400 else None
        )
        for name in pages(site):
            await page.goto(address + name)
            assert await page.evaluate("document.documentElement.scrollWidth") <= 390, (
                f"{name}: wider than a phone"
            )
        # A picture follows the page: dark by the system's wish, light by the switch.
        await page.set_viewport_size({"width": 1280, "height": 800})
        await page.goto(f"{address}how-sparse-vector-works.html")
        ink = "getComputedStyle(document.querySelector('svg.drawn text')).fill"
        dark = await page.evaluate(ink)
        await page.locator("label[title=Light]").click()
        await page.wait_for_function(f"{ink} !== {dark!r}")
        # The search works without a server of its own.
        await page.locator("[data-md-component=search-query]").press_sequentially("cutoff")
        await page.locator(".md-search-result__link").first.wait_for(timeout=10_000)
        assert seen.said == []
        assert [url for url in seen.requests if not url.startswith((address, "data:", "blob:"))] == []
        assert len(seen.requests) > len(pages(site))


_HINT = "getComputedStyle(document.querySelector('.picture'), '::after').content"
_MORE = "(picture => picture.scrollWidth > picture.clientWidth)(document.querySelector('.picture'))"
_BELOW_THE_BUTTON = """() => {
  const code = document.querySelector('pre > code'), words = document.createRange();
  words.selectNodeContents(code);
  const button = code.parentElement.querySelector('button').getBoundingClientRect();
  return words.getBoundingClientRect().right > button.left;
}"""


@pytest.mark.debian
async def test_a_picture_that_goes_on_sideways_says_so_and_no_button_covers_a_word(address, debian_program):
    async with browser(debian_program("chromium")) as chromium:
        for width, sideways in ((390, True), (600, True), (760, False), (1280, False)):
            async with visit(chromium, f"{address}how-sparse-vector-works.html", width=width) as seen:
                assert await seen.page.evaluate(_MORE) is sideways, width
                assert ("sideways" in await seen.page.evaluate(_HINT)) is sideways, width
        async with visit(chromium, f"{address}index.html") as seen:
            await seen.page.locator("pre button").first.wait_for(state="attached")
            assert not await seen.page.evaluate(_BELOW_THE_BUTTON)
            line = "real data on a real Apache Kafka that it starts itself: about a minute or two".ljust(
                100, "x"
            )
            await seen.page.evaluate(
                "line => { document.querySelector('pre > code').textContent = line; }", line
            )
            assert await seen.page.evaluate(_BELOW_THE_BUTTON)  # the check sees what is there


_TABLES = """() => [...document.querySelectorAll('.md-typeset__scrollwrap')].map(wrap => ({
  holds: wrap.querySelector('table').dataset.holds,
  cut: wrap.scrollWidth > wrap.clientWidth,
  said: getComputedStyle(wrap, '::before').content,
}))"""
_SECOND_CELL = "getComputedStyle(document.querySelector('td[data-title]'), '::before').content"
_WITH_TABLES = ("command-line", "configuration", "messages", "metrics", "reproduction", "state-machine")


@pytest.mark.debian
async def test_a_table_is_cut_nowhere_and_on_a_phone_one_of_numbers_says_that_it_moves(
    address, debian_program
):
    async with browser(debian_program("chromium")) as chromium:
        for name in _WITH_TABLES:
            async with visit(chromium, f"{address}{name}.html") as seen:
                await seen.page.locator(".md-typeset__scrollwrap").first.wait_for()
                assert not any(table["cut"] for table in await seen.page.evaluate(_TABLES)), name
                titled = name != "command-line"  # whose tables have two columns
                assert not titled or await seen.page.evaluate(_SECOND_CELL) == "none"
                await seen.page.set_viewport_size({"width": 390, "height": 800})
                for table in await seen.page.evaluate(_TABLES):
                    assert table["cut"] is ("sideways" in table["said"]), (name, table)
                    assert not (table["cut"] and table["holds"] == "text"), (name, table)
                assert not titled or (await seen.page.evaluate(_SECOND_CELL)).endswith(': "'), name


def test_cells_of_text_are_named_by_their_column_and_the_longest_column_gets_room() -> None:
    head = "".join(f"<th>{title}</th>" for title in ("key", "type", "", "meaning", "<code>since</code>"))
    row = "".join(f"<td>{text}</td>" for text in ("a", "text", "required", "what it says, at length", "1"))
    shown = on_page_content(f"<table><thead><tr>{head}</tr></thead><tbody><tr>{row}</tr></tbody></table>")
    assert '<table data-holds="text">' in shown
    assert '<td>a</td><td data-title="type">text</td><td>required</td>' in shown
    assert '<td data-title="meaning" data-longest>' in shown
    assert '<td data-title="since">1</td>' in shown
    numbers = '<table><tr><th>a</th></tr><tr><td style="text-align: right;">1</td></tr></table>'
    assert on_page_content(numbers) == numbers.replace("<table>", '<table data-holds="numbers">')


@pytest.mark.debian
async def test_the_folder_is_read_without_a_web_server_all_but_the_search(site, debian_program):
    async with (
        browser(debian_program("chromium")) as chromium,
        visit(chromium, (site / "index.html").as_uri()) as seen,
    ):
        page = seen.page
        await page.locator("nav.md-tabs a", has_text="Operate").click()
        await page.get_by_role("heading", level=1, name="Planning").wait_for()
        assert not await page.locator("[data-md-component=search-query]").is_visible()
        assert all(url.startswith(("file:", "data:", "blob:")) for url in seen.requests), seen.requests
