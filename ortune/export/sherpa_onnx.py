"""The provider file of sherpa-onnx, whose path follows the name of a provider: `provider=cpu:/path/to/file`.

Source: sherpa-onnx/csrc/session.cc.
"""

from __future__ import annotations

from ortune.export.comments import make_comment
from ortune.export.literals import LEVEL_NUMBERS
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU
from ortune.sanitize import printable

PROVIDERS = {CPU: "cpu", "CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "trt"}

KEYS = {
    "graph_optimization_level": "GraphOptimizationLevel",
    "log_severity_level": "LogSeverityLevel",
    "enable_mem_pattern": "EnableMemPattern",
    "enable_cpu_mem_arena": "EnableCpuMemArena",
}


def write(job: Job) -> str:
    """Return the file. It starts with a comment on how to use it in the program."""
    pending = job.pending
    threads = pending.take_common_thread_count("num_threads is the size of both pools")
    providers = pending.take_providers()
    for name, _ in providers:
        if name in PROVIDERS:
            pending.put_back_provider_options(name, "sherpa-onnx takes no options of this provider here")
        else:
            pending.put_back_provider(name, "sherpa-onnx does not have this provider")
    provider = PROVIDERS.get(providers[0][0], "cpu")
    path = job.output.absolute() if job.output else "/path/to/this/file"
    # The default of sherpa-onnx is 1, and it rejects 0, ONNX Runtime's default: write the count that 0 stands for.
    lines = [
        make_comment(
            "#", f"In the program: num_threads={threads or job.record.host.n_usable_cores}, provider={provider}:{path}"
        ),
    ]
    for option, key in KEYS.items():
        value = pending.take_option(option)
        if value is not None:
            lines.append(f"{key}={LEVEL_NUMBERS[str(value)] if option == 'graph_optimization_level' else int(value)}")
    for name, value in pending.take_entries().items():
        if value == printable(value).strip():
            lines.append(f"SessionConfig.{name}={value}")
        else:
            pending.put_back(name, "the file of sherpa-onnx has one line for each value, and no escape sequences")
    return "\n".join(lines)


TARGET = Target(name="sherpa-onnx", summary="provider file of sherpa-onnx", write=write)
