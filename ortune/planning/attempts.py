"""Measurements whose failure costs nothing of what was measured before."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ortune.errors import OrtuneError, explain_lacks


class OptionalMeasurements:
    """Measurements that a plan can do without.

    Attributes:
        interrupted: Whether the user ended one.
        problem: The error that ended one, the last if there were several; empty if there was none.
    """

    def __init__(self) -> None:
        self.interrupted = False
        self.problem = ""

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Measure within this context. After an interrupt or an error, the code that follows it goes on."""
        try:
            with explain_lacks():
                yield
        except KeyboardInterrupt:
            self.interrupted = True
        except OrtuneError as error:
            self.problem = error.message
