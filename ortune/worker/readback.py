"""Reads back what a session is, and finds settings that did not take effect."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

from ortune.knobs.affinity import AFFINITIES, parse_affinity
from ortune.knobs.config import Config, alias_of
from ortune.worker import cpu
from ortune.worker.session_info import PoolThread, SessionInfo

LD_PRELOAD = "LD_PRELOAD"


PINNING_S = 1.0
"""Time that the threads of a pool have to pin themselves."""


def read_settings(session: Any, config: Config) -> dict[str, int | bool | str]:
    """Return a config's settings as the session has them, by the id of their knob; enums by name."""
    options = session.get_session_options()
    settings: dict[str, int | bool | str] = {}
    for name in config.session_options:
        value = getattr(options, name)
        settings[name] = getattr(value, "name", value)
    for name in config.session_config:
        settings[name] = options.get_session_config_entry(name)
    found = session.get_provider_options()
    for provider, wanted in config.providers:
        # A provider may keep an option to itself; what it shows is compared.
        shown = {name: str(value) for name, value in found.get(provider, {}).items()}
        settings |= {f"{alias_of(provider)}.{name}": shown[name] for name in wanted if name in shown}
    return settings


def read_preloaded(config: Config) -> tuple[str, ...]:
    """Return which of the libraries that the config preloads are mapped into this process."""
    wanted = [Path(path) for path in re.split("[ :]+", config.environment.get(LD_PRELOAD, "")) if path]
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return ()
    # A link is mapped by what it leads to.
    return tuple(str(path) for path in wanted if str(path.resolve()) in mapped)


def read_pool(ids: frozenset[int], config: Config, n_sessions: int) -> tuple[PoolThread, ...]:
    """Return where the threads of a session may run.

    Each pins itself when it first runs, which may be after the session is there: they are waited for.
    """
    end_s = time.monotonic() + PINNING_S
    threads = cpu.read_threads(ids)
    while find_unpinned(config, threads, n_sessions) and time.monotonic() < end_s:
        time.sleep(0.005)
        threads = cpu.read_threads(ids)
    return threads


def find_unpinned(config: Config, threads: tuple[PoolThread, ...], n_sessions: int) -> str:
    """Return which groups of CPUs have no thread pinned to them, for people; empty when all have, or none can be told.

    A pinning that the kernel refuses is only logged, and the thread runs anywhere.
    """
    sessions = [config.of_session(number).session_config for number in range(n_sessions)]
    affinities = [entries[AFFINITIES] for entries in sessions if entries.get(AFFINITIES)]
    if not affinities or not threads:
        return ""
    groups = sorted(group for affinity in affinities for group in parse_affinity(affinity))
    found = sorted(thread.cpus for thread in threads)
    if all(group in found for group in groups):
        return ""
    return f"workers were to be pinned to CPUs {groups}, counted from 0, but may run on {found}"


def find_unapplied(config: Config, loaded: SessionInfo, n_sessions: int = 1) -> str:
    """Return what did not take effect, for people; empty when all did, as far as can be told."""
    wanted = config.settings
    for name, value in loaded.settings.items():
        if not is_same(value, wanted[name]):
            return f"{name} is {value!r} after {wanted[name]!r} was set"
    missing = [name for name, _ in config.providers if name not in loaded.providers]
    if missing:
        return f"the session runs without {', '.join(missing)}"
    if loaded.nodes and not loaded.nodes.get(config.provider):
        others = ", ".join(f"{count} on {name}" for name, count in loaded.nodes.items())
        return f"{config.provider} took none of the nodes: {others}"
    if config.environment.get(LD_PRELOAD) and sys.platform == "linux" and not loaded.preloaded:
        return f"{config.environment[LD_PRELOAD]} is not in the process, though {LD_PRELOAD} names it"
    return find_unpinned(config, loaded.threads, n_sessions)


def is_same(found: int | bool | str, wanted: int | bool | str) -> bool:
    """Return whether a value that was read back is the one that was set; providers spell booleans in their own way."""
    booleans = {"true": "1", "false": "0"}
    one, other = (booleans.get(str(value).lower(), str(value).lower()) for value in (found, wanted))
    return one == other
