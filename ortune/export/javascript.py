"""JavaScript code for onnxruntime-node.

Source: js/node/src/session_options_helper.cc of onnxruntime.
"""

from __future__ import annotations

import json
from typing import Any

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


def session_options(job: Job) -> dict[str, Any]:
    """Return the options of `InferenceSession.create`, as plain as JSON."""
    sheet = job.sheet
    options: dict[str, Any] = {}
    for name, key in KEYS.items():
        value = sheet.take_option(name)
        if value is not None:
            options[key] = VALUES.get(value, value) if isinstance(value, str) else value
    providers: list[Any] = []
    for provider, own in sheet.take_providers():
        if provider not in PROVIDERS:
            sheet.leave_provider(provider, "onnxruntime-node does not have it")
            continue
        entry: dict[str, Any] = {"name": PROVIDERS[provider]}
        for option, value in own.items():
            if option == "device_id":
                entry["deviceId"] = int(value)
            else:
                sheet.leave(f"{alias_of(provider)}.{option}", value, "onnxruntime-node takes the device alone")
        providers.append(entry if len(entry) > 1 else entry["name"])
    options["executionProviders"] = providers
    extra: dict[str, Any] = {}
    for name, text in sheet.take_entries().items():
        place = extra
        *folders, last = name.split(".")
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = text
    if extra:
        options["extra"] = extra
    return options


def write(job: Job) -> str:
    """Return the code."""
    sheet = job.sheet
    before = job.environment_lines("//")
    options = json.dumps(session_options(job), indent=2)
    for name in sheet.config.settings:
        sheet.explain(name, "onnxruntime-node cannot set it")
    lines = [
        *before,
        "const ort = require('onnxruntime-node');",
        "",
        f"const options = {options};",
        "",
        "async function createSession() {",
        f"  return ort.InferenceSession.create({json.dumps(job.model)}, options);",
        "}",
    ]
    lines += job.session_lines("// in the options of session {number}: extra {name}: {value}")
    return "\n".join(lines)


TARGET = Target(name="javascript", summary="JavaScript code for onnxruntime-node", write=write, comment="//")
