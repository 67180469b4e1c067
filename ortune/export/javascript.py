"""JavaScript code for onnxruntime-node.

Source: js/node/src/session_options_helper.cc of onnxruntime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ortune.errors import RecordError
from ortune.export.checks import read_number
from ortune.export.literals import JAVASCRIPT, format_json
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, alias_of

KEYS = {
    "intra_op_num_threads": "intraOpNumThreads",
    "inter_op_num_threads": "interOpNumThreads",
    "execution_mode": "executionMode",
    "graph_optimization_level": "graphOptimizationLevel",
    "enable_cpu_mem_arena": "enableCpuMemArena",
    "enable_mem_pattern": "enableMemPattern",
    "optimized_model_filepath": "optimizedModelFilePath",
    "logid": "logId",
    "log_severity_level": "logSeverityLevel",
}

VALUES = {
    "ORT_DISABLE_ALL": "disabled",
    "ORT_ENABLE_BASIC": "basic",
    "ORT_ENABLE_EXTENDED": "extended",
    "ORT_ENABLE_LAYOUT": "layout",
    "ORT_ENABLE_ALL": "all",
    "ORT_SEQUENTIAL": "sequential",
    "ORT_PARALLEL": "parallel",
}

PROVIDERS = {
    CPU: "cpu",
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "tensorrt",
    "DmlExecutionProvider": "dml",
    "CoreMLExecutionProvider": "coreml",
    "WebGpuExecutionProvider": "webgpu",
    "QNNExecutionProvider": "qnn",
}

Kind = Literal["text", "boolean", "number", "lines"]

DEVICE_ID: Mapping[str, tuple[str, Kind]] = {"device_id": ("deviceId", "number")}

PROVIDER_OPTIONS: Mapping[str, Mapping[str, tuple[str, Kind]]] = {
    "CUDAExecutionProvider": DEVICE_ID,
    "TensorrtExecutionProvider": DEVICE_ID,
    "DmlExecutionProvider": DEVICE_ID,
    "WebGpuExecutionProvider": {
        "preferredLayout": ("preferredLayout", "text"),
        "validationMode": ("validationMode", "text"),
        "storageBufferCacheMode": ("storageBufferCacheMode", "text"),
        "uniformBufferCacheMode": ("uniformBufferCacheMode", "text"),
        "queryResolveBufferCacheMode": ("queryResolveBufferCacheMode", "text"),
        "defaultBufferCacheMode": ("defaultBufferCacheMode", "text"),
        "enableRobustness": ("enableRobustness", "boolean"),
        "forceCpuNodeNames": ("forceCpuNodeNames", "lines"),
    },
    "QNNExecutionProvider": {
        "backend_type": ("backendType", "text"),
        "backend_path": ("backendPath", "text"),
        "enable_htp_fp16_precision": ("enableFp16Precision", "boolean"),
    },
}
"""Options of providers, each with its name and kind in JavaScript. WebGPU fails with any other, and others are ignored.

WebGPU has more of them after 1.30.
"""

BOOLEANS = {"1": True, "True": True, "true": True, "0": False, "False": False, "false": False}


def write(job: Job) -> str:
    """Return the code."""
    lines = [
        *job.environment_comments("//"),
        'const ort = require("onnxruntime-node");',
        "",
        f"const options = {format_json(take_session_options(job, 'onnxruntime-node'))};",
        "",
        "async function createSession() {",
        f"  return ort.InferenceSession.create({JAVASCRIPT.quote(job.model)}, options);",
        "}",
    ]
    lines += job.session_comments("//", JAVASCRIPT, "only, in options.extra: {name}: {value}")
    return "\n".join(lines)


def take_session_options(job: Job, consumer: str) -> dict[str, Any]:
    """Return the options of `InferenceSession.create` of onnxruntime-node, as JSON values.

    Args:
        job: The export.
        consumer: What takes the options, for messages.
    """
    pending = job.pending
    options: dict[str, Any] = {}
    for name, key in KEYS.items():
        value = pending.take_option(name)
        if value is not None:
            options[key] = VALUES.get(value, value) if isinstance(value, str) else value
    providers: list[Any] = []
    for provider, own in pending.take_providers():
        if provider not in PROVIDERS:
            pending.put_back_provider(provider, f"{consumer} does not have this provider")
            continue
        name = PROVIDERS[provider]
        taken = _convert_provider_options(provider, own)
        reason = f"{consumer} does not have this option of the provider, or this value"
        pending.put_back_provider_options(provider, reason, supported=taken)
        keys = {PROVIDER_OPTIONS[provider][option][0]: value for option, value in taken.items()}
        providers.append({"name": name, **keys} if keys else name)
    options["executionProviders"] = providers
    if entries := pending.take_entries():
        options["extra"] = nest_entries(entries, consumer)
    return options


def _convert_provider_options(provider: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that onnxruntime-node takes, with their values as JSON values.

    Raises:
        RecordError: A value is not a number.
    """
    converted: dict[str, Any] = {}
    for option, (_, kind) in PROVIDER_OPTIONS.get(provider, {}).items():
        text = options.get(option)
        if text is None or (kind == "boolean" and text not in BOOLEANS):
            continue
        if kind == "number":
            converted[option] = read_number(f"{alias_of(provider)}.{option}", text)
        elif kind == "boolean":
            converted[option] = BOOLEANS[text]
        else:
            converted[option] = text.split("\n") if kind == "lines" else text
    return converted


def nest_entries(entries: dict[str, str], consumer: str) -> dict[str, Any]:
    """Return entries as nested objects, one for each part of their names.

    Args:
        entries: Configuration entries.
        consumer: What takes them, for the message.

    Raises:
        RecordError: A name is the beginning of another name.
    """
    for name, text in entries.items():
        if other := next((entry for entry in entries if entry.startswith(f"{name}.")), None):
            raise RecordError(
                f"{name}={text}: {consumer} cannot have this entry together with {other}.",
                "Remove one of them from the record.",
            )
    nested: dict[str, Any] = {}
    for name, text in entries.items():
        parent = nested
        *parts, last = name.split(".")
        for part in parts:
            parent = parent.setdefault(part, {})
        parent[last] = text
    return nested


TARGET = Target(name="javascript", summary="JavaScript code for onnxruntime-node", write=write, comment="//")
