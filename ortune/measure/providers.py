"""What changes for a comparison if candidates use other execution providers than the baseline."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ortune.knobs.config import CPU, CUDA_BASED, Config
from ortune.measure.open import OpenComparison

OTHER_LOAD_DEADLINE_S = 60.0
"""Least deadline for loading. The libraries of a provider may take gigabytes."""


def allow_for_providers(opened: OpenComparison, base: Config, providers: Iterable[str]) -> OpenComparison:
    """Return a comparison that allows more time for launches and, with a GPU, a longer lead-in in all blocks.

    Args:
        opened: The comparison, whose calibration has allowed for the provider of the baseline.
        base: The config of the baseline.
        providers: The names of the execution providers of all candidates.
    """
    others = {*providers} - {base.provider, CPU}
    if others:
        runner = opened.runner
        runner.load_deadline_s = max(runner.load_deadline_s, OTHER_LOAD_DEADLINE_S)
    if not others & CUDA_BASED:
        return opened
    pace = msgspec.structs.replace(opened.calibration.pace, on_gpu=True)
    return msgspec.structs.replace(opened, calibration=msgspec.structs.replace(opened.calibration, pace=pace))
