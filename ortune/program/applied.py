"""Whether the sessions of a program that is measured have the settings of its candidate.

`ortune.apply.inside.hook` notes it inside the program. The program can write anything, so the file is not trusted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ortune.apply.inside.hook import SESSIONS_FILE
from ortune.limited import TooLargeError, read_limited

MOST_APPLIED_BYTES = 16 << 20
"""Largest size of the file."""

NO_SESSION = "the program created no session of the models that it had before"

Text = Annotated[str, Meta(max_length=4096)]


class NotedSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session of a run whose candidate changes settings of sessions.

    Attributes:
        model: The model, as the program names it.
        has_rule: Whether the candidate has settings for the model.
        is_tuned: Whether the session has them.
        reason: Why it has not.
    """

    model: Text
    has_rule: bool
    is_tuned: bool
    reason: Text


def read_sessions(folder: Path) -> list[NotedSession] | str:
    """Return the sessions of a run, or why they cannot be read.

    Args:
        folder: The folder for the logs of the run.
    """
    try:
        lines = read_limited(folder / SESSIONS_FILE, MOST_APPLIED_BYTES, only_regular=True).splitlines()
        return [msgspec.json.decode(line, type=NotedSession) for line in lines]
    except FileNotFoundError:
        return []
    except OSError as error:
        return f"{SESSIONS_FILE} cannot be read: {error.strerror}"
    except (TooLargeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return f"{SESSIONS_FILE} cannot be read: {error}"


def find_untuned(folder: Path) -> str:
    """Return why sessions did not get a candidate's settings; empty if all did.

    Args:
        folder: The folder for the logs of the run.
    """
    sessions = read_sessions(folder)
    if isinstance(sessions, str):
        return sessions
    own = [session for session in sessions if session.has_rule]
    if not own:
        return NO_SESSION
    missed = next((session for session in own if not session.is_tuned), None)
    return f"{missed.model}: {missed.reason or 'its session has the options of the program'}" if missed else ""


def find_others(folder: Path) -> set[str]:
    """Return the file names of the models for which the candidate has no settings.

    Args:
        folder: The folder for the logs of the run.
    """
    sessions = read_sessions(folder)
    return (
        {Path(session.model).name for session in sessions if not session.has_rule}
        if isinstance(sessions, list)
        else set()
    )
