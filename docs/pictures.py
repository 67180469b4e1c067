"""Take the pictures of docs/report.md in headless Chromium: `python -m docs.pictures`.

The search is the recorded one of the tests. The history of gates is made up: its level rises by 2.5 % after 40 runs.
"""

from __future__ import annotations

import datetime
import math
import tempfile
from pathlib import Path

import numpy as np

from ortune.gates.reporters.history import HistoryEntry
from ortune.measure.interval import Interval
from ortune.report.history import make_page as make_history_page
from ortune.report.make import make_page
from ortune.report.source import read_source
from ortune.report.write import write_page
from tests.browser import Browser

HERE = Path(__file__).parent
SEARCH = HERE.parent / "tests" / "data" / "report" / "search.json"

ALLOWED = 1.05


def make_history() -> list[HistoryEntry]:
    """Return the runs of a gate, one for each day."""
    rng = np.random.default_rng(7)
    first = datetime.datetime(2026, 1, 1, 3, tzinfo=datetime.UTC)
    entries = []
    for day in range(70):
        level = math.exp((0.025 if day >= 40 else 0.0) + rng.normal(0, 0.008))
        half = 0.012 + abs(rng.normal(0, 0.003))
        slowdown = Interval(estimate=level, low=level - half, high=level + half, confidence=0.99)
        entries.append(
            HistoryEntry(
                time=(first + datetime.timedelta(days=day)).isoformat(),
                name="encoder",
                decision="pass" if slowdown.high < ALLOWED else "inconclusive",
                reason="",
                slowdowns={"p50": slowdown},
                allowed={"p50": ALLOWED},
                head=f"main@{rng.integers(16**7):07x}",
                onnxruntime="1.32.0",
                wall_s=40.0 + float(rng.normal(0, 3)),
            )
        )
    return entries


def main() -> None:
    """Take the pictures."""
    pages = {
        "report-search": (make_page(read_source(str(SEARCH)), "tuned.json"), 1635),
        "report-gates": (make_history_page(make_history(), "gates.jsonl"), 760),
    }
    browser = Browser()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for name, (page, height) in pages.items():
                path = Path(folder, f"{name}.html")
                write_page(page, path)
                browser.open(path)
                (HERE / f"{name}.png").write_bytes(browser.take_picture(height=height, scale=0.75))
    finally:
        browser.close()


if __name__ == "__main__":
    main()
