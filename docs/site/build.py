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

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

PAGES_OF_THE_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Pages outside of docs/, with their names in the site."""

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
    for source, target in find_pages().items():
        place = folder / "pages" / target
        place.parent.mkdir(parents=True, exist_ok=True)
        text, files = rewrite_links((ROOT / source).read_text(), source)
        place.write_text(text)
        for file in files:
            copy = folder / "pages" / "files" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, copy)


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
        else:
            return link[0]
        return link[1] + posixpath.relpath(target, here or ".") + link[3]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(rewrite, part) for part in parts), files
