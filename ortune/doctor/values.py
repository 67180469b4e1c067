"""What checks are given, and what they find."""

from __future__ import annotations

from typing import Literal

import msgspec

from ortune.doctor.optimize import Assigned
from ortune.model.graph import Graph

Severity = Literal["problem", "advice", "fine"]
"""A "problem" should be cured: the model does not load, or something is surely lost. "advice" is worth a try."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found.

    Attributes:
        check: Name of the check; whoever runs it fills it in.
        severity: How bad it is.
        what: What is the case, a sentence without a full stop.
        why: Why it matters; empty where all is fine.
        hint: What to do.
        command: A command, or a line of Python, that does it; empty where there is none.
    """

    check: str = ""
    severity: Severity
    what: str
    why: str = ""
    hint: str = ""
    command: str = ""


class Unchecked(msgspec.Struct, frozen=True, kw_only=True):
    """A check that could not be made, and why."""

    check: str
    why: str


class Graphs(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a model. What is None is not known; `missing` tells why.

    Attributes:
        path: The ONNX file, as the user wrote it.
        original: The graph in the file.
        extended: What ONNX Runtime makes of it without layouts for this very CPU (ORT_ENABLE_EXTENDED).
        optimized: What it makes of it by default (ORT_ENABLE_ALL).
        load_error: ONNX Runtime's message where it cannot load the model, else empty.
        creation_ns: Time to create a session without ("ORT_DISABLE_ALL") and with optimisation ("ORT_ENABLE_ALL").
        run_ns: Median time of a run, with layouts for this CPU ("ORT_ENABLE_ALL") and without.
        sizes: Shape of each input in that run.
        providers: Execution providers other than the CPU's that were asked for or are usable here.
        named: Whether the user asked for them.
        session_providers: Those that the session really got.
        provider_error: ONNX Runtime's message where no session can be created with them, else empty.
        assigned: Where each node was placed; empty where only the CPU is meant.
        missing: Why something is not known, by attribute.
    """

    path: str
    original: Graph
    extended: Graph | None = None
    optimized: Graph | None = None
    load_error: str = ""
    creation_ns: dict[str, int] | None = None
    run_ns: dict[str, int] | None = None
    sizes: dict[str, tuple[int, ...]] = {}
    providers: tuple[str, ...] = ()
    named: bool = False
    session_providers: tuple[str, ...] = ()
    provider_error: str = ""
    assigned: tuple[Assigned, ...] | None = None
    missing: dict[str, str] = {}


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """What all checks found.

    Attributes:
        model: The ONNX file.
        size_bytes: Its size, with the external data that is there.
        opset: Version of ONNX's own operators, 0 where there are none.
        n_nodes: Nodes in the file.
        n_optimized: Nodes that are left when ONNX Runtime has optimised it, or None.
        onnxruntime: Version that it was examined with.
        findings: What was found, the worst first.
        unchecked: What could not be checked.
    """

    model: str
    size_bytes: int
    opset: int
    n_nodes: int
    n_optimized: int | None
    onnxruntime: str
    findings: tuple[Finding, ...]
    unchecked: tuple[Unchecked, ...] = ()

    @property
    def has_problem(self) -> bool:
        """Whether there is anything that should be cured."""
        return any(finding.severity == "problem" for finding in self.findings)
