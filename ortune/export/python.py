"""Python code that creates the session, with onnxruntime alone."""

from __future__ import annotations

from ortune.export.literals import python_string
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Provider
from ortune.worker.session import CUDA_BASED, ENUMS


def session_options_lines(job: Job, *, module: str = "ort") -> list[str]:
    """Return code that makes `options`, SessionOptions with all that these can hold, and what must come before it.

    Args:
        job: What is written.
        module: Name under which onnxruntime is imported.
    """
    sheet = job.sheet
    lines = job.environment_lines("#")
    lines += [f"import onnxruntime as {module}", ""]
    if sheet.config.provider in CUDA_BASED:
        lines += [f"{module}.preload_dlls()  # CUDA and cuDNN from NVIDIA's wheels, where they are", ""]
    pool = sheet.take_global_pool()
    if pool:
        lines += [
            "# once in a process, before its first session",
            f"{module}.set_global_thread_pool_sizes({pool.intra_op_num_threads}, {pool.inter_op_num_threads})",
        ]
    lines.append(f"options = {module}.SessionOptions()")
    if pool:
        lines.append("options.use_per_session_threads = False")
    for name, value in sheet.take_options().items():
        text = f"{module}.{ENUMS[name]}.{value}" if name in ENUMS else repr(value)
        lines.append(f"options.{name} = {text}")
    lines += [
        f"options.add_session_config_entry({python_string(name)}, {python_string(text)})"
        for name, text in sheet.take_entries().items()
    ]
    return lines


def session_lines(job: Job) -> list[str]:
    """Return comments with what each of several sessions has of its own."""
    return job.session_lines("# in the options of session {number}: add_session_config_entry({name}, {value})")


def run_options_lines(job: Job) -> list[str]:
    """Return code that makes `run_options`, or nothing where there are none."""
    sheet = job.sheet
    options, entries = sheet.take_run_options(), sheet.take_run_entries()
    if not options and not entries:
        return []
    return [
        "run_options = ort.RunOptions()  # pass it to session.run(..., run_options)",
        *(f"run_options.{name} = {value!r}" for name, value in options.items()),
        *(
            f"run_options.add_run_config_entry({python_string(name)}, {python_string(text)})"
            for name, text in entries.items()
        ),
    ]


def providers_text(providers: tuple[Provider, ...]) -> str:
    """Return the list that `providers=` takes."""
    return ", ".join(
        f"({python_string(name)}, {options!r})" if options else python_string(name) for name, options in providers
    )


def write(job: Job) -> str:
    """Return the code."""
    lines = session_options_lines(job)
    providers = job.sheet.take_providers()
    # Without it, a provider that fails is replaced by the CPU.
    fallback = "" if providers[0][0] == CPU else ", enable_fallback=0"
    lines.append(
        f"session = ort.InferenceSession({python_string(job.model)}, options, "
        f"providers=[{providers_text(providers)}]{fallback})"
    )
    lines += session_lines(job)
    lines += run_options_lines(job)
    if job.sheet.take_io_binding():
        device = "cuda" if providers[0][0] in CUDA_BASED else "cpu"
        has_run_options = job.record.config.run_config or job.record.config.run_options
        lines += [
            "# inputs: numpy arrays by name; the binding can be kept, outputs are bound anew where their shapes change",
            "binding = session.io_binding()",
            "for output in session.get_outputs():",
            f'    binding.bind_output(output.name, "{device}")',
            "for name, array in inputs.items():",
            f'    binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, "{device}"))',
            f"session.run_with_iobinding(binding{', run_options' if has_run_options else ''})",
            "outputs = binding.copy_outputs_to_cpu()",
        ]
    return "\n".join(lines)


TARGET = Target(name="python", summary="Python code with onnxruntime alone", write=write)
