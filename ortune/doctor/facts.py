"""What is known of a model: the input of all checks."""

from __future__ import annotations

import msgspec

from ortune.doctor.optimized_graph import AssignedNode
from ortune.model.graph import Graph
from ortune.worker import Failure
from ortune.worker.installed import RuntimePackage


class Missing(msgspec.Struct, frozen=True):
    """Why a fact is not known.

    Attributes:
        why: The cause; may refer to options as `{option}`.
        fix: What the user can do about it; may refer to options as `{option}`, and may be empty.
    """

    why: str
    fix: str = ""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model, from its file and from ONNX Runtime.

    Attributes:
        path: The ONNX file, as the user wrote it.
        packages: The installed packages that contain onnxruntime; empty for a build without metadata.
        original: The graph in the file.
        extended: The graph after optimization at level ORT_ENABLE_EXTENDED, without layouts for this CPU; or None.
        optimized: The graph after optimization at the default level, ORT_ENABLE_ALL; or None.
        load_error: Why ONNX Runtime cannot load the model, or None.
        creation_ns: Time to create a session, by optimization level (ORT_DISABLE_ALL and ORT_ENABLE_ALL); or None.
        run_ns: Median time of a run, by optimization level (ORT_ENABLE_EXTENDED and ORT_ENABLE_ALL); or None.
        input_shapes: Shape of each input in that run.
        guessed: Inputs of which a size was guessed.
        providers: Execution providers besides the CPU's: those that the user named, else those that work here.
        providers_named: Whether the user named them.
        session_providers: Those that the session actually uses, or None.
        provider_error: ONNX Runtime's message if no session can be created with them, else empty.
        assigned: Where each node was placed, or None; empty if only the CPU provider is used.
        missing: Why a fact is None, by attribute.
    """

    path: str
    original: Graph
    packages: tuple[RuntimePackage, ...] = ()
    extended: Graph | None = None
    optimized: Graph | None = None
    load_error: Failure | None = None
    creation_ns: dict[str, int] | None = None
    run_ns: dict[str, int] | None = None
    input_shapes: dict[str, tuple[int, ...]] = {}
    guessed: frozenset[str] = frozenset()
    providers: tuple[str, ...] = ()
    providers_named: bool = False
    session_providers: tuple[str, ...] | None = None
    provider_error: str = ""
    assigned: tuple[AssignedNode, ...] | None = None
    missing: dict[str, Missing] = {}

    @property
    def dtypes(self) -> dict[str, str] | None:
        """Element types of the values of the original graph, or None."""
        return None if self.original.no_dtypes else self.original.dtypes
