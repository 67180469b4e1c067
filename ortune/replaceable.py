"""The functions that a simulated host replaces: those that read the host, and those that open executors.

Tests and benchmarks run commands and the Python API with a host whose speed is known; see `tests/simulated`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_replacements: dict[Callable[..., Any], Callable[..., Any]] = {}
"""What is called instead of a function, by the function as its module names it."""


def replaceable(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that calls the given one, unless `replaced` names another one."""

    @functools.wraps(function)
    def call(*arguments: P.args, **options: P.kwargs) -> R:
        chosen: Callable[P, R] = _replacements.get(call, function)
        return chosen(*arguments, **options)

    return call


def replace(replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> None:
    """Call other functions instead of replaceable ones from now on, in all threads of this process."""
    _replacements.update(replacements)


@contextlib.contextmanager
def replaced(replacements: Mapping[Callable[..., Any], Callable[..., Any]]) -> Iterator[None]:
    """Call other functions instead of replaceable ones in this block, in all threads of this process."""
    before = dict(_replacements)
    replace(replacements)
    try:
        yield
    finally:
        _replacements.clear()
        _replacements.update(before)
