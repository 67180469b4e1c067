"""Detect the types of files by their content."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from magika import Magika


def identify(magika: Magika, paths: list[Path]) -> list[str]:
    """Return the type of each file."""
    return [str(result.output.label) for result in magika.identify_paths(paths)]


def main() -> None:
    """Look at forty files as often as the first argument says, and print their types."""
    magika = Magika()
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:40]
    labels: list[str] = []
    for _ in range(int(sys.argv[1])):
        labels = identify(magika, paths)
    print(len(labels), *sorted(set(labels)))


if __name__ == "__main__":
    main()
