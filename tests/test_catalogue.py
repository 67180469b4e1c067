"""The catalogue of knobs, compared with the installed onnxruntime."""

from __future__ import annotations

import gc
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, save

from ortune import UsageError, Value
from ortune.cli.knobs import knobs as knobs_command
from ortune.errors import spell_options
from ortune.knobs import ids
from ortune.knobs.catalogue import KNOBS, find_knob, search_knobs
from ortune.knobs.config import CAPTURES
from ortune.knobs.data_files import FILES, FOLDER, PROVIDER_FILES, parse_file, read_file
from ortune.knobs.knob import PLACES, Knob
from tests.binary_keys import (
    NOT_IN_THE_BINARY,
    NOT_IN_THE_CATALOG,
    contains_key,
    expect_absent,
    expect_unknown,
    find_absent,
    find_keys,
    find_unknown,
    is_before,
    read_binaries,
)
from tests.conftest import TINY_CNN


def words(text: str) -> list[str]:
    return text.split()


# Names in ONNX Runtime's headers and documentation.
SESSION_PROPERTIES = words("""
enable_cpu_mem_arena enable_mem_pattern enable_mem_reuse enable_profiling execution_mode execution_order
graph_optimization_level inter_op_num_threads intra_op_num_threads log_severity_level log_verbosity_level logid
optimized_model_filepath profile_file_prefix use_deterministic_compute use_per_session_threads
""")
RUN_PROPERTIES = words("""
log_severity_level log_verbosity_level logid terminate only_execute_path_to_fetches training_mode
""")
SESSION_KEYS = words("""
session.disable_prepacking session.use_env_allocators session.load_model_format session.save_model_format
session.set_denormal_as_zero session.disable_quant_qdq session.disable_qdq_constant_folding
session.disable_double_qdq_remover session.enable_quant_qdq_cleanup session.disable_aot_function_inlining
session.graph_optimizations_loop_level session.use_device_allocator_for_initializers session.inter_op.allow_spinning
session.intra_op.allow_spinning session.intra_op.spin_duration_us session.inter_op.spin_duration_us
session.intra_op.spin_backoff_max session.inter_op.spin_backoff_max session.use_ort_model_bytes_directly
session.use_ort_model_bytes_for_initializers session.qdqisint8allowed session.x64quantprecision
session.dynamic_block_base session.force_spinning_stop session.strict_shape_type_inference
session.allow_released_opsets_only session.node_partition_config_file session.intra_op_thread_affinities
session.debug_layout_transformation session.disable_cpu_ep_fallback
session.optimized_model_external_initializers_file_name
session.optimized_model_external_initializers_min_size_in_bytes session.model_external_initializers_file_folder_path
session.save_external_prepacked_constant_initializers session.collect_node_memory_stats_to_file
session.resource_cuda_partitioning_settings session.layer_assignment_settings session.qdq_matmulnbits_accuracy_level
session.qdq_matmulnbits_block_size session.enable_dq_matmulnbits_fusion session.disable_model_compile
session.fail_on_suboptimal_compiled_model session.record_ep_graph_assignment_info
optimization.enable_gelu_approximation optimization.enable_cast_chain_elimination
optimization.disable_specified_optimizers optimization.minimal_build_optimizations
optimization.memory_optimizer_config optimization.enable_memory_probe_recompute_config
ep.nnapi.partitioning_stop_ops ep.context_enable ep.context_file_path ep.context_embed_mode
ep.context_node_name_prefix ep.share_ep_contexts ep.stop_share_ep_contexts
ep.context_model_external_initializers_file_name ep.enable_weightless_ep_context_nodes
mlas.enable_gemm_fastmath_arm64_bfloat16 mlas.use_lut_gemm mlas.disable_kleidiai
""")
RUN_KEYS = words("""
memory.enable_memory_arena_shrinkage disable_synchronize_execution_providers qnn.htp_perf_mode
qnn.htp_perf_mode_post_run qnn.rpc_control_latency qnn.lora_config gpu_graph_id
""")
DYNAMIC_KEYS = ["ep.dynamic.workload_type", "ep.dynamic.qnn_htp_performance_mode"]

