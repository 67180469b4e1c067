"""Writes a config as code that needs no ortune."""

from __future__ import annotations

from ortune.knobs import CPU, Config
from ortune.measure.session import CUDA_BASED, ENUMS


def python_snippet(config: Config, model: str) -> str:
    """Return Python code that creates the session."""
    lines = [f"# start with {name}={value} in the environment" for name, value in config.environment.items()]
    lines += ["import onnxruntime as ort", ""]
    if config.provider in CUDA_BASED:
        lines += ["ort.preload_dlls()  # CUDA and cuDNN from NVIDIA's wheels, where they are", ""]
    if config.global_thread_pool:
        pool = config.global_thread_pool
        lines += [
            "# once in a process, before its first session",
            f"ort.set_global_thread_pool_sizes({pool.intra_op_num_threads}, {pool.inter_op_num_threads})",
        ]
    lines.append("options = ort.SessionOptions()")
    if config.global_thread_pool:
        lines.append("options.use_per_session_threads = False")
    for name, value in config.session_options.items():
        text = f"ort.{ENUMS[name]}.{value}" if name in ENUMS else repr(value)
        lines.append(f"options.{name} = {text}")
    lines += [f'options.add_session_config_entry("{name}", "{value}")' for name, value in config.session_config.items()]
    providers = ", ".join(f'("{name}", {options!r})' if options else f'"{name}"' for name, options in config.providers)
    # Without it, a provider that fails is replaced by the CPU.
    fallback = "" if config.provider == CPU else ", enable_fallback=0"
    lines.append(f'session = ort.InferenceSession("{model}", options, providers=[{providers}]{fallback})')
    for number, entries in enumerate(config.per_session, 1):
        lines += [
            f'# in the options of session {number}: add_session_config_entry("{name}", "{value}")'
            for name, value in entries.items()
        ]
    if config.run_config or config.run_options:
        lines.append("run_options = ort.RunOptions()  # pass it to session.run(..., run_options)")
        lines += [f"run_options.{name} = {value!r}" for name, value in config.run_options.items()]
        lines += [f'run_options.add_run_config_entry("{name}", "{value}")' for name, value in config.run_config.items()]
    if config.io_binding:
        device = "cuda" if config.provider in CUDA_BASED else "cpu"
        lines += [
            "# inputs: numpy arrays by name; the binding can be kept, outputs are bound anew where their shapes change",
            "binding = session.io_binding()",
            "for output in session.get_outputs():",
            f'    binding.bind_output(output.name, "{device}")',
            "for name, array in inputs.items():",
            f'    binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "{device}"))',
            f"session.run_with_iobinding(binding{', run_options' if config.run_config or config.run_options else ''})",
            "outputs = binding.copy_outputs_to_cpu()",
        ]
    return "\n".join(lines)
