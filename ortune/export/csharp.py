"""C# code for Microsoft.ML.OnnxRuntime."""

from __future__ import annotations

from ortune.export.literals import LOGGING_LEVELS, literal, pairs
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Provider, alias_of

PROPERTIES = {
    "intra_op_num_threads": "IntraOpNumThreads",
    "inter_op_num_threads": "InterOpNumThreads",
    "execution_mode": "ExecutionMode",
    "graph_optimization_level": "GraphOptimizationLevel",
    "enable_cpu_mem_arena": "EnableCpuMemArena",
    "enable_mem_pattern": "EnableMemoryPattern",
    "optimized_model_filepath": "OptimizedModelFilePath",
    "logid": "LogId",
    "log_verbosity_level": "LogVerbosityLevel",
    "profile_file_prefix": "ProfileOutputPathPrefix",
    "enable_profiling": "EnableProfiling",
}

TYPES = {"execution_mode": "ExecutionMode", "graph_optimization_level": "GraphOptimizationLevel"}

LAYOUT = "ORT_ENABLE_LAYOUT"

# Class of the options, and method that adds them, of the providers whose options can be set in C#.
STRUCTURES = {
    "CUDAExecutionProvider": ("OrtCUDAProviderOptions", "AppendExecutionProvider_CUDA"),
    "TensorrtExecutionProvider": ("OrtTensorRTProviderOptions", "AppendExecutionProvider_Tensorrt"),
}

NAMED = frozenset({"QNN", "SNPE", "XNNPACK", "CoreML", "AZURE"})
"""Providers that AppendExecutionProvider takes by name."""


def write(job: Job) -> str:
    """Return the code."""
    sheet = job.sheet
    lines = job.environment_lines("//")
    if any(options for _, options in sheet.config.providers):
        lines.append("using System.Collections.Generic;")
    lines += ["using Microsoft.ML.OnnxRuntime;", ""]
    pool = sheet.take_global_pool()
    if pool:
        lines += [
            "// once in a process, before anything else of onnxruntime",
            "var threads = new OrtThreadingOptions {",
            f"    GlobalIntraOpNumThreads = {pool.intra_op_num_threads},",
            f"    GlobalInterOpNumThreads = {pool.inter_op_num_threads},",
            "};",
            "var environment = new EnvironmentCreationOptions { threadOptions = threads };",
            "OrtEnv.CreateInstanceWithOptions(ref environment);",
        ]
    lines.append("var options = new SessionOptions();")
    if pool:
        lines.append("options.DisablePerSessionThreads();")
    lines += _option_lines(job)
    for provider in sheet.take_providers():
        lines += _provider_lines(job, provider)
    lines.append(f"var session = new InferenceSession({literal(job.model)}, options);")
    lines += job.session_lines("// in the options of session {number}: AddSessionConfigEntry({name}, {value});")
    for name, value in sheet.take_run_options().items():
        sheet.leave(name, value, "the C# API has no property for it")
    if run_entries := sheet.take_run_entries():
        lines.append("var runOptions = new RunOptions();  // pass it to session.Run")
        for name, text in run_entries.items():
            lines.append(f"runOptions.AddRunConfigEntry({literal(name)}, {literal(text)});")
    if sheet.take_io_binding():
        lines.append("var binding = session.CreateIoBinding();  // bind inputs and outputs, then RunWithBinding")
    return "\n".join(lines)


def _option_lines(job: Job) -> list[str]:
    sheet, lines = job.sheet, []
    for name, value in sheet.take_options().items():
        if name == "log_severity_level" and int(value) in range(len(LOGGING_LEVELS)):
            lines.append(f"options.LogSeverityLevel = OrtLoggingLevel.{LOGGING_LEVELS[int(value)]};")
        elif name not in PROPERTIES:
            sheet.leave(name, value, "the C# API has no property for it")
        elif value == LAYOUT:
            lines.append("options.GraphOptimizationLevel = (GraphOptimizationLevel)3;  // ORT_ENABLE_LAYOUT")
        else:
            text = f"{TYPES[name]}.{value}" if name in TYPES else literal(value)
            lines.append(f"options.{PROPERTIES[name]} = {text};")
    for name, text in sheet.take_entries().items():
        lines.append(f"options.AddSessionConfigEntry({literal(name)}, {literal(text)});")
    return lines


def _provider_lines(job: Job, provider: Provider) -> list[str]:
    name, options = provider
    short = name.removesuffix("ExecutionProvider")
    dictionary = f"new Dictionary<string, string> {{ {pairs(options, '[{name}] = {value}')} }}"
    if name == CPU:
        return []
    if name in STRUCTURES:
        kind, append = STRUCTURES[name]
        lines = [f"var {short.lower()} = new {kind}();"]
        if options:
            lines.append(f"{short.lower()}.UpdateOptions({dictionary});")
        return [*lines, f"options.{append}({short.lower()});"]
    if short in NAMED:
        return [f'options.AppendExecutionProvider("{short}", {dictionary});']
    for option, value in options.items():
        if (short, option) != ("OpenVINO", "device_type"):
            job.sheet.leave(f"{alias_of(name)}.{option}", value, "the C# API takes no options of this provider")
    if short == "OpenVINO":
        return [f"options.AppendExecutionProvider_OpenVINO({literal(options.get('device_type', ''))});"]
    job.sheet.leave_provider(name, "the C# API has no method for it")
    return []


TARGET = Target(name="csharp", summary="C# code for Microsoft.ML.OnnxRuntime", write=write, comment="//")
