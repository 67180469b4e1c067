"""Environment variables that may lead to a password. Processes that ortune starts do not get them."""

from __future__ import annotations

import os
from collections.abc import Mapping

OWN_VARIABLES = ("ORTUNE_STORAGE", "ORTUNE_STORAGE_FILE")
"""Those that only ortune reads: the storage that several hosts share; see `ortune.storage.location`."""

STORAGE_VARIABLES = (*OWN_VARIABLES, "PGPASSWORD", "PGPASSFILE", "MYSQL_PWD")
"""Those with the storage and with passwords of databases."""


def inherit_environment() -> dict[str, str]:
    """Return the environment of this process for those that it starts."""
    return {name: value for name, value in os.environ.items() if name not in STORAGE_VARIABLES}


def without_own(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for a program of the user, which may need passwords of its own databases."""
    return {name: value for name, value in environment.items() if name not in OWN_VARIABLES}
