"""genai_config.json of onnxruntime-genai: session and run options of the decoder.

Source: src/config.cpp of onnxruntime-genai.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortune.errors import UsageError
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU
from ortune.record.schema import tried_by

OPTIONS = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
)
LEVELS = frozenset({"ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"})

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
"""Names that onnxruntime-genai knows; at any other it stops."""

PARTS = ("decoder", "encoder", "embedding", "vision", "speech")
"""Parts of a model that have session options of their own."""


def write(job: Job) -> str:
    """Return the document: the existing one with tuned options, or one that holds nothing else.

    In an existing document, the options go to the part whose file name is that of the model, else to the decoder.

    Raises:
        UsageError: The existing document cannot be read.
    """
    document = _read(job.output)
    parts = _object(document, "model", job.output)
    name = next(
        (
            each
            for each in PARTS
            if isinstance(parts.get(each), dict) and parts[each].get("filename") == Path(job.model).name
        ),
        "decoder",
    )
    part = _object(parts, name, job.output)
    options, run_options = _options(job)
    tried = tried_by(job.record)
    replaced = {*tried["options"], *tried["entries"], "provider_options"}
    before = {key: value for key, value in _object(part, "session_options", job.output).items() if key not in replaced}
    part["session_options"] = {**before, **options}
    if run_options:
        part["run_options"] = {**_object(part, "run_options", job.output), **run_options}
    return json.dumps(document, indent=2, ensure_ascii=False)


def _object(parent: dict[str, Any], name: str, path: Path | None) -> dict[str, Any]:
    """Return an object of the document, which is made where there is none.

    Raises:
        UsageError: There is something else in its place.
    """
    if parent.get(name) is None:
        parent[name] = {}
    found = parent[name]
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {name} is no object.", "Name a genai_config.json with -o.")
    return found


def _options(job: Job) -> tuple[dict[str, Any], dict[str, str]]:
    sheet = job.sheet
    options: dict[str, Any] = {}
    for name in OPTIONS:
        if (value := sheet.take_option(name)) is not None:
            options[name] = value
    level = sheet.take_option("graph_optimization_level")
    if level in LEVELS:
        options["graph_optimization_level"] = level
    elif level is not None:
        sheet.leave("graph_optimization_level", level, "genai_config.json has no such level")
    options |= sheet.take_entries()
    providers = []
    for name, own in sheet.take_providers():
        if name in PROVIDERS:
            providers.append({PROVIDERS[name]: own})
        elif name != CPU:
            sheet.leave_provider(name, "onnxruntime-genai does not have it")
    options["provider_options"] = providers
    for name in sheet.config.settings:
        sheet.explain(name, "genai_config.json has no key for it")
    return options, sheet.take_run_entries()


def _read(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is there, and cannot be read as JSON: {error}.", "Name another file.") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} is there, and is no genai_config.json.", "Name another file.")
    return document


TARGET = Target(
    name="genai",
    summary="genai_config.json of onnxruntime-genai, new or added to an existing one",
    write=write,
    comment="",
    merges=True,
)
