"""Environment variables that may lead to a password. Processes that ortune starts do not get them."""

from __future__ import annotations

import os

STORAGE_VARIABLES = ("ORTUNE_STORAGE", "ORTUNE_STORAGE_FILE", "PGPASSWORD", "PGPASSFILE", "MYSQL_PWD")
"""Those of the storage that several hosts share; see `ortune.storage.location`."""


def inherit_environment() -> dict[str, str]:
    """Return the environment of this process for those that it starts."""
    return {name: value for name, value in os.environ.items() if name not in STORAGE_VARIABLES}
