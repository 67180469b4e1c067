"""Puts a record to use."""

from __future__ import annotations

from ortune.apply.api import create_session, run_options, session_options
from ortune.apply.fit import Misfit, check_model, find_misfits

__all__ = ["Misfit", "check_model", "create_session", "find_misfits", "run_options", "session_options"]
