"""Read a page of text several times: three models, one image after another."""

from __future__ import annotations

import sys

from page import draw_page
from rapidocr_onnxruntime import RapidOCR


def read(engine: RapidOCR, image: object) -> list[str]:
    """Return the lines of an image."""
    result, _ = engine(image)
    return [line[1] for line in result or []]


def main() -> None:
    """Read the page as often as the first argument says, and print its lines."""
    engine = RapidOCR()
    image = draw_page()
    lines: list[str] = []
    for _ in range(int(sys.argv[1])):
        lines = read(engine, image)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
