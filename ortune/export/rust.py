"""Rust code for the crate ort, 2.0.

Source: src/session/builder of https://github.com/pykeio/ort, 2.0.0-rc.12, and src/ep of 2.0.0-rc.13 (commit 78de6d9).
"""

from __future__ import annotations

from ortune.export.checks import NUMBER
from ortune.export.literals import RUST
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU

LEVELS = {
    "ORT_DISABLE_ALL": "Disable",
    "ORT_ENABLE_BASIC": "Level1",
    "ORT_ENABLE_EXTENDED": "Level2",
    "ORT_ENABLE_LAYOUT": "Level3",
    "ORT_ENABLE_ALL": "All",
}

CALLS = {
    "intra_op_num_threads": "with_intra_threads({value})",
    "inter_op_num_threads": "with_inter_threads({value})",
    "execution_mode": "with_parallel_execution({value})",
    "graph_optimization_level": "with_optimization_level({value})",
    "enable_mem_pattern": "with_memory_pattern({value})",
    "use_deterministic_compute": "with_deterministic_compute({value})",
    "optimized_model_filepath": "with_optimized_model_path({value})",
    "logid": "with_log_id({value})",
}

SWITCHES = {
    "session.intra_op.allow_spinning": "with_intra_op_spinning",
    "session.inter_op.allow_spinning": "with_inter_op_spinning",
}
"""Session configuration entries that have a method of their own, which takes a bool."""

NUMBERS = {"session.dynamic_block_base": "with_dynamic_block_base"}
"""Session configuration entries that have a method of their own, which takes a number."""

STRUCTURES = {
    "AzureExecutionProvider": "Azure",
    "CANNExecutionProvider": "CANN",
    "CUDAExecutionProvider": "CUDA",
    "CoreMLExecutionProvider": "CoreML",
    "DnnlExecutionProvider": "OneDNN",
    "NvTensorRTRTXExecutionProvider": "NVRTX",
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "ROCMExecutionProvider": "ROCm",
    "TensorrtExecutionProvider": "TensorRT",
    "VitisAIExecutionProvider": "Vitis",
    "WebGpuExecutionProvider": "WebGPU",
    "WebNNExecutionProvider": "WebNN",
    "XnnpackExecutionProvider": "XNNPACK",
}
"""Types in `ort::ep` that take any option by its name in ONNX Runtime."""


def write(job: Job) -> str:
    """Return the code of a function that creates the session."""
    pending = job.pending
    environment = job.environment_comments("//")
    calls = [f"        .{call}?" for call in _option_calls(job)]
    providers = _provider_lines(job)
    if providers:
        calls += ["        .with_execution_providers([", *providers, "        ])?"]
    pool = pending.take_global_pool()
    lines = [
        *environment,
        *_use_lines(calls, has_pool=pool is not None),
        "",
        "fn create_session() -> ort::Result<Session> {",
    ]
    if pool:
        lines += [
            "    // Once per process, before its first session.",
            "    ort::init()",
            "        .with_global_thread_pool(",
            "            GlobalThreadPoolOptions::default()",
            f"                .with_intra_threads({pool.intra_op_num_threads})?",
            f"                .with_inter_threads({pool.inter_op_num_threads})?,",
            "        )",
            "        .commit();",
        ]
    lines += [
        "    Ok(Session::builder()?",
        *calls,
        f"        .commit_from_file({RUST.quote(job.model)})?)",
        "}",
    ]
    lines += job.session_comments("//", RUST, "only: .with_config_entry({name}, {value})?")
    if run_entries := pending.take_run_entries():
        lines += [
            "",
            "// Pass the result to session.run_with_options.",
            "fn run_options() -> ort::Result<ort::session::RunOptions> {",
            "    let mut options = ort::session::RunOptions::new()?;",
            *RUST.call_lines("    options.add_config_entry", run_entries, "?;"),
            "    Ok(options)",
            "}",
        ]
    return "\n".join(lines)


def _use_lines(calls: list[str], *, has_pool: bool) -> list[str]:
    """Return the imports that the code needs."""
    methods = {call.strip().partition("(")[0] for call in calls}
    lines = []
    if has_pool:
        lines.append("use ort::environment::GlobalThreadPoolOptions;")
    if ".with_arbitrary_config" in methods:
        lines.append("use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider};")
    elif ".with_execution_providers" in methods:
        lines.append("use ort::ep;")
    if ".with_optimization_level" in methods:
        lines.append("use ort::session::{builder::GraphOptimizationLevel, Session};")
    else:
        lines.append("use ort::session::Session;")
    return lines


def _option_calls(job: Job) -> list[str]:
    calls = []
    for name, value in job.pending.take_options(CALLS).items():
        text = RUST.literal(value)
        if name == "execution_mode":
            text = RUST.literal(value == "ORT_PARALLEL")
        elif name == "graph_optimization_level":
            text = f"GraphOptimizationLevel::{LEVELS[str(value)]}"
        calls.append(CALLS[name].format(value=text))
    for name, entry in job.pending.take_entries().items():
        if name in SWITCHES and entry in {"0", "1"}:
            calls.append(f"{SWITCHES[name]}({RUST.literal(entry == '1')})")
        elif name in NUMBERS and NUMBER.fullmatch(entry):
            calls.append(f"{NUMBERS[name]}({entry})")
        else:
            calls.append(f"with_config_entry({RUST.quote(name)}, {RUST.quote(entry)})")
    return calls


def _provider_lines(job: Job) -> list[str]:
    """Return the expressions of the execution providers; none if the CPU has its default settings."""
    pending, lines = job.pending, []
    for name, options in pending.take_providers():
        if name == CPU:
            # The memory arena is a setting of the provider.
            arena = pending.take_option("enable_cpu_mem_arena")
            if arena is not None:
                lines.append(f"            ep::CPU::default().with_arena_allocator({RUST.literal(arena)}).build(),")
        elif name in STRUCTURES:
            lines += [
                f"            ep::{STRUCTURES[name]}::default()",
                *RUST.call_lines("                .with_arbitrary_config", options, ""),
                "                .build()",
                "                .error_on_failure(),",
            ]
        else:
            pending.put_back_provider(name, "the crate ort has no type that takes the options of this provider")
    return lines


TARGET = Target(name="rust", summary="Rust code for the crate ort 2.0", write=write, comment="//")
