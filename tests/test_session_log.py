"""Warnings of ONNX Runtime: collected from all workers, and shown once."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from ortune.console.warnings import MOST_SESSION_WARNINGS, warn_sessions
from ortune.requests import SearchRequest
from ortune.tuning.prepare import prepare
from ortune.tuning.search import search
from ortune.worker.session_log import MOST_WARNINGS, SessionWarning, collect_warnings, read_warnings
from tests.conftest import TINY_CNN, run_program


def line(text: str, severity: str = "W") -> str:
    return f"2026-11-22 19:40:00.123456789 [{severity}:onnxruntime:, graph.cc:123 Clean] {text}"


def test_each_warning_is_collected_once() -> None:
    logs = [
        (line("Removing x."), line("Removing y."), "printed by a library"),
        (),
        (line("Removing x."), line("Removing x.")),
        (line("Removing x.", "E"), line("Chatter.", "I")),
    ]
    assert collect_warnings(logs) == (
        SessionWarning(text="Removing x.", n_sessions=3),
        SessionWarning(text="Removing y.", n_sessions=1),
    )


def test_all_warnings_of_a_log_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    texts = [f"Removing initializer 'w{number}'." for number in range(40)]
    path.write_text("\n".join([line(texts[0]), "chatter", *map(line, texts)]))
    assert [warning.text for warning in collect_warnings([read_warnings(path)])] == texts
    path.write_text("\n".join(line(f"Warning {number}.") for number in range(1000)) + "\n" + "x" * 5_000_000)
    assert len(read_warnings(path)) == MOST_WARNINGS
    assert read_warnings(tmp_path / "none") == ()


def test_ids_and_addresses_do_not_make_a_difference() -> None:
    logs = [
        (line(f"thread {number}, index 1, at {address}"),) for number, address in ((12345, "0x7f1"), (99999, "0x2"))
    ]
    (found,) = collect_warnings(logs)
    assert found == SessionWarning(text="thread 12345, index 1, at 0x7f1", n_sessions=2)
    assert len(collect_warnings([(line("index 1"),), (line("index 2"),)])) == 2


def test_they_are_shown_with_the_number_of_sessions() -> None:
    warnings = [SessionWarning(text=f"Text {number}.", n_sessions=number) for number in range(1, 8)]
    texts = warn_sessions(warnings, 3)
    assert texts[0] == "ONNX Runtime, in 1 of 3 sessions: Text 1."
    assert texts[2] == "ONNX Runtime, in every session: Text 3."
    assert len(texts) == MOST_SESSION_WARNINGS + 1
    assert texts[-1] == "ONNX Runtime: 2 further warnings."
    assert warn_sessions([], 3) == []


@pytest.mark.usefixtures("forked_children", "models_read_here", "no_workers_left")
def test_a_search_collects_them_from_its_workers(tmp_path: Path) -> None:
    model = onnx.load(TINY_CNN)
    model.graph.initializer.append(helper.make_tensor("unused", TensorProto.FLOAT, [1], [1.0]))
    onnx.save(model, tmp_path / "m.onnx")
    request = SearchRequest(model=str(tmp_path / "m.onnx"), output=tmp_path / "r.json", budget=0.5, trials=1)
    result = search(prepare(request))
    (text,) = warn_sessions(result.warnings, result.n_sessions)
    assert text.startswith("ONNX Runtime, in every session: Removing initializer 'unused'.")


WITH_WARNINGS = """
from ortune.__main__ import main
from ortune.tuning import search
from ortune.worker.session_log import SessionWarning

search.collect_warnings = lambda logs: (SessionWarning(text="Removing x.", n_sessions=len(logs)),)
main()
"""
"""The command, in all sessions of which ONNX Runtime warns of the same."""


def test_a_search_shows_them_once(tmp_path: Path) -> None:
    command = ("search", str(TINY_CNN), "-o", "r.json", "--budget", "20s")
    done = run_program(WITH_WARNINGS, *command, cwd=tmp_path, simulate=True)
    assert done.returncode in {0, 3}, done.stderr
    shown = " ".join(done.stdout.split())
    assert "warning: ONNX Runtime, in every session: Removing x." in shown
    assert shown.count("Removing x.") == 1
