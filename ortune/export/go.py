"""Go code for github.com/yalue/onnxruntime_go.

Source: onnxruntime_go.go of https://github.com/yalue/onnxruntime_go, 1.35.
"""

from __future__ import annotations

from collections.abc import Mapping

from ortune.export.literals import GO, LEVEL_NUMBERS, LOGGING_LEVELS
from ortune.export.pending_settings import Value
from ortune.export.provider_names import BY_NAME
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Provider

LEVELS = {
    "ORT_DISABLE_ALL": "GraphOptimizationLevelDisableAll",
    "ORT_ENABLE_BASIC": "GraphOptimizationLevelEnableBasic",
    "ORT_ENABLE_EXTENDED": "GraphOptimizationLevelEnableExtended",
    "ORT_ENABLE_ALL": "GraphOptimizationLevelEnableAll",
}
MODES = {"ORT_SEQUENTIAL": "ExecutionModeSequential", "ORT_PARALLEL": "ExecutionModeParallel"}

SETTERS = {
    "intra_op_num_threads": "SetIntraOpNumThreads",
    "inter_op_num_threads": "SetInterOpNumThreads",
    "execution_mode": "SetExecutionMode",
    "graph_optimization_level": "SetGraphOptimizationLevel",
    "enable_cpu_mem_arena": "SetCpuMemArena",
    "enable_mem_pattern": "SetMemPattern",
    "optimized_model_filepath": "SetOptimizedModelFilePath",
    "log_severity_level": "SetLogSeverityLevel",
}

STRUCTURES = {
    "CUDAExecutionProvider": ("cuda", "CUDA"),
    "TensorrtExecutionProvider": ("tensorRT", "TensorRT"),
}
"""Variable of the options, and the suffix of their function names, for providers that have a type for options."""

PER_SESSION = "only: options.AddSessionConfigEntry({name}, {value})"

FAIL = ["\tif err != nil {", "\t\treturn nil, err", "\t}"]


def write(job: Job) -> str:
    """Return a file with a function that creates the session."""
    pending = job.pending
    environment = job.environment_comments("//")
    calls = [f"options.{call}" for call in _option_calls(job)]
    calls += [
        f"options.AddSessionConfigEntry({GO.quote(name)}, {GO.quote(value)})"
        for name, value in pending.take_entries().items()
    ]
    body = _join_calls(calls)
    for provider in pending.take_providers():
        body += _provider_lines(job, provider)
    run_entries = pending.take_run_entries()
    run_body = _join_calls(
        [f"options.AddRunConfigEntry({GO.quote(name)}, {GO.quote(value)})" for name, value in run_entries.items()]
    )
    pending.explain("global_thread_pool", "onnxruntime_go does not support it")
    imports = ['\t"errors"', ""] if body or run_body else []
    lines = [
        *environment,
        "",
        "package main",
        "",
        "import (",
        *imports,
        '\tort "github.com/yalue/onnxruntime_go"',
        ")",
        "",
        "// newSession creates the session. Call ort.InitializeEnvironment before it.",
        "func newSession(inputNames, outputNames []string) (*ort.DynamicAdvancedSession, error) {",
        "\toptions, err := ort.NewSessionOptions()",
        *FAIL,
        "\tdefer options.Destroy()",
        *body,
        *(f"\t{line}" for line in job.session_comments("//", GO, PER_SESSION)),
        f"\treturn ort.NewDynamicAdvancedSession({GO.quote(job.model)}, inputNames, outputNames, options)",
        "}",
    ]
    if run_body:
        lines += [
            "",
            "// newRunOptions creates options for the RunWithOptions method of the session.",
            "func newRunOptions() (*ort.RunOptions, error) {",
            "\toptions, err := ort.NewRunOptions()",
            *FAIL,
            *run_body,
            "\treturn options, nil",
            "}",
        ]
    return "\n".join(lines)


def _join_calls(calls: list[str]) -> list[str]:
    """Return a statement that makes all calls, and returns their errors."""
    return ["\terr = errors.Join(", *(f"\t\t{call}," for call in calls), "\t)", *FAIL] if calls else []


def _option_calls(job: Job) -> list[str]:
    calls = []
    for name, value in job.pending.take_options(SETTERS).items():
        if name == "log_severity_level" and value not in LOGGING_LEVELS:
            job.pending.put_back(name)
        else:
            calls.append(f"{SETTERS[name]}({_argument(name, value)})")
    return calls


def _argument(name: str, value: Value) -> str:
    if name == "execution_mode":
        return f"ort.{MODES[str(value)]}"
    if name == "graph_optimization_level":
        level = str(value)
        # The library has no name for ORT_ENABLE_LAYOUT.
        return f"ort.{LEVELS[level]}" if level in LEVELS else f"ort.GraphOptimizationLevel({LEVEL_NUMBERS[level]})"
    if name == "log_severity_level":
        return f"ort.LoggingLevel({value})"
    return GO.literal(value)


def _provider_lines(job: Job, provider: Provider) -> list[str]:
    name, options = provider
    if name == CPU:
        return []
    if name in STRUCTURES:
        variable, kind = STRUCTURES[name]
        return [
            f"\t{variable}, err := ort.New{kind}ProviderOptions()",
            *FAIL,
            f"\tdefer {variable}.Destroy()",
            *_join_calls(
                [
                    *([f"{variable}.Update({_map(options)})"] if options else []),
                    f"options.AppendExecutionProvider{kind}({variable})",
                ]
            ),
        ]
    if name in BY_NAME:
        return _join_calls([f"options.AppendExecutionProvider({GO.quote(BY_NAME[name])}, {_map(options)})"])
    job.pending.put_back_provider(name, "onnxruntime_go has no method for this provider")
    return []


def _map(options: Mapping[str, str]) -> str:
    return f"map[string]string{{{GO.join_pairs(options, '{name}: {value}')}}}" if options else "nil"


TARGET = Target(name="go", summary="Go code for github.com/yalue/onnxruntime_go", write=write, comment="//")
