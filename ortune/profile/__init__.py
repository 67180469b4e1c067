"""Where the time of a run goes, operator by operator, as ONNX Runtime's own profiler tells it."""

from __future__ import annotations

from ortune.profile.run import Profile, ProfileRequest, Side, profile
from ortune.profile.trace import Breakdown, Part

__all__ = ["Breakdown", "Part", "Profile", "ProfileRequest", "Side", "profile"]
