"""The provider file of sherpa-onnx, which is named behind a provider: `provider=cpu:/path/to/file`.

Source: sherpa-onnx/csrc/session.cc.
"""

from __future__ import annotations

from ortune.export.literals import LEVEL_NUMBERS
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, alias_of

PROVIDERS = {CPU: "cpu", "CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "trt"}

LINES = {
    "graph_optimization_level": "GraphOptimizationLevel",
    "log_severity_level": "LogSeverityLevel",
    "enable_mem_pattern": "EnableMemPattern",
    "enable_cpu_mem_arena": "EnableCpuMemArena",
}


def write(job: Job) -> str:
    """Return the file; how it is named in the program stands at its head."""
    sheet = job.sheet
    threads, inter = sheet.take_option("intra_op_num_threads"), sheet.take_option("inter_op_num_threads")
    if inter is not None and inter != threads:
        sheet.leave("inter_op_num_threads", inter, "num_threads sets both pools to the same size")
    (name, options), *others = sheet.take_providers()
    for other, own in ((name, options), *others):
        if other not in PROVIDERS:
            sheet.leave_provider(other, "sherpa-onnx does not have it")
        for option, text in own.items():
            sheet.leave(f"{alias_of(other)}.{option}", text, "sherpa-onnx takes no options of providers here")
    path = job.output.absolute() if job.output else "/path/to/this/file"
    lines = [
        # Its own default is 1, and it refuses 0, which is ONNX Runtime's: so the count that that comes to.
        f"# In the program: num_threads={threads or job.record.host.n_usable_cores}, "
        f"provider={PROVIDERS.get(name, 'cpu')}:{path}",
    ]
    for option, key in LINES.items():
        value = sheet.take_option(option)
        if value is not None:
            lines.append(f"{key}={LEVEL_NUMBERS[str(value)] if option == 'graph_optimization_level' else int(value)}")
    lines += [f"SessionConfig.{entry}={text}" for entry, text in sheet.take_entries().items()]
    for setting in sheet.config.settings:
        sheet.explain(setting, "sherpa-onnx has no line for it")
    return "\n".join(lines)


TARGET = Target(name="sherpa-onnx", summary="provider file of sherpa-onnx", write=write)
