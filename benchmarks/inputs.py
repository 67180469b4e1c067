"""Shapes of the inputs of the models of models/manifest.toml."""

from __future__ import annotations

from models.build import find_search_options
from ortune.options import parse_shapes


def shapes_of(name: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the manifest gives for a model, by input."""
    return parse_shapes([text for text in find_search_options(name) if text != "--shape"])
