"""C++ code for onnxruntime_cxx_api.h."""

from __future__ import annotations

from ortune.export.literals import literal, pairs
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

SETTERS = {
    "intra_op_num_threads": "SetIntraOpNumThreads({value})",
    "inter_op_num_threads": "SetInterOpNumThreads({value})",
    "execution_mode": "SetExecutionMode(ExecutionMode::{value})",
    "graph_optimization_level": "SetGraphOptimizationLevel(GraphOptimizationLevel::{value})",
    "log_severity_level": "SetLogSeverityLevel({value})",
    "logid": "SetLogId({value})",
    "use_deterministic_compute": "SetDeterministicCompute({value})",
    "optimized_model_filepath": "SetOptimizedModelFilePath(ORT_TSTR({value}))",
}

SWITCHES = {
    "enable_cpu_mem_arena": ("EnableCpuMemArena()", "DisableCpuMemArena()"),
    "enable_mem_pattern": ("EnableMemPattern()", "DisableMemPattern()"),
}

# Wrapper class and method that adds it, of the providers whose options have a structure of their own.
STRUCTURES = {
    "CUDAExecutionProvider": ("CUDAProviderOptions", "AppendExecutionProvider_CUDA_V2"),
    "TensorrtExecutionProvider": ("TensorRTProviderOptions", "AppendExecutionProvider_TensorRT_V2"),
}


def write(job: Job) -> str:
    """Return the code."""
    sheet = job.sheet
    lines = job.environment_lines("//")
    lines += ["#include <onnxruntime_cxx_api.h>", ""]
    pool = sheet.take_global_pool()
    if pool:
        lines += [
            "Ort::ThreadingOptions threads;",
            f"threads.SetGlobalIntraOpNumThreads({pool.intra_op_num_threads});",
            f"threads.SetGlobalInterOpNumThreads({pool.inter_op_num_threads});",
            'Ort::Env env(threads, ORT_LOGGING_LEVEL_WARNING, "app");  // once in a process',
        ]
    else:
        lines.append('Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "app");')
    lines.append("Ort::SessionOptions options;")
    if pool:
        lines.append("options.DisablePerSessionThreads();")
    for name, value in sheet.take_options().items():
        if name in SETTERS:
            text = value if name in {"execution_mode", "graph_optimization_level"} else literal(value)
            lines.append(f"options.{SETTERS[name].format(value=text)};")
        elif name in SWITCHES:
            lines.append(f"options.{SWITCHES[name][0 if value else 1]};")
        else:
            sheet.leave(name, value, "the C++ API has no setter for it")
    lines += [
        f"options.AddConfigEntry({literal(name)}, {literal(text)});" for name, text in sheet.take_entries().items()
    ]
    for name, options in sheet.take_providers():
        lines += _provider_lines(name, options)
    lines.append(f"Ort::Session session(env, ORT_TSTR({literal(job.model)}), options);")
    lines += job.session_lines("// in the options of session {number}: AddConfigEntry({name}, {value});")
    run_options, run_entries = sheet.take_run_options(), sheet.take_run_entries()
    for name, value in run_options.items():
        sheet.leave(name, value, "the C++ API has no setter for it")
    if run_entries:
        lines.append("Ort::RunOptions run_options;  // pass it to session.Run")
        lines += [
            f"run_options.AddConfigEntry({literal(name)}, {literal(text)});" for name, text in run_entries.items()
        ]
    if sheet.take_io_binding():
        lines.append(
            "Ort::IoBinding binding(session);  // bind inputs and outputs, then session.Run(run_options, binding)"
        )
    return "\n".join(lines)


def _provider_lines(name: str, options: dict[str, str]) -> list[str]:
    if name == CPU:
        return []
    inside = pairs(options, "{{{name}, {value}}}")
    if name in STRUCTURES:
        kind, append = STRUCTURES[name]
        variable = name.removesuffix("ExecutionProvider").lower()
        lines = [f"Ort::{kind} {variable};"]
        if options:
            lines.append(f"{variable}.Update({{{inside}}});")
        return [*lines, f"options.{append}(*{variable});"]
    if name == "OpenVINOExecutionProvider":
        return [f"options.AppendExecutionProvider_OpenVINO_V2({{{inside}}});"]
    return [f"options.AppendExecutionProvider({literal(name.removesuffix('ExecutionProvider'))}, {{{inside}}});"]


TARGET = Target(name="cpp", summary="C++ code for onnxruntime_cxx_api.h", write=write, comment="//")
