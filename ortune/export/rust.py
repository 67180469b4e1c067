"""Rust code for the crate ort, 2.0.

Source: src/session/builder of https://github.com/pykeio/ort, 2.0.0-rc.12.
"""

from __future__ import annotations

from ortune.export.literals import literal
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
    "enable_mem_pattern": "with_memory_pattern({value})",
    "use_deterministic_compute": "with_deterministic_compute({value})",
    "optimized_model_filepath": "with_optimized_model_path({value})",
    "logid": "with_log_id({value})",
}

ENTRIES = {
    "session.intra_op.allow_spinning": "with_intra_op_spinning({on})",
    "session.inter_op.allow_spinning": "with_inter_op_spinning({on})",
    "session.dynamic_block_base": "with_dynamic_block_base({value})",
}
"""Entries that have a method of their own."""

STRUCTURES = {
    "CUDAExecutionProvider": "CUDA",
    "TensorrtExecutionProvider": "TensorRT",
    "OpenVINOExecutionProvider": "OpenVINO",
    "NvTensorRTRTXExecutionProvider": "NVRTX",
}


def write(job: Job) -> str:
    """Return the code of a function that creates the session."""
    sheet = job.sheet
    before = job.environment_lines("//")
    calls = _calls(job)
    providers = _providers(job)
    uses = ["use ort::session::{builder::GraphOptimizationLevel, Session};"]
    if not any("GraphOptimizationLevel" in call for call in calls):
        uses = ["use ort::session::Session;"]
    if providers:
        calls.append(f"with_execution_providers([{', '.join(providers)}])")
        uses.insert(0, "use ort::ep;")
    if any("with_arbitrary_config" in text for text in providers):
        uses.insert(1, "use ort::ep::ArbitrarilyConfigurableExecutionProvider;")
    pool = sheet.take_global_pool()
    if pool:
        uses.append("use ort::environment::GlobalThreadPoolOptions;")
    lines = [*before, *uses, "", "fn create_session() -> ort::Result<Session> {"]
    if pool:
        lines += [
            "    // once in a process, before its first session",
            "    ort::init()",
            "        .with_global_thread_pool(",
            "            GlobalThreadPoolOptions::default()",
            f"                .with_intra_threads({pool.intra_op_num_threads})?",
            f"                .with_inter_threads({pool.inter_op_num_threads})?,",
            "        )",
            "        .commit();",
        ]
    lines.append("    Ok(Session::builder()?")
    lines += [f"        .{call}?" for call in calls]
    lines += [f"        .commit_from_file({literal(job.model)})?)", "}"]
    lines += job.session_lines("// for session {number}: .with_config_entry({name}, {value})?")
    lines += _run_options_lines(job)
    for name in sheet.config.settings:
        sheet.explain(name, "the crate has no method for it")
    return "\n".join(lines)


def _calls(job: Job) -> list[str]:
    sheet = job.sheet
    calls: list[str] = []
    for name, value in sheet.take_options().items():
        if name == "execution_mode":
            calls.append(f"with_parallel_execution({literal(value == 'ORT_PARALLEL')})")
        elif name == "graph_optimization_level":
            calls.append(f"with_optimization_level(GraphOptimizationLevel::{LEVELS[str(value)]})")
        elif name in CALLS:
            calls.append(CALLS[name].format(value=literal(value)))
        elif name != "enable_cpu_mem_arena":
            sheet.leave(name, value, "the crate has no method for it")
    for name, text in sheet.take_entries().items():
        if name in ENTRIES and (text.isdigit() or "{on}" in ENTRIES[name]):
            calls.append(ENTRIES[name].format(value=text, on=literal(text == "1")))
        else:
            calls.append(f"with_config_entry({literal(name)}, {literal(text)})")
    return calls


def _run_options_lines(job: Job) -> list[str]:
    entries = job.sheet.take_run_entries()
    if not entries:
        return []
    return [
        "",
        "// pass them to run_with_options",
        "fn run_options() -> ort::Result<ort::session::RunOptions> {",
        "    let mut options = ort::session::RunOptions::new()?;",
        *(f"    options.add_config_entry({literal(name)}, {literal(text)})?;" for name, text in entries.items()),
        "    Ok(options)",
        "}",
    ]


def _providers(job: Job) -> list[str]:
    """Return the expressions of the execution providers; none where the CPU as it is will do."""
    sheet, texts = job.sheet, []
    arena = sheet.config.session_options.get("enable_cpu_mem_arena")
    for name, options in sheet.take_providers():
        if name == CPU:
            # Whether there is an arena is said on the provider; without one, it is as ONNX Runtime has it.
            if arena is not None:
                texts.append(f"ep::CPU::default().with_arena_allocator({literal(arena)}).build()")
            continue
        if name not in STRUCTURES:
            sheet.leave_provider(name, "not known to this export: see ort::ep")
            continue
        settings = "".join(
            f".with_arbitrary_config({literal(option)}, {literal(value)})" for option, value in options.items()
        )
        texts.append(f"ep::{STRUCTURES[name]}::default(){settings}.build().error_on_failure()")
    return texts


TARGET = Target(name="rust", summary="Rust code for the crate ort 2.0", write=write, comment="//")
