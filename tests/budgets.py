"""Budgets of real searches in tests."""

from __future__ import annotations

import subprocess
import sys
import time

USUAL_S = 0.25
"""How long a process takes to import onnxruntime on an idle host."""

LARGEST_FACTOR = 5.0


def scale_budget(seconds: float) -> float:
    """Return a budget in which this host, as busy as it is now, does what an idle host does in this time.

    A search on a busy host launches and measures less in the same time, and what a test expects may need more.
    """
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import onnxruntime"], check=True)
    factor = (time.perf_counter() - begin) / USUAL_S
    return round(seconds * min(max(factor, 1.0), LARGEST_FACTOR), 1)
