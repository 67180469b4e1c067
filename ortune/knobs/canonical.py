"""The canonical form of a config: configs that behave the same are equal."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from ortune.knobs import ids
from ortune.knobs.catalogue import KNOBS
from ortune.knobs.config import Config

T = TypeVar("T")

OF_WORKERS = (ids.INTRA_OP_THREAD_AFFINITIES, ids.INTRA_OP_ALLOW_SPINNING, ids.DYNAMIC_BLOCK_BASE)
OF_SPINNING = (
    ids.INTRA_OP_SPIN_DURATION,
    ids.INTRA_OP_SPIN_BACKOFF,
    ids.INTER_OP_SPIN_DURATION,
    ids.INTER_OP_SPIN_BACKOFF,
)

_ORDER = {knob.name: position for position, knob in enumerate(KNOBS.values())}


def canonical(config: Config, n_default_threads: int) -> Config:
    """Return the config without settings that have no effect.

    - Under ORT_SEQUENTIAL, inter-op threads have no effect. ORT_PARALLEL with one of them is ORT_SEQUENTIAL.
    - A pool of one intra-op thread has no workers: spinning, affinity and block base have no effect. How workers spin
      has no effect if they do not spin.
    - ORT_PARALLEL does not pin the default pool: 0 threads are the same as the number that 0 stands for. It has no
      memory pattern.
    - With a global pool, the thread settings of a session have no effect.

    Args:
        config: The config.
        n_default_threads: Number of threads of ONNX Runtime's default pool on this host.
    """
    if not config.session_options and not config.session_config:
        return config
    options = dict(config.session_options)
    entries = dict(config.session_config)
    if config.global_thread_pool:
        _drop(options, ids.INTRA_OP_NUM_THREADS, ids.INTER_OP_NUM_THREADS)
        _drop(entries, *OF_WORKERS, *OF_SPINNING, ids.FORCE_SPINNING_STOP)
    if options.get(ids.EXECUTION_MODE) != "ORT_PARALLEL" or options.get(ids.INTER_OP_NUM_THREADS) == 1:
        _drop(options, ids.EXECUTION_MODE, ids.INTER_OP_NUM_THREADS)
        _drop(entries, ids.INTER_OP_ALLOW_SPINNING)
    n_threads = options.get(ids.INTRA_OP_NUM_THREADS, 0)
    parallel = ids.EXECUTION_MODE in options
    pinned = ids.INTRA_OP_THREAD_AFFINITIES in entries
    if n_threads == n_default_threads and not pinned and (parallel or n_threads == 1):
        _drop(options, ids.INTRA_OP_NUM_THREADS)
    one_thread = (n_threads or n_default_threads) == 1
    if one_thread:
        _drop(entries, *OF_WORKERS)
    if entries:
        _drop_spinning(entries, one_thread=one_thread, parallel=parallel)
    if parallel:
        _drop(options, ids.ENABLE_MEM_PATTERN)
    for values in (options, entries):
        for name in list(values):
            if name in KNOBS and values[name] == KNOBS[name].default:
                del values[name]
    return msgspec.structs.replace(config, session_options=in_order(options), session_config=in_order(entries))


def in_order(values: dict[str, T]) -> dict[str, T]:
    """Return settings in the order of the catalog, so that equal configs are written in the same way."""
    if len(values) < 2:
        return values
    return dict(sorted(values.items(), key=lambda item: (_ORDER.get(item[0], len(_ORDER)), item[0])))


def _drop_spinning(entries: dict[str, str], *, one_thread: bool, parallel: bool) -> None:
    """Remove settings of how workers spin if no worker spins."""
    intra = not one_thread and entries.get(ids.INTRA_OP_ALLOW_SPINNING) != "0"
    inter = parallel and entries.get(ids.INTER_OP_ALLOW_SPINNING) != "0"
    if not intra:
        _drop(entries, ids.INTRA_OP_SPIN_DURATION, ids.INTRA_OP_SPIN_BACKOFF)
    if not inter:
        _drop(entries, ids.INTER_OP_SPIN_DURATION, ids.INTER_OP_SPIN_BACKOFF)
    if not intra and not inter:
        _drop(entries, ids.FORCE_SPINNING_STOP)


def _drop(values: dict[str, T], *names: str) -> None:
    for name in names:
        values.pop(name, None)
