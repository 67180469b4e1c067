"""What the console prints for a record."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from ortune.console.verdict import show_verdict
from ortune.knobs import CPU, Config, ThreadPool
from ortune.record.files import read_record
from ortune.record.schema import Record
from tests.conftest import ROOT

CUDA = "CUDAExecutionProvider"


def shown(**config: Any) -> str:
    record = read_record(ROOT / "tests" / "data" / "server.ortune.json")
    evidence = record.evidence
    assert evidence.winner
    nodes = {CUDA: 70, CPU: 3}
    session = msgspec.structs.replace(
        evidence.winner.session, nodes=nodes if "providers" in config else {}, build_s=61.0
    )
    winner = msgspec.structs.replace(evidence.winner, session=session)
    check = msgspec.structs.replace(evidence.output_check, max_error=0.012)
    noise = msgspec.structs.replace(evidence.noise, slowed=evidence.noise.blocks)
    record = msgspec.structs.replace(
        record,
        config=Config(**config),
        evidence=msgspec.structs.replace(evidence, verdict="faster", winner=winner, output_check=check, noise=noise),
    )
    return print_verdict(record)


def print_verdict(record: Record) -> str:
    file = io.StringIO()
    show_verdict(Console(file=file, width=100), record, None)
    return " ".join(file.getvalue().split())


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"io_binding": True}, "call session.run_with_iobinding()"),
        (
            {"global_thread_pool": ThreadPool(intra_op_num_threads=2, inter_op_num_threads=1)},
            "needs a global thread pool",
        ),
        ({"session_config": {"optimization.enable_gelu_approximation": "1"}}, "largest difference seen is 0.012"),
        ({"providers": ((CUDA, {}), (CPU, {}))}, "3 of 73 nodes do not run on CUDAExecutionProvider"),
        ({"per_session": ({"session.intra_op_thread_affinities": "1"},)}, "create_session(..., session=0)"),
        ({"run_config": {"memory.enable_memory_arena_shrinkage": "cpu:0"}}, "ortune.run_options"),
        ({"environment": {"LD_PRELOAD": "/lib/m.so"}}, "LD_PRELOAD=/lib/m.so"),
        ({}, "The GPU ran below its normal clock"),
        ({}, "first compilation - 61.0 s"),
    ],
)
def test_warnings(config: dict[str, Any], text: str) -> None:
    assert text in shown(**config)


def test_no_warning_without_need() -> None:
    text = shown()
    for words in ("run_with_iobinding", "global thread pool", "approximate", "nodes do not run"):
        assert words not in text


def test_the_baseline_is_named() -> None:
    assert "ONNX Runtime's default" in shown()
    record = read_record(ROOT / "tests" / "data" / "server.ortune.json")
    fixed = Config(session_options={"intra_op_num_threads": 4})
    assert record.evidence.baseline
    baseline = msgspec.structs.replace(record.evidence.baseline, config=fixed)
    for verdict in ("faster", "default_is_best"):
        evidence = msgspec.structs.replace(record.evidence, verdict=verdict, baseline=baseline)
        text = print_verdict(msgspec.structs.replace(record, config=fixed, evidence=evidence))
        assert "default with intra threads=4" in text
        assert "ONNX Runtime's default" not in text
