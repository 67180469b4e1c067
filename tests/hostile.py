"""Hypothesis strategies for hostile texts and records, which are data and must stay data."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from hypothesis import strategies as st

from ortune import Config, Record
from tests.conftest import TINY_CNN
from tests.records import ELSEWHERE, make_record

FRAGMENTS = (
    "'",
    '"',
    "`",
    '"""',
    "'''",
    "\\",
    '\\"',
    "\\\\",
    "\\u000a",
    "\\\\u0022",
    "??/",
    "???/",
    "\\x41",
    "\\101",
    "$(touch pwned)",
    "`touch pwned`",
    "${HOME}",
    "${{ github.token }}",
    "$$(A)",
    "$(A)",
    ";touch pwned",
    "| x",
    "*/",
    "/*",
    "//",
    "#",
    "--",
    "<!--",
    "-->",
    "]]>",
    "<b>",
    "{",
    "}",
    "{0}",
    "{value}",
    "%s",
    "%0A",
    "&",
    "\n",
    "\r",
    "\r\n",
    "\t",
    "\x0b",
    "\x0c",
    "\x85",
    "\u2028",
    "\u2029",
    "\x1b[31m",
    "\x9b31m",
    "\x07",
    "\x7f",
    "\u202e",
    "\u2066",
    "\u200b",
    "\ufeff",
    "\u00ad",
    "\U000e0041",
    "\ufffe",
    "\ue000",
    "é",
    "漢",
    "🙂",
    "\u0301",
    "[/red]",
    "[bold]",
    ":smile:",
    "coding: utf-7",
    "coding=latin-1",
    "+AAo-import os",
    "\nimport os\n",
    "import os",
    "\nprivileged: true",
    ": ",
    "- ",
    " ",
    "=",
    ",",
    "'; drop",
    "__proto__",
    "@team",
    "![x](y)",
    "|",
    "\\\n",
    "\\ ",
    "##[stop-commands]x",
    "::stop-commands::x",
    "\n::error::x",
    "$x^2$",
    "\\frac{",
    "¹",
    "٣",
    "007",
    "new Dictionary<string, string>",
    ".with_arbitrary_config(",
    "GraphOptimizationLevel",
)
"""Pieces that mean something to some language, shell, terminal or page."""


def make_texts(more: tuple[str, ...], alphabet: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fragments = st.sampled_from((*FRAGMENTS, *more))
    return st.lists(fragments | st.text(alphabet, max_size=6), max_size=5).map("".join)


TEXTS = make_texts((), st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
"""Hostile texts that every language can express: without null characters and surrogates."""

ALL_TEXTS = make_texts(("\0", "\ud800", "a\udc80"), st.characters())
"""Hostile texts."""

PRINTABLE_TEXTS = TEXTS.map(lambda text: "".join(character for character in text if character.isprintable()))
"""Hostile texts that may be values of environment variables."""

SLOTS = {
    "session_options": ("logid", "profile_file_prefix", "optimized_model_filepath"),
    "session_config": (
        "session.intra_op_thread_affinities",
        "session.intra_op.allow_spinning",
        "session.dynamic_block_base",
        "session.use_device_allocator_for_initializers",
        "ep.unknown.option",
    ),
    "run_options": ("logid",),
    "run_config": ("memory.enable_memory_arena_shrinkage", "gpu_graph_id"),
    "environment": ("OMP_PLACES", "_own", "A1"),
}
"""Settings that may be any text."""

PROVIDERS = {
    "CUDAExecutionProvider": ("gpu_mem_limit", "cudnn_conv_algo_search", "unknown"),
    "TensorrtExecutionProvider": ("trt_op_types_to_exclude", "trt_engine_cache_prefix", "trt_fp16_enable"),
    "OpenVINOExecutionProvider": ("device_type", "num_streams"),
    "QNNExecutionProvider": ("htp_performance_mode",),
    "XnnpackExecutionProvider": ("intra_op_num_threads",),
    "CANNExecutionProvider": ("op_select_impl_mode", "optypelist_for_implmode"),
    "CoreMLExecutionProvider": ("ModelCacheDirectory",),
    "AcmeExecutionProvider": ("x.y",),
}

FIXED: dict[str, Any] = {
    "intra_op_num_threads": 2,
    "execution_mode": "ORT_PARALLEL",
    "graph_optimization_level": "ORT_ENABLE_EXTENDED",
    "enable_mem_pattern": False,
}


def fill(names: tuple[str, ...], values: st.SearchStrategy[str] = TEXTS) -> st.SearchStrategy[dict[str, str]]:
    """Return a strategy of values for some of these names."""
    return st.dictionaries(st.sampled_from(names), values, max_size=3)


CONFIGS = st.builds(
    Config,
    session_options=st.builds(
        lambda fixed, free: {**{name: FIXED[name] for name in fixed}, **free},
        st.lists(st.sampled_from([*FIXED]), unique=True),
        fill(SLOTS["session_options"]),
    ),
    session_config=fill(SLOTS["session_config"]),
    run_options=fill(SLOTS["run_options"]),
    run_config=fill(SLOTS["run_config"]),
    providers=st.lists(
        st.sampled_from([*PROVIDERS]).flatmap(lambda name: st.tuples(st.just(name), fill(PROVIDERS[name]))),
        max_size=2,
        unique_by=lambda provider: provider[0],
    ).map(lambda chain: (*chain, ("CPUExecutionProvider", {}))),
    environment=fill(SLOTS["environment"], PRINTABLE_TEXTS),
    io_binding=st.booleans(),
    per_session=st.just(()) | st.tuples(fill(SLOTS["session_config"]), fill(SLOTS["session_config"])),
)
"""Configs whose names are those of settings, and whose values are hostile wherever they may be any text."""


EVERYTHING = Config(
    session_options={**FIXED, **dict.fromkeys(SLOTS["session_options"], " ".join(FRAGMENTS))},
    session_config=dict.fromkeys(SLOTS["session_config"], "\n".join(FRAGMENTS)),
    run_options=dict.fromkeys(SLOTS["run_options"], "".join(FRAGMENTS)),
    run_config=dict.fromkeys(SLOTS["run_config"], "".join(FRAGMENTS)),
    providers=tuple((name, dict.fromkeys(options, "".join(FRAGMENTS))) for name, options in PROVIDERS.items()),
    environment=dict.fromkeys(
        SLOTS["environment"], "".join(character for character in "".join(FRAGMENTS) if character.isprintable())
    ),
    io_binding=True,
    per_session=tuple(
        dict.fromkeys(SLOTS["session_config"], text) for text in ("".join(FRAGMENTS), " ".join(FRAGMENTS))
    ),
)
"""A config with all fragments in all places."""


@functools.cache
def _base_record() -> Record:
    return make_record(TINY_CNN, Config(), here=False)


def hostile_record(config: Config, name: str) -> Record:
    """Return a record with this config, in which all texts of the model and the host are `name`."""
    record = _base_record()
    return msgspec.structs.replace(
        record,
        config=config,
        model=msgspec.structs.replace(record.model, path=name),
        evidence=msgspec.structs.replace(record.evidence, objective=name, reason=name),
        host=msgspec.structs.replace(ELSEWHERE, cpu_model=name, system=name, machine=name),
    )
