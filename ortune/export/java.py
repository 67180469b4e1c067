"""Java code for ai.onnxruntime."""

from __future__ import annotations

from ortune.export.literals import LOGGING_LEVELS, literal, pairs
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Provider, alias_of

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
    "log_verbosity_level": "setSessionLogVerbosityLevel",
}

WITH_MAP = {
    "XnnpackExecutionProvider": "addXnnpack",
    "QNNExecutionProvider": "addQnn",
    "CoreMLExecutionProvider": "addCoreML",
    "WebGpuExecutionProvider": "addWebGPU",
}
"""Providers whose options are a map."""

STRUCTURES = {
    "CUDAExecutionProvider": ("OrtCUDAProviderOptions", "addCUDA"),
    "TensorrtExecutionProvider": ("OrtTensorRTProviderOptions", "addTensorrt"),
}


def write(job: Job) -> str:
    """Return the code; most of its calls throw OrtException."""
    sheet = job.sheet
    lines = job.environment_lines("//")
    lines += ["import ai.onnxruntime.*;", "import ai.onnxruntime.providers.*;", ""]
    pool = sheet.take_global_pool()
    if pool:
        lines += [
            "// once in a process, before any other environment",
            "var threads = new OrtEnvironment.ThreadingOptions();",
            f"threads.setGlobalIntraOpNumThreads({pool.intra_op_num_threads});",
            f"threads.setGlobalInterOpNumThreads({pool.inter_op_num_threads});",
            "var environment = OrtEnvironment.getEnvironment(",
            '    OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING, "app", threads);',
        ]
    else:
        lines.append("var environment = OrtEnvironment.getEnvironment();")
    lines.append("var options = new OrtSession.SessionOptions();")
    if pool:
        lines.append("options.disablePerSessionThreads();")
    lines += _option_lines(job)
    for provider in sheet.take_providers():
        lines += _provider_lines(job, provider)
    lines.append(f"var session = environment.createSession({literal(job.model)}, options);")
    lines += job.session_lines("// in the options of session {number}: addConfigEntry({name}, {value});")
    for name, value in sheet.take_run_options().items():
        sheet.leave(name, value, "the Java API has no setter for it")
    if run_entries := sheet.take_run_entries():
        lines.append("var runOptions = new OrtSession.RunOptions();  // pass it to session.run")
        for name, text in run_entries.items():
            lines.append(f"runOptions.addRunConfigEntry({literal(name)}, {literal(text)});")
    sheet.explain("io_binding", "the Java API has none")
    return "\n".join(lines)


def _option_lines(job: Job) -> list[str]:
    sheet, lines = job.sheet, []
    for name, value in sheet.take_options().items():
        if name == "log_severity_level" and int(value) in range(len(LOGGING_LEVELS)):
            lines.append(f"options.setSessionLogLevel(OrtLoggingLevel.{LOGGING_LEVELS[int(value)]});")
            continue
        if name not in SETTERS:
            sheet.leave(name, value, "the Java API has no setter for it")
            continue
        text = literal(value)
        if name == "execution_mode":
            text = f"OrtSession.SessionOptions.ExecutionMode.{MODES[str(value)]}"
        elif name == "graph_optimization_level":
            text = f"OrtSession.SessionOptions.OptLevel.{LEVELS[str(value)]}"
        lines.append(f"options.{SETTERS[name]}({text});")
    for name, text in sheet.take_entries().items():
        lines.append(f"options.addConfigEntry({literal(name)}, {literal(text)});")
    return lines


def _provider_lines(job: Job, provider: Provider) -> list[str]:
    name, options = provider
    short = name.removesuffix("ExecutionProvider")
    if name == CPU:
        return []
    if name in STRUCTURES:
        kind, add = STRUCTURES[name]
        variable = short.lower()
        return [
            f"var {variable} = new {kind}({options.get('device_id', '0')});",
            *(
                f"{variable}.add({literal(option)}, {literal(value)});"
                for option, value in options.items()
                if option != "device_id"
            ),
            f"options.{add}({variable});",
        ]
    if name in WITH_MAP:
        return [f"options.{WITH_MAP[name]}(java.util.Map.of({pairs(options, '{name}, {value}')}));"]
    for option, value in options.items():
        if (short, option) != ("OpenVINO", "device_type"):
            job.sheet.leave(f"{alias_of(name)}.{option}", value, "the Java API takes no options of this provider")
    if short == "OpenVINO":
        return [f"options.addOpenVINO({literal(options.get('device_type', 'CPU'))});"]
    job.sheet.leave_provider(name, "the Java API has no method for it")
    return []


TARGET = Target(name="java", summary="Java code for ai.onnxruntime", write=write, comment="//")
