"""genai_config.json of onnxruntime-genai: session and run options of one part of the model.

Source: src/config.cpp of onnxruntime-genai.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortune.errors import UsageError
from ortune.export.literals import LEVELS_WITHOUT_LAYOUT, format_json
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU
from ortune.limited import read_limited
from ortune.record.files import is_record

OPTIONS = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
)

MOST_BYTES = 1 << 20
"""Largest size of a genai_config.json that is read."""

PROVIDERS = {
    "CUDAExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "NvTensorRtRtx",
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "DmlExecutionProvider": "DML",
    "CoreMLExecutionProvider": "CoreML",
    "WebGpuExecutionProvider": "WebGPU",
    "MIGraphXExecutionProvider": "MIGraphX",
    "VitisAIExecutionProvider": "VitisAI",
    "XnnpackExecutionProvider": "XNNPACK",
    "AzureExecutionProvider": "AZURE",
}
"""Names that onnxruntime-genai knows. Any other name is an error there."""

PARTS = ("decoder", "encoder", "embedding", "vision", "speech")
"""Parts of a model that have their own session options."""


def write(job: Job) -> str:
    """Return the document: the existing one with the settings added, or a new one that holds only them.

    In an existing document, the settings go to the part with the model's file name, otherwise to the decoder.

    Raises:
        UsageError: The existing document cannot be read.
    """
    document = _read_document(job.output)
    parts = _open_object(document, "model", job.output)
    file_name = Path(job.model).name
    names = [name for name in PARTS if isinstance(parts.get(name), dict) and parts[name].get("filename") == file_name]
    part = _open_object(parts, names[0] if names else "decoder", job.output)
    existing = _open_object(part, "session_options", job.output)
    # The search did not try other options, so they stay.
    tried = job.record.tried
    replaced = {*tried.session_options, *tried.session_config, "provider_options"}
    kept = {key: value for key, value in existing.items() if key not in replaced}
    part["session_options"] = {**kept, **_take_session_options(job)}
    if run_entries := job.pending.take_run_entries():
        part["run_options"] = {**_open_object(part, "run_options", job.output), **run_entries}
    return format_json(document)


def _open_object(parent: dict[str, Any], name: str, path: Path | None) -> dict[str, Any]:
    """Return an object of the document, and create it if it is not there.

    Raises:
        UsageError: The value of this name is not an object.
    """
    if parent.get(name) is None:
        parent[name] = {}
    found = parent[name]
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {name} is not an object.", "Name a genai_config.json.", option="output")
    return found


def _take_session_options(job: Job) -> dict[str, Any]:
    pending = job.pending
    options: dict[str, Any] = {}
    for name in OPTIONS:
        if (value := pending.take_option(name)) is not None:
            options[name] = value
    level = pending.take_option("graph_optimization_level")
    if level in LEVELS_WITHOUT_LAYOUT:
        options["graph_optimization_level"] = level
    elif level is not None:
        pending.put_back("graph_optimization_level", "onnxruntime-genai does not have this level")
    for name, text in pending.take_entries().items():
        if "." in name:
            options[name] = text
        else:
            # onnxruntime-genai has keys of its own, such as a library to load. None has a dot.
            pending.put_back(name, "onnxruntime-genai could take it for an option of its own")
    providers = []
    for name, own in pending.take_providers():
        if name in PROVIDERS:
            providers.append({PROVIDERS[name]: own})
        elif name != CPU:
            pending.put_back_provider(name, "onnxruntime-genai does not have this provider")
    options["provider_options"] = providers
    return options


def _read_document(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    try:
        content = read_limited(path, MOST_BYTES)
        document = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: this file exists, and is not JSON: {error}.", "Name a genai_config.json.", option="output"
        ) from None
    if not isinstance(document, dict) or is_record(content):
        raise UsageError(f"{path}: this is not a genai_config.json.", "Name another file.", option="output")
    return document


TARGET = Target(
    name="genai",
    summary="genai_config.json of onnxruntime-genai, new or added to an existing one",
    write=write,
    comment="",
    merges=True,
)
