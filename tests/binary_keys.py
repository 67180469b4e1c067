"""The keys that a binary of ONNX Runtime contains, and how they differ from the catalog.

Keys of session and run options and names of environment variables are texts in the binary. A key that code only
compares with may be absent as a text: the compiler then replaces it by numbers of 16 bytes and less, which is
recognized, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ortune.knobs.knob import Knob

AREAS = ("session", "optimization", "mlas", "ep", "memory", "arena", "test")
"""First parts of keys. Others, such as domains of operators, have a dot in their names too."""

VARIABLES = ("ORT", "MLAS")
"""First parts of the names of environment variables."""

PIECE = 16
"""Number of bytes that one instruction compares."""

ENUM = "a value of an enum of the Python API, not a variable"
OF_TESTS = "only ONNX Runtime's own tests read it"
OF_ALLOCATORS = "a setting of an allocator that a program registers, not an entry of a session"
OFFLOADING = "a detail of offloading experts that is not documented"
OFFLOADING_VARIABLE = "a variable in place of an entry session.moe.offload.*"
CUDA_EXPERTS = "a detail of CUDA's kernels for experts that is not documented"
CPU_KERNELS = "a detail of kernels of the CPU that is not documented"

NOT_IN_THE_CATALOG: Mapping[str, tuple[str, str]] = {
    "ORT_SEQUENTIAL": (ENUM, ""),
    "ORT_PARALLEL": (ENUM, ""),
    "ORT_DISABLE_ALL": (ENUM, ""),
    "ORT_ENABLE_BASIC": (ENUM, ""),
    "ORT_ENABLE_EXTENDED": (ENUM, ""),
    "ORT_ENABLE_LAYOUT": (ENUM, "1.23"),
    "ORT_ENABLE_ALL": (ENUM, ""),
    "ORT_ARENA_ALLOCATOR": (ENUM, ""),
    "ORT_DEVICE_ALLOCATOR": (ENUM, ""),
    "ORT_SPARSE_UNDEFINED": (ENUM, ""),
    "ORT_SPARSE_COO": (ENUM, ""),
    "ORT_SPARSE_CSRC": (ENUM, ""),
    "ORT_SPARSE_BLOCK_SPARSE": (ENUM, ""),
    "ORT_RUNNING_UNIT_TESTS": (OF_TESTS, "1.29"),
    "ORT_QMOE_TEST_DEVICE_SM": (OF_TESTS, "1.32"),
    "test.ep_to_select": (OF_TESTS, "1.22"),
    "arena.extend_strategy": (OF_ALLOCATORS, "1.32"),
    "arena.initial_chunk_size_bytes": (OF_ALLOCATORS, "1.32"),
    "arena.initial_growth_chunk_size_bytes": (OF_ALLOCATORS, "1.32"),
    "arena.max_dead_bytes_per_chunk": (OF_ALLOCATORS, "1.32"),
    "arena.max_mem": (OF_ALLOCATORS, "1.32"),
    "arena.max_power_of_two_extend_bytes": (OF_ALLOCATORS, "1.32"),
    "session.moe.offload.async_max_tokens": (OFFLOADING, "1.32"),
    "session.moe.offload.budget_group": (OFFLOADING, "1.32"),
    "session.moe.offload.node_overrides": (OFFLOADING, "1.32"),
    "session.moe.offload.prefill_wave_experts": (OFFLOADING, "1.32"),
    "session.moe.offload.skip_tail_cold_only": (OFFLOADING, "1.32"),
    "session.moe.offload.skip_zero_cold_doorbell": (OFFLOADING, "1.32"),
    "session.moe.offload.tail_substitution_min_rank": (OFFLOADING, "1.32"),
    "session.moe.offload.tail_substitution_threshold": (OFFLOADING, "1.32"),
    "ORT_QMOE_MIN_EXPERT_WEIGHT": (OFFLOADING_VARIABLE, "1.32"),
    "ORT_QMOE_SKIP_TAIL_COLD_ONLY": (OFFLOADING_VARIABLE, "1.32"),
    "ORT_QMOE_SKIP_ZERO_COLD_DOORBELL": (OFFLOADING_VARIABLE, "1.32"),
    "ORT_QMOE_TAIL_SUBSTITUTION_MIN_RANK": (OFFLOADING_VARIABLE, "1.32"),
    "ORT_QMOE_TAIL_SUBSTITUTION_THRESHOLD": (OFFLOADING_VARIABLE, "1.32"),
    "ORT_MOE_PACKED_GPU_EXPERTS": ("a variable in place of the entry ep.cuda.moe_packed_gpu_experts", "1.32"),
    "ORT_QMOE_FP4_GROUP8_MASK": (CUDA_EXPERTS, "1.32"),
    "ORT_QMOE_CPU_DISABLE_AVX512": (CPU_KERNELS, "1.32"),
    "MLAS_NCHWC_FILTERSET_BALANCE": (CPU_KERNELS, "1.32"),
    "MLAS_NCHWC_FSS_TARGET": (CPU_KERNELS, "1.32"),
}
"""Keys in binaries that are not knobs: why, and the first onnxruntime that contains them if not all do."""

OTHER_PROVIDER = "only other providers read it"
TRAINING = "only onnxruntime-training reads it"

NOT_IN_THE_BINARY: Mapping[str, tuple[str, str]] = {
    "optimization.memory_optimizer_config": (TRAINING, ""),
    "optimization.enable_memory_probe_recompute_config": (TRAINING, ""),
    "mlas.enable_gemm_fastmath_arm64_bfloat16": ("only builds for 64-bit ARM read it", ""),
    "mlas.disable_kleidiai": ("only builds for 64-bit ARM read it", "1.25"),
    "ep.nnapi.partitioning_stop_ops": (OTHER_PROVIDER, ""),
    "ep.context_node_name_prefix": (OTHER_PROVIDER, ""),
    "ep.context_embed_mode": (OTHER_PROVIDER, "1.22"),
    "ep.context_source_model_path": ("the compiler replaced it by numbers of 8 bytes", "1.32"),
    "ep.enable_weightless_ep_context_nodes": (OTHER_PROVIDER, "1.32"),
    "ep.share_ep_contexts": (OTHER_PROVIDER, ""),
    "ep.stop_share_ep_contexts": (OTHER_PROVIDER, ""),
    "ep.dml.disable_graph_fusion": (OTHER_PROVIDER, ""),
    "ep.dml.enable_graph_capture": (OTHER_PROVIDER, ""),
    "ep.dml.enable_cpu_sync_spinning": (OTHER_PROVIDER, ""),
    "ep.dml.disable_memory_arena": (OTHER_PROVIDER, ""),
    "ep.dml.enable_graph_serialization": (OTHER_PROVIDER, ""),
    "nv_profile_index": (OTHER_PROVIDER, ""),
    "cuda_graph_annotation_id": (OTHER_PROVIDER, ""),
    "qnn.htp_perf_mode": (OTHER_PROVIDER, ""),
    "qnn.htp_perf_mode_post_run": (OTHER_PROVIDER, ""),
    "qnn.rpc_control_latency": (OTHER_PROVIDER, ""),
    "qnn.lora_config": (OTHER_PROVIDER, ""),
    "ep.dynamic.workload_type": (OTHER_PROVIDER, ""),
    "ep.dynamic.qnn_htp_performance_mode": (OTHER_PROVIDER, ""),
}
"""Knobs that binaries for x86-64 do not contain: why, and the first onnxruntime that contains them, if any."""


OF_OPERATORS = "an attribute of an operator"
OF_CUDNN = "a name within cuDNN"

OPTION_STARTS: Mapping[str, tuple[str, ...]] = {
    "cuda": (
        "arena_",
        "cudnn_",
        "default_memory_",
        "do_copy_",
        "enable_",
        "external_data_loader_",
        "fuse_",
        "gpu_",
        "has_user_",
        "prefer_",
        "sdpa_",
        "tunable_op_",
        "use_",
    ),
    "tensorrt": ("trt_",),
}
"""How names of options of a provider begin, by the short name of the provider."""

NOT_OPTIONS: Mapping[str, str] = {
    "cudnn_backend_version": OF_CUDNN,
    "cudnn_frontend_version": OF_CUDNN,
    "do_copy_on_default_stream": "part of a message",
    "use_sparse_mixer": OF_OPERATORS,
    "use_stats": OF_CUDNN,
}
"""Texts in the libraries of providers that look like options: what they are."""


def is_before(release: str, other: str) -> bool:
    """Return whether a release is older than another; only the first two numbers count."""
    return _parts(release) < _parts(other)


def _parts(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split(".")[:2])


def is_in_binaries(knob: Knob) -> bool:
    """Return whether a knob is a key or a variable that ONNX Runtime itself reads."""
    if knob.where == "environment":
        return knob.name.startswith(VARIABLES)
    return knob.where in {"session_config", "run_config", "dynamic_options"}


def find_unknown(binary: bytes, knobs: Iterable[Knob]) -> set[str]:
    """Return the keys in a binary that are not knobs."""
    return find_keys(binary) - {knob.name for knob in knobs}


def find_absent(binary: bytes, knobs: Iterable[Knob], release: str) -> set[str]:
    """Return the knobs of a release that its binary does not contain."""
    known = [knob.name for knob in knobs if is_in_binaries(knob) and not is_before(release, knob.since or release)]
    return {name for name in known if not contains_key(binary, name)}


def expect_unknown(release: str) -> set[str]:
    """Return the keys that the binary of a release may contain without being knobs."""
    return {key for key, (_, since) in NOT_IN_THE_CATALOG.items() if not is_before(release, since or release)}


def expect_absent(release: str, knobs: Iterable[Knob]) -> set[str]:
    """Return the knobs of a release that its binary need not contain."""
    since = {knob.name: knob.since for knob in knobs}
    return {
        key
        for key, (_, until) in NOT_IN_THE_BINARY.items()
        if (not until or is_before(release, until)) and not is_before(release, since[key] or release)
    }


def read_binaries(package: Path) -> bytes:
    """Return the libraries of an onnxruntime package that read options, without those of other providers."""
    paths = sorted((package / "capi").iterdir())
    names = ("onnxruntime_pybind11_state", "libonnxruntime.so", "libonnxruntime.1", "onnxruntime.dll")
    return b"\0".join(path.read_bytes() for path in paths if path.name.startswith(names))


def find_keys(binary: bytes) -> set[str]:
    """Return the keys of options and the names of environment variables in a binary."""
    found: set[bytes] = set()
    # One pattern per area: each begins with fixed text, for which re searches fast.
    for area in AREAS:
        found.update(re.findall(rb"\0(%s\.[a-z0-9][a-z0-9_.]*[a-z0-9])(?=\0)" % area.encode(), binary))
    for start in VARIABLES:
        found.update(re.findall(rb"\0(%s_[A-Z0-9_]+)(?=\0)" % start.encode(), binary))
    starts = [f"{area}.".encode() for area in AREAS]
    return {key.decode() for key in found if not _is_joined(key, starts)}


def read_provider_library(package: Path, alias: str) -> bytes:
    """Return the library of a provider of an onnxruntime package; empty if the package does not have it."""
    paths = (package / "capi").glob(f"*onnxruntime_providers_{alias}.*")
    return b"".join(path.read_bytes() for path in sorted(paths))


def has_option(library: bytes, name: str) -> bool:
    """Return whether the library of a provider contains the name of an option.

    The name can be the end of another text: the linker stores both once.
    """
    return name.encode() + b"\0" in library


def find_options(library: bytes, alias: str) -> set[str]:
    """Return the texts in the library of a provider that look like names of its options."""
    found: set[bytes] = set()
    for start in OPTION_STARTS[alias]:
        found.update(re.findall(rb"\0(%s[a-z0-9_]+)(?=\0)" % start.encode(), library))
    starts = [start.encode() for start in OPTION_STARTS[alias]]
    kernels = (b"cudnn_generated_", b"cudnn_infer_")
    return {text.decode() for text in found if not text.startswith(kernels) and not _is_joined(text, starts)}


def _is_joined(text: bytes, starts: Iterable[bytes]) -> bool:
    """Return whether a text consists of several numbers that happen to be next to each other."""
    return len(text) % PIECE == 0 and any(start in text[1:] for start in starts)


def contains_key(binary: bytes, key: str) -> bool:
    """Return whether a binary contains a key, as a text or as numbers."""
    text = key.encode()
    if b"\0" + text + b"\0" in binary:
        return True
    starts = range(0, len(text) - PIECE + 1, PIECE)
    rest = text[len(starts) * PIECE :]
    return bool(starts) and all(text[at : at + PIECE] in binary for at in starts) and rest[:8] in binary
