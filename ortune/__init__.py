"""Find the ONNX Runtime settings that make a model fastest on this host, with evidence.

The names below are the public interface. Importing them imports neither onnxruntime, optuna, onnx nor numpy.

    search, bench, plan, verify, gate               measure a model
    plan_host                                       measure several models that share a host
    inspect_program, search_program                 observe and measure a program
    create_session, session_options, run_options    apply a record in code
    install                                         apply records to all sessions of this process
    export_config                                   write records and plans for other systems
    read_record, read_plan, read_host_plan          read a record or a plan
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "ortune.api": ("bench", "gate", "inspect_program", "plan", "plan_host", "search", "search_program", "verify"),
    "ortune.apply.api": ("create_session", "run_options", "session_options"),
    "ortune.apply.install": ("install",),
    "ortune.apply.verify": ("Verification",),
    "ortune.measure.bench": ("BenchResult",),
    "ortune.measure.comparison": ("Speedup", "Summary"),
    "ortune.measure.judge": ("Verdict",),
    "ortune.errors": (
        "BackgroundLoadError",
        "HostError",
        "InputsError",
        "MeasureError",
        "ModelError",
        "OrtuneError",
        "RecordError",
        "UsageError",
    ),
    "ortune.export.api": ("export_config",),
    "ortune.export.target": ("Export",),
    "ortune.gates.results": ("GateResult", "InterimResult"),
    "ortune.knobs.config": ("Config",),
    "ortune.knobs.knob": ("Value",),
    "ortune.planning.colocation.files": ("read_host_plan",),
    "ortune.planning.colocation.result": ("HostPlan",),
    "ortune.planning.deployment": ("Deployment",),
    "ortune.planning.files": ("read_plan",),
    "ortune.planning.result": ("Plan",),
    "ortune.program.observation": ("Observation",),
    "ortune.record.files": ("read_record",),
    "ortune.record.schema": ("Evidence", "Record"),
    "ortune.tuning.outcome": ("Progress",),
    "ortune.workload.goal": ("Goal", "Limit"),
    "ortune.workload.load": ("Load",),
    "ortune.workload.figures": ("Objective",),
    "ortune.workload.workload": ("Tolerance", "Workload"),
}
"""Modules of the public names, which are imported on first use."""

__all__ = sorted(["__version__", *(name for names in _HOMES.values() for name in names)])


def _home_of(name: str) -> tuple[str, str]:
    """Return the module of a public name, and the name there."""
    for module, names in _HOMES.items():
        if name in names:
            return module, name
    raise AttributeError(f"module 'ortune' has no attribute {name!r}")


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    import importlib

    module, own_name = _home_of(name)
    return getattr(importlib.import_module(module), own_name)


def __dir__() -> list[str]:
    return list(__all__)
