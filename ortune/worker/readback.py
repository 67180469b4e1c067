"""Reads back the settings of a session, and finds those that did not take effect."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ortune.host.allocators import LIBRARIES
from ortune.knobs.affinity import parse_affinity
from ortune.knobs.config import ENTRY_PREFIXES, Config, alias_of
from ortune.knobs.ids import INTRA_OP_THREAD_AFFINITIES
from ortune.worker import cpu
from ortune.worker.session_info import PoolThread, SessionInfo

LONGEST_PINNING_S = 1.0
"""Maximum time for the threads of a pool to pin themselves."""


def read_settings(session: Any, config: Config) -> dict[str, int | bool | str]:
    """Return the values that a session has for the settings of its config, by knob id. Enums are given by name."""
    options = session.get_session_options()
    settings: dict[str, int | bool | str] = {}
    for name in config.session_options:
        value = getattr(options, name)
        settings[name] = getattr(value, "name", value)
    for name in config.session_config:
        settings[name] = options.get_session_config_entry(name)
    found = session.get_provider_options()
    for provider, wanted in config.providers:
        # Some providers do not report all of their options.
        reported = {name: str(value) for name, value in found.get(provider, {}).items()}
        settings |= {f"{alias_of(provider)}.{name}": reported[name] for name in wanted if name in reported}
    for name in config.provider_entries:
        provider = next(provider for provider, prefix in ENTRY_PREFIXES.items() if name.startswith(prefix))
        option = name.removeprefix(ENTRY_PREFIXES[provider])
        settings[f"{alias_of(provider)}.{option}"] = options.get_session_config_entry(name)
    return settings


def read_preloaded(config: Config) -> tuple[str, ...]:
    """Return the libraries of the config's allocator that are mapped into this process."""
    names = LIBRARIES.get(config.allocator, ())
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines() if names else []
    except OSError:
        return ()
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in lines)
    return tuple(path for path in paths if path.rpartition("/")[2].startswith(names))


def read_pool(ids: frozenset[int], config: Config, n_sessions: int) -> tuple[PoolThread, ...]:
    """Return the CPUs that the threads of the pools may run on.

    Threads pin themselves when they first run, which may be after the session was created. Wait for them for at most
    `LONGEST_PINNING_S`.

    Args:
        ids: Ids of the threads.
        config: Config of the sessions.
        n_sessions: Number of sessions in this process.
    """
    end_s = time.monotonic() + LONGEST_PINNING_S
    threads = cpu.read_threads(ids)
    while find_unpinned(config, threads, n_sessions) and time.monotonic() < end_s:
        time.sleep(0.005)
        threads = cpu.read_threads(ids)
    return threads


def find_unpinned(config: Config, threads: tuple[PoolThread, ...], n_sessions: int) -> str:
    """Return a human-readable fault if no thread is pinned to one of the config's groups of CPUs, else "".

    If the kernel refuses to pin a thread, ONNX Runtime only logs an error, and the thread may run anywhere. Where the
    operating system does not report threads, no fault is found.
    """
    sessions = [config.of_session(number).session_config for number in range(n_sessions)]
    affinities = [text for entries in sessions if (text := entries.get(INTRA_OP_THREAD_AFFINITIES))]
    if not affinities or not threads:
        return ""
    groups = sorted(group for affinity in affinities for group in parse_affinity(affinity))
    found = sorted(thread.cpus for thread in threads)
    if all(group in found for group in groups):
        return ""
    return f"threads should be pinned to CPUs {groups}, counted from 0, but may run on {found}"


def find_unapplied(config: Config, session_info: SessionInfo, n_sessions: int = 1) -> str:
    """Return the first setting that did not take effect, as a human-readable fault, or "" if none is found."""
    wanted = config.settings
    for name, value in session_info.settings.items():
        if not is_same_value(value, wanted[name]):
            return f"{name} was set to {wanted[name]!r}, but is {value!r}"
    missing = [name for name, _ in config.providers if name not in session_info.providers]
    if missing:
        return f"the session runs without {', '.join(missing)}"
    if session_info.nodes and not session_info.nodes.get(config.provider):
        others = ", ".join(f"{count} on {name}" for name, count in session_info.nodes.items())
        return f"{config.provider} runs none of the nodes: {others}"
    if config.allocator and not session_info.preloaded:
        return f"the allocator {config.allocator} is not loaded: it is not installed, or the system cannot preload it"
    return find_unpinned(config, session_info.threads, n_sessions)


def is_same_value(found: int | bool | str, wanted: int | bool | str) -> bool:
    """Return whether two values of a setting are the same. Providers spell booleans differently."""
    booleans = {"true": "1", "false": "0"}
    one, other = (booleans.get(str(value).lower(), str(value).lower()) for value in (found, wanted))
    return one == other
