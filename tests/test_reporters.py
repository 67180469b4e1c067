"""Results of gates as JUnit XML, Markdown, annotations, history and plot, and on the console."""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from ortune import GateResult, RecordError, UsageError
from ortune.console.gate import GateDisplay, draw_finding, draw_interval
from ortune.console.report import show_history
from ortune.console.safe_console import SafeConsole
from ortune.gates.decision import judge_objective
from ortune.gates.reporters.github import render_annotations
from ortune.gates.reporters.history import append_history, make_entry, read_history
from ortune.gates.reporters.junit import render_junit
from ortune.gates.reporters.markdown import render_markdown
from ortune.gates.reporters.messages import describe_allowed, describe_finding, describe_interval, percent
from ortune.gates.results import Finding
from ortune.report.history import choose_entries
from ortune.requests import GateReportOptions
from tests.conftest import TINY_CNN, run_ortune
from tests.gate_results import ERROR, make_interval, make_result, make_results


def without_findings() -> GateResult:
    """Return a gate that ended before it had a result."""
    return make_result(decision="inconclusive", findings=(), self_check=None, reason="there was no time")


def print_results(*results: Any, width: int) -> str:
    """Return what the console shows for gates: one in full, several with a line each."""
    console = SafeConsole(width=width, file=io.StringIO())
    display = GateDisplay(console)
    if len(results) == 1:
        display.show(results[0])
    else:
        for result in results:
            display.finish(result)
        display.show_all(results)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


class TestMessages:
    def test_percentages(self) -> None:
        assert percent(1.03) == "3%"
        assert percent(20.0) == "1900%"
        assert describe_allowed(1.03) == "+3%"
        assert describe_allowed(0.52) == "-48%"
        assert describe_interval(make_interval(0.99, 1.012, 1.03)) == "+1.2% [-1.0%, +3.0%]"

    def test_throughput_is_reported_as_a_cost(self) -> None:
        """If head serves less, the ratio of costs is above 1. That must not look like a gain."""
        launches = [[math.log(1.7) + noise] * 4 for noise in (-0.002, 0.001, 0.0, 0.002, -0.001)]
        slower = judge_objective("throughput", launches, 1.03)
        assert describe_finding(slower).startswith("1/throughput +70.0%")
        assert draw_finding(slower).plain.strip().startswith("1/throughput")


class TestJunit:
    @pytest.mark.parametrize(
        ("inconclusive_fails", "counts"), [(False, ["4", "1", "1", "1"]), (True, ["4", "2", "1", "0"])]
    )
    def test_counts(self, inconclusive_fails: bool, counts: list[str]) -> None:
        (suite,) = ElementTree.fromstring(render_junit(make_results(), inconclusive_fails=inconclusive_fails))
        assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == counts
        assert [case.get("name") for case in suite] == ["a", "b", "c", "e"]
        assert all(case.get("classname") == "ortune.gate" for case in suite)

    def test_texts(self) -> None:
        (suite,) = ElementTree.fromstring(render_junit(make_results(), inconclusive_fails=False))
        failed, error = suite[1], suite[3]
        (failure,) = failed.iter("failure")
        assert failure.get("message") == "p50 is not worse by 3%"
        assert "p50 +0.0% [-1.0%, +1.0%], allowed +3%" in (failed.findtext("system-out") or "")
        assert "head.onnx, intra threads=1" in (failed.findtext("system-out") or "")
        (fault,) = error.iter("error")
        assert fault.get("message") == "It is broken. Repair it."

    def test_characters_that_xml_does_not_allow(self) -> None:
        odd = make_result("a\x01b", "fail", reason="c\x00")
        (suite,) = ElementTree.fromstring(render_junit([odd], inconclusive_fails=False))
        assert suite[0].get("name") == "a␁b"


