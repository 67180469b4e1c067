"""What benchmarks feed to the models of models/manifest.toml."""

from __future__ import annotations

from models.build import find_search_options
from ortune.cli.options import parse_inputs
from ortune.workload import InputOptions


def inputs_of(name: str) -> InputOptions:
    """Return the shapes that the manifest gives for a model."""
    return parse_inputs(None, [text for text in find_search_options(name) if text != "--shape"], None, 0)
