"""Makes ONNX Runtime sessions and their options from configs.

onnxruntime is imported by the functions, so that importing this module is cheap.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ortune.errors import UsageError
from ortune.knobs.config import CPU, CUDA_BASED, Config, ThreadPool
from ortune.knobs.knob import LONGEST_SHOWN_VALUE
from ortune.worker.plugins import add_providers, list_built_in

if TYPE_CHECKING:
    import onnxruntime

    # For annotations in modules that do not import onnxruntime.
    from onnxruntime import InferenceSession as InferenceSession
    from onnxruntime import RunOptions as RunOptions
    from onnxruntime import SessionOptions as SessionOptions

ENUMS = {
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
}
"""Attributes of SessionOptions that are enums, and their types. Configs contain the names of the members."""


ASSIGNMENT_ENTRY = "session.record_ep_graph_assignment_info"


_PRELOADING = threading.Lock()

_global_pools: list[ThreadPool] = []
"""The global thread pool of this process, once it is set up."""


def make_session(
    model: str | os.PathLike[str] | bytes,
    config: Config,
    *,
    record_assignment: bool = False,
) -> onnxruntime.InferenceSession:
    """Create a session with the options and providers of a config.

    Unlike onnxruntime by default, it never falls back silently to another provider.

    Args:
        model: Path of the ONNX file, or its content.
        config: The config. A global thread pool must be set up before, by `set_global_thread_pool`.
        record_assignment: Whether the session records which nodes each provider runs, for `count_nodes`.

    Raises:
        UsageError: This onnxruntime does not have an option or a provider.
        Exception: Any exception that onnxruntime raises for a model that it cannot load.
    """
    import onnxruntime

    known = list_built_in()
    for name, _ in config.providers:
        # onnxruntime itself only warns, and creates the session without the provider.
        if name not in known and name not in config.plugins:
            raise UsageError(
                f"This onnxruntime ({onnxruntime.__version__}) does not have {name}. It has {', '.join(known)}.",
            )
    if config.provider in CUDA_BASED and hasattr(onnxruntime, "preload_dlls"):
        # It prints what is missing to stdout. Redirecting that would affect other threads.
        with _PRELOADING:
            vars(onnxruntime)["print"] = functools.partial(print, file=sys.stderr)
            try:
                onnxruntime.preload_dlls()
            finally:
                vars(onnxruntime).pop("print", None)
    options = make_session_options(config)
    if record_assignment:
        options.add_session_config_entry(ASSIGNMENT_ENTRY, "1")
    # Providers that are passed here would replace those of the options.
    has_own = bool(config.plugins)
    return onnxruntime.InferenceSession(
        os.fspath(model),
        sess_options=options,
        providers=None if has_own else [name for name, _ in config.providers],
        provider_options=None if has_own else [options for _, options in config.providers],
        # With the fallback, onnxruntime replaces a provider that fails by the CPU, which would be another config.
        enable_fallback=0,
    )


def time_session_creation(
    model_path: str | os.PathLike[str], config: Config
) -> tuple[onnxruntime.InferenceSession, int]:
    """Create a session, and return it with the time that creating it took, in nanoseconds.

    The time does not include the import of onnxruntime. Arguments and exceptions are those of `make_session`.
    """
    import onnxruntime  # noqa: F401

    start = time.perf_counter_ns()
    session = make_session(model_path, config)
    return session, time.perf_counter_ns() - start


def make_session_options(config: Config) -> onnxruntime.SessionOptions:
    """Return SessionOptions with all settings of a config. They have providers only if the config has plugins.

    Once this process has a global thread pool, onnxruntime refuses sessions that do not use it. So all options do.

    Raises:
        UsageError: This onnxruntime does not have an attribute or an enum member, or does not accept a value.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for name, value in config.session_options.items():
        _set_attribute(options, "SessionOptions", name, value)
    for name, text in config.session_config.items():
        _add_entry(options.add_session_config_entry, name, text)
    for name, text in config.provider_entries.items():
        _add_entry(options.add_session_config_entry, name, text)
    if config.global_thread_pool or _global_pools:
        options.use_per_session_threads = False
    if config.plugins:
        add_providers(options, config)
    return options


def make_run_options(config: Config) -> onnxruntime.RunOptions | None:
    """Return RunOptions with the run settings of a config, or None if it has none.

    Raises:
        UsageError: This onnxruntime does not have an attribute, or does not accept a value.
    """
    if not config.run_config and not config.run_options:
        return None
    import onnxruntime

    options = onnxruntime.RunOptions()
    for name, value in config.run_options.items():
        _set_attribute(options, "RunOptions", name, value)
    for name, text in config.run_config.items():
        _add_entry(options.add_run_config_entry, name, text)
    return options