class TestMarkdown:
    def test_table_and_notes(self) -> None:
        page = render_markdown(make_results())
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert len(rows) == 2 + 4
        # A bar in a name does not break the table.
        assert all(line.replace("\\|", "").count("|") == 7 for line in rows)
        assert rows[2] == "| a | ✅ pass | p50 +0.0% | [-1.0%, +1.0%] | 3% | 40 |"
        assert "head head.onnx, intra threads=1" in page
        assert "- 💥 e: It is broken. Repair it." in page
        assert "base vs. a second copy of itself +0.0% [-1.0%, +1.0%]" in page

    def test_several_objectives(self) -> None:
        found = make_result()
        memory = msgspec.structs.replace(found.findings[0], objective="memory")
        page = render_markdown([msgspec.structs.replace(found, findings=(*found.findings, memory))])
        rows = [line for line in page.splitlines() if line.startswith("|")]
        assert [row.split(" | ")[2] for row in rows[2:]] == ["p50 +0.0%", "memory +0.0%"]


def test_annotations() -> None:
    lines = render_annotations(make_results()).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::notice", "::error", "::warning", "::error"]
    assert lines[0].startswith("::notice title=ortune gate%3A a::p50 +0.0%25 [-1.0%25, +1.0%25], allowed +3%25. p50 is")
    assert lines[3] == "::error title=ortune gate%3A e::It is broken. Repair it."


def test_a_gate_without_findings() -> None:
    result = without_findings()
    assert "there was no time" in render_markdown([result])
    assert render_annotations([result]) == "::warning title=ortune gate%3A a::there was no time\n"
    assert b"there was no time" in render_junit([result], inconclusive_fails=False)
    assert make_entry(result, "2026-11-01T10:00:00+00:00").slowdowns == {}


