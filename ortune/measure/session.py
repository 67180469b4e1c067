"""Makes ONNX Runtime sessions out of configs. onnxruntime is imported when the first one is made."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ortune.errors import UsageError
from ortune.knobs.config import Config

if TYPE_CHECKING:
    import onnxruntime

ENUMS = {"graph_optimization_level": "GraphOptimizationLevel", "execution_mode": "ExecutionMode"}
"""Attributes of SessionOptions that are enums, and their types; configs name their members."""


def make_session_options(config: Config) -> onnxruntime.SessionOptions:
    """Return SessionOptions with all settings of a config.

    Raises:
        UsageError: This onnxruntime has no attribute or enum member of that name.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    for name, value in config.session_options.items():
        if not hasattr(options, name):
            raise UsageError(
                f"onnxruntime {onnxruntime.__version__} has no SessionOptions.{name}.",
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
    for name, text in config.session_config.items():
        options.add_session_config_entry(name, text)
    return options


def make_session(model_path: str, config: Config) -> onnxruntime.InferenceSession:
    """Create a session with a config's options and providers, and without ONNX Runtime's silent fallback.

    Raises:
        UsageError: This onnxruntime does not know an option.
        Exception: Whatever onnxruntime raises for a model that it cannot load.
    """
    import onnxruntime

    return onnxruntime.InferenceSession(
        os.fspath(model_path),
        sess_options=make_session_options(config),
        providers=[name for name, _ in config.providers],
        provider_options=[options for _, options in config.providers],
        # With the fallback on, a provider that fails is replaced by the CPU, and the config measures something else.
        enable_fallback=0,
    )


def make_run_options(config: Config) -> onnxruntime.RunOptions | None:
    """Return RunOptions with a config's run entries, or None where it has none."""
    if not config.run_config:
        return None
    import onnxruntime

    options = onnxruntime.RunOptions()
    for name, value in config.run_config.items():
        options.add_run_config_entry(name, value)
    return options
