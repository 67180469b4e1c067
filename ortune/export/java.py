"""Java code for ai.onnxruntime.

Source: java/src/main/java/ai/onnxruntime of onnxruntime 1.29.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ortune.export.checks import read_number
from ortune.export.literals import JAVA, LOGGING_LEVELS, Language
from ortune.export.pending_settings import Value
from ortune.export.provider_names import PLUGIN_LIBRARY, describe_library, is_plugin
from ortune.export.target import Job, Target
from ortune.knobs.config import CPU, Plugin, Provider

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
    "log_severity_level": "setSessionLogLevel",
    "log_verbosity_level": "setSessionLogVerbosityLevel",
}

WITH_MAP = {
    "XnnpackExecutionProvider": "addXnnpack",
    "QNNExecutionProvider": "addQnn",
    "CoreMLExecutionProvider": "addCoreML",
    "WebGpuExecutionProvider": "addWebGPU",
}
"""Methods that add a provider with its options as a map."""

WITH_DEVICE = {"DmlExecutionProvider": "addDirectML", "ROCMExecutionProvider": "addROCM"}
"""Methods that add a provider with the number of its device only."""

STRUCTURES = {
    "CUDAExecutionProvider": ("OrtCUDAProviderOptions", "addCUDA"),
    "TensorrtExecutionProvider": ("OrtTensorRTProviderOptions", "addTensorrt"),
}
"""Class of the options, and the method that adds them, for providers that have such a class."""


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a language of the Java virtual machine writes the same calls.

    Attributes:
        language: How it writes values.
        variable: The word before the name of a new variable.
        new: What comes before a constructor.
        end: What ends a statement.
        make_map: Returns a map of options.
        devices: Expression of the first device of a plugin, with `{condition}`; its lines are indented.
        has_name: Condition of a device with a provider's `{name}`.
        has_vendor: Condition of a device with the `{name}` of a vendor, in any case.
    """

    language: Language
    variable: str
    new: str
    end: str
    make_map: Callable[[Mapping[str, str]], str]
    devices: str
    has_name: str
    has_vendor: str

    def declare(self, name: str, value: str) -> str:
        """Return a statement that creates a variable."""
        return f"{self.variable} {name} = {value}{self.end}"

    def create(self, name: str, kind: str, arguments: str = "") -> str:
        """Return a statement that creates a variable with a new object."""
        return self.declare(name, f"{self.new}{kind}({arguments})")

    def call(self, method: str, arguments: str = "") -> str:
        """Return a statement that calls a method."""
        return f"{method}({arguments}){self.end}"

    def call_all(self, method: str, entries: Mapping[str, str]) -> list[str]:
        """Return a statement for each entry."""
        return self.language.call_lines(method, entries, self.end)


def _make_map(options: Mapping[str, str]) -> str:
    """Return an expression. Map.of takes at most ten pairs."""
    if len(options) <= 10:
        return f"java.util.Map.of({JAVA.join_pairs(options, '{name}, {value}')})"
    return f"java.util.Map.ofEntries({JAVA.join_pairs(options, 'java.util.Map.entry({name}, {value})')})"


SYNTAX = Dialect(
    language=JAVA,
    variable="var",
    new="new ",
    end=";",
    make_map=_make_map,
    devices="""\
    environment.getEpDevices().stream().filter(device -> {condition}).limit(1)
        .collect(java.util.stream.Collectors.toList())""",
    has_name="device.getEpName().equals({name})",
    has_vendor="device.getDevice().getVendor().equalsIgnoreCase({name})",
)


def write(job: Job) -> str:
    """Return the code; most of its calls throw OrtException."""
    return write_code(job, SYNTAX)


