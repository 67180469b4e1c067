"""Swift code for ONNX Runtime's Objective-C API, on iOS and macOS.

Source: objectivec/include of https://github.com/microsoft/onnxruntime. Swift's names follow from those of Objective-C.
"""

from __future__ import annotations

from ortune.export.literals import LOGGING_LEVELS, SWIFT
from ortune.export.pending_settings import Value
from ortune.export.provider_names import BY_NAME
from ortune.export.target import Job, Target
from ortune.knobs import ids
from ortune.knobs.config import CPU, Provider

LEVELS = {
    "ORT_DISABLE_ALL": "none",
    "ORT_ENABLE_BASIC": "basic",
    "ORT_ENABLE_EXTENDED": "extended",
    "ORT_ENABLE_ALL": "all",
}

SETTERS = {
    "intra_op_num_threads": "setIntraOpNumThreads",
    "graph_optimization_level": "setGraphOptimizationLevel",
    "optimized_model_filepath": "setOptimizedModelFilePath",
    "logid": "setLogID",
    "log_severity_level": "setLogSeverityLevel",
}

BY_A_NAME = ("XnnpackExecutionProvider", "WebGpuExecutionProvider")
"""Providers of builds for these systems that are added by a name."""


def write(job: Job) -> str:
    """Return the code; most of its calls throw an error."""
    pending = job.pending
    no_method = "the Objective-C API does not support it"
    for name in (*pending.config.session_options, ids.GLOBAL_THREAD_POOL):
        pending.explain(name, no_method)
    for name in (*pending.config.environment, ids.ALLOCATOR):
        pending.explain(name, "apps are started without it")
    lines = [
        "import onnxruntime_objc  // with the Swift Package Manager: import OnnxRuntimeBindings",
        "",
        "let environment = try ORTEnv(loggingLevel: .warning)",
        "let options = try ORTSessionOptions()",
    ]
    for name, value in pending.take_options(SETTERS).items():
        if name == "graph_optimization_level" and value not in LEVELS:
            pending.put_back(name, "the Objective-C API does not have this level")
        elif name == "log_severity_level" and value not in LOGGING_LEVELS:
            pending.put_back(name)
        else:
            lines.append(f"try options.{SETTERS[name]}({_argument(name, value)})")
    lines += [
        f"try options.addConfigEntry(withKey: {SWIFT.quote(name)}, value: {SWIFT.quote(value)})"
        for name, value in pending.take_entries().items()
    ]
    for provider in pending.take_providers():
        lines += _provider_lines(job, provider)
    model = SWIFT.quote(job.model)
    lines.append(f"let session = try ORTSession(env: environment, modelPath: {model}, sessionOptions: options)")
    lines += job.session_comments("//", SWIFT, "only: try options.addConfigEntry(withKey: {name}, value: {value})")
    if run_entries := pending.take_run_entries():
        lines.append("let runOptions = try ORTRunOptions()  // pass it to session.run")
        lines += [
            f"try runOptions.addConfigEntry(withKey: {SWIFT.quote(name)}, value: {SWIFT.quote(value)})"
            for name, value in run_entries.items()
        ]
    return "\n".join(lines)


def _argument(name: str, value: Value) -> str:
    if name == "graph_optimization_level":
        return f"ORTGraphOptimizationLevel.{LEVELS[str(value)]}"
    if name == "log_severity_level":
        return f"ORTLoggingLevel.{LOGGING_LEVELS[value].removeprefix('ORT_LOGGING_LEVEL_').lower()}"
    return SWIFT.literal(value)


def _provider_lines(job: Job, provider: Provider) -> list[str]:
    name, options = provider
    values = f"[{SWIFT.join_pairs(options, '{name}: {value}') or ':'}]"
    if name == CPU:
        return []
    if name == "CoreMLExecutionProvider":
        return [f"try options.appendCoreMLExecutionProvider(withOptionsV2: {values})"]
    if name in BY_A_NAME:
        return [f"try options.appendExecutionProvider({SWIFT.quote(BY_NAME[name])}, providerOptions: {values})"]
    job.pending.put_back_provider(name, "this provider is not available on iOS and macOS")
    return []


TARGET = Target(name="swift", summary="Swift code for onnxruntime-objc, on iOS and macOS", write=write, comment="//")
