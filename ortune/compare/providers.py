"""What changes for a comparison if candidates use other execution providers than the baseline."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from ortune.compare.open import OpenComparison
from ortune.compare.settling import assume_settling
from ortune.knobs.config import CPU, CUDA_BASED, Config

OTHER_LOAD_DEADLINE_S = 60.0
"""Least deadline for loading. The libraries of a provider may take gigabytes."""


def allow_for_providers(opened: OpenComparison, base: Config, providers: Iterable[str]) -> OpenComparison:
    """Return a comparison in which launches have more time, and blocks on a GPU begin after calls have settled.

    Args:
        opened: The comparison.
        base: The config of the baseline.
        providers: The names of the execution providers of all candidates.
    """
    others = {*providers} - {base.provider, CPU}
    if not others:
        return opened
    runner, calibration = opened.runner, opened.calibration
    runner.load_deadline_s = max(runner.load_deadline_s, OTHER_LOAD_DEADLINE_S)
    if not others & CUDA_BASED or base.provider in CUDA_BASED:
        return opened
    calibration = msgspec.structs.replace(calibration, pace=assume_settling(calibration.pace))
    return msgspec.structs.replace(opened, calibration=calibration)