def _set_attribute(options: Any, kind: str, name: str, value: int | bool | str) -> None:
    import onnxruntime

    version = onnxruntime.__version__
    hint = "Use the onnxruntime version that the config was made with."
    if not hasattr(options, name):
        raise UsageError(f"This onnxruntime ({version}) does not have {kind}.{name}.", hint)
    if name in ENUMS:
        members = getattr(onnxruntime, ENUMS[name]).__members__
        if value not in members:
            raise UsageError(
                f"This onnxruntime ({version}) does not have the {name} {value!r}. It has {', '.join(members)}.", hint
            )
        value = members[value]
    try:
        setattr(options, name, value)
    except Exception as error:  # noqa: BLE001  (onnxruntime raises several kinds, and more than it documents)
        raise _reject(f"{kind}.{name}", value, error) from None


def _add_entry(add: Callable[[str, str], None], name: str, text: str) -> None:
    try:
        add(name, text)
    except Exception as error:  # noqa: BLE001  (as above)
        raise _reject(name, text, error) from None


def _reject(name: str, value: object, error: Exception) -> UsageError:
    """Return an error for a setting that onnxruntime does not accept."""
    import onnxruntime

    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    setting = f"{name[:LONGEST_SHOWN_VALUE]}={str(value)[:LONGEST_SHOWN_VALUE]}"
    return UsageError(
        f"This onnxruntime ({onnxruntime.__version__}) does not accept {setting}: {reason}.",
        "Remove the setting, or use the onnxruntime version that the config was made with.",
    )


def set_global_thread_pool(config: Config) -> None:
    """Set up the thread pool that all sessions of this process share, if the config has one.

    Call it before the first session is created. ONNX Runtime can set up the pool only once per process. Calling this
    function again with the same pool has no effect.

    Raises:
        UsageError: This onnxruntime does not support it, or the process has a global pool of another size.
    """
    pool = config.global_thread_pool
    if not pool or pool in _global_pools:
        return
    if _global_pools:
        raise UsageError(
            f"This process already has a global thread pool with {_global_pools[0].intra_op_num_threads} threads.",
            "ONNX Runtime can set it up only once: use one config with a global thread pool per process.",
        )
    import onnxruntime

    if not hasattr(onnxruntime, "set_global_thread_pool_sizes"):
        raise UsageError(
            f"This onnxruntime ({onnxruntime.__version__}) does not have set_global_thread_pool_sizes.",
        )
    onnxruntime.set_global_thread_pool_sizes(pool.intra_op_num_threads, pool.inter_op_num_threads)
    _global_pools.append(pool)


def has_global_thread_pool() -> bool:
    """Return whether this process has a global thread pool, which all sessions use then."""
    return bool(_global_pools)


MISCOUNTED = frozenset({"WebGpuExecutionProvider"})
"""Providers whose nodes ONNX Runtime 1.27 does not record completely, because it changes their layout."""


class _Arguments(msgspec.Struct, frozen=True):
    provider: str = ""


class _Event(msgspec.Struct, frozen=True):
    """An event of a profile: the names are those of the file."""

    cat: str
    name: str
    args: _Arguments = _Arguments()


def count_nodes_in_profile(
    model_path: str | os.PathLike[str], config: Config, sample: dict[str, Any], folder: Path
) -> dict[str, int]:
    """Return the number of nodes that each provider runs in a call, from a profile of a separate session.

    Args:
        model_path: Path of the ONNX file.
        config: The config.
        sample: Inputs of the call.
        folder: Folder for the profile.
    """
    profiled = config.without_captures()
    if profiled != config:
        # A call without IO binding must not be captured. A capture implies this option, on which nodes depend.
        profiled = profiled.with_setting("provider_options", "enableInt64", "1", config.provider)
    profiled = profiled.with_setting("session_options", "enable_profiling", True)
    profiled = profiled.with_setting("session_options", "profile_file_prefix", str(folder / "nodes"))
    session = make_session(model_path, profiled)
    session.run(None, sample)
    path = Path(session.end_profiling())
    events = msgspec.json.decode(path.read_bytes(), type=list[_Event])
    path.unlink()
    nodes = {event.name: event.args.provider for event in events if event.cat == "Node" and event.args.provider}
    return _sort_counts(Counter(nodes.values()))


def _sort_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return numbers of nodes by provider, the CPU last."""
    return dict(sorted(counts.items(), key=lambda item: item[0] == CPU))


def count_nodes(session: Any) -> dict[str, int]:
    """Return the number of nodes that each provider runs, or nothing if this onnxruntime does not report it.

    Nodes are counted in the graph as it was when it was divided among providers. A provider may fuse its nodes later.
    """
    read = getattr(session, "get_provider_graph_assignment_info", None)
    if read is None:
        return {}
    counts: dict[str, int] = {}
    for part in read():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return _sort_counts(counts)
