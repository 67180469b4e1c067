"""Checks of the file and of session creation."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from ortune.doctor.checks.text import format_bytes, list_ops, plural, shorten, tool_command
from ortune.doctor.facts import ModelFacts
from ortune.doctor.findings import DoctorFinding, advise, ok, warn
from ortune.doctor.optimized_graph import DEFAULT_LEVEL, UNOPTIMIZED_LEVEL

LOAD_FIXES = (
    (
        r"not a registered function|No Op registered|No opset import|[Cc]ustom",
        "Register the library that contains the operator: SessionOptions.register_custom_ops_library(path)",
    ),
    (
        r"Could not find an implementation|NOT_IMPLEMENTED",
        "ONNX Runtime has the operator, but not for these data types. Cast its inputs to float32, or export the model "
        "with other types",
    ),
    (
        r"IR version|under development|opset",
        "The file is newer than the installed onnxruntime. Upgrade onnxruntime, or convert the model with "
        "onnx.version_converter",
    ),
    (
        r"external data|External data|initializer.*file|No such file",
        "Put the external data files next to the model, under the names that they were saved with",
    ),
    (r"bad_alloc|memory ran out", "Free some memory, or raise the memory limit of the container"),
)
"""Patterns of ONNX Runtime's messages, with their fixes; the first match counts."""


def check_package(facts: ModelFacts) -> DoctorFinding | None:
    """Find several packages of onnxruntime, which overwrite each other."""
    if not facts.packages:
        return None
    names = [package.name for package in facts.packages]
    if len(names) == 1:
        return ok(f"{names[0]} {facts.packages[0].version}")
    return warn(
        f"{', '.join(names[:-1])} and {names[-1]} are installed, and overwrite each other's files",
        "Providers of one of them may be missing or fail, and uninstalling one breaks the other",
        "Uninstall all of them, then install one",
        f"pip uninstall {' '.join(names)}",
    )


def check_loading(facts: ModelFacts) -> DoctorFinding:
    """Find models that ONNX Runtime cannot load."""
    if not facts.load_error:
        return ok("ONNX Runtime loads the model")
    if facts.load_error.kind == "timeout":
        return warn(
            f"ONNX Runtime did not load the model: {facts.load_error.message}",
            "Whether it can be loaded is not known",
            "Try again on a host with more free memory and less other work",
        )
    message = facts.load_error.message
    fix = next((fix for pattern, fix in LOAD_FIXES if re.search(pattern, message)), "")
    program = f"import onnx; onnx.checker.check_model({facts.path!r}, full_check=True)"
    return warn(
        "ONNX Runtime cannot load the model",
        f"ONNX Runtime reports: {shorten(message)}",
        fix or "Check the file with onnx.checker",
        "" if fix else f"python -P -c {shlex.quote(program)}",
    )


def check_external_data(facts: ModelFacts) -> DoctorFinding:
    """Find external data files that are missing or incomplete."""
    files = facts.original.data_files
    if not files:
        return ok("all data is in the ONNX file")
    bad = [file for file in files if file.found_bytes is None or file.found_bytes < file.needed_bytes]
    if not bad:
        return ok(f"{plural(len(files), 'external file')}, all present")
    first = bad[0]
    needed = f"at least {format_bytes(first.needed_bytes)}" if first.needed_bytes else ""
    if first.found_bytes is None:
        state = f"{first.name} {f'({needed}) ' if needed else ''}is missing"
    else:
        state = f"{first.name} has only {format_bytes(first.found_bytes)} instead of {needed}"
    others = f", and {plural(len(bad) - 1, 'other file')}" if len(bad) > 1 else ""
    return warn(
        state + others,
        "Weights outside of the ONNX file are found by file name, relative to the model",
        "Copy the model again with all of its files, and do not rename them",
    )


KNOWN_DOMAINS = frozenset(
    {
        "",
        "ai.onnx.ml",
        "ai.onnx.training",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.ms.internal.nhwc",
        "com.microsoft.experimental",
        "org.pytorch.aten",
    }
)
"""Domains of ONNX Runtime's own operators; not every build has all of them."""

