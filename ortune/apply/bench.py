"""Reads what `ortune bench` compares: configs of records, and configs that are written as settings."""

from __future__ import annotations

from collections.abc import Sequence

from ortune.compare.bench import BASELINE
from ortune.compare.paired_run import Side
from ortune.knobs import DEFAULT
from ortune.knobs.parse_config import parse_config
from ortune.record.files import read_record


def read_sides(configs: Sequence[str], settings: Sequence[str]) -> tuple[Side, ...]:
    """Return the configs of records, then those that are written as settings.

    Args:
        configs: Paths of records, or the word `default`.
        settings: Each a config, as `knob=value,knob=value`.

    Raises:
        RecordError: A file is not a record.
        UsageError: A setting is unknown or has no value.
    """
    return (
        *(Side(name=path, config=DEFAULT if path == BASELINE else read_record(path).config) for path in configs),
        *(Side(name=text, config=parse_config(text)) for text in settings),
    )
