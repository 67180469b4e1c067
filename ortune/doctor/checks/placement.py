"""Checks of where nodes run: execution providers and CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ortune.doctor.checks.graph import FOLLOWS_SHAPE, SHAPE_OPS
from ortune.doctor.checks.text import list_ops, plural, shorten
from ortune.doctor.facts import ModelFacts
from ortune.doctor.findings import DoctorFinding, advise, ok, warn
from ortune.knobs.config import CUDA_BASED
from ortune.model.graph import Node
from ortune.model.info import CONTROL_FLOW

SHAPE_WORK = SHAPE_OPS | FOLLOWS_SHAPE | {"Constant", "Expand", "Identity", "NonZero", "Reshape", "Tile"}
"""Operators that ONNX Runtime leaves to the CPU on purpose: the sizes are needed there."""

FIXED_WORK = SHAPE_WORK - {"NonZero"}
"""Those whose outputs have the same size in each call."""

INSTALL_LIBRARIES = "Install the libraries that the provider needs, in the versions that its documentation names"


def check_providers(facts: ModelFacts) -> DoctorFinding | None:
    """Find providers that do not work."""
    if not facts.providers:
        return ok("only the CPU provider", "Check others with {provider}")
    report = warn if facts.providers_named else advise
    if facts.provider_error:
        return report(
            f"no session can be created with {name_providers(facts.providers)}",
            f"ONNX Runtime reports: {shorten(facts.provider_error)}",
            INSTALL_LIBRARIES,
        )
    if lacking := [name for name in facts.providers if name not in (facts.session_providers or ())]:
        state = "does not work here: the session runs without it"
        if len(lacking) > 1:
            state = "do not work here: the session runs without them"
        return report(
            f"{name_providers(lacking)} {state}",
            "If a provider cannot be loaded, ONNX Runtime only logs it and runs the model without it",
            INSTALL_LIBRARIES,
        )
    return None


def name_providers(providers: Sequence[str]) -> str:
    """Return providers as they are shown."""
    return ", ".join(name.removesuffix("ExecutionProvider") for name in providers)


def describe_idle(providers: Sequence[str], n_nodes: int) -> str:
    """Return that providers take no nodes."""
    return f"{name_providers(providers)} {'take' if len(providers) > 1 else 'takes'} none of {plural(n_nodes, 'node')}"


def list_used(facts: ModelFacts) -> list[str]:
    """Return the providers besides the CPU's that the session has, in order of preference."""
    return [name for name in facts.providers if name in (facts.session_providers or ())]


def check_placement(facts: ModelFacts) -> DoctorFinding | None:
    """Find nodes that the providers leave to the CPU."""
    used = list_used(facts)
    if not used:
        return None
    assert facts.assigned is not None
    report = warn if facts.providers_named else advise
    counts = Counter(node.provider for node in facts.assigned)
    cpu = [node for node in facts.assigned if node.provider == "CPUExecutionProvider"]
    n_nodes = len(facts.assigned)
    if n_nodes and len(cpu) == n_nodes:
        return report(
            f"{describe_idle(used, n_nodes)}: the model runs on the CPU",
            "The provider has no kernels for these operators and types, or does not expect to gain from running them",
            "Run the model on the CPU, or export it with types that the provider supports, such as float16 or float32",
        )
    working = [name for name in used if counts[name]]
    shares = " and ".join(f"{name_providers([name])} takes {counts[name]}" for name in working)
    # One that comes last may take nothing because all others take everything.
    before = used[: used.index(working[-1])] if working else []
    if idle := [name for name in before if not counts[name]]:
        return report(
            f"{describe_idle(idle, n_nodes)}; {shares}",
            "The provider has no kernels for these operators and types, or does not expect to gain from running them",
            "Leave it out, or export the model with operators and types that the provider supports",
        )
    work = [Node(op=node.op, domain=node.domain, name=node.name) for node in cpu if node.op not in SHAPE_WORK]
    if not work:
        shapes = "; the CPU computes shapes" if cpu else ""
        return ok(f"{shares or f'{name_providers(used)} takes 0'} of {n_nodes} nodes{shapes}")
    return advise(
        f"{len(cpu)} of {n_nodes} nodes run on the CPU instead of {name_providers(working or used)}: {list_ops(work)}",
        "Data is copied from and to the device around each of them",
        "Find out which nodes they are: with session.disable_cpu_ep_fallback, ONNX Runtime rejects such a model and "
        "names them",
        'options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")',
    )


def check_cuda_graphs(facts: ModelFacts) -> DoctorFinding | None:
    """Find what prevents CUDA graphs from being captured."""
    if not CUDA_BASED & set(facts.providers) & set(facts.session_providers or ()):
        return None
    if facts.assigned is None:
        return None  # the check of the placement says that it is not known
    obstacles = []
    graph = facts.optimized or facts.original
    if graph.select(*CONTROL_FLOW):
        obstacles.append("control flow")
    # Nodes that compute shapes on the CPU do not prevent capture, because shapes are fixed.
    if any(node.provider == "CPUExecutionProvider" and node.op not in FIXED_WORK for node in facts.assigned):
        obstacles.append("nodes on the CPU")
    if any(not info.dtype for info in facts.original.inputs):
        obstacles.append("inputs that are not tensors")
    if obstacles:
        return advise(
            f"CUDA graphs cannot be captured: {' and '.join(obstacles)}",
            "A captured graph is launched as a whole instead of kernel by kernel. This speeds up models with many "
            "small nodes",
            "If the model has many small nodes, remove what prevents the capture",
        )
    return ok("CUDA graphs can be captured, with IO binding and constant sizes (enable_cuda_graph)")