REJECTED: dict[tuple[str, Value], str] = {
    ("execution_order", "MEMORY_EFFICIENT"): "only onnxruntime-training supports it",
    ("use_per_session_threads", False): "it requires a global thread pool",
    ("session.disable_cpu_ep_fallback", "1"): "the CPU provider is listed",
    ("session.compile_only", "1"): "the session is not meant to run",
    ("session.load_model_format", "ORT"): "the model is in ONNX format",
    ("optimization.minimal_build_optimizations", "save"): "nothing is saved in ORT format",
    ("terminate", True): "it ends the call",
    ("session.max_shape_override", "no_such_input:[1]"): "the model has no such input",
    ("session.external_data_loader.chunk_bytes", "33556480"): "it is not a multiple of 4096",
}
"""Legal values that the sessions of these tests cannot have, and why."""

WRITES = {
    "enable_profiling",
    "optimized_model_filepath",
    "session.debug_layout_transformation",
    "session.collect_node_memory_stats_to_file",
    "ep.context_enable",
}
"""Knobs that write files."""

TEXTS: dict[str, list[str]] = {
    "session.intra_op_thread_affinities": ["1", "1-1", "1,1"],
    "optimization.disable_specified_optimizers": ["ConstantFolding", "NchwcTransformer;ConvActivationFusion"],
    "session.layer_assignment_settings": ["cpu(one,two)"],
    "session.name_based_layer_assignment": ["cpu(one,two)"],
    "session.resource_cuda_partitioning_settings": ["1000,"],
    "session.max_shape_override": ["no_such_input:[1]"],
    "session.moe_expert_counter_alpha": ["0.5", "0"],
    "session.moe_expert_counter_beta": ["0.05", "0"],
    "session.moe.offload.device_expert_bytes": ["auto", "0"],
    "session.moe.offload.gpu_budget_bytes": ["auto", "0"],
    "session.moe.offload.host_expert_bytes": ["auto", "1000"],
    "session.moe.offload.pinned_bytes": ["auto", "0"],
    "session.moe.offload.reserve_device_bytes": ["auto", "0"],
    "session.moe.offload.min_expert_weight": ["0", "0.05", "1"],
    "profile_file_prefix": ["profile_"],
    "logid": ["name"],
    "run.logid": ["name"],
    "memory.enable_memory_arena_shrinkage": ["cpu", "cpu:0"],
}
"""Legal values of text knobs; the others name files."""

UNUSABLE = {"training_mode": "this wheel does not support it"}

ENUMS = {
    "graph_optimization_level": "GraphOptimizationLevel",
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
}


needs_x86_64 = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="other binaries contain other keys"
)


@pytest.fixture(scope="module")
def binary() -> bytes:
    return read_binaries(Path(onnxruntime.__file__).parent)


def is_known_here(knob: Knob) -> bool:
    return not is_before(onnxruntime.__version__, knob.since or onnxruntime.__version__)


def properties_of(options: Any) -> dict[str, Any]:
    """Return the attributes of options that are not methods, enums by name."""
    values = {name: getattr(options, name) for name in dir(type(options)) if not name.startswith("_")}
    return {name: getattr(value, "name", value) for name, value in values.items() if not callable(value)}


WHERES = sorted({knob.where for knob in KNOBS.values()})
"""Where knobs are set. Tests of all knobs run for each of these: a test for each knob would be thousands."""


def knobs_of(where: str) -> list[Knob]:
    """Return the knobs that are set in one place."""
    return [knob for knob in KNOBS.values() if knob.where == where]


