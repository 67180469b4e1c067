"""Every setting of ONNX Runtime, each once, as data; and how one of them is found by its name.

Checked by running onnxruntime 1.31.1 (`tests/test_catalogue.py`); where documentation and runtime disagree, the runtime
is followed. A default of "" means that nothing is set unless somebody sets it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import partial

from ortune.errors import UsageError
from ortune.knobs import own
from ortune.knobs.affinity import AFFINITIES
from ortune.knobs.knob import Knob
from ortune.knobs.providers import cpu, cuda, nv_tensorrt_rtx, openvino, tensorrt

ATTRIBUTES_PAGE = "https://onnxruntime.ai/docs/api/python/api_summary.html"
THREADS_PAGE = "https://onnxruntime.ai/docs/performance/tune-performance/threading.html"
GRAPH_PAGE = "https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html"
TUNING_PAGE = "https://onnxruntime.ai/docs/performance/tune-performance/"
CONTEXT_PAGE = "https://onnxruntime.ai/docs/execution-providers/EP-Context-Design.html"
QNN_PAGE = "https://onnxruntime.ai/docs/execution-providers/QNN-ExecutionProvider.html"
SESSION_KEYS = "onnxruntime_session_options_config_keys.h"
RUN_KEYS = "onnxruntime_run_options_config_keys.h"
OPENMP_PAGE = "https://www.openmp.org/specifications/"

SEVERAL_THREADS = "always where there is more than one thread"
IDLE_THREADS = "where calls arrive at a rate, with several callers, a CPU quota, or the objective cpu"
MEMORY = "for the objectives memory and load-time, and limits on them"
QUANTIZED = "for graphs with QuantizeLinear and DequantizeLinear"
BRANCHES = "for graphs that branch"

MESSAGES = "it is about messages, not about speed"
FILES = "it names or writes files"
FORMATS = "it is about the file format of the model, which a search leaves as it is"
BUFFERS = "it is about memory that the calling program owns"
CHECKS = "it only decides what counts as an error"
COMPILED = "it is for execution providers that compile the model ahead of time"
PLACEMENT = "it assigns nodes to devices by hand"
TRAINING = "only onnxruntime-training has it"
QNN = "it is for Qualcomm's provider, which ortune cannot measure"
EXPERTS = "it watches which experts a mixture-of-experts model uses, and makes nothing faster"
STRINGS_ONLY = "from Python only the attribute of that name counts"

_attribute = partial(Knob, where="session_options", source=ATTRIBUTES_PAGE)
_entry = partial(Knob, where="session_config", source=SESSION_KEYS)
_flag = partial(Knob, where="session_config", kind="boolean", default="0", source=SESSION_KEYS)
_run_attribute = partial(Knob, where="run_options", source=ATTRIBUTES_PAGE)
_run_entry = partial(Knob, where="run_config", source=RUN_KEYS)
_variable = partial(Knob, where="environment", default="")

# ---------------------------------------------------------------------------------------------------------------------
# Threads, and how far the graph is rewritten: what a search always looks at, in the order in which it is shown.

_CPUS = r"[1-9]\d*(-[1-9]\d*|(,[1-9]\d*)*)"

INTRA_OP_NUM_THREADS = _attribute(
    name="intra_op_num_threads",
    kind="integer",
    default=0,
    low=0,
    high=9999,
    short="intra threads",
    summary="Threads that share the work of one operator; 0 makes one per physical core of the machine, pinned.",
    tuned="always",
    note="The calling thread is one of them. 0 counts the cores of the machine, not those of a cpuset or a CPU quota, "
    "and pins outside of a taskset mask; it is left unpinned under ORT_PARALLEL.",
    source=THREADS_PAGE,
)
INTRA_OP_THREAD_AFFINITIES = _entry(
    name=AFFINITIES,
    kind="text",
    default="",
    pattern=rf"{_CPUS}(;{_CPUS})*",
    short="affinity",
    summary="CPUs that each intra-op worker is pinned to, from 1, one group a worker, separated by semicolons.",
    tuned=SEVERAL_THREADS,
    note="There must be one group less than threads. A group is a range or a list, not both, and holds no spaces. "
    "A CPU that the process may not use is only logged, and that worker runs unpinned.",
    source=THREADS_PAGE,
)
INTRA_OP_ALLOW_SPINNING = _flag(
    name="session.intra_op.allow_spinning",
    default="1",
    short="intra spinning",
    summary="Whether intra-op workers burn CPU while they wait for work, instead of sleeping.",
    tuned=SEVERAL_THREADS,
    note='Anything but "1" turns it off, "true" too. Workers spin on for tens of milliseconds after the last call.',
    source=THREADS_PAGE,
)
DYNAMIC_BLOCK_BASE = _entry(
    name="session.dynamic_block_base",
    kind="integer",
    default="0",
    low=0,
    high=9999,
    short="dynamic block base",
    summary="Splits an operator's work into blocks that shrink, so that late threads take less; 0 is off.",
    tuned=SEVERAL_THREADS,
    note="ONNX Runtime takes a negative number, and one with letters behind it, without a word.",
)
EXECUTION_MODE = _attribute(
    name="execution_mode",
    kind="choice",
    default="ORT_SEQUENTIAL",
    values=("ORT_SEQUENTIAL", "ORT_PARALLEL"),
    short="execution mode",
    summary="Whether operators that do not depend on each other run side by side.",
    tuned=BRANCHES,
    note="ORT_PARALLEL gives up the memory pattern and automatic pinning, leaves the insides of If, Loop and Scan "
    "sequential, and with inter_op_num_threads=1 is ORT_SEQUENTIAL.",
    source=THREADS_PAGE,
)
INTER_OP_NUM_THREADS = _attribute(
    name="inter_op_num_threads",
    kind="integer",
    default=0,
    low=0,
    high=9999,
    short="inter threads",
    summary="Threads that run operators side by side under ORT_PARALLEL; 0 makes one per physical core.",
    tuned=BRANCHES,
    note="ORT_SEQUENTIAL ignores it.",
    source=THREADS_PAGE,
)
INTER_OP_ALLOW_SPINNING = _flag(
    name="session.inter_op.allow_spinning",
    default="1",
    short="inter spinning",
    summary="Whether inter-op workers burn CPU while they wait for work, instead of sleeping.",
    tuned=BRANCHES,
    note='Anything but "1" turns it off, "true" too. ORT_SEQUENTIAL has no such workers.',
    source=THREADS_PAGE,
)
GRAPH_OPTIMIZATION_LEVEL = _attribute(
    name="graph_optimization_level",
    kind="choice",
    default="ORT_ENABLE_ALL",
    values=("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL"),
    short="optimization level",
    summary="How far the graph is rewritten when the session is created.",
    tuned="always",
    note="Weights that the model lists among its inputs are not constant to it, and keep most rewrites away. "
    "ORT_ENABLE_LAYOUT came with onnxruntime 1.23.",
    source=GRAPH_PAGE,
)

# How waiting threads spend their time.

INTRA_OP_SPIN_DURATION = _entry(
    name="session.intra_op.spin_duration_us",
    kind="integer",
    default="",
    low=0,
    high=10_000,
    short="intra spin duration",
    since="1.26",
    summary="Microseconds that an idle intra-op worker spins before it sleeps; unset, it counts turns instead of time.",
    tuned=IDLE_THREADS,
    note="0 turns spinning off. ONNX Runtime replaces what it cannot read by the default, with only a warning, and "
    "warns above 10000. Without allow_spinning it does nothing.",
)
INTRA_OP_SPIN_BACKOFF = _entry(
    name="session.intra_op.spin_backoff_max",
    kind="integer",
    default="1",
    low=1,
    high=64,
    short="intra spin back-off",
    since="1.26",
    summary="How far the pauses of a spinning intra-op worker may grow, each twice the one before; 1 keeps them equal.",
    tuned=IDLE_THREADS,
    note="ONNX Runtime reads 0 and what is no number as 1, and more than 64 as 64.",
)
INTER_OP_SPIN_DURATION = _entry(
    name="session.inter_op.spin_duration_us",
    kind="integer",
    default="",
    low=0,
    high=10_000,
    short="inter spin duration",
    since="1.26",
    summary="Microseconds that an idle inter-op worker spins before it sleeps; unset, it counts turns instead of time.",
    tuned=IDLE_THREADS,
    note="0 turns spinning off. It means nothing without ORT_PARALLEL.",
)
INTER_OP_SPIN_BACKOFF = _entry(
    name="session.inter_op.spin_backoff_max",
    kind="integer",
    default="1",
    low=1,
    high=64,
    short="inter spin back-off",
    since="1.26",
    summary="How far the pauses of a spinning inter-op worker may grow, each twice the one before; 1 keeps them equal.",
    tuned=IDLE_THREADS,
    note="It means nothing without ORT_PARALLEL.",
)
FORCE_SPINNING_STOP = _flag(
    name="session.force_spinning_stop",
    short="stop spinning",
    summary="Stops all spinning the moment that the last call under way returns.",
    tuned=IDLE_THREADS,
    note="The next call has to wake the workers.",
)
USE_PER_SESSION_THREADS = _attribute(
    name="use_per_session_threads",
    kind="boolean",
    default=True,
    short="own threads",
    since="1.23",
    summary="Whether the session has thread pools of its own, rather than those of the process.",
    note="With False, no session is created unless onnxruntime.set_global_thread_pool_sizes was called before, which "
    "works once per process and sets sizes alone: no affinity, no spinning.",
)

# Memory, and the time to create a session.

ENABLE_CPU_MEM_ARENA = _attribute(
    name="enable_cpu_mem_arena",
    kind="boolean",
    default=True,
    short="memory arena",
    summary="Whether memory on the CPU comes from a growing pool that is kept, rather than from the system each time.",
    tuned=MEMORY,
)
ENABLE_MEM_PATTERN = _attribute(
    name="enable_mem_pattern",
    kind="boolean",
    default=True,
    short="memory pattern",
    summary="Whether later calls of the same shapes allocate all their memory at once, as the first one laid it out.",
    tuned=MEMORY,
    note="ORT_PARALLEL does without it.",
)
ENABLE_MEM_REUSE = _attribute(
    name="enable_mem_reuse",
    kind="boolean",
    default=True,
    short="memory reuse",
    summary="Whether a tensor that is no longer needed gives its memory to a later one of the same call.",
    tuned=MEMORY,
)
USE_DEVICE_ALLOCATOR_FOR_INITIALIZERS = _flag(
    name="session.use_device_allocator_for_initializers",
    short="weights outside arena",
    summary="Takes the memory of weights from the device itself, so that the arena does not round it up.",
    tuned=MEMORY,
)
DISABLE_PREPACKING = _flag(
    name="session.disable_prepacking",
    short="no prepacking",
    summary="Leaves weights in the order of the file, rather than rearranging them for the kernels.",
    tuned=MEMORY,
    note="Sessions are created faster and hold less memory, and calls become slower.",
)
LOOP_LEVEL = _entry(
    name="session.graph_optimizations_loop_level",
    kind="choice",
    default="1",
    values=("0", "1", "2"),
    short="rewrite rounds",
    since="1.23",
    summary="Whether rewriting the graph starts over: 0 never, 1 after a change at level 4, 2 after one at level 2 on.",
    tuned=MEMORY,
    note="ONNX Runtime takes any other number without a word.",
)
_MEMORY = (
    _flag(
        name="session.prepack.enable_parallel",
        since="1.31",
        summary="Rearranges the weights of several nodes at a time, on the intra-op threads.",
        note="It needs more than one thread, and does nothing where sessions share rearranged weights.",
    ),
    _flag(
        name="session.use_env_allocators",
        summary="Takes memory from an allocator that is registered for the whole process, so that sessions share it.",
        untunable="it does something only where the program has registered an allocator",
        note="Without a registered allocator it is ignored.",
    ),
)

# The graph.

EXECUTION_ORDER = _attribute(
    name="execution_order",
    kind="choice",
    default="DEFAULT",
    values=("DEFAULT", "PRIORITY_BASED", "MEMORY_EFFICIENT"),
    short="execution order",
    summary="In which order nodes run that do not depend on each other.",
    tuned=BRANCHES,
    note="Only onnxruntime-training has MEMORY_EFFICIENT: with other wheels no session is created.",
)
ENABLE_GELU_APPROXIMATION = _flag(
    name="optimization.enable_gelu_approximation",
    short="approximate Gelu",
    tuned="with --allow-approximate",
    summary="Replaces Gelu by a formula that is cheaper and not quite the same.",
    numerics=True,
)
ENABLE_CAST_CHAIN_ELIMINATION = _flag(
    name="optimization.enable_cast_chain_elimination",
    short="drop cast chains",
    since="1.23",
    tuned="with --allow-approximate",
    summary="Makes one Cast of several in a row.",
    numerics=True,
    note="What the casts between would have rounded or cut off is kept.",
)
_GRAPH = (
    _attribute(
        name="use_deterministic_compute",
        kind="boolean",
        default=False,
        summary="Prefers kernels that give the same bits in every call, where there is a choice.",
    ),
    _entry(
        name="optimization.disable_specified_optimizers",
        kind="text",
        default="",
        pattern=r"\w+(;\w+)*",
        summary="Rewrites of the graph that are left out, by name, separated by semicolons.",
        note="A name that no rewrite has is ignored. With commas, as some pages show it, the list is one such name.",
        source=GRAPH_PAGE,
    ),
    _entry(
        name="optimization.constant_folding_max_output_size_in_bytes",
        kind="integer",
        default="1073741824",
        low=0,
        since="1.27",
        summary="Largest tensor that is computed when the session is created, rather than in each call; 0 is any.",
        note="What is no number is ignored.",
    ),
    _flag(
        name="session.disable_aot_function_inlining",
        summary="Leaves the model's own functions whole until the graph has been split among providers.",
    ),
    _entry(
        name="session.function_expansion_node_limit",
        kind="integer",
        default="",
        low=1,
        since="1.31",
        summary="How many nodes the model's own functions may unfold into before the session is refused.",
        untunable=CHECKS,
    ),
    _entry(
        name="session.function_expansion_byte_limit",
        kind="integer",
        default="",
        low=1,
        since="1.31",
        summary="How many bytes the model's own functions may unfold into before the session is refused.",
        untunable=CHECKS,
    ),
    _entry(
        name="optimization.minimal_build_optimizations",
        kind="choice",
        default="",
        values=("", "save", "apply"),
        summary="Stores rewrites in a model in ORT format for small builds, or applies only those that they have.",
        untunable="it is for builds without the rewrites",
    ),
    _entry(
        name="optimization.memory_optimizer_config",
        kind="text",
        default="",
        summary="A file that says which parts of the graph training computes again rather than keeps.",
        untunable=TRAINING,
    ),
    _entry(
        name="optimization.enable_memory_probe_recompute_config",
        kind="text",
        default="0:0",
        pattern=r"\d+:\d+",
        summary="How training looks for parts of the graph that it could compute again rather than keep.",
        untunable=TRAINING,
    ),
)

# Quantised models.

DISABLE_QUANT_QDQ = _flag(
    name="session.disable_quant_qdq",
    short="no QDQ fusion",
    summary="Runs what stands between DequantizeLinear and QuantizeLinear in floating point, rather than in integers.",
    tuned=QUANTIZED,
    note="The DirectML provider sets it by itself.",
)
DISABLE_DOUBLE_QDQ_REMOVER = _flag(
    name="session.disable_double_qdq_remover",
    short="keep double QDQ",
    summary="Keeps the inner two of four QuantizeLinear and DequantizeLinear in a row.",
    tuned=QUANTIZED,
)
DISABLE_QDQ_CONSTANT_FOLDING = _flag(
    name="session.disable_qdq_constant_folding",
    short="keep constant DQ",
    since="1.26",
    summary="Dequantises weights in each call, even where nothing is fused with it.",
    tuned=QUANTIZED,
)
ENABLE_QUANT_QDQ_CLEANUP = _flag(
    name="session.enable_quant_qdq_cleanup",
    short="QDQ clean-up",
    tuned="with --allow-approximate",
    summary="Drops the pairs of QuantizeLinear and DequantizeLinear that are left when all fusing is done.",
    numerics=True,
    note="What the pairs would have rounded is kept.",
)
X64QUANTPRECISION = _flag(
    name="session.x64quantprecision",
    short="U8U8 on x64",
    summary="Multiplies unsigned with unsigned bytes on x64, which cannot overflow, and is slower.",
    numerics=True,
    note="It matters on CPUs with AVX2 or AVX512 and no VNNI.",
)
QDQ_MATMULNBITS_ACCURACY_LEVEL = _entry(
    name="session.qdq_matmulnbits_accuracy_level",
    kind="choice",
    default="4",
    values=("0", "1", "2", "3", "4"),
    short="MatMulNBits accuracy",
    summary="Type in which a fused MatMul with weights of a few bits computes: 0 its input's, 1 float32, 2 float16, "
    "3 bfloat16, 4 int8.",
    numerics=True,
)
USE_LUT_GEMM = _flag(
    name="mlas.use_lut_gemm",
    short="table GEMM",
    since="1.24",
    tuned="with --allow-approximate",
    summary="Multiplies with weights of a few bits by looking products up in tables, where the CPU can.",
    numerics=True,
)
_QUANTIZED = (
    _entry(
        name="session.qdq_matmulnbits_block_size",
        kind="choice",
        default="0",
        values=("-1", "0", "16", "32", "64", "128", "256"),
        since="1.25",
        summary="Weights that share a scale when MatMul and DequantizeLinear are fused: 0 is 32, -1 fits the shape.",
    ),
    _flag(
        name="session.enable_dq_matmulnbits_fusion",
        since="1.24",
        summary="Also fuses DequantizeLinear and MatMul where providers other than the CPU will run them.",
        note="The TensorRT RTX provider sets it by itself.",
    ),
    _flag(
        name="session.qdqisint8allowed",
        summary="Allows signed bytes as activations when operators are fused.",
        note="It is meant for saving models for ARM, where it is on by itself.",
    ),
    _flag(
        name="mlas.qnbit.force_fp32",
        since="1.31",
        summary="Multiplies with weights of four bits in float32, which suits large batches better than int8.",
        numerics=True,
        note="It is for x64, blocks of 32 weights and accuracy level 4, and holds for all such nodes of the session.",
    ),
)

# Kernels of the CPU.

SET_DENORMAL_AS_ZERO = _flag(
    name="session.set_denormal_as_zero",
    short="denormals as zero",
    tuned="with --allow-approximate",
    summary="Takes numbers next to zero as zero, which spares the CPU a slow path.",
    numerics=True,
    note="The calling thread is set by the first session of the process alone, and later sessions do not undo it.",
)
_KERNELS = (
    _flag(
        name="mlas.enable_gemm_fastmath_arm64_bfloat16",
        summary="Multiplies float32 matrices in bfloat16.",
        numerics=True,
        note="Only builds for 64-bit ARM know it.",
    ),
    _flag(
        name="mlas.disable_kleidiai",
        summary="Does without Arm's KleidiAI kernels.",
        note="Builds for other CPUs do not have them.",
    ),
    _entry(
        name="mlas.kleidiai.conv_igemm_max_work",
        kind="integer",
        default="0",
        low=0,
        since="1.28",
        summary="Up to how much work a convolution goes to KleidiAI's indirect multiplication; 0 leaves it to MLAS.",
        note="Builds for other CPUs do not have these kernels. What is no number ends the process.",
    ),
    _entry(
        name="mlas.nchwc_pointwise_conv_max_input_channel_batch",
        kind="integer",
        default="",
        low=0,
        since="1.30",
        summary="Input channels that a 1x1 convolution in blocked layout works through at a time.",
        note="It is rounded up to the block, 8 or 16 channels. What is no number ends the process.",
        source="https://github.com/microsoft/onnxruntime/pull/31660",
    ),
)

# Messages, profiles and files.

_REPORTS = (
    _attribute(
        name="enable_profiling",
        kind="boolean",
        default=False,
        summary="Writes the time of every node to a JSON file.",
        untunable="it slows every node down, and writes a file",
    ),
    _attribute(
        name="profile_file_prefix",
        kind="text",
        default="onnxruntime_profile_",
        summary="How the name of the profile begins; the time and .json follow.",
        untunable=FILES,
    ),
    _attribute(
        name="log_severity_level",
        kind="integer",
        default=-1,
        low=-1,
        high=4,
        summary="Least severe messages that the session logs: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.",
        untunable=MESSAGES,
        note="-1 is as if it were not set. Verbose messages cost time.",
    ),
    _attribute(
        name="log_verbosity_level",
        kind="integer",
        default=0,
        low=0,
        summary="How much is said at severity 0.",
        untunable=MESSAGES,
    ),
    _attribute(
        name="logid",
        kind="text",
        default="",
        summary="A word before each message of the session.",
        untunable=MESSAGES,
    ),
    _attribute(
        name="optimized_model_filepath",
        kind="text",
        default="",
        summary="Where the graph is saved as it stands after rewriting.",
        untunable=FILES,
        note="At ORT_ENABLE_LAYOUT and above, the file fits only CPUs like this one.",
    ),
    _entry(
        name="session.collect_node_memory_stats_to_file",
        kind="text",
        default="",
        since="1.21",
        summary="A CSV file that gets the memory that each node takes.",
        untunable=FILES,
    ),
    _flag(
        name="session.debug_layout_transformation",
        summary="Saves the model at each step of changing its layout.",
        untunable=FILES,
    ),
    _flag(
        name="session.record_ep_graph_assignment_info",
        since="1.24",
        summary="Keeps which provider got which nodes, for get_provider_graph_assignment_info.",
        untunable="it only keeps a list, which ortune asks for by itself where it needs it",
    ),
)

# The file of the model, and where its weights lie.

_MODEL = (
    _entry(
        name="session.load_model_format",
        kind="choice",
        default="",
        values=("", "ONNX", "ORT"),
        summary="Format of the model, where neither its name nor its first bytes tell.",
        untunable=FORMATS,
    ),
    _entry(
        name="session.save_model_format",
        kind="choice",
        default="",
        values=("", "ONNX", "ORT"),
        summary="Format in which the rewritten model is saved, where its name does not tell.",
        untunable=FORMATS,
    ),
    _flag(
        name="session.use_ort_model_bytes_directly",
        summary="Uses a model in ORT format where it lies in memory, without a copy.",
        untunable=BUFFERS,
        note="The memory must outlive the session.",
    ),
    _flag(
        name="session.use_ort_model_bytes_for_initializers",
        summary="Uses the weights of a model in ORT format where they lie in memory.",
        untunable=BUFFERS,
        note="It needs session.use_ort_model_bytes_directly, and the memory must outlive the session.",
    ),
    _flag(
        name="session.use_memory_mapped_ort_model",
        since="1.26",
        summary="Maps the file of a model in ORT format into memory, rather than reading it.",
        untunable=FORMATS,
        note="It is ignored for a model that is given as bytes.",
    ),
    _flag(
        name="session.use_external_initializer_file_buffers_directly",
        since="1.31",
        summary="Uses external weights that the program holds in memory where they lie, without a copy.",
        untunable=BUFFERS,
    ),
    _entry(
        name="session.model_external_initializers_file_folder_path",
        kind="text",
        default="",
        summary="Folder of the external weights of a model that is given as bytes.",
        untunable=FILES,
    ),
    _entry(
        name="session.optimized_model_external_initializers_file_name",
        kind="text",
        default="",
        summary="File that gets the large weights when the rewritten model is saved.",
        untunable=FILES,
    ),
    _entry(
        name="session.optimized_model_external_initializers_min_size_in_bytes",
        kind="integer",
        default="1024",
        low=0,
        summary="From which size on weights go to that file.",
        untunable=FILES,
    ),
    _flag(
        name="session.save_external_prepacked_constant_initializers",
        since="1.21",
        summary="Saves rearranged weights along with the rewritten model, so that they can be mapped into memory.",
        untunable=FILES,
        note="The file fits only CPUs like this one.",
    ),
    _flag(
        name="session.strict_shape_type_inference",
        summary="Refuses a model whose shapes or types contradict each other, rather than warning.",
        untunable=CHECKS,
    ),
    _flag(
        name="session.allow_released_opsets_only",
        summary="Refuses a model with operators of an opset that is not released yet.",
        untunable=CHECKS,
    ),
    _entry(
        name="session.gqa_value_layout",
        kind="choice",
        default="BNSH",
        values=("BNSH", "BNHS"),
        since="1.30",
        summary="Order of the axes in which the program keeps the value cache of GroupQueryAttention.",
        untunable="it says how the calling program lays out its cache",
    ),
)

# Which provider gets which nodes, and memory planned for them.

_PLACEMENT = (
    _flag(
        name="session.disable_cpu_ep_fallback",
        summary="Refuses to create the session if a node would go to the CPU because no other provider takes it.",
        untunable=CHECKS,
        note="The CPU provider must not be listed with it.",
    ),
    _entry(
        name="session.node_partition_config_file",
        kind="text",
        default="",
        summary="A file that puts nodes on streams of a device.",
        untunable=FILES,
    ),
    _entry(
        name="session.layer_assignment_settings",
        kind="text",
        default="",
        since="1.25",
        summary='Puts nodes on devices by their layer_ann metadata, as in "gpu(encoder);cpu(embed)".',
        untunable=PLACEMENT,
        note="It excludes session.name_based_layer_assignment.",
    ),
    _entry(
        name="session.name_based_layer_assignment",
        kind="text",
        default="",
        since="1.28",
        summary='Puts nodes on devices by parts of their names, as in "gpu(layers.);cpu(embed_tokens)".',
        untunable=PLACEMENT,
        note="It excludes session.layer_assignment_settings.",
    ),
    _entry(
        name="session.resource_cuda_partitioning_settings",
        kind="text",
        default="",
        pattern=r"\d*,.*",
        since="1.21",
        summary="Kilobytes that CUDA may use, a comma, and a file of memory statistics: nodes beyond go to the CPU.",
        untunable=PLACEMENT,
    ),
    _entry(
        name="session.max_shape_override",
        kind="text",
        default="",
        pattern=r"[^:;]+:\s*\[[\d,\s]+\]\s*(;[^:;]+:\s*\[[\d,\s]+\]\s*)*",
        since="1.29",
        summary="Largest shapes to plan memory for, as in ids:[8,4096];mask:[8,4096].",
        untunable="it only feeds estimates of memory",
    ),
    _flag(
        name="session.strict_workspace_verification",
        since="1.31",
        summary="Refuses the session if an operator wants more memory than was planned for it.",
        untunable=CHECKS,
    ),
    _flag(
        name="ep.cuda.fpa_intb_gemm",
        since="1.31",
        summary="Lets CUDA multiply half-precision activations with integer weights in mixed-type kernels.",
        untunable="it is for wheels that have the CUDA provider",
    ),
    _entry(
        name="ep.cuda.fpa_intb_profile_m",
        kind="text",
        default="",
        pattern=r"\d+(,\d+)*",
        since="1.31",
        summary="Row counts for which those kernels are timed when the session is created.",
        untunable="it is for wheels that have the CUDA provider",
    ),
    _entry(
        name="ep.cuda.gqa_workspace_max_total_sequence_length",
        kind="integer",
        default="",
        low=1,
        since="1.31",
        summary="Longest sequence that CUDA plans the memory of GroupQueryAttention for.",
        untunable="it only feeds estimates of memory",
    ),
)

# Models that a provider has compiled.

_COMPILED = (
    _flag(
        name="ep.context_enable",
        summary="Saves the model with what the provider compiled, so that later sessions need not compile.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _entry(
        name="ep.context_file_path",
        kind="text",
        default="",
        summary="Where that model is saved; by itself it is the model's name with _ctx.onnx.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _flag(
        name="ep.context_embed_mode",
        summary="Puts what was compiled inside that model, rather than in a file beside it.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _entry(
        name="ep.context_node_name_prefix",
        kind="text",
        default="",
        summary="How the names of compiled nodes begin, so that several such models can be merged.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _entry(
        name="ep.context_model_external_initializers_file_name",
        kind="text",
        default="",
        since="1.21",
        summary="File for the weights of those nodes that were not compiled.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _entry(
        name="ep.context_source_model_path",
        kind="text",
        default="",
        since="1.29",
        summary="The model that was compiled, where the compiled one has no weights.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _flag(
        name="ep.enable_weightless",
        since="1.29",
        summary="Asks providers to compile without weights.",
        untunable=COMPILED,
        note="Before 1.29 the key was ep.enable_weightless_ep_context_nodes.",
        source=CONTEXT_PAGE,
    ),
    _flag(
        name="ep.enable_weightless_ep_context_nodes",
        summary="Asks providers to compile without weights; the earlier name of ep.enable_weightless.",
        untunable=COMPILED,
        note="From 1.29 on, the key is ep.enable_weightless.",
        source=CONTEXT_PAGE,
    ),
    _flag(
        name="ep.share_ep_contexts",
        summary="Shares what a provider compiled among sessions.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _flag(
        name="ep.stop_share_ep_contexts",
        summary="Ends that sharing with this session.",
        untunable=COMPILED,
        source=CONTEXT_PAGE,
    ),
    _flag(
        name="session.disable_model_compile",
        since="1.22",
        summary="Refuses the session if a provider would have to compile.",
        untunable=CHECKS,
    ),
    _flag(
        name="session.fail_on_suboptimal_compiled_model",
        since="1.23",
        summary="Refuses a compiled model that the provider could run better if it compiled it again.",
        untunable=CHECKS,
    ),
    _flag(
        name="session.compile_only",
        since="1.27",
        summary="Marks a session that only compiles.",
        untunable="ONNX Runtime sets it by itself when it is asked to compile a model",
    ),
    _entry(
        name="ep.nnapi.partitioning_stop_ops",
        kind="text",
        default="",
        summary="Operators, separated by commas, behind which Android's provider takes no more nodes.",
        untunable="it is for Android",
    ),
)

# Mixtures of experts.

_NUMBER = r"\d+(\.\d*)?|\.\d+"
_EXPERTS = (
    _flag(
        name="session.enable_moe_expert_counting",
        since="1.31",
        summary="Counts how often each expert of MoE and QMoE nodes is used.",
        untunable=EXPERTS,
        note="Calls must then come one after another.",
    ),
    _flag(
        name="session.enable_moe_expert_statistics",
        since="1.31",
        summary="Logs which experts of MoE and QMoE nodes are used.",
        untunable=EXPERTS,
        note="Calls must then come one after another.",
    ),
    _entry(
        name="session.moe_expert_counter_alpha",
        kind="text",
        default="0.9",
        pattern=_NUMBER,
        since="1.31",
        summary="How much of each count is kept from one call to the next.",
        untunable=EXPERTS,
        note="With session.moe_expert_counter_beta it may not make more than 1.",
    ),
    _entry(
        name="session.moe_expert_counter_beta",
        kind="text",
        default="0.1",
        pattern=_NUMBER,
        since="1.31",
        summary="How much a use adds to the count.",
        untunable=EXPERTS,
        note="With session.moe_expert_counter_alpha it may not make more than 1.",
    ),
    _entry(
        name="session.moe_expert_counter_state_file",
        kind="text",
        default="",
        since="1.31",
        summary="File with the counts to begin with.",
        untunable=FILES,
    ),
)

# Attributes as entries, for languages that set texts only.

_AS_TEXTS = tuple(
    _entry(
        name=f"session.{key}",
        kind="text",
        default="",
        since="1.28",
        summary=f"What the attribute {attribute} is in Python, for programs that set texts only.",
        untunable=STRINGS_ONLY,
        note=f"From Python it does nothing: set {attribute}.",
    )
    for key, attribute in {
        "intra_op_num_threads": "intra_op_num_threads",
        "inter_op_num_threads": "inter_op_num_threads",
        "execution_mode": "execution_mode",
        "use_per_session_threads": "use_per_session_threads",
        "graph_optimization_level": "graph_optimization_level",
        "enable_cpu_mem_arena": "enable_cpu_mem_arena",
        "enable_mem_pattern": "enable_mem_pattern",
        "use_deterministic_compute": "use_deterministic_compute",
        "enable_profiling": "enable_profiling",
        "optimized_model_filepath": "optimized_model_filepath",
        "log_id": "logid",
        "log_severity_level": "log_severity_level",
        "log_verbosity_level": "log_verbosity_level",
    }.items()
)

# Calls.

ARENA_SHRINKAGE = _run_entry(
    name="memory.enable_memory_arena_shrinkage",
    kind="text",
    default="",
    pattern=r"(cpu|gpu)(:\d+)?(;(cpu|gpu)(:\d+)?)*",
    short="shrink arena",
    summary="Gives memory that the arena does not need back to the system after each call, as in cpu:0;gpu:0.",
    tuned=MEMORY,
    note="With capitals, with a device that is not there, or without the arena, every call fails.",
)

RUN = "run"
"""Stands before those attributes of RunOptions that have the name of an attribute of SessionOptions."""

_QNN_MODES = (
    "burst",
    "balanced",
    "default",
    "high_performance",
    "high_power_saver",
    "low_balanced",
    "extreme_power_saver",
    "low_power_saver",
    "power_saver",
    "sustained_high_performance",
)

_CALLS = (
    _run_attribute(
        name="only_execute_path_to_fetches",
        kind="boolean",
        default=False,
        summary="Runs only the nodes that the wanted outputs depend on.",
        note="It saves nothing where a call asks for all outputs.",
    ),
    _run_attribute(
        name="log_severity_level",
        alias=RUN,
        kind="integer",
        default=-1,
        low=-1,
        high=4,
        summary="Least severe messages that the call logs: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal.",
        untunable=MESSAGES,
        note="-1 is as if it were not set. Verbose messages cost time.",
    ),
    _run_attribute(
        name="log_verbosity_level",
        alias=RUN,
        kind="integer",
        default=0,
        low=0,
        summary="How much the call says at severity 0.",
        untunable=MESSAGES,
    ),
    _run_attribute(
        name="logid",
        alias=RUN,
        kind="text",
        default="",
        summary="A word before each message of the call.",
        untunable=MESSAGES,
    ),
    _run_attribute(
        name="terminate",
        kind="boolean",
        default=False,
        summary="Ends all calls that were made with these options.",
        untunable="a call that is ended has no result",
        note="It stays set: set it to False before the next call.",
    ),
    _run_attribute(
        name="training_mode",
        kind="boolean",
        default=False,
        summary="Runs the model as in training, with dropout.",
        numerics=True,
        untunable=TRAINING,
    ),
    _run_entry(
        name="disable_synchronize_execution_providers",
        kind="boolean",
        default="0",
        summary="Returns from a call without waiting for the device.",
        untunable="the time of a call would not cover its work",
        note="The program must wait for the outputs by itself.",
    ),
    _run_entry(
        name="gpu_graph_id",
        kind="integer",
        default="0",
        low=-1,
        summary="Which captured CUDA graph a call replays or captures; -1 runs without.",
        untunable="the calling program gives a number to each shape that it uses",
        note="0 is what ONNX Runtime itself uses: number graphs from 1.",
    ),
    _run_entry(
        name="nv_profile_index",
        kind="integer",
        default="0",
        low=0,
        summary="Which of TensorRT RTX's ranges of shapes a call uses.",
        untunable="the calling program knows the shapes of its call",
        source=nv_tensorrt_rtx.SOURCE,
    ),
    _run_entry(
        name="cuda_graph_annotation_id",
        kind="integer",
        default="0",
        low=0,
        summary="Which captured CUDA graph a call replays or captures with TensorRT RTX.",
        untunable="the calling program gives a number to each shape that it uses",
        source=nv_tensorrt_rtx.SOURCE,
    ),
    _run_entry(
        name="qnn.htp_perf_mode",
        kind="choice",
        default="default",
        values=_QNN_MODES,
        summary="Power mode of Qualcomm's processor from this call on.",
        untunable=QNN,
        source=QNN_PAGE,
    ),
    _run_entry(
        name="qnn.htp_perf_mode_post_run",
        kind="choice",
        default="default",
        values=_QNN_MODES,
        summary="Power mode of Qualcomm's processor when this call is done.",
        untunable=QNN,
        source=QNN_PAGE,
    ),
    _run_entry(
        name="qnn.rpc_control_latency",
        kind="integer",
        default="",
        low=0,
        summary="Microseconds that Qualcomm's processor may take to answer.",
        untunable=QNN,
        source=QNN_PAGE,
    ),
    _run_entry(
        name="qnn.lora_config",
        kind="text",
        default="",
        summary="File with the LoRA weights to use with Qualcomm's provider.",
        untunable=QNN,
        source=QNN_PAGE,
    ),
)

# Options that may change while a session lives.

_DYNAMIC = (
    Knob(
        name="ep.dynamic.workload_type",
        where="dynamic_options",
        kind="choice",
        default="Default",
        values=("Default", "Efficient"),
        summary="Whether providers run the session at once, or in the background and sparing power.",
        untunable="the CPU and CUDA providers have nothing that it could change",
        source=SESSION_KEYS,
    ),
    Knob(
        name="ep.dynamic.qnn_htp_performance_mode",
        where="dynamic_options",
        kind="choice",
        default="default",
        values=_QNN_MODES,
        summary="Power mode of Qualcomm's processor.",
        untunable=QNN,
        source=QNN_PAGE,
    ),
)

# The environment of the process.

LD_PRELOAD = _variable(
    name="LD_PRELOAD",
    kind="text",
    pattern=r"\S+( +\S+)*",
    short="allocator",
    summary="Libraries that Linux loads first, such as mimalloc, jemalloc or tcmalloc in place of malloc.",
    tuned="where such a library is installed",
    note="A library that cannot be loaded is only reported on stderr.",
    source=TUNING_PAGE,
)

NO_OPENMP = "Wheels from PyPI are built without OpenMP and ignore it; builds with oneDNN read it."

_ENVIRONMENT = (
    _variable(
        name="ORT_INTRA_OP_NUM_THREADS",
        kind="integer",
        low=1,
        high=9999,
        since="1.29",
        summary="Threads that share the work of one operator, where intra_op_num_threads is 0.",
        note="Unlike 0, it pins no thread. What is no number fails.",
        source=THREADS_PAGE,
    ),
    _variable(
        name="ORT_INTER_OP_NUM_THREADS",
        kind="integer",
        low=1,
        high=9999,
        since="1.29",
        summary="Threads that run operators side by side, where inter_op_num_threads is 0.",
        note="What is no number fails.",
        source=THREADS_PAGE,
    ),
    _variable(
        name="ORT_LOAD_CONFIG_FROM_MODEL",
        kind="boolean",
        summary="Takes the session options from the model's metadata, the JSON under ort_config.",
        untunable="the model's own options then replace all that a search sets, config entries too",
        source=ATTRIBUTES_PAGE,
    ),
    _variable(
        name="ORT_DISABLE_TELEMETRY",
        kind="boolean",
        since="1.29",
        summary="Keeps ONNX Runtime from sending usage data.",
        untunable="it makes nothing faster",
        note="It must be set before onnxruntime is imported.",
        source=ATTRIBUTES_PAGE,
    ),
    _variable(
        name="ORT_GQA_DISABLE_FLASH_ATTENTION",
        kind="boolean",
        since="1.27",
        summary="Computes GroupQueryAttention on the CPU with the whole matrix of scores, rather than block by block.",
        source="https://github.com/microsoft/onnxruntime",
    ),
    _variable(
        name="ORT_MLAS_QKGEMM_S8_APPROX_VNNI",
        kind="boolean",
        since="1.27",
        summary="Multiplies queries with a cache of signed bytes in integers, on CPUs with AVX512-VNNI.",
        numerics=True,
        source="https://github.com/microsoft/onnxruntime",
    ),
    _variable(
        name="OMP_NUM_THREADS",
        kind="integer",
        low=1,
        high=9999,
        summary="Threads of OpenMP.",
        note=NO_OPENMP,
        source=TUNING_PAGE,
    ),
    _variable(
        name="OMP_WAIT_POLICY",
        kind="choice",
        values=("ACTIVE", "PASSIVE"),
        summary="Whether idle threads of OpenMP spin or sleep.",
        note=NO_OPENMP,
        source=TUNING_PAGE,
    ),
    _variable(
        name="OMP_PROC_BIND",
        kind="choice",
        values=("false", "true", "master", "primary", "close", "spread"),
        summary="Whether and how threads of OpenMP are bound to places.",
        note=NO_OPENMP,
        source=OPENMP_PAGE,
    ),
    _variable(
        name="OMP_PLACES",
        kind="text",
        pattern=r"(threads|cores|ll_caches|numa_domains|sockets)(\(\d+\))?|\{.+",
        summary="Places that threads of OpenMP are bound to, as in cores or {0:4},{4:4}.",
        note=NO_OPENMP,
        source=OPENMP_PAGE,
    ),
    _variable(
        name="OMP_DYNAMIC",
        kind="choice",
        values=("false", "true"),
        summary="Whether OpenMP may use fewer threads than it was told to.",
        note=NO_OPENMP,
        source=OPENMP_PAGE,
    ),
    _variable(
        name="KMP_AFFINITY",
        kind="text",
        summary="How Intel's OpenMP binds its threads, as in granularity=fine,compact,1,0.",
        note=NO_OPENMP,
        source=OPENMP_PAGE,
    ),
    _variable(
        name="KMP_BLOCKTIME",
        kind="text",
        pattern=r"\d+(us|ms)?|infinite",
        summary="How long a thread of Intel's OpenMP spins before it sleeps, in milliseconds.",
        note=NO_OPENMP,
        source=OPENMP_PAGE,
    ),
    _variable(
        name="MKL_NUM_THREADS",
        kind="integer",
        low=1,
        high=9999,
        summary="Threads of Intel's MKL.",
        note="Wheels from PyPI do not use MKL and ignore it; it holds for other libraries of the same process.",
        source=OPENMP_PAGE,
    ),
)

_ALL = (
    INTRA_OP_NUM_THREADS,
    INTRA_OP_THREAD_AFFINITIES,
    INTRA_OP_ALLOW_SPINNING,
    DYNAMIC_BLOCK_BASE,
    EXECUTION_MODE,
    INTER_OP_NUM_THREADS,
    INTER_OP_ALLOW_SPINNING,
    GRAPH_OPTIMIZATION_LEVEL,
    INTRA_OP_SPIN_DURATION,
    INTRA_OP_SPIN_BACKOFF,
    INTER_OP_SPIN_DURATION,
    INTER_OP_SPIN_BACKOFF,
    FORCE_SPINNING_STOP,
    USE_PER_SESSION_THREADS,
    ENABLE_CPU_MEM_ARENA,
    ENABLE_MEM_PATTERN,
    ENABLE_MEM_REUSE,
    USE_DEVICE_ALLOCATOR_FOR_INITIALIZERS,
    DISABLE_PREPACKING,
    LOOP_LEVEL,
    *_MEMORY,
    EXECUTION_ORDER,
    ENABLE_GELU_APPROXIMATION,
    ENABLE_CAST_CHAIN_ELIMINATION,
    *_GRAPH,
    DISABLE_QUANT_QDQ,
    DISABLE_DOUBLE_QDQ_REMOVER,
    DISABLE_QDQ_CONSTANT_FOLDING,
    ENABLE_QUANT_QDQ_CLEANUP,
    X64QUANTPRECISION,
    QDQ_MATMULNBITS_ACCURACY_LEVEL,
    USE_LUT_GEMM,
    *_QUANTIZED,
    SET_DENORMAL_AS_ZERO,
    *_KERNELS,
    *_REPORTS,
    *_MODEL,
    *_PLACEMENT,
    *_COMPILED,
    *_EXPERTS,
    *_AS_TEXTS,
    ARENA_SHRINKAGE,
    *_CALLS,
    *_DYNAMIC,
    LD_PRELOAD,
    *_ENVIRONMENT,
    *cpu.OPTIONS,
    *cuda.OPTIONS,
    *tensorrt.OPTIONS,
    *nv_tensorrt_rtx.OPTIONS,
    *openvino.OPTIONS,
    *own.KNOBS,
)

KNOBS: Mapping[str, Knob] = {knob.id: knob for knob in _ALL}
"""All knobs by id, in the order in which they are shown."""

LIST_ALL = "ortune knobs lists all."


def find_knob(text: str) -> Knob:
    """Return the knob that a text names: its id, or as much of the id's end as only one has.

    The short name of an execution provider may be in capitals.

    Raises:
        UsageError: There is none, or there are several.
    """
    name = text.strip()
    alias, dot, option = name.partition(".")
    for spelling in (name, f"{alias.lower()}{dot}{option}"):
        if spelling in KNOBS:
            return KNOBS[spelling]
    ending = [knob for knob in KNOBS.values() if name and (knob.name == name or knob.id.endswith(f".{name}"))]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise UsageError(f"{name} is the name of several knobs.", f"{_ask([knob.id for knob in ending])} {LIST_ALL}")
    near = _find_near(name)
    raise UsageError(f"There is no knob {name}.", f"{_ask(near)} {LIST_ALL}" if near else LIST_ALL)


def search_knobs(text: str) -> list[Knob]:
    """Return the knobs in whose id and summary all words of a text occur, in the order of the catalogue."""
    words = text.lower().split()
    return [knob for knob in KNOBS.values() if all(word in f"{knob.id} {knob.summary}".lower() for word in words)]


def _find_near(name: str) -> list[str]:
    """Return ids that look like a name, or whose last part does."""
    by_spelling: dict[str, str] = {}
    for knob in KNOBS.values():
        for spelling in (knob.id, knob.name, knob.id.rpartition(".")[2]):
            by_spelling.setdefault(spelling.lower(), knob.id)
    near = difflib.get_close_matches(name.lower(), by_spelling, n=6)
    return list(dict.fromkeys(by_spelling[spelling] for spelling in near))[:3]


def _ask(ids: list[str]) -> str:
    return f"Did you mean {', '.join(ids[:-1])}{' or ' if len(ids) > 1 else ''}{ids[-1]}?"
