"""What benchmarks feed to the models of models/manifest.toml."""

from __future__ import annotations

from ortune.cli.options import parse_inputs

from models.build import options
from ortune.workload import InputOptions


def inputs_of(name: str) -> InputOptions:
    """Return the shapes that the manifest gives for a model."""
    return parse_inputs(None, [text for text in options(name) if text != "--shape"], None, 0)
