"""The examination, in order: read the graph, let ONNX Runtime optimise it, make the checks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec

from ortune.doctor.checks import CHECKS, run_checks, shorten
from ortune.doctor.optimize import DEFAULT_LEVEL, EXTENDED_LEVEL, Optimized, OptimizeRequest, optimize
from ortune.doctor.values import Diagnosis, Graphs
from ortune.errors import HostError, InputsError, ModelError, UsageError
from ortune.knobs.config import CPU, alias_of
from ortune.model import read_model
from ortune.model.graph import Graph, read_graph
from ortune.worker import Failure, Runtime
from ortune.worker.runtime import read_installed_runtime
from ortune.workload import Feed, InputOptions, make_feed
from ortune.workload.inputs import format_shape

NOT_TRIED_UNASKED = frozenset(
    {
        "AzureExecutionProvider",  # for models in a cloud
        "TensorrtExecutionProvider",  # building an engine takes minutes
        "NvTensorRTRTXExecutionProvider",
        "MIGraphXExecutionProvider",
    }
)


class DoctorRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the user wants to be examined.

    Attributes:
        model: Path of the ONNX file.
        providers: Execution providers that the model is meant for; empty for those that are usable here.
        inputs: What the user says about inputs.
    """

    model: str
    providers: tuple[str, ...] = ()
    inputs: InputOptions = InputOptions()

    @property
    def tells_inputs(self) -> bool:
        """Whether the user said anything about inputs."""
        return bool(self.inputs.dims or self.inputs.shapes or self.inputs.data)


def examine(patient: DoctorRequest) -> Diagnosis:
    """Make all checks.

    Raises:
        ModelError: The file is not an ONNX model.
        InputsError: What the user says about inputs does not fit it.
        UsageError: There is no provider of that name.
        HostError: onnxruntime cannot be imported.
    """
    original = read_graph(patient.model)
    runtime = read_installed_runtime()
    if runtime is None:
        raise HostError("onnxruntime cannot be imported.", "Install it: pip install onnxruntime.")
    providers = find_providers(patient.providers, runtime)
    graphs = Graphs(path=patient.model, original=original, providers=providers, named=bool(patient.providers))
    feed, why = prepare_feed(patient)
    if feed is None:
        graphs = msgspec.structs.replace(graphs, missing={"run_ns": why})
    size_bytes = Path(patient.model).stat().st_size + sum(file.found_bytes or 0 for file in original.data_files)
    graphs = look_inside(graphs, feed, size_bytes)
    findings, unchecked = run_checks(CHECKS, graphs)
    return Diagnosis(
        model=patient.model,
        size_bytes=size_bytes,
        opset=original.opsets.get("", 0),
        n_nodes=len(original.nodes),
        n_optimized=len(graphs.optimized.nodes) if graphs.optimized else None,
        onnxruntime=runtime.onnxruntime,
        findings=findings,
        unchecked=unchecked,
    )


def find_providers(named: tuple[str, ...], runtime: Runtime) -> tuple[str, ...]:
    """Return the full names of the providers that are meant, the CPU's left out.

    Args:
        named: What the user wrote, such as `CUDAExecutionProvider` or `cuda`; empty for those that are usable.
        runtime: What onnxruntime has.

    Raises:
        UsageError: It has no provider of that name.
    """
    if not named:
        return tuple(name for name in runtime.providers if name != CPU and name not in NOT_TRIED_UNASKED)
    found = []
    for name in named:
        matches = [
            known
            for known in runtime.providers
            if name.lower() in {known.lower(), known.lower().removesuffix("executionprovider"), alias_of(known)}
        ]
        if not matches:
            raise UsageError(
                f"--provider {name}: this onnxruntime has no such provider; it has {', '.join(runtime.providers)}.",
                "Other providers come in packages of their own, such as onnxruntime-gpu or onnxruntime-openvino.",
            )
        found += [match for match in matches if match != CPU]
    return tuple(dict.fromkeys(found))


def prepare_feed(patient: DoctorRequest) -> tuple[Feed | None, str]:
    """Return inputs to run the model with, or None and why there are none.

    Raises:
        InputsError: What the user says about inputs does not fit the model.
    """
    try:
        return make_feed(read_model(patient.model), patient.inputs), ""
    except ModelError as error:
        return None, error.message
    except InputsError as error:
        if patient.tells_inputs:
            raise
        return None, f"{error.message} {error.hint}"


def look_inside(graphs: Graphs, feed: Feed | None, size_bytes: int) -> Graphs:
    """Add what ONNX Runtime makes of the model, or why it makes nothing of it."""
    if feed is not None:
        sizes = {name: tensor.array.shape for name, tensor in feed.tensors.items()}
        graphs = msgspec.structs.replace(graphs, sizes=sizes)
    with tempfile.TemporaryDirectory(prefix="ortune-") as folder:
        feed_path = Path(folder) / "feed.npz"
        if feed is not None:
            feed.save(feed_path)
        optimized = optimize(
            OptimizeRequest(
                model_path=str(Path(graphs.path).resolve()),
                model_bytes=size_bytes,
                folder=folder,
                feed_path=str(feed_path) if feed is not None else None,
                providers=graphs.providers,
            )
        )
        if isinstance(optimized, Failure):
            why = "ONNX Runtime cannot load the model"
            missing = dict.fromkeys(("extended", "optimized", "creation_ns", "run_ns", "assigned"), why)
            return msgspec.structs.replace(graphs, load_error=optimized.message, missing=missing)
        return msgspec.structs.replace(
            graphs,
            extended=_read_written(optimized, EXTENDED_LEVEL),
            optimized=_read_written(optimized, DEFAULT_LEVEL),
            creation_ns=optimized.creation_ns if len(optimized.creation_ns) > 1 else None,
            run_ns=optimized.run_ns if DEFAULT_LEVEL in optimized.run_ns else None,
            session_providers=optimized.session_providers,
            # What another provider refuses is a finding of its own, not something that could not be checked.
            provider_error=optimized.missing.get("assigned", ""),
            assigned=optimized.assigned or (),
            missing=_tell_missing(graphs, optimized),
        )


def _tell_run(message: str, sizes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    if not message:
        return {}
    fed = ", ".join(f"{name} {format_shape(shape) or 'of one number'}" for name, shape in sizes.items())
    cause = shorten(message.split("Status Message: ")[-1], 150)
    return {"run_ns": f"it does not run with {fed} ({cause}); give sizes with --shape or data with --inputs"}


def _read_written(optimized: Optimized, level: str) -> Graph | None:
    path = optimized.graphs.get(level)
    return read_graph(path) if path is not None else None


def _tell_missing(graphs: Graphs, optimized: Optimized) -> dict[str, str]:
    """Return why something is not known, by attribute of `Graphs`."""
    unwritten = optimized.missing.get("graphs", "")
    return {
        **graphs.missing,
        **_tell_run(optimized.missing.get("run_ns", ""), graphs.sizes),
        "extended": f"the optimised graph cannot be written: {unwritten}",
        "optimized": f"the optimised graph cannot be written: {unwritten}",
        "creation_ns": "the model does not load without optimisation, or not twice",
    }