def samples(knob: Knob) -> list[Value]:
    """Return legal values of a knob: all values of a choice, ends and middle of a range."""
    texts: list[str] = []
    if knob.kind == "boolean":
        texts = ["0", "1"]
    elif knob.kind == "choice":
        texts = list(knob.values)
    elif knob.kind == "integer":
        low = 0 if knob.low is None else knob.low
        # The maximum number of threads is too much for a host.
        high = low + 3 if knob.high in {None, 9999} else int(knob.high or 0)
        texts = [str(low), str((low + high) // 2), str(high)]
    else:
        texts = TEXTS.get(knob.id, [])
    return [knob.parse(text) for text in dict.fromkeys(texts)]


def on_cpu(*places: str) -> list[Knob]:
    return [knob for knob in KNOBS.values() if knob.where in places]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a quantized activation, and a MatMul with 4-bit weights."""
    weights = helper.make_tensor("w", TensorProto.INT4, [64, 32], [(i % 15) - 7 for i in range(64 * 32)])
    constants = [
        weights,
        helper.make_tensor("w_scale", TensorProto.FLOAT, [32], [0.1] * 32),
        helper.make_tensor("scale", TensorProto.FLOAT, [], [0.05]),
        helper.make_tensor("zero", TensorProto.UINT8, [], [128]),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale"], ["wd"], axis=1),
        helper.make_node("MatMul", ["d", "wd"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 32])],
        constants,
    )
    path = tmp_path_factory.mktemp("models") / "quantized.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def make_session(path: Path, knob: Knob, value: Value) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 4
    if ".inter_op." in knob.id or knob.id == "inter_op_num_threads":
        options.execution_mode, options.inter_op_num_threads = onnxruntime.ExecutionMode.ORT_PARALLEL, 2
    if knob.where == "session_config":
        assert isinstance(value, str)
        if "moe_expert_counter" in knob.id:
            options.add_session_config_entry("session.enable_moe_expert_counting", "1")
        options.add_session_config_entry(knob.name, value)
    else:
        set_attribute(options, knob, value)
    return onnxruntime.InferenceSession(
        str(path), sess_options=options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def set_attribute(options: Any, knob: Knob, value: Value) -> None:
    if knob.name in ENUMS:
        setattr(options, knob.name, getattr(onnxruntime, ENUMS[knob.name]).__members__[value])
    else:
        setattr(options, knob.name, value)


def run(session: onnxruntime.InferenceSession, options: Any = None) -> Any:
    info = session.get_inputs()[0]
    shape = [size if isinstance(size, int) else 1 for size in info.shape]
    return session.run(None, {info.name: np.zeros(shape, np.float32)}, options)


class TestCompleteness:
    def test_all_documented_names_are_there(self) -> None:
        assert len(SESSION_KEYS) == 61
        assert {KNOBS[name].where for name in SESSION_PROPERTIES} == {"session_options"}
        assert {knob.name for knob in on_cpu("run_options")} == set(RUN_PROPERTIES)
        assert {KNOBS[key].where for key in SESSION_KEYS} == {"session_config"}
        assert {KNOBS[key].where for key in RUN_KEYS} == {"run_config"}
        assert {KNOBS[key].where for key in DYNAMIC_KEYS} == {"dynamic_options"}

    def test_ids_are_unique(self) -> None:
        names = [*FILES, *(f"providers/{name}" for name in PROVIDER_FILES)]
        assert len(KNOBS) == sum(len(read_file(name).knobs) for name in names)
        assert all(knob.id == key for key, knob in KNOBS.items())

    def test_ids_in_the_code_are_knobs(self) -> None:
        assert {value for name, value in vars(ids).items() if name.isupper()} <= set(KNOBS)

    def test_session_options_are_those_of_onnxruntime(self) -> None:
        expected = {knob.name: knob.default for knob in on_cpu("session_options") if is_known_here(knob)}
        assert properties_of(onnxruntime.SessionOptions()) == expected

    def test_run_options_are_those_of_onnxruntime(self) -> None:
        expected = {knob.name: knob.default for knob in on_cpu("run_options")}
        del expected["training_mode"]
        found = properties_of(onnxruntime.RunOptions())
        # Wheels for training have it.
        found.pop("training_mode", None)
        assert found == expected

    @needs_x86_64
    def test_every_key_in_the_binary_is_a_knob_or_has_a_reason(self, binary: bytes) -> None:
        assert find_unknown(binary, KNOBS.values()) == expect_unknown(onnxruntime.__version__)

    @needs_x86_64
    def test_every_knob_is_in_the_binary_or_has_a_reason(self, binary: bytes) -> None:
        release = onnxruntime.__version__
        assert find_absent(binary, KNOBS.values(), release) == expect_absent(release, KNOBS.values())

    @pytest.mark.parametrize(
        ("content", "keys"),
        [
            (b"\0session.new_key\0", {"session.new_key"}),
            (b"\0ORT_NEW_VARIABLE\0ep.cuda.new\0", {"ORT_NEW_VARIABLE", "ep.cuda.new"}),
            (b"\0See session.new_key.\0session.new_key is wrong\0", set()),
            (b"\0session.H3\0session.\0xsession.a\0", set()),
            (b"\0session.use_memosession.use_memo\0", set()),
        ],
    )
    def test_how_keys_are_found(self, content: bytes, keys: set[str]) -> None:
        assert find_keys(content) == keys
        assert all(contains_key(content, key) for key in keys)

    def test_keys_that_are_numbers(self) -> None:
        assert contains_key(b"..session.use_memo..ry_mapped_ort_mo..del", "session.use_memory_mapped_ort_model")
        assert not contains_key(b"..session.use_memo..del", "session.use_memory_mapped_ort_model")
        assert not contains_key(b"gpu_graph_id_other", "gpu_graph_id")

    def test_exceptions_are_knobs(self) -> None:
        assert set(NOT_IN_THE_BINARY) <= set(KNOBS)
        assert not set(NOT_IN_THE_CATALOG) & set(KNOBS)
        assert {name for name, _ in REJECTED} | WRITES | set(TEXTS) | set(UNUSABLE) <= set(KNOBS)

    def test_what_changes_the_graph(self) -> None:
        of_graphs = {knob.id for knob in KNOBS.values() if knob.graph}
        names = {name for name in KNOBS if name.startswith(("optimization.", "session.qdq"))}
        assert names < of_graphs
        assert of_graphs - names == {
            "graph_optimization_level",
            "session.graph_optimizations_loop_level",
            "session.disable_aot_function_inlining",
            "session.disable_quant_qdq",
            "session.disable_double_qdq_remover",
            "session.disable_qdq_constant_folding",
            "session.enable_quant_qdq_cleanup",
            "session.x64quantprecision",
            "session.enable_dq_matmulnbits_fusion",
        }
        assert {KNOBS[name].where for name in of_graphs} == {"session_options", "session_config"}

    def test_numerics(self) -> None:
        found = {knob.id for knob in KNOBS.values() if knob.numerics and not knob.provider}
        assert found == {
            "optimization.enable_gelu_approximation",
            "optimization.enable_cast_chain_elimination",
            "session.enable_quant_qdq_cleanup",
            "session.x64quantprecision",
            "session.set_denormal_as_zero",
            "mlas.enable_gemm_fastmath_arm64_bfloat16",
            "mlas.use_lut_gemm",
            "mlas.qnbit.force_fp32",
            "session.qdq_matmulnbits_accuracy_level",
            "training_mode",
            "ORT_MLAS_QKGEMM_S8_APPROX_VNNI",
            "ORT_USE_MLAS_Q4_GEMM_MOE",
            "ORT_QMOE_CPU_QNBIT_GEMM",
            "ep.cpu.qmoe_deferred_scale",
            "session.moe.offload.min_expert_weight",
        }

    def test_the_import_is_light(self) -> None:
        code = (
            "import ortune.knobs.catalogue, sys; "
            "print([name for name in ('onnxruntime', 'onnx', 'numpy', 'scipy', 'optuna') if name in sys.modules])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


CAPTURING = re.compile(r"graph_?capture|(cuda|hip)_?graph", re.IGNORECASE)


def test_captures_are_marked() -> None:
    """Programs never get them: a new knob that captures calls must say so, and must be known to configs."""
    assert {knob.name for knob in KNOBS.values() if knob.captures} == CAPTURES
    of_calls = {knob.name for knob in KNOBS.values() if CAPTURING.search(knob.name) and knob.where != "run_config"}
    assert of_calls == CAPTURES


class TestEntries:
    @pytest.mark.parametrize("where", WHERES)
    def test_entries_are_complete(self, where: str) -> None:
        for knob in knobs_of(where):
            assert knob.summary.endswith(".")
            assert not knob.note or knob.note.endswith(".")
            assert not knob.tuned.endswith(".")
            assert not knob.not_tunable.endswith(".")
            assert knob.where == "config" or not (knob.tuned and knob.not_tunable)
            assert knob.source
            assert knob.describe_values()
            assert (knob.kind == "choice") == bool(knob.values)
            assert knob.kind == "integer" or (knob.low is None and knob.high is None)

    @pytest.mark.parametrize("where", WHERES)
    def test_parsed_values_are_legal(self, where: str) -> None:
        for knob in knobs_of(where):
            for value in samples(knob):
                knob.check(value)
                assert knob.parse(str(value)) == value

    @pytest.mark.parametrize("alias", PROVIDER_FILES)
    def test_options_belong_to_their_provider(self, alias: str) -> None:
        data = read_file(f"providers/{alias}")
        assert data.provider
        assert data.provider.alias == alias
        for knob in data.knobs:
            assert (knob.where, knob.provider, knob.alias) == ("provider_options", data.provider.name, alias)
            assert knob.id == f"{alias}.{knob.name}"

    def test_booleans_of_tensorrt_are_words(self) -> None:
        assert KNOBS["tensorrt.trt_fp16_enable"].values == ("False", "True")
        assert KNOBS["cuda.enable_cuda_graph"].kind == "boolean"

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("enable_mem_pattern", "True or False"),
            ("session.force_spinning_stop", "1 or 0"),
            ("execution_mode", "ORT_SEQUENTIAL, ORT_PARALLEL"),
            ("session.load_model_format", '"", ONNX, ORT'),
            ("session.intra_op.spin_backoff_max", "an integer from 1 to 64"),
            ("gpu_graph_id", "an integer, at least -1"),
            ("optimization.disable_specified_optimizers", r"text that matches /\w+(;\w+)*/"),
            ("logid", "text"),
        ],
    )
    def test_values_in_words(self, name: str, text: str) -> None:
        assert KNOBS[name].describe_values() == text

    def test_defaults_that_differ_from_the_documentation(self) -> None:
        assert KNOBS["run.log_severity_level"].default == -1
        assert KNOBS["session.intra_op.spin_duration_us"].default == ""


class TestDataFiles:
    """The data is read strictly, so that a typo in it fails a test."""

    KNOB = 'name = "x"\nkind = "integer"\ndefault = 0\nsummary = "It is x."\n'

    def parse(self, text: str) -> Knob:
        (knob,) = parse_file(f'where = "session_options"\nsource = "page"\n{text}').knobs
        return knob

    def test_every_file_is_read(self) -> None:
        found = {path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.rglob("*.toml")}
        assert found == {*FILES, *(f"providers/{name}" for name in PROVIDER_FILES)}

    def test_shared_values_are_filled_in(self) -> None:
        knob = self.parse(f'[shared]\ntext = "It is shared."\n[[knob]]\n{self.KNOB}note = "$text"')
        assert (knob.note, knob.source) == ("It is shared.", "page")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[[knob]]\n{knob}sumary = 'x'", "sumary"),
            ("[[knob]]\n{knob}low = '1'", "int"),
            ("[[knob]]\n{knob}numerics = 1", "bool"),
            ("[[knob]]\nname = 'x'", "missing required field"),
            ("[[knob]]\n{knob}note = '$text'", "not in"),
            ("[[knobs]]\n{knob}", "knobs"),
            ("[provider]\nname = 'x'\nalias = 'x'\npackage = 'x'\nneed = 'y'", "need"),
            ("[provider]\nname = 'x'\nalias = 'x'\npackage = 'x'\n[[suggestion]]\noption = 'y'", "values"),
        ],
    )
    def test_a_typo_is_an_error(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            self.parse(text.replace("{knob}", self.KNOB))

    @pytest.mark.parametrize("where", WHERES)
    def test_every_default_is_legal(self, where: str) -> None:
        for knob in knobs_of(where):
            if knob.default == "":
                assert knob.kind != "boolean" or not knob.is_attribute
                continue
            knob.check(knob.default)
            assert knob.parse(str(knob.default)) == knob.default

    @pytest.mark.parametrize("name", FILES)
    def test_what_is_suggested_is_legal(self, name: str) -> None:
        data = read_file(name)
        knobs = {knob.name: knob for knob in data.knobs}
        for suggestion in data.suggestions:
            knob = knobs[suggestion.option]
            assert knob.tuned, f"{knob.id}: say when it is tried"
            assert knob.default not in [knob.parse(text) for text in suggestion.values]
            assert suggestion.no_effect_when.keys() <= KNOBS.keys()

    @pytest.mark.parametrize("where", WHERES)
    def test_options_of_ortune_exist(self, where: str) -> None:
        flags = {"tune", "provider", "sessions", "batch", "allow_approximate"}
        for knob in knobs_of(where):
            for text in (knob.summary, knob.note, knob.tuned, knob.not_tunable):
                spelled: list[str] = []
                spell_options(text, lambda name, value, spelled=spelled: spelled.append(name) or "")  # type: ignore[misc]
                assert set(spelled) <= flags


class TestLegalValues:
    @pytest.mark.parametrize("knob", on_cpu("session_options", "session_config"), ids=lambda knob: knob.id)
    def test_sessions_accept_them(self, knob: Knob, quantized: Path) -> None:
        if knob.id in WRITES or knob.id == "session.set_denormal_as_zero" or not is_known_here(knob):
            return
        for value in samples(knob):
            if (knob.id, value) in REJECTED:
                continue
            if knob.name in ENUMS and value not in getattr(onnxruntime, ENUMS[knob.name]).__members__:
                continue
            assert len(run(make_session(TINY_CNN, knob, value))) == 1
            if "q" in knob.id:
                assert run(make_session(quantized, knob, value))[0].shape == (4, 32)

    @pytest.mark.parametrize(
        ("name", "value"), [key for key in REJECTED if KNOBS[key[0]].where.startswith("session")], ids=str
    )
    def test_exceptions_are_rejected_here(self, name: str, value: Value) -> None:
        if not is_known_here(KNOBS[name]):
            return
        with pytest.raises(Exception, match=r"."):
            run(make_session(TINY_CNN, KNOBS[name], value))
        # The traceback may keep a session, whose workers spin.
        gc.collect()

    def test_denormals_in_a_separate_process(self) -> None:
        code = (
            "import onnxruntime as o; s = o.SessionOptions(); s.intra_op_num_threads = 2; "
            "s.add_session_config_entry('session.set_denormal_as_zero', '1'); "
            f"o.InferenceSession({str(TINY_CNN)!r}, s, providers=['CPUExecutionProvider'], enable_fallback=0); "
            "print('made')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "made"

    @pytest.mark.parametrize("knob", on_cpu("run_options", "run_config"), ids=lambda knob: knob.id)
    def test_calls_accept_them(self, knob: Knob) -> None:
        session = make_session(TINY_CNN, KNOBS["log_severity_level"], 4)
        for value in samples(knob):
            if (knob.id, value) in REJECTED or knob.id in UNUSABLE:
                continue
            options = onnxruntime.RunOptions()
            if knob.where == "run_config":
                options.add_run_config_entry(knob.name, value)
            else:
                set_attribute(options, knob, value)
            assert len(run(session, options)) == 1


class TestIllegalValues:
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("intra_op_num_threads", "-1"),
            ("intra_op_num_threads", "1.5"),
            ("intra_op_num_threads", "two"),
            ("intra_op_num_threads", ""),
            ("inter_op_num_threads", "10000"),
            ("session.intra_op_thread_affinities", ""),
            ("session.intra_op_thread_affinities", "0"),
            ("session.intra_op_thread_affinities", "1 2"),
            ("session.intra_op_thread_affinities", "1-2,2"),
            ("session.intra_op_thread_affinities", "1;"),
            ("session.intra_op.allow_spinning", "true"),
            ("session.inter_op.allow_spinning", "2"),
            ("session.dynamic_block_base", "abc"),
            ("session.dynamic_block_base", "4x"),
            ("session.dynamic_block_base", "-4"),
            ("session.intra_op.spin_duration_us", "10001"),
            ("session.intra_op.spin_duration_us", "-1"),
            ("session.inter_op.spin_duration_us", "1ms"),
            ("session.intra_op.spin_backoff_max", "0"),
            ("session.inter_op.spin_backoff_max", "65"),
            ("session.graph_optimizations_loop_level", "9"),
            ("session.graph_optimizations_loop_level", "x"),
            ("session.qdq_matmulnbits_accuracy_level", "5"),
            ("session.qdq_matmulnbits_block_size", "17"),
            ("session.gqa_value_layout", "NHWC"),
            ("session.max_shape_override", "x"),
            ("session.function_expansion_node_limit", "0"),
            ("optimization.disable_specified_optimizers", "ConstantFolding,MatMulAddFusion"),
            ("mlas.kleidiai.conv_igemm_max_work", "x"),
            ("execution_mode", "parallel"),
            ("graph_optimization_level", "99"),
            ("graph_optimization_level", "ort_enable_all"),
            ("execution_order", "RANDOM"),
            ("enable_mem_pattern", "maybe"),
            ("log_severity_level", "5"),
            ("memory.enable_memory_arena_shrinkage", "CPU:0"),
            ("memory.enable_memory_arena_shrinkage", "cpu:0,gpu:0"),
            ("gpu_graph_id", "-2"),
            ("qnn.htp_perf_mode", "fast"),
            ("ep.dynamic.workload_type", "efficient"),
            ("OMP_WAIT_POLICY", "passive"),
            ("OMP_NUM_THREADS", "0"),
            ("KMP_BLOCKTIME", "forever"),
            ("ORT_INTRA_OP_NUM_THREADS", "all"),
            ("allocator", "/lib/m.so"),
            ("KMP_AFFINITY", "a;b"),
            ("logid", "a\x1b[0m"),
            ("cuda.use_tf32", "no"),
            ("cuda.arena_extend_strategy", "kSame"),
            ("cuda.sdpa_kernel", "512"),
            ("tensorrt.trt_fp16_enable", "1"),
            ("tensorrt.trt_builder_optimization_level", "6"),
            ("tensorrt.trt_tactic_sources", "CUDNN"),
            ("tensorrt.trt_profile_min_shapes", "ids=1x8"),
            ("nv_tensorrt_rtx.nv_weight_streaming_budget", "much"),
            ("openvino.device_type", "VPU"),
            ("openvino.num_streams", "9"),
            ("coreml.MLComputeUnits", "GPU"),
            ("dml.disable_metacommands", "1"),
            ("migraphx.migraphx_fp16_enable", "True"),
            ("rocm.arena_extend_strategy", "kNone"),
            ("qnn.htp_performance_mode", "fast"),
            ("qnn.backend_type", "npu"),
            ("vitisai.opt_level", "4"),
            ("xnnpack.intra_op_num_threads", "0"),
            ("session.kernel_dispatch_policy", "fast"),
            ("session.moe.offload.mode", "on"),
            ("session.moe.offload.min_expert_weight", "2"),
            ("ORT_QMOE_CPU_QNBIT_GEMM", "fp16"),
        ],
    )
    def test_they_are_rejected(self, name: str, text: str) -> None:
        with pytest.raises(UsageError, match="not a legal value"):
            KNOBS[name].parse(text)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("intra_op_num_threads", "2"),
            ("intra_op_num_threads", True),
            ("intra_op_num_threads", 2.0),
            ("enable_mem_pattern", 1),
            ("enable_mem_pattern", "True"),
            ("session.dynamic_block_base", 4),
            ("session.force_spinning_stop", True),
            ("session.force_spinning_stop", None),
        ],
    )
    def test_types_are_checked(self, name: str, value: object) -> None:
        with pytest.raises(UsageError):
            KNOBS[name].check(value)

    def test_the_message_states_the_reason(self) -> None:
        with pytest.raises(UsageError) as caught:
            KNOBS["session.intra_op.allow_spinning"].parse("true")
        assert 'every value except "1" as off' in caught.value.hint
        assert "1 or 0" in caught.value.hint


class TestFinding:
    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("execution_mode", "execution_mode"),
            (" session.dynamic_block_base ", "session.dynamic_block_base"),
            ("dynamic_block_base", "session.dynamic_block_base"),
            ("intra_op.allow_spinning", "session.intra_op.allow_spinning"),
            ("use_tf32", "cuda.use_tf32"),
            ("CUDA.use_tf32", "cuda.use_tf32"),
            ("TensorRT.trt_fp16_enable", "tensorrt.trt_fp16_enable"),
            ("intra_op_num_threads", "intra_op_num_threads"),
            ("logid", "logid"),
            ("terminate", "terminate"),
            ("allocator", "allocator"),
        ],
    )
    def test_by_name(self, text: str, found: str) -> None:
        assert find_knob(text).id == found

    @pytest.mark.parametrize(
        ("text", "near"),
        [
            ("session.intra_op.allow_spining", "session.intra_op.allow_spinning"),
            ("intra_op_threads", "intra_op_num_threads"),
            ("spin_duration", "session.intra_op.spin_duration_us"),
            ("cuda.use_tf23", "cuda.use_tf32"),
            ("mem_arena", "enable_cpu_mem_arena"),
        ],
    )
    def test_near_misses(self, text: str, near: str) -> None:
        with pytest.raises(UsageError, match=f"{text}: there is no such knob") as caught:
            find_knob(text)
        assert "Did you mean" in caught.value.hint
        assert near in caught.value.hint
        assert "`ortune knobs` lists all knobs." in caught.value.hint

    @pytest.mark.parametrize("text", ["", "xyzzy", "."])
    def test_nothing_near(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            find_knob(text)
        assert caught.value.hint == "`ortune knobs` lists all knobs."

    def test_several(self) -> None:
        with pytest.raises(UsageError, match="several knobs") as caught:
            find_knob("device_id")
        assert "cuda.device_id" in caught.value.hint

    def test_by_words(self) -> None:
        assert search_knobs("") == list(KNOBS.values())
        assert {knob.id for knob in search_knobs("SPIN intra")} >= {"session.intra_op.spin_duration_us"}
        assert search_knobs("spin xyzzy") == []


class TestCommand:
    @pytest.fixture(autouse=True)
    def _width(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("NO_COLOR", "1")

    def test_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        knobs_command()
        lines = capsys.readouterr().out.splitlines()
        assert {line.split()[0] for line in lines if line and not line.startswith(" ")} >= set(KNOBS)
        for place in {knob.where for knob in KNOBS.values()}:
            assert any(line.startswith(PLACES[place][:1].upper() + PLACES[place][1:]) for line in lines)
        assert max(map(len, lines)) <= 100
        assert any(line.startswith("intra_op_num_threads") and line.endswith("tuned always") for line in lines)
        assert any(line.startswith("logid") and line.endswith("not tunable") for line in lines)

    @pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.id)
    def test_details_of_each(self, knob: Knob, capsys: pytest.CaptureFixture[str]) -> None:
        knobs_command(name=[knob.id])
        out = capsys.readouterr().out
        assert out.startswith(knob.id)
        assert (f"--fix {knob.id}=" in out) == knob.is_settable
        assert ("--tune" in out) == (not knob.not_tunable)

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("execution_mode", "options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL"),
            ("graph_optimization_level", "onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL"),
            ("enable_mem_pattern", "options.enable_mem_pattern = False"),
            ("session.dynamic_block_base", 'options.add_session_config_entry("session.dynamic_block_base", "2")'),
            ("only_execute_path_to_fetches", "run_options.only_execute_path_to_fetches = True"),
            ("gpu_graph_id", 'run_options.add_run_config_entry("gpu_graph_id", "2")'),
            ("cuda.use_tf32", 'providers=[("CUDAExecutionProvider", {"use_tf32": "0"})]'),
            ("OMP_NUM_THREADS", "OMP_NUM_THREADS=2 python program.py"),
            ("ep.dynamic.workload_type", 'session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})'),
        ],
    )
    def test_how_to_set_it(self, name: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
        knobs_command(name=[name])
        assert line in capsys.readouterr().out

    def test_words(self, capsys: pytest.CaptureFixture[str]) -> None:
        knobs_command(name=["intra", "spin"])
        out = capsys.readouterr().out
        assert "session.intra_op.spin_duration_us" in out
        assert "3 knobs. For details: ortune knobs NAME" in out

    def test_nothing(self) -> None:
        with pytest.raises(UsageError, match="xyzzy: there is no such knob"):
            knobs_command(name=["xyzzy"])

    def test_json(self, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        knobs_command(name=["use_tf32"], json=True)
        sys.stdout.flush()
        (entry,) = json.loads(capfdbinary.readouterr().out)
        assert entry["id"] == "cuda.use_tf32"
        assert set(entry) == {"id", *Knob.__struct_fields__}
        knobs_command(json=True)
        sys.stdout.flush()
        assert [entry["id"] for entry in json.loads(capfdbinary.readouterr().out)] == list(KNOBS)
