"""The CPU provider. What tunes it are session options: it ignores options of its own, `use_arena` too."""

from __future__ import annotations

from ortune.knobs.knob import Knob
from ortune.knobs.providers.interface import ExecutionProvider

NAME = "CPUExecutionProvider"
ALIAS = "cpu"

OPTIONS: tuple[Knob, ...] = ()

PROVIDER = ExecutionProvider(name=NAME, alias=ALIAS, options=OPTIONS, package="onnxruntime")
"""Its dimensions are those of the session: `ortune/knobs/space.py`."""
