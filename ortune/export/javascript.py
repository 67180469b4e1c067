"""JavaScript code for onnxruntime-node.

Source: js/node/src/session_options_helper.cc of onnxruntime.
"""

from __future__ import annotations

import json
from typing import Any

from ortune.export.literals import literal
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

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


def write(job: Job) -> str:
    """Return the code."""
    lines = [
        *job.environment_comments("//"),
        'const ort = require("onnxruntime-node");',
        "",
        f"const options = {json.dumps(_session_options(job), indent=2, ensure_ascii=False)};",
        "",
        "async function createSession() {",
        f"  return ort.InferenceSession.create({literal(job.model)}, options);",
        "}",
    ]
    lines += job.session_comments("// For session {number} only, in options.extra: {name}: {value}")
    return "\n".join(lines)


def _session_options(job: Job) -> dict[str, Any]:
    """Return the options of `InferenceSession.create`, as JSON values."""
    pending = job.pending
    options: dict[str, Any] = {}
    for name, key in KEYS.items():
        value = pending.take_option(name)
        if value is not None:
            options[key] = VALUES.get(value, value) if isinstance(value, str) else value
    providers: list[Any] = []
    for provider, own in pending.take_providers():
        if provider not in PROVIDERS:
            pending.put_back_provider(provider, "onnxruntime-node does not have this provider")
            continue
        name, reason = PROVIDERS[provider], "onnxruntime-node takes only the device id of this provider"
        pending.put_back_provider_options(provider, reason, supported={"device_id"})
        providers.append({"name": name, "deviceId": int(own["device_id"])} if "device_id" in own else name)
    options["executionProviders"] = providers
    extra: dict[str, Any] = {}
    for name, text in pending.take_entries().items():
        parent = extra
        *parts, last = name.split(".")
        for part in parts:
            parent = parent.setdefault(part, {})
        parent[last] = text
    if extra:
        options["extra"] = extra
    return options


TARGET = Target(name="javascript", summary="JavaScript code for onnxruntime-node", write=write, comment="//")