class TestHistory:
    def test_entries_are_appended(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        append_history(path, make_results())
        append_history(path, [make_result()])
        entries, broken = read_history(path)
        assert [entry.name for entry in entries] == ["a", "b", "c", "e", "a"]
        assert [entry.decision for entry in entries] == ["pass", "fail", "inconclusive", "error", "pass"]
        assert entries[0].slowdowns == {"p50": make_interval(0.99, 1.0, 1.01)}
        assert entries[3].reason == "It is broken. Repair it."
        assert broken == ()

    def test_an_entry_says_under_which_conditions_it_was_measured(self) -> None:
        result = make_result(is_void=True)
        entry = make_entry(result, "2026-11-01T10:00:00+00:00")
        assert (entry.base, entry.base_digest) == (result.base.text, result.base.model.digest)
        assert (entry.base_settings, entry.base_onnxruntime) == ({}, result.base.runtime.onnxruntime)
        assert (entry.host, entry.load) == (result.host.id, str(result.workload.load))
        assert entry.is_void
        other = msgspec.structs.replace(result, head=result.base, base=result.head)
        assert make_entry(other, entry.time).conditions != entry.conditions

    def test_entries_of_some_gates(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        append_history(path, make_results())
        entries, _ = read_history(path)
        assert choose_entries(entries, []) == entries
        assert [entry.name for entry in choose_entries(entries, ["a", "c"])] == ["a", "c"]
        with pytest.raises(UsageError, match=r"no such gate. It has a, b, c, e"):
            choose_entries(entries, ["x"])

    def test_a_broken_line_is_skipped(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        append_history(path, [make_result()])
        path.write_bytes(path.read_bytes() + b'\n{"time": "2026-')
        append_history(path, [make_result("b")])
        entries, broken = read_history(path)
        assert [entry.name for entry in entries] == ["a", "b"]
        assert broken == (3,)
        done = run_ortune("report", path, cwd=tmp_path)
        assert done.returncode == 0
        assert "line 3 is not an entry" in " ".join(done.stderr.split())

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("", "is empty"),
            ("{}\n", "is not a history"),
            ("nonsense\n", "is not a history"),
            ("[]", "is not a history"),
            ('{"time": "abc", "name": "a", "decision": "pass", "reason": ""}', "is not a history"),
            ('{"time": "9999-12-31", "name": "a", "decision": "pass", "reason": ""}', "is not a history"),
        ],
    )
    def test_files_that_are_not_histories(self, content: str, message: str, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        path.write_text(content)
        with pytest.raises(RecordError, match=f"h.jsonl {message}"):
            read_history(path)

    def test_a_name_that_is_not_utf8_costs_no_entry(self, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        result = make_result()
        head = msgspec.structs.replace(result.head, text=os.fsdecode(b"m@r\xff.json"))
        append_history(path, [msgspec.structs.replace(result, head=head)])
        assert read_history(path)[0][0].head == "m@r?.json"

    @pytest.mark.parametrize("width", [45, 80, 120])
    def test_it_fits_the_terminal(self, width: int, tmp_path: Path) -> None:
        path = tmp_path / "h.jsonl"
        append_history(path, [make_result("detector"), ERROR])
        console = SafeConsole(width=width, file=io.StringIO())
        show_history(console, read_history(path)[0])
        page = console.file.getvalue()  # type: ignore[attr-defined]
        assert "…" not in page
        assert all(len(line) <= width for line in page.splitlines())
        assert ("head.onnx" in page) == (width >= 100)
        if width >= 80:
            assert "pass" in page and "error" in page and "+0.0% [-1.0%, +1.0%]" in page


class TestConsole:
    @pytest.mark.parametrize("width", [45, 80])
    def test_a_single_gate(self, width: int) -> None:
        page = print_results(make_result(max_error=1e-6), width=width)
        assert all(len(line) <= width for line in page.splitlines())
        text = " ".join(page.split())
        assert "+0.0% [-1.0%, +1.0%] allowed +3%" in text
        assert "40 paired blocks in 5 launches of each side, 12 s, base vs. itself +0.0% [-1.0%, +1.0%]" in text
        assert "outputs match; the largest difference is 1e-06 of the largest value" in text
        assert text.endswith("pass p50 is not worse by 3%")
        # Base and head are the rows of the table, or the columns if the console is narrow.
        assert ("base head p50" in text) == (width == 45)

    def test_several_gates(self) -> None:
        page = print_results(*make_results(), without_findings(), width=80)
        lines = [" ".join(line.split()) for line in page.splitlines()]
        assert lines[0] == "pass a p50 +0.0% [-1.0%, +1.0%], allowed +3%"
        assert lines[3] == "error e It is broken. Repair it."
        assert lines[4] == "inconclusive a there was no time"
        assert lines[5] == "5 gates: 1 pass, 1 fail, 2 inconclusive, 1 error; Holm's correction for 5 gates"

    def test_a_gate_that_would_fail_alone_says_why_it_does_not(self) -> None:
        """Its interval is above what is allowed, which looks like a failure."""
        result = make_result("c", "inconclusive", reason="another gate runs with it")
        finding = msgspec.structs.replace(result.findings[0], slowdown=make_interval(1.04, 1.06, 1.08))
        above = msgspec.structs.replace(result, findings=(finding,))
        pages = [" ".join(print_results(gate, make_result(), width=200).split()) for gate in (result, above)]
        assert ["another gate runs with it" in page for page in pages] == [False, True]

    def test_findings_fit_into_80_columns(self) -> None:
        wide = Finding(
            objective="throughput",
            allowed=1.03,
            slowdown=make_interval(1.368, 1.719, 2.307),
            decision="fail",
            p_value=0.0,
        )
        assert len(draw_finding(wide).plain) <= 80

    def test_intervals_are_drawn(self) -> None:
        text = draw_interval(make_interval(0.99, 1.0, 1.01), 1.03).plain
        assert text.count("●") == 1
        assert text.index("●") == len(text) // 2
        assert "¦" in text[len(text) // 2 :]
        far = draw_interval(make_interval(5, 6, 7), 1.03).plain
        assert far.endswith("●")


def test_github_gets_annotations_and_a_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ortune.cli.gate import write_reports

    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    write_reports(make_results(), GateReportOptions())
    assert (tmp_path / "summary.md").read_text().startswith("### ortune gate")
    assert "::error" in capsys.readouterr().out


def test_an_error_names_the_flag_in_reports_too(tmp_path: Path) -> None:
    done = run_ortune("gate", TINY_CNN, TINY_CNN, "--max-slowdown", "p99=3%", "--junit", "j.xml", cwd=tmp_path)
    assert done.returncode == 2
    (suite,) = ElementTree.parse(tmp_path / "j.xml").getroot()
    (error,) = suite.iter("error")
    assert error.get("message") == "--max-slowdown p99=3%: p99 is not gated. Gated are p50. Add --also p99."
