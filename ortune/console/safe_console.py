"""A console that shows text as it is: without markup, and without characters that a terminal would interpret."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ortune.sanitize import escape_workflow_commands, printable
from ortune.steps import end_steps


class SafeConsole(Console):
    """A console for text from records, models and hosts.

    It differs from rich's console in two ways:

    - A string is never markup: `[red]` is printed. `Text` gives styles.
    - Each string and each `Text` is one line of printable characters, so that no text can move the cursor, hide
      other text or forge a line. To print several lines, print them one by one or as a `Group`.

    On GitHub Actions, no text is a command of the runner.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, **options}, markup=False, emoji=False)
        self._is_in_workflow = os.environ.get("GITHUB_ACTIONS") == "true"

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects, after the line that shows the current step was removed."""
        end_steps()
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a string as text."""
        return super().render_str(self._clean(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object, and the texts in it."""
        if isinstance(renderable, Text) and (clean := self._clean(renderable.plain)) != renderable.plain:
            # The length is the same, so that styles stay where they are.
            renderable = renderable.copy()
            renderable.plain = clean
        return super().render(renderable, options)

    def _clean(self, text: str) -> str:
        text = printable(text)
        return escape_workflow_commands(text) if self._is_in_workflow else text
