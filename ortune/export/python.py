"""Python code that creates the session with onnxruntime only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ortune.export.literals import PYTHON
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, CUDA_BASED, Config, Provider
from ortune.knobs.plugins import PLUGIN_MODULES
from ortune.worker.calls import DEVICES
from ortune.worker.gpu import find_number
from ortune.worker.session import ENUMS

MAX_LINE = 110
"""Length from which a call is written over several lines."""


def session_options_lines(job: Job, imports: Sequence[str] = ()) -> list[str]:
    """Return code that makes `options`, the SessionOptions, and what must run before it.

    Args:
        job: The export.
        imports: Import statements to add to those of this code.
    """
    return [*job.environment_comments("#"), "import onnxruntime as ort", *imports, "", *make_options_lines(job)]


def make_options_lines(job: Job) -> list[str]:
    """Return code that makes `options`, the SessionOptions, where `ort` is onnxruntime."""
    pending = job.pending
    lines = []
    if pending.config.provider in CUDA_BASED:
        lines += [
            'if hasattr(ort, "preload_dlls"):  # onnxruntime 1.21 and later',
            "    ort.preload_dlls()  # loads CUDA and cuDNN from NVIDIA's wheels, if they are installed",
            "",
        ]
    pool = pending.take_global_pool()
    if pool:
        lines += [
            "# Once per process, before its first session. onnxruntime then refuses sessions of other models, too,",
            "# unless their options have use_per_session_threads = False.",
            f"ort.set_global_thread_pool_sizes({pool.intra_op_num_threads}, {pool.inter_op_num_threads})",
            "",
        ]
    lines.append("options = ort.SessionOptions()")
    if pool:
        lines.append("options.use_per_session_threads = False")
    for name, value in pending.take_options().items():
        text = f"ort.{ENUMS[name]}.{value}" if name in ENUMS else PYTHON.literal(value)
        lines.append(f"options.{name} = {text}")
    # `take_providers` takes the options of providers that are entries here, or puts them back.
    entries = {**pending.take_entries(), **pending.config.provider_entries}
    return lines + PYTHON.call_lines("options.add_session_config_entry", entries, "")


def session_comments(job: Job) -> list[str]:
    """Return comments with the entries that differ between sessions."""
    return job.session_comments("#", PYTHON, "only: options.add_session_config_entry({name}, {value})")


def mapping(options: Mapping[str, str]) -> str:
    """Return options as a dictionary."""
    return f"{{{PYTHON.join_pairs(options, '{name}: {value}')}}}"


def providers_argument(providers: Sequence[Provider]) -> str:
    """Return the argument `providers` of a call that is written over several lines, or of any call without options."""
    items = [
        f"({PYTHON.quote(name)}, {mapping(options)})" if options else PYTHON.quote(name) for name, options in providers
    ]
    if any(options for _, options in providers):
        return "\n".join(["providers=[", *(f"        {item}," for item in items), "    ]"])
    return f"providers=[{', '.join(items)}]"


def call(function: str, arguments: Sequence[str]) -> str:
    """Return a call, with one argument per line if it is long."""
    line = f"{function}({', '.join(arguments)})"
    if len(line) <= MAX_LINE and "\n" not in line:
        return line
    return "\n".join([f"{function}(", *(f"    {argument}," for argument in arguments), ")"])


def create_session_lines(job: Job) -> list[str]:
    """Return code of a function `create_session`, where `ort` is onnxruntime."""
    lines = [*make_options_lines(job), *make_provider_lines(job)]
    lines += [*session_comments(job), call("return ort.InferenceSession", session_arguments(job))]
    return ["def create_session():", *indent(lines)]


def make_provider_lines(job: Job) -> list[str]:
    """Return code that adds the execution providers to `options`, if some come from plugin packages."""
    lines: list[str] = []
    plugins = job.pending.take_plugins()
    if not plugins:
        return lines
    for name, own in job.pending.take_providers(registers=True):
        text = PYTHON.quote(name)
        plugin = plugins.get(name)
        if plugin:
            module = PLUGIN_MODULES[plugin.package]
            conditions = [f"device.ep_name == {text}"]
            if plugin.device_type:
                conditions.append(f"device.device.type.name == {PYTHON.quote(plugin.device_type.upper())}")
            if plugin.vendor:
                conditions.append(f"device.device.vendor.lower() == {PYTHON.quote(plugin.vendor.lower())}")
            lines += [
                f"import {module.module}",
                "",
                f"# Once per process. The library is in the package {plugin.package}.",
                f"ort.register_execution_provider_library({text}, {module.module}.{module.function}())",
                f"devices = [device for device in ort.get_ep_devices() if {' and '.join(conditions)}]",
                f"options.add_provider_for_devices(devices[:1], {mapping(own)})",
            ]
        elif name != CPU or own:  # onnxruntime adds the CPU provider itself
            lines.append(f"options.add_provider({text}, {mapping(own)})")
    return lines


def session_arguments(job: Job) -> list[str]:
    """Return the arguments of InferenceSession. ONNX Runtime accepts no providers here if `options` has some."""
    config = job.pending.config
    arguments = [PYTHON.quote(job.model), "options"]
    if not config.plugins:
        arguments.append(providers_argument(job.pending.take_providers(registers=True)))
    if config.provider != CPU:
        # With the fallback, the CPU replaces a provider that fails.
        arguments.append("enable_fallback=0")
    return arguments


def run_options_lines(job: Job) -> list[str]:
    """Return code that makes the attribute `run_options` of an object; none if calls have default options."""
    options, entries = job.pending.take_run_options(), job.pending.take_run_entries()
    if not options and not entries:
        return []
    return [
        "self.run_options = ort.RunOptions()",
        *(f"self.run_options.{name} = {PYTHON.literal(value)}" for name, value in options.items()),
        *PYTHON.call_lines("self.run_options.add_run_config_entry", entries, ""),
    ]


def indent(lines: list[str], depth: int = 1) -> list[str]:
    """Return lines that are indented. Values in them have no line breaks."""
    text = [part for line in lines for part in line.split("\n")]
    return [f"{'    ' * depth}{line}" if line else "" for line in text]


def write(job: Job) -> str:
    """Return the code."""
    pending = job.pending
    captures = pending.take_capture()
    imports = ["import numpy as np"] if pending.config.batch > 1 or captures else []
    lines = [*session_options_lines(job, imports), *make_provider_lines(job)]
    lines.append(call("session = ort.InferenceSession", session_arguments(job)))
    lines += session_comments(job)
    is_bound = pending.take_io_binding()
    run_options, run_entries = pending.take_run_options(), pending.take_run_entries()
    has_run_options = bool(run_options or run_entries)
    if has_run_options:
        usage = "" if is_bound or pending.config.batch > 1 else "  # pass it to session.run(..., run_options)"
        lines.append(f"run_options = ort.RunOptions(){usage}")
        lines += [f"run_options.{name} = {PYTHON.literal(value)}" for name, value in run_options.items()]
        lines += PYTHON.call_lines("run_options.add_run_config_entry", run_entries, "")
    if (batch := pending.take_batch()) > 1:
        lines += [
            "",
            f"# Each call needs {batch} items. `items` holds their inputs: arrays by name, with a first axis of 1.",
            "inputs = {name: np.concatenate([item[name] for item in items]) for name in items[0]}",
        ]
        if not is_bound:
            arguments = "None, inputs, run_options" if has_run_options else "None, inputs"
            lines.append(f"outputs = session.run({arguments})  # the first axis of each output is that of the items")
    bound = "binding, run_options" if has_run_options else "binding"
    if captures:
        lines += ["", *make_captured_call_lines(bound, find_place(pending.config))]
    elif is_bound:
        lines += ["", *make_bound_call_lines(bound, pending.config)]
    return "\n".join(lines)


def find_place(config: Config) -> str:
    """Return the arguments that say where values of calls with IO binding are."""
    device = DEVICES.get(config.provider, "cpu")
    number = find_number(config) if device == "cuda" else 0
    return f'"{device}", {number}' if number else f'"{device}"'


def make_bound_call_lines(bound: str, config: Config) -> list[str]:
    """Return code of a call with IO binding.

    Args:
        bound: Arguments of `run_with_iobinding`.
        config: The config.
    """
    place = find_place(config)
    # onnxruntime allocates values from Python only on the CPU and with CUDA.
    bind = "bind_cpu_input(name, array)"
    if DEVICES.get(config.provider) == "cuda":
        bind = f"bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array, {place}))"
    return [
        "# `inputs` holds NumPy arrays by name. Keep the binding for later calls, and bind the outputs again if",
        "# their shapes change.",
        "binding = session.io_binding()",
        "for output in session.get_outputs():",
        f"    binding.bind_output(output.name, {place})",
        "for name, array in inputs.items():",
        f"    binding.{bind}",
        f"session.run_with_iobinding({bound})",
        "outputs = binding.copy_outputs_to_cpu()",
    ]


def make_captured_call_lines(bound: str, place: str) -> list[str]:
    """Return code of a function that calls a session of CUDA which captures the first call and replays it.

    A replay uses the buffers of the first call, so that the function keeps all inputs and outputs where they are. ONNX
    Runtime does not check the inputs of a replay.

    Args:
        bound: Arguments of `run_with_iobinding`.
        place: Arguments that say where values are.
    """
    return [
        "captured = {}",
        "",
        "",
        "def run(inputs):",
        '    """Return the outputs for inputs that are NumPy arrays by name.',
        "",
        "    The first call captures a CUDA graph, which later calls replay: their inputs must have the same names,",
        "    shapes and types. Call it from one thread only: each thread captures a graph of its own. What nodes on",
        "    the CPU compute is not computed again in a replay.",
        '    """',
        "    kinds = {name: (array.shape, array.dtype) for name, array in inputs.items()}",
        "    if not captured:",
        "        binding = session.io_binding()",
        "        buffers = {}",
        "        for name, array in inputs.items():",
        f"            buffers[name] = ort.OrtValue.ortvalue_from_numpy(array, {place})",
        "            binding.bind_ortvalue_input(name, buffers[name])",
        "        for output in session.get_outputs():",
        f"            binding.bind_output(output.name, {place})",
        f"        session.run_with_iobinding({bound})",
        "        captured.update(binding=binding, buffers=buffers, kinds=kinds)",
        "        return binding.copy_outputs_to_cpu()",
        '    if kinds != captured["kinds"]:',
        "        raise ValueError(f\"inputs are {kinds} instead of {captured['kinds']}\")",
        "    for name, array in inputs.items():",
        '        captured["buffers"][name].update_inplace(np.ascontiguousarray(array))',
        '    binding = captured["binding"]',
        f"    session.run_with_iobinding({bound})",
        "    return binding.copy_outputs_to_cpu()",
        "",
        "",
        "outputs = run(inputs)",
    ]


TARGET = Target(name="python", summary="Python code with onnxruntime only", write=write)
