"""Copies the pages to a folder of their own, and runs Zensical there.

Pages link to files of the repository by relative paths, so that the links work in a clone and on a code host. In the
site, a link to another page leads to that page, and a link to any other file to a copy of it in `files/`.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from markdown_it import MarkdownIt

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

PAGES_OF_THE_ROOT = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}
"""Pages outside of docs/, with their names in the site."""

DIAGRAM = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ARROW = re.compile(r"^ *(\w+) -->(?:\|(\w+)\|)? ?(\w+)$", re.MULTILINE)

LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)\s]*)?\))")


def build(output: Path) -> None:
    """Build the site. Its folder is replaced.

    Raises:
        subprocess.CalledProcessError: Zensical fails, or has warnings.
    """
    with tempfile.TemporaryDirectory(prefix="ortune-site-") as folder:
        copy_pages(Path(folder))
        command = (sys.executable, "-m", "zensical", "build", "--clean", "--strict")
        subprocess.run(command, cwd=folder, check=True)
        shutil.rmtree(output, ignore_errors=True)
        shutil.copytree(Path(folder, "site"), output)


def copy_pages(folder: Path) -> None:
    """Write the configuration, the pages, and the files that they link to."""
    shutil.copy(HERE / "zensical.toml", folder)
    (folder / "pages").mkdir()
    shutil.copy(HERE / "extra.css", folder / "pages")
    for source, target in find_pages().items():
        place = folder / "pages" / target
        place.parent.mkdir(parents=True, exist_ok=True)
        text, files = rewrite_links((ROOT / source).read_text(), source)
        place.write_text(indent_lists(unescape_pipes(draw_tables(text))))
        for file in files:
            copy_file(file, folder / "pages" / "files" / file)


def copy_file(path: str, copy: Path) -> None:
    """Copy a file of the repository, or a folder, with a page that lists its files."""
    if (ROOT / path).is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, copy)
        return
    files = [file for file in sorted((ROOT / path).rglob("*")) if file.is_file() and "__pycache__" not in file.parts]
    names = [file.relative_to(ROOT / path).as_posix() for file in files]
    for name in names:
        copy_file(f"{path}/{name}", copy / name)
    (copy / "index.md").write_text("\n".join([f"# {path}\n", *(f"- [{name}]({name})" for name in names), ""]))


def find_pages() -> dict[str, str]:
    """Return the pages of the site: their paths in the repository, and in the site."""
    pages = {path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in find_in_docs()}
    return pages | PAGES_OF_THE_ROOT


def find_in_docs() -> list[Path]:
    """Return the pages in docs/."""
    return sorted((ROOT / "docs").rglob("*.md"))


def rewrite_links(text: str, source: str) -> tuple[str, list[str]]:
    """Return a page with the links of the site, and the files that it links to.

    Args:
        text: The page.
        source: Its path in the repository.
    """
    pages = find_pages()
    here = posixpath.dirname(pages[source])
    files = []

    def rewrite(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[2]))
        if path == "README.md":
            target = "index.md"
        elif path in pages:
            target = pages[path]
        elif (ROOT / path).is_file():
            files.append(path)
            target = f"files/{path}"
        elif (ROOT / path).is_dir():
            files.append(path)
            target = f"files/{path}/index.md"
        else:
            return link[0]
        return link[1] + posixpath.relpath(target, here or ".") + link[3]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(rewrite, part) for part in parts), files


def draw_tables(text: str) -> str:
    """Return a page with a table in place of each diagram: drawing one takes a script of several megabytes."""
    return DIAGRAM.sub(lambda found: make_table(found[1]), text)


def make_table(diagram: str) -> str:
    """Return a table of the arrows of a flowchart of Mermaid."""
    arrows: dict[str, list[str]] = {}
    for start, label, end in ARROW.findall(diagram):
        arrows.setdefault(start, []).append(f"`{end}`" + (f" by `{label}`" if label else ""))
    rows = [f"| `{start}` | {', '.join(ends)} |" for start, ends in arrows.items()]
    return "\n".join(["| from | arrows to |", "|---|---|", *rows, ""])


def unescape_pipes(text: str) -> str:
    """Return a page without backslashes before pipes in code in tables: Python-Markdown would show them."""
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if line.lstrip().startswith("| "):
            lines[number] = re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line)
    return "\n".join(lines)


def indent_lists(text: str) -> str:
    """Return a page with lists as Python-Markdown needs them.

    Blocks inside of an item are indented by four columns. An item with several blocks has an empty line after it.
    """
    lines = text.split("\n")
    for token in MarkdownIt("commonmark").parse(text):
        if token.type != "list_item_open" or token.level != 1:
            continue
        assert token.map
        start, end = token.map
        marker = re.match(r"(?:[-*+]|\d+[.)]) +", lines[start])
        assert marker
        offset = marker.end()
        for number in range(start + 1, end):
            if lines[number].startswith(" " * offset):
                lines[number] = " " * (4 - offset) + lines[number]
        if "" in lines[start : end - 1]:
            lines[end - 1] += "\n"
    return "\n".join(lines)