EXTENSIONS = frozenset({"ai.onnx.contrib", "com.microsoft.extensions"})
"""Domains of onnxruntime-extensions."""


def check_operators(facts: ModelFacts) -> DoctorFinding:
    """Find custom and unknown operators."""
    graph = facts.original
    own = set(graph.functions)
    custom = [
        node for node in graph.nodes if node.domain not in KNOWN_DOMAINS and f"{node.domain}:{node.op}" not in own
    ]
    # ONNX Runtime registers some of its own operators under ONNX's domain; they are no fault if the model loads.
    unknown = [node for node in graph.nodes if f"{node.domain}:{node.op}" in graph.unregistered]
    if custom:
        domains = sorted({node.domain for node in custom})
        extensions = all(node.domain in EXTENSIONS for node in custom)
        return warn(
            f"{list_ops(custom)}: custom operators of the domain{'s' if len(domains) > 1 else ''} {', '.join(domains)}",
            "ONNX Runtime cannot load the model without the library that contains them, and does not fuse across them",
            "Install onnxruntime-extensions and register its library"
            if extensions
            else "Register the library that contains them",
            "options.register_custom_ops_library("
            + ("onnxruntime_extensions.get_library_path())" if extensions else "path)"),
        )
    if unknown and facts.load_error:
        return warn(
            f"{list_ops(unknown)}: no such operator in opset {graph.opsets.get('', 0)} of ONNX",
            "ONNX Runtime rejects a model with an unknown operator",
            "Export the model for an opset that has the operator, or register a library that contains it",
        )
    return ok("all operators are standard or ONNX Runtime's own")


OLDEST_OPSET = 7
"""ONNX Runtime guarantees to run models from this opset on."""

OLD_OPSET = 13
NEW_OPSET = 17

GAINS_FROM_OPSET = frozenset({"DequantizeLinear", "Erf", "QuantizeLinear", "ReduceMean", "Softmax"})
"""Operators for which newer opsets have better alternatives: in quantization, GELU, normalization and attention."""


def check_opset(facts: ModelFacts) -> DoctorFinding:
    """Find opsets before 13 in models that gain from a newer one, and opsets before 7."""
    graph = facts.original
    opset = graph.opsets.get("", 0)
    if not any(node.domain == "" for node in graph.nodes) or opset >= OLD_OPSET:
        return ok(f"opset {opset}, IR version {graph.ir_version}")
    gains = [node for node in graph.nodes if node.op in GAINS_FROM_OPSET]
    # A softmax at the end of a classifier gains nothing.
    if opset >= OLDEST_OPSET and len(gains) < 2:
        return ok(f"opset {opset} is old but sufficient; per-channel quantization needs {OLD_OPSET}")
    return advise(
        f"opset {opset} is old, and the model has {list_ops(gains)}" if gains else f"opset {opset} is old",
        "Per-channel quantization needs opset 13, the operator LayerNormalization 17, and Gelu 20. ONNX Runtime's "
        "newer fusions look for these",
        "Export the model again, or convert it, and compare the outputs",
        tool_command(facts, "tools.update_onnx_opset", f"opset{NEW_OPSET}", f"--opset {NEW_OPSET}", named=False),
    )


SLOW_CREATION_NS = 500_000_000


def check_creation(facts: ModelFacts) -> DoctorFinding:
    """Find models whose sessions take 0.5 s or more to create, at least half of it for graph optimization."""
    assert facts.creation_ns is not None
    total, plain = facts.creation_ns[DEFAULT_LEVEL], facts.creation_ns[UNOPTIMIZED_LEVEL]
    if total < SLOW_CREATION_NS or total < 2 * plain:
        return ok(f"session creation takes {total / 1e6:.0f} ms")
    target = str(Path(facts.path).with_suffix(".optimized.onnx"))
    return advise(
        f"session creation takes {total / 1e9:.1f} s, {(total - plain) / 1e9:.1f} s of it for graph optimization",
        "The optimization is repeated at each start of the process",
        "Save the optimized model once, on the same kind of host that runs it, and load it with ORT_DISABLE_ALL",
        f"options.optimized_model_filepath = {target!r}",
    )
