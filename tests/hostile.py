"""Hypothesis strategies for hostile texts and records, which are data and must stay data."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st

from ortune.knobs import Config
from ortune.record.schema import Record
from tests.records import ELSEWHERE, make_record

FRAGMENTS = (
    *("'", '"', "`", '"""', "'''", "\\", '\\"', "\\\\", "\\u000a", "\\\\u0022", "??/", "???/", "\\x41", "\\101"),
    *("$(touch pwned)", "`touch pwned`", "${HOME}", "${{ github.token }}", "$$(A)", "$(A)", ";touch pwned", "| x", "&"),
    *(
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
        "\n::error::x",
    ),
    *("\n", "\r", "\r\n", "\t", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\x1b[31m", "\x9b31m", "\x07", "\x7f"),
    *("\u202e", "\u2066", "\u200b", "\ufeff", "\u00ad", "\U000e0041", "\ufffe", "\ue000", "é", "漢", "🙂", "\u0301"),
    *("[/red]", "[bold]", ":smile:", "coding: utf-7", "coding=latin-1", "+AAo-import os", "\nimport os\n", "import os"),
    *("\nprivileged: true", ": ", "- ", " ", "=", ",", "'; drop", "__proto__", "@team", "![x](y)", "|", "\\\n", "\\ "),
    *(
        "##[stop-commands]x",
        "::stop-commands::x",
        "$x^2$",
        "new Dictionary<string, string>",
        ".with_arbitrary_config(",
        "GraphOptimizationLevel",
        "\\frac{",
        "¹",
        "٣",
        "007",
    ),
)
"""Pieces that mean something to some language, shell, terminal or page."""


def texts(*, encodable: bool = True) -> st.SearchStrategy[str]:
    """Return a strategy of hostile texts.

    Args:
        encodable: Whether to leave out null characters and surrogates, which no language can express.
    """
    alphabet = st.characters(exclude_categories=["Cs"], exclude_characters="\0") if encodable else st.characters()
    fragments = st.sampled_from(FRAGMENTS if encodable else (*FRAGMENTS, "\0", "\ud800", "a\udc80"))
    return st.lists(fragments | st.text(alphabet, max_size=6), max_size=5).map("".join)


def shown_texts() -> st.SearchStrategy[str]:
    """Return a strategy of hostile texts that are printable, as values of environment variables must be."""
    return texts().map(lambda text: "".join(each for each in text if each.isprintable()))


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
    "TensorrtExecutionProvider": ("trt_op_types_to_exclude",),
    "OpenVINOExecutionProvider": ("device_type", "num_streams"),
    "QNNExecutionProvider": ("htp_performance_mode",),
    "XnnpackExecutionProvider": ("intra_op_num_threads",),
    "Plugin.Execution-Provider": ("x.y",),
}

FIXED: dict[str, Any] = {
    "intra_op_num_threads": 2,
    "execution_mode": "ORT_PARALLEL",
    "graph_optimization_level": "ORT_ENABLE_EXTENDED",
    "enable_mem_pattern": False,
}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Return a config whose names are those of settings, and whose values are hostile wherever they may be any text."""

    def fill(names: tuple[str, ...], values: st.SearchStrategy[str]) -> dict[str, str]:
        chosen = draw(st.lists(st.sampled_from(names), unique=True))
        return {name: draw(values) for name in chosen}

    names = draw(st.lists(st.sampled_from([*PROVIDERS]), unique=True, max_size=2))
    fixed = draw(st.lists(st.sampled_from([*FIXED]), unique=True))
    return Config(
        session_options={**{name: FIXED[name] for name in fixed}, **fill(SLOTS["session_options"], texts())},
        session_config=fill(SLOTS["session_config"], texts()),
        run_options=dict(fill(SLOTS["run_options"], texts())),
        run_config=fill(SLOTS["run_config"], texts()),
        providers=(*((name, fill(PROVIDERS[name], texts())) for name in names), ("CPUExecutionProvider", {})),
        environment=fill(SLOTS["environment"], shown_texts()),
        io_binding=draw(st.booleans()),
        per_session=tuple(fill(SLOTS["session_config"], texts()) for _ in range(draw(st.sampled_from([0, 0, 2])))),
    )


EVERYTHING = Config(
    session_options={**FIXED, **dict.fromkeys(SLOTS["session_options"], " ".join(FRAGMENTS))},
    session_config=dict.fromkeys(SLOTS["session_config"], "\n".join(FRAGMENTS)),
    run_options=dict.fromkeys(SLOTS["run_options"], "".join(FRAGMENTS)),
    run_config=dict.fromkeys(SLOTS["run_config"], "".join(FRAGMENTS)),
    providers=tuple((name, dict.fromkeys(options, "".join(FRAGMENTS))) for name, options in PROVIDERS.items()),
    environment=dict.fromkeys(SLOTS["environment"], "".join(each for each in "".join(FRAGMENTS) if each.isprintable())),
    io_binding=True,
    per_session=tuple(
        dict.fromkeys(SLOTS["session_config"], text) for text in ("".join(FRAGMENTS), " ".join(FRAGMENTS))
    ),
)
"""A config with all fragments in all places."""


def hostile_record(config: Config, name: str) -> Record:
    """Return a record with this config, in which all texts of the model and the host are `name`."""
    from tests.conftest import TINY_CNN

    record = make_record(TINY_CNN, config, here=False)
    return msgspec.structs.replace(
        record,
        model=msgspec.structs.replace(record.model, path=name),
        evidence=msgspec.structs.replace(record.evidence, objective=name, reason=name),
        host=msgspec.structs.replace(ELSEWHERE, cpu_model=name, system=name, machine=name),
    )
