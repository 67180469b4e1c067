"""Fills the cache of compiled models for `ortune apply --warm`, and shows that sessions start from it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.apply.check import CheckResult, run_once
from ortune.apply.fit import Mismatch
from ortune.errors import UsageError
from ortune.knobs.caches import list_cache_options
from ortune.record.schema import Record
from ortune.worker import SessionInfo
from ortune.worker.compiled_models import list_files


class WarmResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of filling a cache.

    Attributes:
        options: Options of the config's providers that name the folder; none if no provider keeps compiled models.
        n_written: Files in the folder that were written or changed; 0 if it was filled before.
        n_files: Files in the folder.
        size_bytes: Their size.
        check: The session with the config and the default's; None if there was nothing to fill.
    """

    options: tuple[str, ...]
    n_written: int = 0
    n_files: int = 0
    size_bytes: int = 0
    check: CheckResult | None = None

    @property
    def mismatches(self) -> tuple[Mismatch, ...]:
        """Differences between the recorded host and software and these."""
        return self.check.mismatches if self.check else ()

    @property
    def works(self) -> bool:
        """Whether a session starts from what is in the folder, or needs none."""
        return self.check is None or (self.session is not None and self.session.build_s is not None)

    @property
    def session(self) -> SessionInfo | None:
        """The session that was created when the folder was filled; None if it could not be created."""
        loaded = self.check and self.check.loaded
        return loaded if isinstance(loaded, SessionInfo) else None


def warm(record: Record, model: str | Path, folder: Path, data: str | None = None) -> WarmResult:
    """Let the providers of a config compile the model into a folder, in a process that creates and runs the session.

    A second process then creates the session again, from the folder.

    Args:
        record: The record, whose config names the folder.
        model: Path of the ONNX file.
        folder: The folder. It is created if it does not exist.
        data: Input data as for a search, or None to synthesize it.

    Raises:
        UsageError: The folder cannot be created or written.
        OrtuneError: The record is for another model, or the model does not run.
    """
    options = list_cache_options(record.config)
    if not options:
        return WarmResult(options=())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        before = list_files(folder)
    except OSError as error:
        raise UsageError(
            f"{folder}: {error.strerror or error}.", "Name a folder that can be written.", option="cache_dir"
        ) from None
    check = run_once(record, model, data)
    after = list_files(folder)
    return WarmResult(
        options=options,
        n_written=sum(before.get(path) != seen for path, seen in after.items()),
        n_files=len(after),
        size_bytes=sum(size for size, _ in after.values()),
        check=check,
    )
