"""Checks a built site: links, anchors, what is loaded from other hosts, navigation, and how Markdown was read."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from markdown_it import MarkdownIt

from docs.site.build import HERE, ROOT, find_pages

LOADED = {"audio", "embed", "iframe", "img", "link", "script", "source", "video"}
"""Elements whose address a browser loads without a click."""

COUNTED = ("h1", "h2", "h3", "li", "ol", "pre", "table", "tr", "ul")
"""Elements that both readers of Markdown must find equally often."""


class Document(HTMLParser):
    """A page of HTML.

    Attributes:
        ids: Anchors.
        links: Addresses, each with the name of its element.
        counts: Elements by name; in pages of the site, those of the article.
    """

    def __init__(self, text: str, *, within: str | None = None) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.counts: Counter[str] = Counter()
        self._within = within
        self._is_inside = within is None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == self._within:
            self._is_inside = True
        if self._is_inside:
            self.counts[tag] += 1
        for name in ("id", "name"):
            if value := values.get(name):
                self.ids.add(value)
        for name in ("href", "src"):
            if value := values.get(name):
                self.links.append((tag, value))

    def handle_endtag(self, tag: str) -> None:
        if tag == self._within:
            self._is_inside = False


def check(site: Path) -> list[str]:
    """Return all faults of a site."""
    site = site.resolve()
    documents = {path: Document(path.read_text(), within="article") for path in sorted(site.rglob("*.html"))}
    faults = [fault for path in documents for fault in check_links(path, documents, site)]
    faults += check_navigation()
    for source, target in find_pages().items():
        faults += check_reading(source, site / target, documents)
    return faults


def check_links(path: Path, documents: dict[Path, Document], site: Path) -> Iterator[str]:
    """Yield what a page loads from other hosts, and the links to what is not there."""
    page = path.relative_to(site).as_posix()
    for tag, address in documents[path].links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if tag in LOADED:
                yield f"{page} loads {address} from another host"
            continue
        target = path
        if parts.path:
            base = site if parts.path.startswith("/") else path.parent
            target = (base / unquote(parts.path).lstrip("/")).resolve()
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"{page} links to {address}, which does not exist"
        elif parts.fragment and target in documents and unquote(parts.fragment) not in documents[target].ids:
            yield f"{page} links to {address}, which has no such section"


def check_navigation() -> Iterator[str]:
    """Yield the pages that the navigation lacks, and those that do not exist."""
    listed = set(list_navigation(tomllib.loads((HERE / "zensical.toml").read_text())["project"]["nav"]))
    pages = set(find_pages().values())
    yield from (f"zensical.toml: the navigation lacks {page}" for page in sorted(pages - listed))
    yield from (f"zensical.toml: there is no page {page}" for page in sorted(listed - pages))


def list_navigation(entries: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the pages of the navigation."""
    for entry in entries:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from list_navigation(value)


def check_reading(source: str, target: Path, documents: dict[Path, Document]) -> Iterator[str]:
    """Yield the elements of a page that the generator reads in another way than CommonMark does."""
    built = documents.get(target.with_suffix(".html"))
    if built is None:
        yield f"{source} is not in the site"
        return
    text = (ROOT / source).read_text()
    expected = Document(MarkdownIt("commonmark").enable("table").render(text)).counts
    n_diagrams = text.count("```mermaid\n")
    for tag in COUNTED:
        if not n_diagrams and built.counts[tag] != expected[tag]:
            yield f"{source} has {expected[tag]} {tag}, and in the site {built.counts[tag]}"
