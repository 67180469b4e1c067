"""Makes the page about what a file holds."""

from __future__ import annotations

from ortune.measure.bench import BenchResult
from ortune.report import bench, history, record
from ortune.report.blocks import Page
from ortune.report.source import Records, Source


def make_page(source: Source, name: str) -> Page:
    """Return the page about a source.

    Args:
        source: What the file holds.
        name: Name of the file.
    """
    if isinstance(source, Records):
        return record.make_page(source, name)
    if isinstance(source, BenchResult):
        return bench.make_page(source)
    return history.make_page(source.entries, name)
