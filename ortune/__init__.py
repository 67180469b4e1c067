"""ortune finds the ONNX Runtime settings that make a model fastest on this host, and proves it.

The names below are the public interface; importing them imports neither onnxruntime, optuna, onnx nor numpy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortune.apply.api import create_session, run_options, session_options
    from ortune.apply.install import install
    from ortune.errors import (
        HostError,
        InputsError,
        MeasureError,
        ModelError,
        OrtuneError,
        RecordError,
        UsageError,
    )
    from ortune.record.files import read_record
    from ortune.record.schema import Record

__version__ = "0.1.0"

__all__ = [
    "HostError",
    "InputsError",
    "MeasureError",
    "ModelError",
    "OrtuneError",
    "Record",
    "RecordError",
    "UsageError",
    "__version__",
    "create_session",
    "install",
    "read_record",
    "run_options",
    "search",
    "session_options",
]

_HOMES = {
    "create_session": "ortune.apply.api",
    "install": "ortune.apply.install",
    "run_options": "ortune.apply.api",
    "session_options": "ortune.apply.api",
    "Record": "ortune.record.schema",
    "read_record": "ortune.record.files",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for (PEP 562)."""
    import importlib

    if name not in __all__:
        raise AttributeError(f"module 'ortune' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "ortune.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def search(
    model: str | Path,
    *,
    output: str | Path | None = None,
    budget_s: float | None = None,
    n_trials: int | None = None,
    seed: int = 0,
    dims: Mapping[str, int | Sequence[int]] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    inputs: str | Path | None = None,
    clients: int | None = None,
    rate: str | float | None = None,
    arrivals: str | None = None,
    objective: str | None = None,
    pareto: str | None = None,
    limits: Sequence[str] = (),
    beside: str | None = None,
    strategy: str = "adaptive",
    history: bool = True,
    sessions: int | None = None,
    providers: Sequence[str] | None = None,
    tune: Mapping[str, int | bool | str | Sequence[int | bool | str]] | None = None,
    fix: Mapping[str, int | bool | str] | None = None,
    only: Sequence[str] = (),
    approximate: bool = False,
) -> Record:
    """Find the best settings for a model, a load and this host, and prove them.

    Args:
        model: Path of the ONNX file.
        output: Where to write the record, or None.
        budget_s: Wall time to spend, in seconds; None for what the model and the objective need, at least a minute.
        n_trials: Candidates to screen at most, or None.
        seed: Seed of everything that is drawn.
        dims: Sizes by symbolic dimension name; several sizes make a case each.
        shapes: Whole shapes by input name.
        inputs: An .npz file with an array for each input, or a folder with `input_*.pb` files, or with many of either.
        clients: Concurrent callers of the session; one by default.
        rate: Requests that arrive a second, as a number or as `50/s` or `30/min`; None for callers that call back to
            back.
        arrivals: "poisson" (the default) or "periodic".
        objective: p50, p90, p95, p99, mean, throughput, cpu, memory or load-time; by default what suits the load.
        pareto: Two or three objectives, separated by commas, for a front instead of one winner.
        limits: What a winner must keep to, such as `p99<20ms`, `memory<500MB` or `throughput>100/s`.
        beside: A command that runs beside the trials, as the production background_load.
        strategy: In which order candidates are tried: "adaptive", "tpe", "random" or "exhaustive".
        history: Whether to begin with what earlier searches of similar models found on this host, and to add to it.
        sessions: Sessions of the model side by side; one by default.
        providers: Execution providers to choose from, such as "cpu" and "cuda"; None for what works here.
        tune: Values to try, typed or as text, by the name of the knob.
        fix: Values that all candidates have, including the baseline, by the name of the knob.
        only: The knobs to try, or none for all.
        approximate: Whether to try what changes outputs beyond rounding.

    Returns:
        The record. Its config is ONNX Runtime's default unless something better was proven.

    Raises:
        OrtuneError: Something that was given does not make sense, or the model does not run.
    """
    from ortune.knobs.parse_knobs import check_fix, check_only, check_tune
    from ortune.tuning.hints import history_path
    from ortune.tuning.prepare import SearchRequest, prepare
    from ortune.tuning.search import search as run
    from ortune.tuning.strategy import parse_strategy
    from ortune.workload import InputOptions, make_goal, make_load

    sizes = {name: (size,) if isinstance(size, int) else tuple(size) for name, size in (dims or {}).items()}
    request = SearchRequest(
        model=str(model),
        output=None if output is None else Path(output),
        goal=make_goal(make_load(clients, rate, arrivals, sessions), objective, pareto, tuple(limits)),
        beside=beside,
        budget_s=budget_s,
        n_trials=n_trials,
        seed=seed,
        strategy=parse_strategy(strategy),
        history=history_path() if history else None,
        providers=None if providers is None else tuple(providers),
        tune=check_tune(tune or {}, approximate=approximate),
        fix=check_fix(fix or {}, approximate=approximate),
        only=check_only(only),
        approximate=approximate,
        inputs=InputOptions(dims=sizes, shapes=shapes or {}, data=None if inputs is None else str(inputs), seed=seed),
    )
    return run(prepare(request)).record
