"""Detect objects in an image."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from nudenet import NudeDetector
from page import draw_page
from PIL import Image


def detect(detector: NudeDetector, path: str) -> list[dict[str, object]]:
    """Return what is found in an image."""
    return list(detector.detect(path))


def main() -> None:
    """Look at the image as often as the first argument says, and print how many objects are found."""
    detector = NudeDetector()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "page.png"))
        Image.fromarray(draw_page()).save(path)
        found: list[dict[str, object]] = []
        for _ in range(int(sys.argv[1])):
            found = detect(detector, path)
    print(len(found))


if __name__ == "__main__":
    main()
