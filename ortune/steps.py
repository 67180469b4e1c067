"""The steps of a command that are not measured, such as reading the model. The command line shows them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

ObserveStep = Callable[[str, bool], None]
"""Called when a step begins, with its name and whether it is measured. The name is empty when the last one ends."""

_observers: list[ObserveStep] = []
_current = ("", False)
"""The name of the current step, and whether it is measured."""


def enter_step(name: str, *, is_measured: bool = False) -> None:
    """Let the observer know that a step begins.

    Args:
        name: What is done, such as "reading model.onnx".
        is_measured: Whether it is measured: nothing else may use the CPU then.
    """
    global _current
    _current = (name, is_measured)
    for observe in _observers[-1:]:
        observe(name, is_measured)


def enter_measuring() -> None:
    """Let the observer know that something is measured from now on, if the current step is not measured already."""
    if _observers and not _current[1]:
        enter_step("measuring", is_measured=True)


def end_steps() -> None:
    """Let the observer know that the last step has ended."""
    enter_step("")


@contextlib.contextmanager
def observe_steps(observe: ObserveStep) -> Iterator[None]:
    """Call an observer at each step in this block, unless another one observes in it."""
    _observers.append(observe)
    try:
        yield
    finally:
        # A block may end late, when it is deleted. The current step is then that of another observer.
        if _observers[-1] is observe:
            end_steps()
        else:
            observe("", False)
        _observers[:] = [observer for observer in _observers if observer is not observe]
