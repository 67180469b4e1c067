"""Limits what a config asks of a host to what the host has: threads, processes and CPUs.

A record may come from a larger host, or from somebody who wants to stop this one: legal numbers go up to thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from ortune.host import Host
from ortune.knobs.affinity import split_affinity
from ortune.knobs.config import Config
from ortune.knobs.ids import INTRA_OP_THREAD_AFFINITIES, WORKERS
from ortune.knobs.knob import Where
from ortune.knobs.legal import read_legal

MOST_PER_CPU = 4
"""Threads of a pool, and processes, for each usable CPU. Even if all of them spin, other programs get a fifth of it."""

Setting = TypeVar("Setting", bound=int | bool | str)


class HostSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a host has.

    Attributes:
        most_threads: Largest number of threads of a pool, and of processes, that it can run.
        n_cpu_ids: Ids of its CPUs are below this number.
    """

    most_threads: int
    n_cpu_ids: int

    @classmethod
    def of(cls, host: Host) -> HostSize:
        """Return the size of a host.

        ONNX Runtime's own pool, which has a thread for each core of the machine, is never too large.
        """
        most = max(MOST_PER_CPU * len(host.limits.usable), host.n_default_threads, 1)
        return cls(most_threads=most, n_cpu_ids=max(host.topology.online, default=0) + 1)


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """What a config asks of a host beyond its size.

    Attributes:
        numbers: Numbers of threads and processes, by name.
        affinity: An affinity string with CPUs that the host does not have; empty if there is none.
    """

    numbers: Mapping[str, int] = {}
    affinity: str = ""


def limit_config(config: Config, size: HostSize) -> tuple[Config, Excess]:
    """Return a config with smaller numbers of threads and processes where they are too large for a host.

    With another number of threads, it has no affinity string, which is for a certain number. It has none either if the
    string names CPUs that the host does not have.

    Args:
        config: The config.
        size: The size of the host.

    Returns:
        The config, and what was too large.
    """
    limiter = _Limiter(size.most_threads)
    pool = config.global_thread_pool
    limited = msgspec.structs.replace(
        config,
        session_options=limiter.limit("session_options", config.session_options),
        session_config=limiter.limit("session_config", config.session_config),
        per_session=tuple(limiter.limit("session_config", entries) for entries in config.per_session),
        environment=limiter.limit("environment", config.environment),
        providers=tuple((name, limiter.limit("provider_options", options, name)) for name, options in config.providers),
        models={
            name: msgspec.structs.replace(
                own,
                session_options=limiter.limit("session_options", own.session_options),
                session_config=limiter.limit("session_config", own.session_config),
            )
            for name, own in config.models.items()
        },
        global_thread_pool=pool and msgspec.convert(limiter.limit_all(msgspec.structs.asdict(pool)), type(pool)),
        workers=limiter.limit_all({WORKERS: config.workers})[WORKERS],
    )
    entries = (config.session_config, *config.per_session, *(own.session_config for own in config.models.values()))
    affinities = [text for entry in entries if (text := entry.get(INTRA_OP_THREAD_AFFINITIES, ""))]
    foreign = next((text for text in affinities if not _fits(text, size.n_cpu_ids)), "")
    if not limiter.found and not foreign:
        return config, Excess()
    if foreign or limiter.found.keys() - {WORKERS}:
        limited = limited.without_entries(lambda name: name == INTRA_OP_THREAD_AFFINITIES)
    return limited, Excess(numbers=limiter.found, affinity=foreign)


def _fits(affinity: str, n_cpu_ids: int) -> bool:
    """Return whether a string names only CPUs with ids below a number."""
    try:
        return max(map(max, split_affinity(affinity))) <= n_cpu_ids
    except ValueError:
        return False


class _Limiter:
    """Limits numbers.

    Args:
        most: The largest number.

    Attributes:
        found: Numbers that were larger, by name.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.found: dict[str, int] = {}

    def limit(self, where: Where, settings: Mapping[str, Setting], provider: str = "") -> dict[str, Setting]:
        """Return settings of one place of a config."""
        known = read_legal()
        limited: dict[str, Any] = dict(settings)
        for name, value in settings.items():
            knob = known.get((where, provider, name))
            if knob and knob.threads and self._is_large(name, value):
                limited[name] = type(value)(self.most)
        return limited

    def limit_all(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Return numbers."""
        return {name: self.most if self._is_large(name, number) else number for name, number in numbers.items()}

    def _is_large(self, name: str, value: object) -> bool:
        try:
            number = int(str(value))
        except ValueError:  # a config that a program made may hold anything
            return False
        if number <= self.most:
            return False
        self.found[name] = number
        return True
