"""Java code for ai.onnxruntime.

Source: java/src/main/java/ai/onnxruntime of onnxruntime 1.29.
"""

from __future__ import annotations

from collections.abc import Mapping

from ortune.export.checks import read_number
from ortune.export.literals import JAVA, LOGGING_LEVELS
from ortune.export.pending_settings import Value
from ortune.export.provider_names import PLUGIN_LIBRARY, is_plugin
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Provider

LEVELS = {
    "ORT_DISABLE_ALL": "NO_OPT",
    "ORT_ENABLE_BASIC": "BASIC_OPT",
    "ORT_ENABLE_EXTENDED": "EXTENDED_OPT",
    "ORT_ENABLE_LAYOUT": "LAYOUT_OPT",
    "ORT_ENABLE_ALL": "ALL_OPT",
}
MODES = {"ORT_SEQUENTIAL": "SEQUENTIAL", "ORT_PARALLEL": "PARALLEL"}

SETTERS = {
    "intra_op_num_threads": "setIntraOpNumThreads",
    "inter_op_num_threads": "setInterOpNumThreads",
    "execution_mode": "setExecutionMode",
    "graph_optimization_level": "setOptimizationLevel",
    "enable_cpu_mem_arena": "setCPUArenaAllocator",
    "enable_mem_pattern": "setMemoryPatternOptimization",
    "use_deterministic_compute": "setDeterministicCompute",
    "optimized_model_filepath": "setOptimizedModelFilePath",
    "logid": "setLoggerId",
    "log_severity_level": "setSessionLogLevel",
    "log_verbosity_level": "setSessionLogVerbosityLevel",
}

WITH_MAP = {
    "XnnpackExecutionProvider": "addXnnpack",
    "QNNExecutionProvider": "addQnn",
    "CoreMLExecutionProvider": "addCoreML",
    "WebGpuExecutionProvider": "addWebGPU",
}
"""Methods that add a provider with its options as a map."""

WITH_DEVICE = {"DmlExecutionProvider": "addDirectML", "ROCMExecutionProvider": "addROCM"}
"""Methods that add a provider with the number of its device only."""

STRUCTURES = {
    "CUDAExecutionProvider": ("OrtCUDAProviderOptions", "addCUDA"),
    "TensorrtExecutionProvider": ("OrtTensorRTProviderOptions", "addTensorrt"),
}
"""Class of the options, and the method that adds them, for providers that have such a class."""


def write(job: Job) -> str:
    """Return the code; most of its calls throw OrtException."""
    pending = job.pending
    lines = job.environment_comments("//")
    lines.append("import ai.onnxruntime.*;")
    if any(name in STRUCTURES for name, _ in pending.config.providers):
        lines.append("import ai.onnxruntime.providers.*;")
    lines.append("")
    pool = pending.take_global_pool()
    if pool:
        lines += [
            "// Once per process, before any other environment is created.",
            "var threads = new OrtEnvironment.ThreadingOptions();",
            f"threads.setGlobalIntraOpNumThreads({pool.intra_op_num_threads});",
            f"threads.setGlobalInterOpNumThreads({pool.inter_op_num_threads});",
            "var environment = OrtEnvironment.getEnvironment(",
            '    OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING, "app", threads);',
            "",
        ]
    else:
        lines.append("var environment = OrtEnvironment.getEnvironment();")
    lines.append("var options = new OrtSession.SessionOptions();")
    if pool:
        lines.append("options.disablePerSessionThreads();")
    for name, value in pending.take_options(SETTERS).items():
        if name == "log_severity_level" and value not in LOGGING_LEVELS:
            pending.put_back(name)
        else:
            lines.append(f"options.{SETTERS[name]}({_argument(name, value)});")
    lines += JAVA.call_lines("options.addConfigEntry", pending.take_entries())
    for provider in pending.take_providers():
        lines += _provider_lines(job, provider)
    lines.append(f"var session = environment.createSession({JAVA.quote(job.model)}, options);")
    lines += job.session_comments("//", JAVA, "only: options.addConfigEntry({name}, {value});")
    if run_entries := pending.take_run_entries():
        lines.append("var runOptions = new OrtSession.RunOptions();  // pass it to session.run")
        lines += JAVA.call_lines("runOptions.addRunConfigEntry", run_entries)
    return "\n".join(lines)


def _argument(name: str, value: Value) -> str:
    if name == "execution_mode":
        return f"OrtSession.SessionOptions.ExecutionMode.{MODES[str(value)]}"
    if name == "graph_optimization_level":
        return f"OrtSession.SessionOptions.OptLevel.{LEVELS[str(value)]}"
    if name == "log_severity_level":
        return f"OrtLoggingLevel.{LOGGING_LEVELS[value]}"
    return JAVA.literal(value)


def _make_map(options: Mapping[str, str]) -> str:
    """Return an expression. Map.of takes at most ten pairs."""
    if len(options) <= 10:
        return f"java.util.Map.of({JAVA.join_pairs(options, '{name}, {value}')})"
    return f"java.util.Map.ofEntries({JAVA.join_pairs(options, 'java.util.Map.entry({name}, {value})')})"


def _provider_lines(job: Job, provider: Provider) -> list[str]:
    name, options = provider
    short = name.removesuffix("ExecutionProvider")
    if name == CPU:
        return []
    if name in STRUCTURES:
        kind, add = STRUCTURES[name]
        variable = short.lower()
        others = {option: value for option, value in options.items() if option != "device_id"}
        device = read_number(f"{variable}.device_id", options.get("device_id", "0"))
        return [
            f"var {variable} = new {kind}({device});",
            *JAVA.call_lines(f"{variable}.add", others),
            f"options.{add}({variable});",
        ]
    if name in WITH_MAP:
        return [f"options.{WITH_MAP[name]}({_make_map(options)});"]
    if name in WITH_DEVICE:
        reason = "the Java API takes only the device of this provider"
        job.pending.put_back_provider_options(name, reason, supported={"device_id"})
        device = read_number(f"{short.lower()}.device_id", options.get("device_id", "0"))
        return [f"options.{WITH_DEVICE[name]}({device});"]
    if is_plugin(name):
        quoted = JAVA.quote(name)
        return [
            "// Change the path.",
            f"environment.registerExecutionProviderLibrary({quoted}, {JAVA.quote(PLUGIN_LIBRARY)});",
            "options.addExecutionProvider(",
            f"    environment.getEpDevices().stream().filter(device -> device.getEpName().equals({quoted}))",
            "        .collect(java.util.stream.Collectors.toList()),",
            f"    {_make_map(options)});",
        ]
    if short == "OpenVINO":
        reason = "the Java API takes only the device type of this provider"
        job.pending.put_back_provider_options(name, reason, supported={"device_type"})
        return [f"options.addOpenVINO({JAVA.quote(options.get('device_type', 'CPU'))});"]
    job.pending.put_back_provider(name, "the Java API has no method for this provider")
    return []


TARGET = Target(name="java", summary="Java code for ai.onnxruntime", write=write, comment="//")
