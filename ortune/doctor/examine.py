"""The steps of `ortune doctor`: read the graph, optimize it with ONNX Runtime, run the checks."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.doctor.checks import CHECKS, run_checks
from ortune.doctor.checks.text import shorten
from ortune.doctor.facts import Missing, ModelFacts
from ortune.doctor.findings import Diagnosis
from ortune.doctor.optimized_graph import (
    DEFAULT_LEVEL,
    EXTENDED_LEVEL,
    OptimizedModel,
    OptimizeRequest,
    optimize_in_child,
)
from ortune.errors import InputsError, ModelError, UsageError
from ortune.knobs.config import CPU, alias_of
from ortune.model import read_model
from ortune.model.graph import Graph, read_graph
from ortune.requests import DoctorRequest
from ortune.steps import enter_step
from ortune.worker import Failure, Runtime
from ortune.worker.installed import find_runtime_packages, require_runtime
from ortune.worker.owned_folder import OwnedFolder
from ortune.worker.runtime import require_installed_runtime
from ortune.worker.working_inputs import explain_failed_run
from ortune.workload import Feed, InputOptions, make_feed
from ortune.workload.data import format_shape

ONLY_IF_NAMED = frozenset(
    {
        "AzureExecutionProvider",  # runs models on a remote service
        "TensorrtExecutionProvider",  # builds an engine, which takes minutes
        "NvTensorRTRTXExecutionProvider",
        "MIGraphXExecutionProvider",
    }
)
"""Providers that are checked only if the user names them."""

UNKNOWN_WITHOUT_SESSION = ("extended", "optimized", "creation_ns", "run_ns", "assigned", "session_providers")
"""Facts that only sessions give."""


def examine(request: DoctorRequest) -> Diagnosis:
    """Run all checks on a model.

    Raises:
        ModelError: The file is not an ONNX model.
        InputsError: The inputs that the user asks for do not fit the model.
        UsageError: onnxruntime has no provider of that name.
        HostError: onnxruntime is not installed, or cannot be imported.
    """
    require_runtime()
    original = read_graph(request.model)
    runtime = require_installed_runtime()
    providers = find_providers(request.provider, runtime)
    facts = ModelFacts(
        path=request.model,
        original=original,
        packages=find_runtime_packages(),
        providers=providers,
        providers_named=bool(request.provider),
        missing={"dtypes": Missing(original.no_dtypes)} if original.no_dtypes else {},
    )
    feed = prepare_feed(request.model, request.input_options)
    if isinstance(feed, Missing):
        facts = msgspec.structs.replace(facts, missing={**facts.missing, "run_ns": feed})
    enter_step("creating sessions at several optimization levels, and running them")
    size_bytes = Path(request.model).stat().st_size + sum(file.found_bytes or 0 for file in original.data_files)
    facts = add_runtime_facts(facts, feed if isinstance(feed, Feed) else None, size_bytes)
    enter_step("checking the graphs")
    findings, skipped = run_checks(CHECKS, facts)
    return Diagnosis(
        model=request.model,
        size_bytes=size_bytes,
        opset=original.opsets.get("", 0),
        n_nodes=len(original.nodes),
        n_optimized=len(facts.optimized.nodes) if facts.optimized else None,
        onnxruntime=runtime.onnxruntime,
        findings=findings,
        skipped=skipped,
    )


def find_providers(named: tuple[str, ...], runtime: Runtime) -> tuple[str, ...]:
    """Return the full names of the providers to check, without the CPU's.

    Args:
        named: Names that the user gave, such as `CUDAExecutionProvider` or `cuda`; empty for those that work here.
        runtime: The installed onnxruntime.

    Raises:
        UsageError: onnxruntime has no provider of that name.
    """
    if not named:
        return tuple(name for name in runtime.providers if name != CPU and name not in ONLY_IF_NAMED)
    found = []
    for name in named:
        matches = [
            known
            for known in runtime.providers
            if name.lower() in {known.lower(), known.lower().removesuffix("executionprovider"), alias_of(known)}
        ]
        if not matches:
            raise UsageError(
                f"{name}: the installed onnxruntime has no such provider; it has {', '.join(runtime.providers)}.",
                "Other providers come in packages of their own, such as onnxruntime-gpu or onnxruntime-openvino.",
                option="provider",
            )
        found += [match for match in matches if match != CPU]
    return tuple(dict.fromkeys(found))


def prepare_feed(model_path: str, inputs: InputOptions) -> Feed | Missing:
    """Return inputs to run the model with, or why there are none.

    Raises:
        InputsError: The inputs that the user asks for do not fit the model.
    """
    try:
        return make_feed(read_model(model_path), inputs)
    except ModelError as error:
        return Missing(error.message, error.hint)
    except InputsError as error:
        if inputs.dims or inputs.shapes or inputs.data:
            raise
        return Missing(error.message, error.hint)


def add_runtime_facts(facts: ModelFacts, feed: Feed | None, size_bytes: int) -> ModelFacts:
    """Return the facts with those that only ONNX Runtime knows, or why they are missing.

    Args:
        facts: Facts from the file.
        feed: Inputs to run the model with, or None to not run it.
        size_bytes: Size of the model, including external data.
    """
    if feed is not None:
        shapes = {name: tensor.array.shape for name, tensor in feed.tensors.items()}
        guessed = frozenset(name for name, tensor in feed.tensors.items() if tensor.guessed)
        facts = msgspec.structs.replace(facts, input_shapes=shapes, guessed=guessed)
    with OwnedFolder() as folder:
        feed_path = folder.path / "feed.npz"
        if feed is not None:
            feed.save(feed_path)
        optimized = optimize_in_child(
            OptimizeRequest(
                model_path=str(Path(facts.path).resolve()),
                model_bytes=size_bytes,
                folder=str(folder.path),
                feed_path=str(feed_path) if feed is not None else None,
                providers=facts.providers,
            )
        )
        if isinstance(optimized, Failure):
            state = "did not load the model in time" if optimized.kind == "timeout" else "cannot load the model"
            lacking = dict.fromkeys(UNKNOWN_WITHOUT_SESSION, Missing(f"ONNX Runtime {state}"))
            missing = {**facts.missing, **lacking}
            return msgspec.structs.replace(facts, load_error=optimized, missing=missing)
        return msgspec.structs.replace(
            facts,
            extended=_read_optimized(optimized, EXTENDED_LEVEL),
            optimized=_read_optimized(optimized, DEFAULT_LEVEL),
            creation_ns=optimized.creation_ns if len(optimized.creation_ns) > 1 else None,
            run_ns=optimized.run_ns if DEFAULT_LEVEL in optimized.run_ns else None,
            session_providers=None if optimized.end and facts.providers else optimized.session_providers,
            # A provider that does not work is a finding of its own; the check is not skipped.
            provider_error=optimized.missing.get("assigned", ""),
            # With the CPU provider only, or without a session, there is no placement to check.
            assigned=() if not facts.providers or "assigned" in optimized.missing else optimized.assigned,
            missing=_explain_missing(facts, optimized, feed),
        )


def _read_optimized(optimized: OptimizedModel, level: str) -> Graph | None:
    path = optimized.graphs.get(level)
    return read_graph(path) if path is not None else None


def _explain_missing(facts: ModelFacts, optimized: OptimizedModel, feed: Feed | None) -> dict[str, Missing]:
    """Return why a fact is not known, by attribute of `ModelFacts`."""
    no_graph = Missing(f"ONNX Runtime cannot write the optimized graph: {optimized.missing.get('graphs', '')}")
    missing = {
        "extended": no_graph,
        "optimized": no_graph,
        "creation_ns": Missing("the model does not load without optimization, or not a second time"),
        "assigned": Missing("this version of onnxruntime does not report where it places nodes"),
    }
    if optimized.end:
        known = ("extended", "optimized") if "graphs" in optimized.missing else ()
        unknown = [name for name in UNKNOWN_WITHOUT_SESSION if name not in known]
        missing |= dict.fromkeys(unknown, Missing(optimized.end))
    missing = {**missing, **facts.missing}
    if message := optimized.missing.get("run_ns"):
        shapes = facts.input_shapes.items()
        inputs = ", ".join(f"{name} {format_shape(shape) or '(one number)'}" for name, shape in shapes)
        cause = shorten(message.split("Status Message: ")[-1], 150)
        missing["run_ns"] = Missing(
            f"the model does not run with {inputs} ({cause})",
            explain_failed_run(read_model(facts.path), feed, message).hint.rstrip(".") if feed else "",
        )
    return missing
