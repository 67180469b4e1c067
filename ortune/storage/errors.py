"""What goes wrong with a storage. The module that opens storages is slow to import, and not needed to catch them."""

from __future__ import annotations

from ortune.errors import OrtuneError


class StorageError(OrtuneError):
    """The storage does not answer, or not as it should. What is sent to it is kept, and sent later."""


class UnreadableError(StorageError):
    """The storage answers, and holds what Optuna cannot read. It concerns one study; in a journal, it concerns all."""
