"""Environment variables that change what ONNX Runtime does by default."""

from __future__ import annotations

from collections.abc import Mapping

RUNTIME_PREFIX = "ORT_"
"""How their names begin."""

NOT_ABOUT_SPEED = frozenset({"ORT_DISABLE_TELEMETRY"})

POOL_VARIABLE = "ORT_INTRA_OP_NUM_THREADS"
"""The number of threads of the pool, for sessions that do not set it."""


def list_runtime_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the variables that change ONNX Runtime's default, in ascending order."""
    named = {name for name in environment if name.startswith(RUNTIME_PREFIX)}
    return tuple(sorted(named - NOT_ABOUT_SPEED))


def without_runtime_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which ONNX Runtime's default is its own."""
    dropped = list_runtime_variables(environment)
    return {name: text for name, text in environment.items() if name not in dropped}
