"""C++ code for onnxruntime_cxx_api.h."""

from __future__ import annotations

from ortune.export.literals import CPP
from ortune.export.provider_names import BY_NAME, PLUGIN_LIBRARY, describe_library, is_plugin
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Plugin, Provider

SETTERS = {
    "intra_op_num_threads": "SetIntraOpNumThreads({value})",
    "inter_op_num_threads": "SetInterOpNumThreads({value})",
    "execution_mode": "SetExecutionMode(ExecutionMode::{name})",
    "graph_optimization_level": "SetGraphOptimizationLevel(GraphOptimizationLevel::{name})",
    "log_severity_level": "SetLogSeverityLevel({value})",
    "logid": "SetLogId({value})",
    "use_deterministic_compute": "SetDeterministicCompute({value})",
    "optimized_model_filepath": "SetOptimizedModelFilePath(ORT_TSTR({value}))",
}
"""Calls by attribute, with `{value}` as a literal or `{name}` of an enum's member."""

SWITCHES = {
    "enable_cpu_mem_arena": ("EnableCpuMemArena()", "DisableCpuMemArena()"),
    "enable_mem_pattern": ("EnableMemPattern()", "DisableMemPattern()"),
}
"""Calls that turn an attribute on and off."""

STRUCTURES = {
    "CUDAExecutionProvider": ("CUDAProviderOptions", "AppendExecutionProvider_CUDA_V2"),
    "TensorrtExecutionProvider": ("TensorRTProviderOptions", "AppendExecutionProvider_TensorRT_V2"),
}
"""Class of the options, and the method that adds them, for providers that have such a class."""

C_STRUCTURES = {"CANNExecutionProvider": "CANN", "DnnlExecutionProvider": "Dnnl", "ROCMExecutionProvider": "ROCM"}
"""Providers whose options exist only as a structure of the C API, with their names in its functions."""


def write(job: Job) -> str:
    """Return the code."""
    pending = job.pending
    lines = job.environment_comments("//")
    plugins = pending.take_plugins()
    if any(plugin.vendor for plugin in plugins.values()):
        lines += ["#include <algorithm>", "#include <cctype>"]
    lines += ["#include <onnxruntime_cxx_api.h>", ""]
    pool = pending.take_global_pool()
    if pool:
        lines += [
            "Ort::ThreadingOptions threads;",
            f"threads.SetGlobalIntraOpNumThreads({pool.intra_op_num_threads});",
            f"threads.SetGlobalInterOpNumThreads({pool.inter_op_num_threads});",
            'Ort::Env env(threads, ORT_LOGGING_LEVEL_WARNING, "app");  // once per process',
        ]
    else:
        lines.append('Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "app");')
    lines.append("Ort::SessionOptions options;")
    if pool:
        lines.append("options.DisablePerSessionThreads();")
    for name, value in pending.take_options({*SETTERS, *SWITCHES}).items():
        if name in SWITCHES:
            lines.append(f"options.{SWITCHES[name][0 if value else 1]};")
        else:
            lines.append(f"options.{SETTERS[name].format(value=CPP.literal(value), name=value)};")
    lines += CPP.call_lines("options.AddConfigEntry", pending.take_entries())
    for provider in pending.take_providers(registers=True):
        lines += _provider_lines(job, provider)
    lines.append(f"Ort::Session session(env, ORT_TSTR({CPP.quote(job.model)}), options);")
    lines += job.session_comments("//", CPP, "only: options.AddConfigEntry({name}, {value});")
    if run_entries := pending.take_run_entries():
        lines.append("Ort::RunOptions run_options;  // pass it to session.Run")
        lines += CPP.call_lines("run_options.AddConfigEntry", run_entries)
    if pending.take_io_binding():
        lines.append(
            "Ort::IoBinding binding(session);  // bind inputs and outputs, call session.Run(run_options, binding)"
        )
    return "\n".join(lines)


def _provider_lines(job: Job, provider: Provider) -> list[str]:
    name, options = provider
    if name == CPU:
        return []
    values = f"{{{CPP.join_pairs(options, '{{{name}, {value}}}')}}}"
    plugins = job.pending.config.plugins
    if is_plugin(name, plugins):
        return _plugin_lines(name, values, plugins.get(name))
    if name in STRUCTURES:
        kind, append = STRUCTURES[name]
        variable = name.removesuffix("ExecutionProvider").lower()
        update = [f"{variable}.Update({values});"] if options else []
        return [f"Ort::{kind} {variable};", *update, f"options.{append}(*{variable});"]
    if name in C_STRUCTURES:
        return _c_structure_lines(C_STRUCTURES[name], options)
    if name == "OpenVINOExecutionProvider":
        return [f"options.AppendExecutionProvider_OpenVINO_V2({values});"]
    if name in BY_NAME:
        return [f"options.AppendExecutionProvider({CPP.quote(BY_NAME[name])}, {values});"]
    job.pending.put_back_provider(name, "the C++ API has no function for this provider")
    return []


def _c_structure_lines(short: str, options: dict[str, str]) -> list[str]:
    """Return code that fills a structure of the C API."""
    kind, variable = f"{short}ProviderOptions", short.lower()
    lines = [f"Ort{kind}* {variable} = nullptr;", f"Ort::ThrowOnError(Ort::GetApi().Create{kind}(&{variable}));"]
    if options:
        lines += [
            f"const char* {variable}_names[] = {{{', '.join(map(CPP.quote, options))}}};",
            f"const char* {variable}_values[] = {{{', '.join(map(CPP.quote, options.values()))}}};",
            f"Ort::ThrowOnError(Ort::GetApi().Update{kind}({variable}, {variable}_names, {variable}_values, "
            f"{len(options)}));",
        ]
    return [
        *lines,
        f"options.AppendExecutionProvider_{short}(*{variable});",
        f"Ort::GetApi().Release{kind}({variable});",
    ]


def _plugin_lines(name: str, values: str, plugin: Plugin | None) -> list[str]:
    """Return code that registers the library of a provider, and adds the provider for its first device."""
    quoted = CPP.quote(name)
    conditions = [f"std::string(device.EpName()) == {quoted}"]
    before = []
    if plugin and plugin.device_type:
        conditions.append(f"device.Device().Type() == OrtHardwareDeviceType_{plugin.device_type.upper()}")
    if plugin and plugin.vendor:
        before = [
            f"    const std::string vendor = {CPP.quote(plugin.vendor)};",
            "    const auto is_same = [](unsigned char a, unsigned char b) "
            "{ return std::tolower(a) == std::tolower(b); };",
        ]
        has_vendor = "std::equal(found.begin(), found.end(), vendor.begin(), vendor.end(), is_same)"
        conditions.append(has_vendor)
    return [
        f"// Once per process; {describe_library(plugin)}.",
        f"env.RegisterExecutionProviderLibrary({quoted}, ORT_TSTR({CPP.quote(PLUGIN_LIBRARY)}));",
        "{",
        "    std::vector<Ort::ConstEpDevice> devices;",
        *before,
        "    for (const auto& device : env.GetEpDevices()) {",
        *(["        const std::string found = device.Device().Vendor();"] if before else []),
        f"        if (devices.empty() && {' && '.join(conditions)}) devices.push_back(device);",
        "    }",
        f"    options.AppendExecutionProvider_V2(env, devices, std::unordered_map<std::string, std::string>{values});",
        "}",
    ]


TARGET = Target(name="cpp", summary="C++ code for onnxruntime_cxx_api.h", write=write, comment="//")
