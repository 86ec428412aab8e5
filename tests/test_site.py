"""The site of the pages builds, and no link of it is dead: neither to a page, an anchor nor a line."""

from __future__ import annotations

import importlib.util
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parent.parent


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_tool", ROOT / "tools" / "site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Page(HTMLParser):
    """The links and the anchors of a page of the site."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def dead_links(site: Path) -> list[str]:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found: list[str] = []
    for path, page in pages.items():
        for link in page.links:
            file, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:|//|/", file):
                continue
            target = (path.parent / file).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                anchor and target in pages and anchor not in pages[target].anchors
            ):
                found.append(f"{path.relative_to(site)}: {link}")
    return found


def test_links_of_the_sources_lead_to_pages(tmp_path: Path) -> None:
    """Without the generator: every file that a page links has a page of its own."""
    site = tool()
    site.write_sources(tmp_path)
    text = (tmp_path / "docs" / "architecture.md").read_text(encoding="utf-8")
    place = re.findall(r"\[`train_step`\]\((\S+)\)", text)[0]
    assert "def train_step" in (tmp_path / "docs" / place).read_text(encoding="utf-8")
    for page in tmp_path.rglob("docs/*.md"):
        for link in re.findall(r"\]\((?![a-z]+:|#)([^)#\s]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_site_builds_and_no_link_is_dead(tmp_path: Path) -> None:
    pytest.importorskip("zensical", reason='needs the extra: pip install -e ".[docs]"')
    site = tool().build(tmp_path / "docs")
    assert (site / "index.html").exists() and len(list(site.rglob("*.html"))) > 30
    assert not dead_links(site)


def test_a_dead_link_of_a_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html"></a><a href="#y"></a>')
    assert dead_links(tmp_path) == ["a.html: b.html", "a.html: #y"]
    (tmp_path / "a.html").write_text('<p id="x"><a href="#x"></a><a href="https://e.org"></a>')
    assert not dead_links(tmp_path)
