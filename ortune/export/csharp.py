"""C# code for Microsoft.ML.OnnxRuntime.

Source: csharp/src/Microsoft.ML.OnnxRuntime of onnxruntime 1.29.
"""

from __future__ import annotations

from ortune.export.checks import read_number
from ortune.export.literals import CSHARP, LAYOUT, LEVEL_NUMBERS, LOGGING_LEVELS
from ortune.export.provider_names import BY_NAME, PLUGIN_LIBRARY, describe_library, is_plugin
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Plugin, Provider

PROPERTIES = {
    "intra_op_num_threads": "IntraOpNumThreads",
    "inter_op_num_threads": "InterOpNumThreads",
    "execution_mode": "ExecutionMode",
    "graph_optimization_level": "GraphOptimizationLevel",
    "enable_cpu_mem_arena": "EnableCpuMemArena",
    "enable_mem_pattern": "EnableMemoryPattern",
    "optimized_model_filepath": "OptimizedModelFilePath",
    "logid": "LogId",
    "log_severity_level": "LogSeverityLevel",
    "log_verbosity_level": "LogVerbosityLevel",
    "profile_file_prefix": "ProfileOutputPathPrefix",
    "enable_profiling": "EnableProfiling",
}

TYPES = {"execution_mode": "ExecutionMode", "graph_optimization_level": "GraphOptimizationLevel"}

STRUCTURES = {
    "CUDAExecutionProvider": ("OrtCUDAProviderOptions", "AppendExecutionProvider_CUDA"),
    "TensorrtExecutionProvider": ("OrtTensorRTProviderOptions", "AppendExecutionProvider_Tensorrt"),
    "ROCMExecutionProvider": ("OrtROCMProviderOptions", "AppendExecutionProvider_ROCm"),
}
"""Class of the options, and the method that adds them, for providers that have such a class."""

DIRECTML = "DmlExecutionProvider"

DICTIONARY = "new Dictionary<string, string>"


def write(job: Job) -> str:
    """Return the code."""
    pending = job.pending
    environment = job.environment_comments("//")
    usings = ["using Microsoft.ML.OnnxRuntime;"]
    lines = []
    pool = pending.take_global_pool()
    if pool:
        lines += [
            "// Once per process, before any other call of ONNX Runtime.",
            "var threads = new OrtThreadingOptions {",
            f"    GlobalIntraOpNumThreads = {pool.intra_op_num_threads},",
            f"    GlobalInterOpNumThreads = {pool.inter_op_num_threads},",
            "};",
            "var environment = new EnvironmentCreationOptions { threadOptions = threads };",
            "OrtEnv.CreateInstanceWithOptions(ref environment);",
            "",
        ]
    lines.append("var options = new SessionOptions();")
    if pool:
        lines.append("options.DisablePerSessionThreads();")
    lines += _option_lines(job)
    lines += CSHARP.call_lines("options.AddSessionConfigEntry", pending.take_entries())
    plugins = pending.take_plugins()
    provider_lines = [
        line for provider in pending.take_providers(registers=True) for line in _provider_lines(job, provider)
    ]
    lines += provider_lines
    if any(is_plugin(name, plugins) for name, _ in pending.config.providers):
        usings.insert(0, "using System.Linq;")
    if any(DICTIONARY in line for line in provider_lines):
        usings.insert(0, "using System.Collections.Generic;")
    lines.append(f"var session = new InferenceSession({CSHARP.quote(job.model)}, options);")
    lines += job.session_comments("//", CSHARP, "only: options.AddSessionConfigEntry({name}, {value});")
    if run_entries := pending.take_run_entries():
        lines.append("var runOptions = new RunOptions();  // pass it to session.Run")
        lines += CSHARP.call_lines("runOptions.AddRunConfigEntry", run_entries)
    if pending.take_io_binding():
        lines.append(
            "var binding = session.CreateIoBinding();  // bind inputs and outputs, call session.RunWithBinding"
        )
    return "\n".join([*environment, *usings, "", *lines])


def _option_lines(job: Job) -> list[str]:
    lines = []
    for name, value in job.pending.take_options(PROPERTIES).items():
        text, note = CSHARP.literal(value), ""
        if name == "log_severity_level":
            if value not in LOGGING_LEVELS:
                job.pending.put_back(name)
                continue
            text = f"OrtLoggingLevel.{LOGGING_LEVELS[value]}"
        elif value == LAYOUT:
            # The enum has no member for this level, so write its number.
            text, note = f"(GraphOptimizationLevel){LEVEL_NUMBERS[LAYOUT]}", f"  // {LAYOUT}"
        elif name in TYPES:
            text = f"{TYPES[name]}.{value}"
        lines.append(f"options.{PROPERTIES[name]} = {text};{note}")
    return lines


def _provider_lines(job: Job, provider: Provider) -> list[str]:
    name, options = provider
    short = name.removesuffix("ExecutionProvider")
    dictionary = f"{DICTIONARY} {{ {CSHARP.join_pairs(options, '[{name}] = {value}')} }}"
    if name == CPU:
        return []
    plugins = job.pending.config.plugins
    if is_plugin(name, plugins):
        return _plugin_lines(name, dictionary, plugins.get(name))
    if name in STRUCTURES:
        kind, append = STRUCTURES[name]
        lines = [f"var {short.lower()} = new {kind}();"]
        if options:
            lines.append(f"{short.lower()}.UpdateOptions({dictionary});")
        return [*lines, f"options.{append}({short.lower()});"]
    if name == DIRECTML and not set(options) - {"device_id"}:
        device = read_number("dml.device_id", options.get("device_id", "0"))
        return [f"options.AppendExecutionProvider_DML({device});"]
    if name in BY_NAME:
        return [f"options.AppendExecutionProvider({CSHARP.quote(BY_NAME[name])}, {dictionary});"]
    job.pending.put_back_provider(name, "the C# API has no method for this provider")
    return []


def _plugin_lines(name: str, dictionary: str, plugin: Plugin | None) -> list[str]:
    """Return code that registers the library of a provider, and adds the provider for its first device."""
    quoted = CSHARP.quote(name)
    conditions = [f"device.EpName == {quoted}"]
    if plugin and plugin.device_type:
        conditions.append(f"device.HardwareDevice.Type == OrtHardwareDeviceType.{plugin.device_type.upper()}")
    if plugin and plugin.vendor:
        arguments = f"{CSHARP.quote(plugin.vendor)}, System.StringComparison.OrdinalIgnoreCase"
        conditions.append(f"device.HardwareDevice.Vendor.Equals({arguments})")
    return [
        f"// Once per process; {describe_library(plugin)}.",
        f"OrtEnv.Instance().RegisterExecutionProviderLibrary({quoted}, {CSHARP.quote(PLUGIN_LIBRARY)});",
        "options.AppendExecutionProvider(",
        "    OrtEnv.Instance(),",
        f"    OrtEnv.Instance().GetEpDevices().Where(device => {' && '.join(conditions)}).Take(1).ToList(),",
        f"    {dictionary});",
    ]


TARGET = Target(name="csharp", summary="C# code for Microsoft.ML.OnnxRuntime", write=write, comment="//")
