"""Measurements of ortune itself. Run each with `python -m benchmarks.NAME` on an idle host."""