def write_code(job: Job, syntax: Dialect) -> str:
    """Return the code in a dialect."""
    pending = job.pending
    lines = job.environment_comments("//")
    lines.append(f"import ai.onnxruntime.*{syntax.end}")
    if any(name in STRUCTURES for name, _ in pending.config.providers):
        lines.append(f"import ai.onnxruntime.providers.*{syntax.end}")
    lines.append("")
    pool = pending.take_global_pool()
    if pool:
        lines += [
            "// Once per process, before any other environment is created.",
            syntax.create("threads", "OrtEnvironment.ThreadingOptions"),
            syntax.call("threads.setGlobalIntraOpNumThreads", str(pool.intra_op_num_threads)),
            syntax.call("threads.setGlobalInterOpNumThreads", str(pool.inter_op_num_threads)),
            f"{syntax.variable} environment = OrtEnvironment.getEnvironment(",
            f'    OrtLoggingLevel.ORT_LOGGING_LEVEL_WARNING, "app", threads){syntax.end}',
            "",
        ]
    else:
        lines.append(syntax.declare("environment", "OrtEnvironment.getEnvironment()"))
    lines.append(syntax.create("options", "OrtSession.SessionOptions"))
    if pool:
        lines.append(syntax.call("options.disablePerSessionThreads"))
    for name, value in pending.take_options(SETTERS).items():
        if name == "log_severity_level" and value not in LOGGING_LEVELS:
            pending.put_back(name)
        else:
            lines.append(syntax.call(f"options.{SETTERS[name]}", _argument(name, value, syntax.language)))
    lines += syntax.call_all("options.addConfigEntry", pending.take_entries())
    pending.take_plugins()
    for provider in pending.take_providers(registers=True):
        lines += _provider_lines(job, provider, syntax)
    model = syntax.language.quote(job.model)
    lines.append(syntax.declare("session", f"environment.createSession({model}, options)"))
    only = f"only: options.addConfigEntry({{name}}, {{value}}){syntax.end}"
    lines += job.session_comments("//", syntax.language, only)
    if run_entries := pending.take_run_entries():
        create = syntax.create("runOptions", "OrtSession.RunOptions")
        lines.append(f"{create}  // pass it to session.run")
        lines += syntax.call_all("runOptions.addRunConfigEntry", run_entries)
    return "\n".join(lines)


def _argument(name: str, value: Value, language: Language) -> str:
    if name == "execution_mode":
        return f"OrtSession.SessionOptions.ExecutionMode.{MODES[str(value)]}"
    if name == "graph_optimization_level":
        return f"OrtSession.SessionOptions.OptLevel.{LEVELS[str(value)]}"
    if name == "log_severity_level":
        return f"OrtLoggingLevel.{LOGGING_LEVELS[value]}"
    return language.literal(value)


def _provider_lines(job: Job, provider: Provider, syntax: Dialect) -> list[str]:
    name, options = provider
    short = name.removesuffix("ExecutionProvider")
    if name == CPU:
        return []
    plugins = job.pending.config.plugins
    if is_plugin(name, plugins):
        return _plugin_lines(name, options, plugins.get(name), syntax)
    if name in STRUCTURES:
        kind, add = STRUCTURES[name]
        variable = short.lower()
        others = {option: value for option, value in options.items() if option != "device_id"}
        device = read_number(f"{variable}.device_id", options.get("device_id", "0"))
        return [
            syntax.create(variable, kind, str(device)),
            *syntax.call_all(f"{variable}.add", others),
            syntax.call(f"options.{add}", variable),
        ]
    if name in WITH_MAP:
        return [syntax.call(f"options.{WITH_MAP[name]}", syntax.make_map(options))]
    if name in WITH_DEVICE:
        reason = "the Java API takes only the device of this provider"
        job.pending.put_back_provider_options(name, reason, supported={"device_id"})
        device = read_number(f"{short.lower()}.device_id", options.get("device_id", "0"))
        return [syntax.call(f"options.{WITH_DEVICE[name]}", str(device))]
    if short == "OpenVINO":
        reason = "the Java API takes only the device type of this provider"
        job.pending.put_back_provider_options(name, reason, supported={"device_type"})
        return [syntax.call("options.addOpenVINO", syntax.language.quote(options.get("device_type", "CPU")))]
    job.pending.put_back_provider(name, "the Java API has no method for this provider")
    return []


def _plugin_lines(name: str, options: Mapping[str, str], plugin: Plugin | None, syntax: Dialect) -> list[str]:
    """Return code that registers the library of a provider, and adds the provider for its first device."""
    quoted, library = syntax.language.quote(name), syntax.language.quote(PLUGIN_LIBRARY)
    conditions = [syntax.has_name.format(name=quoted)]
    if plugin and plugin.device_type:
        kind = f"OrtHardwareDevice.OrtHardwareDeviceType.{plugin.device_type.upper()}"
        conditions.append(f"device.getDevice().getType() == {kind}")
    if plugin and plugin.vendor:
        conditions.append(syntax.has_vendor.format(name=syntax.language.quote(plugin.vendor)))
    return [
        f"// Once per process; {describe_library(plugin)}.",
        syntax.call("environment.registerExecutionProviderLibrary", f"{quoted}, {library}"),
        "options.addExecutionProvider(",
        f"{syntax.devices.format(condition=' && '.join(conditions))},",
        f"    {syntax.make_map(options)}){syntax.end}",
    ]


TARGET = Target(name="java", summary="Java code for ai.onnxruntime", write=write, comment="//")
