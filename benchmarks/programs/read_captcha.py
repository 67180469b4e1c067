"""Read CAPTCHA pictures."""

from __future__ import annotations

import io
import sys

import ddddocr
from PIL import Image, ImageDraw, ImageFont


def draw(text: str) -> bytes:
    """Return a picture of a text, as PNG."""
    image = Image.new("RGB", (160, 60), "white")
    ImageDraw.Draw(image).text((20, 12), text, fill="black", font=ImageFont.load_default(size=32))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def read(reader: ddddocr.DdddOcr, picture: bytes) -> str:
    """Return the text of a picture."""
    return str(reader.classification(picture))


def main() -> None:
    """Read three pictures as often as the first argument says, and print their texts."""
    reader = ddddocr.DdddOcr(show_ad=False)
    pictures = [draw(text) for text in ("a7kd", "92xp", "mm3q")]
    texts: list[str] = []
    for _ in range(int(sys.argv[1])):
        texts = [read(reader, picture) for picture in pictures]
    print(*texts)


if __name__ == "__main__":
    main()
