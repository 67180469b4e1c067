"""Models that execution providers compiled: a folder for each config, and whether later sessions start from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from ortune.knobs.caches import list_cache_options, list_folders, with_caches
from ortune.knobs.config import Config
from ortune.knobs.providers import find_provider
from ortune.worker.failure import Failure
from ortune.worker.session_info import SessionInfo

Files = Mapping[Path, tuple[int, int]]
"""Size and time of the last change in ns, by file."""


class CompiledModels:
    """The compiled models of an executor.

    Each config is compiled once, in a separate launch that is not charged to the budget. Some providers write
    compiled models but do not use them. For such a provider, compiling is part of each launch, as it is in production.

    Args:
        folder: Where to keep the folders of configs that do not name one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names: dict[str, str] = {}
        self._builds: dict[str, Failure | float] = {}
        self._files: dict[str, Files] = {}
        self._without_cache: set[str] = set()
        self.total_s = 0.0

    def list_files(self, config: Config) -> Files:
        """Return the files in the folder of a config."""
        return list_files(*list_folders(self.with_folder(config)))

    def is_needed(self, config: Config) -> bool:
        """Return whether a config must still be compiled in a separate launch."""
        return self._has_cache(config) and config.key not in self._builds

    def with_folder(self, config: Config) -> Config:
        """Return the config with its own folder. A folder that it already names is kept."""
        if not self._has_cache(config) or list_folders(config):
            return config
        number = len(self._names)
        folder = self._folder / self._names.setdefault(config.key, f"{number:05}")
        folder.mkdir(parents=True, exist_ok=True)
        return with_caches(config, folder)

    def note(self, config: Config, build_s: float, failure: Failure | None, before: Files) -> None:
        """Note that a config was compiled.

        Args:
            config: The config.
            build_s: The time that it took.
            failure: Why it failed; None if it did not.
            before: The files of its folder before.
        """
        self.total_s += build_s
        self._builds[config.key] = failure or build_s
        after = self.list_files(config)
        # Others may write to a folder that the user names. If nothing was written, it was filled before.
        written = {path: state for path, state in after.items() if before.get(path) != state}
        self._files[config.key] = written or after

    def find_failure(self, config: Config) -> Failure | None:
        """Return why a config could not be compiled."""
        build = self._builds.get(config.key)
        return build if isinstance(build, Failure) else None

    def check(self, config: Config) -> float | None:
        """Check after a later launch whether it used the compiled model.

        Returns:
            The time that compiling took in seconds; None if nothing was compiled, or if the launch compiled again.
        """
        build = self._builds.get(config.key)
        if not isinstance(build, float) or not self._has_cache(config):
            return None
        files, now = self._files[config.key], self.list_files(config)
        if files and all(now.get(path) == state for path, state in files.items()):
            return build
        self._without_cache.add(config.provider)
        return None

    def compiles_again(self, config: Config) -> bool:
        """Return whether the provider of a config compiles the model in every launch."""
        return find_provider(config.provider).builds and not self._has_cache(config)

    def _has_cache(self, config: Config) -> bool:
        return find_provider(config.provider).keeps_builds and config.provider not in self._without_cache


def find_cache_options(config: Config, sessions: Iterable[SessionInfo]) -> tuple[str, ...]:
    """Return the options of a config's providers that keep compiled models, if sessions started from what they kept."""
    started = {session.providers[:1] for session in sessions if session.build_s is not None}
    return list_cache_options(config) if (config.provider,) in started else ()


def list_files(*folders: str | Path) -> Files:
    """Return the files in folders and in the folders in them, with their size and the time of their last change."""
    found = {}
    for folder in folders:
        for path in Path(folder).rglob("*"):
            try:
                if path.is_file():
                    status = path.stat()
                    found[path] = (status.st_size, status.st_mtime_ns)
            except OSError:  # it was removed in the meantime
                continue
    return found
