"""Makes ONNX Runtime sessions out of configs. onnxruntime is imported when the first one is made."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ortune.errors import UsageError
from ortune.knobs.config import CPU, Config, ThreadPool

if TYPE_CHECKING:
    import onnxruntime

ENUMS = {
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
}
"""Attributes of SessionOptions that are enums, and their types; configs name their members."""

ASSIGNMENT_ENTRY = "session.record_ep_graph_assignment_info"

CUDA_BASED = frozenset({"CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"})
"""Providers whose libraries may lie in wheels of NVIDIA's, from where onnxruntime must load them by itself."""


def make_session_options(config: Config) -> onnxruntime.SessionOptions:
    """Return SessionOptions with all settings of a config.

    Raises:
        UsageError: This onnxruntime has no attribute or enum member of that name.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for name, value in config.session_options.items():
        _set_attribute(options, "SessionOptions", name, value)
    for name, text in config.session_config.items():
        options.add_session_config_entry(name, text)
    if config.global_thread_pool:
        options.use_per_session_threads = False
    return options


_shared: list[ThreadPool] = []


def set_global_thread_pool(config: Config) -> None:
    """Size the pool that all sessions of this process share, if the config has one; before its first session.

    It can be done once: the same pool again is no fault.

    Raises:
        UsageError: This onnxruntime cannot, or the process has a pool of other sizes.
    """
    if not config.global_thread_pool or config.global_thread_pool in _shared:
        return
    if _shared:
        raise UsageError(
            f"This process has a global pool of {_shared[0].intra_op_num_threads} threads already.",
            "It can be made once: use one config with a global pool in a process.",
        )
    import onnxruntime

    if not hasattr(onnxruntime, "set_global_thread_pool_sizes"):
        raise UsageError(f"onnxruntime {onnxruntime.__version__} has no set_global_thread_pool_sizes.")
    pool = config.global_thread_pool
    onnxruntime.set_global_thread_pool_sizes(pool.intra_op_num_threads, pool.inter_op_num_threads)
    _shared.append(pool)


def make_session(model_path: str, config: Config, *, record_assignment: bool = False) -> onnxruntime.InferenceSession:
    """Create a session with a config's options and providers, and without ONNX Runtime's silent fallback.

    Args:
        model_path: Path of the ONNX file.
        config: Its settings.
        record_assignment: Whether the session is to keep which provider got which nodes.

    Raises:
        UsageError: This onnxruntime does not know an option or a provider.
        Exception: Whatever onnxruntime raises for a model that it cannot load.
    """
    import onnxruntime

    known = onnxruntime.get_available_providers()
    for name, _ in config.providers:
        # onnxruntime only warns, and goes on without it.
        if name not in known:
            raise UsageError(f"onnxruntime {onnxruntime.__version__} here has no {name}; it has {', '.join(known)}.")
    if config.provider in CUDA_BASED and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    options = make_session_options(config)
    if record_assignment:
        options.add_session_config_entry(ASSIGNMENT_ENTRY, "1")
    return onnxruntime.InferenceSession(
        os.fspath(model_path),
        sess_options=options,
        providers=[name for name, _ in config.providers],
        provider_options=[options for _, options in config.providers],
        # With the fallback on, a provider that fails is replaced by the CPU, and the config measures something else.
        enable_fallback=0,
    )


def time_session_creation(
    model_path: str, config: Config, *, record_assignment: bool = False
) -> tuple[onnxruntime.InferenceSession, int]:
    """Create a session, and return it with the time that this takes, in ns; the import of onnxruntime does not count.

    Takes the arguments of `make_session`, and raises what it raises.
    """
    import onnxruntime  # noqa: F401

    start = time.perf_counter_ns()
    session = make_session(model_path, config, record_assignment=record_assignment)
    return session, time.perf_counter_ns() - start


def make_run_options(config: Config) -> onnxruntime.RunOptions | None:
    """Return RunOptions with a config's run settings, or None where it has none.

    Raises:
        UsageError: This onnxruntime has no attribute of that name.
    """
    if not config.run_config and not config.run_options:
        return None
    import onnxruntime

    options = onnxruntime.RunOptions()
    for name, value in config.run_options.items():
        _set_attribute(options, "RunOptions", name, value)
    for name, text in config.run_config.items():
        options.add_run_config_entry(name, text)
    return options


def count_nodes(session: Any) -> dict[str, int]:
    """Return how many nodes each provider got; empty where this onnxruntime does not tell.

    Nodes are those of the graph as it was when it was split among providers; a provider may fuse its own later.
    """
    read = getattr(session, "get_provider_graph_assignment_info", None)
    if read is None:
        return {}
    counts: dict[str, int] = {}
    for part in read():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return dict(sorted(counts.items(), key=lambda item: item[0] == CPU))


def _set_attribute(options: Any, kind: str, name: str, value: int | bool | str) -> None:
    import onnxruntime

    if not hasattr(options, name):
        raise UsageError(
            f"onnxruntime {onnxruntime.__version__} has no {kind}.{name}.",
            "Use the onnxruntime version that the config was made with.",
        )
    if name in ENUMS:
        members = getattr(onnxruntime, ENUMS[name]).__members__
        if value not in members:
            raise UsageError(
                f"onnxruntime {onnxruntime.__version__} has no {name} {value!r}; it has {', '.join(members)}."
            )
        value = members[value]
    setattr(options, name, value)
