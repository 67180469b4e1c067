"""A page of text, as an image."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

WORDS = (
    "measure",
    "threads",
    "latency",
    "server",
    "model",
    "config",
    "session",
    "memory",
    "tensor",
    "kernel",
    "launch",
    "result",
    "record",
    "baseline",
)


def draw_page() -> NDArray[np.uint8]:
    """Return an image of 736 x 992 pixels with ten lines of words."""
    rng = random.Random(1)
    image = Image.new("RGB", (992, 736), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=26)
    for number in range(10):
        draw.text((40, 40 + number * 66), " ".join(rng.choices(WORDS, k=5)), fill="black", font=font)
    return np.asarray(image)
