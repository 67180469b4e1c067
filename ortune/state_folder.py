"""The folder for what ortune remembers of a user on this host. It is in the user's home, not in a working folder."""

from __future__ import annotations

import os
from pathlib import Path


def find_state_folder() -> Path | None:
    """Return the folder, which may not exist yet; None if the user has no home folder to keep it in."""
    import platformdirs

    if not os.environ.get("XDG_STATE_HOME"):
        try:
            if not Path.home().is_dir():
                return None
        except RuntimeError:
            return None
    return Path(platformdirs.user_state_dir("ortune", appauthor=False))
