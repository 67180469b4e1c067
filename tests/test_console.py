"""What the console prints: verdicts, warnings and numbers."""

from __future__ import annotations

import contextlib
import io
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortune import BenchResult, Config, Goal, InterimResult, Progress, Record, Speedup, Verification, read_record
from ortune.apply.fit import Mismatch
from ortune.console.apply import show_config
from ortune.console.bench import show_changed_objective, show_comparison
from ortune.console.explain import explain_search
from ortune.console.gate import GateDisplay
from ortune.console.plan import PlanProgress
from ortune.console.progress import STAGES, ComparisonProgress, SearchProgress
from ortune.console.safe_console import SafeConsole
from ortune.console.spinner import STEPPED, TICKER, Spinner, show_start, show_steps
from ortune.console.verdict import format_gain, show_verdict
from ortune.console.verify import show_verification
from ortune.console.warnings import (
    warn_failures,
    warn_few_calls,
    warn_guessed_dimensions,
    warn_load_mismatch,
    warn_overload,
)
from ortune.console.widgets import format_bytes, format_count, format_duration, format_number, format_reason
from ortune.fleet.verify import SharedVerification
from ortune.knobs import CPU, DEFAULT, Candidate, ThreadPool
from ortune.measure.comparison import FewCalls, Row, Stage, TwoSpeeds
from ortune.measure.interval import Interval
from ortune.measure.judge import Answer
from ortune.numbers import format_digits, format_interval, format_ratio
from ortune.record.schema import FrontPoint
from ortune.steps import enter_measuring, enter_step, observe_steps
from ortune.worker import Failure
from ortune.workload.program import ProgramRun
from tests.conftest import ROOT
from tests.records import ONE_THREAD

CUDA = "CUDAExecutionProvider"

SERVER = read_record(ROOT / "tests" / "data" / "server.ortune.json")
"""An inconclusive search with a limit, at a rate of requests."""


def shown(**config: Any) -> str:
    record, evidence = SERVER, SERVER.evidence
    assert evidence.winner
    nodes = {CUDA: 70, CPU: 3}
    winner = msgspec.structs.replace(evidence.winner, nodes=nodes if "providers" in config else {}, build_s=61.0)
    check = msgspec.structs.replace(evidence.output_check, max_error=0.012)
    noise = msgspec.structs.replace(evidence.noise, n_throttled=evidence.noise.n_blocks)
    record = msgspec.structs.replace(
        record,
        config=Config(**config),
        evidence=msgspec.structs.replace(evidence, verdict="faster", winner=winner, output_check=check, noise=noise),
    )
    return print_verdict(record)


def print_verdict(record: Record) -> str:
    file = io.StringIO()
    show_verdict(SafeConsole(file=file, width=100), record, None)
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
        ({"environment": {"OMP_NUM_THREADS": "3"}}, "OMP_NUM_THREADS=3"),
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
    fixed = Config(session_options={"intra_op_num_threads": 4})
    for verdict in ("faster", "default_is_best"):
        evidence = msgspec.structs.replace(SERVER.evidence, verdict=verdict)
        text = print_verdict(msgspec.structs.replace(SERVER, config=fixed, base=fixed, evidence=evidence))
        assert "default with intra threads=4" in text
        assert "ONNX Runtime's default" not in text


def change_evidence(record: Record, **changes: Any) -> Record:
    return msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, **changes))


class TestVerdict:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"verdict": "faster"}, "58.0x less CPU time per call than ONNX Runtime's default"),
            ({"verdict": "default_is_best"}, "ONNX Runtime's default is best on this host: keep it"),
            (
                {"verdict": "nothing_found"},
                f"Nothing better found among {SERVER.search.n_tried} of {SERVER.search.n_candidates - 1} candidates: ",
            ),
            ({"verdict": "within_limits"}, "Within the limits, unlike ONNX Runtime's default"),
            ({"verdict": "infeasible"}, "No candidate was found within the limits: keep the default"),
            ({"verdict": "overload"}, "Overload: no candidate was found that can serve requests at this rate"),
            ({"verdict": "inconclusive"}, "Inconclusive: nothing is proven, keep the default"),
        ],
    )
    def test_headlines(self, changes: dict[str, Any], text: str) -> None:
        assert print_verdict(change_evidence(SERVER, **changes)).startswith(text)

    @pytest.mark.parametrize(
        ("objective", "text"),
        [
            ("p50", "1.50x as fast as"),
            ("p99", "1.50x as fast (p99) as"),
            ("throughput", "1.50x the throughput of"),
            ("memory", "1.50x less memory than"),
            ("load-time", "1.50x as fast to create as"),
            ("score", "1.50x the score of"),
        ],
    )
    def test_gains(self, objective: str, text: str) -> None:
        assert format_gain(objective, 1.5) == text

    def test_evidence(self) -> None:
        text = print_verdict(SERVER)
        assert "58.0x [50.9, 66.0] with 95% confidence, from 14 paired blocks in 7 launches of each config" in text
        assert "intra threads=1: 58.0x" in text
        assert "p99<5x 1.000x met 0.970x uncertain" in text

    def test_names_of_figures_are_not_capitalized(self) -> None:
        assert format_reason("p99 needs 1522 calls") == "p99 needs 1522 calls."
        assert format_reason("memory is not worse") == "memory is not worse."
        assert format_reason("nothing is better") == "Nothing is better."

    def test_what_was_written(self) -> None:
        file = io.StringIO()
        record = msgspec.structs.replace(SERVER, config=Config(session_options={"intra_op_num_threads": 1}))
        show_verdict(SafeConsole(file=file, width=100), record, Path("my config.json"), Path("my config.before.json"))
        lines = [" ".join(line.split()) for line in file.getvalue().splitlines()]
        assert lines[-3:] == [
            "written my config.json",
            "kept my config.before.json the previous one, which may prove more",
            "next ortune apply 'my config.json' models/tiny_cnn.onnx",
        ]

    def test_a_base_that_is_kept_is_not_to_be_applied(self) -> None:
        file = io.StringIO()
        fixed = Config(session_options={"intra_op_num_threads": 4})
        show_verdict(SafeConsole(file=file), msgspec.structs.replace(SERVER, config=fixed, base=fixed), Path("c.json"))
        assert "ortune apply" not in file.getvalue()

    @pytest.mark.parametrize("width", [45, 80, 200])
    def test_it_fits_the_terminal(self, width: int) -> None:
        file = io.StringIO()
        show_verdict(SafeConsole(file=file, width=width), SERVER, Path("c.json"))
        assert "…" not in file.getvalue()
        assert all(len(line) <= width for line in file.getvalue().splitlines())


class TestFewCalls:
    """A percentile that needs more calls: wherever its interval is stated, their number is."""

    FEW = "209 calls of each config, where p99 needs 1522"

    def make(self, **changes: Any) -> Record:
        workload = msgspec.structs.replace(SERVER.workload, objectives=("p99",))
        record = change_evidence(SERVER, objective="p99", **changes)
        return msgspec.structs.replace(record, config=ONE_THREAD, workload=workload)

    @pytest.mark.parametrize("verdict", ["faster", "within_limits", "default_is_best", "inconclusive"])
    def test_evidence(self, verdict: str) -> None:
        text = print_verdict(self.make(verdict=verdict))
        assert f"from 14 paired blocks in 7 launches of each config, and {self.FEW}" in text

    def test_a_record_that_is_applied(self) -> None:
        file = io.StringIO()
        show_config(SafeConsole(file=file, width=200), self.make(verdict="faster"))
        assert f"in p99, from {self.FEW}, when the record was made" in " ".join(file.getvalue().split())

    def test_a_gain_in_a_sentence(self) -> None:
        text = print_verdict(self.make(verdict="faster"))
        assert "58.0x as fast (p99 over 209 calls) as" in text
        assert "with 95% confidence. This rests on 209 calls of each, so rarer slow calls may be missing." in text

    def test_explanations(self) -> None:
        found = dict(explain_search(self.make(verdict="faster")))
        assert f"It rests on {self.FEW}" in found["interval"]
        assert "about 95 contain it" not in found["interval"]

    def test_a_front(self) -> None:
        baseline = SERVER.evidence.baseline
        assert baseline
        speedup = Speedup(estimate=1.3, low=1.2, high=1.4, confidence=0.95, n_pairs=8, n_launches=4)
        point = FrontPoint(summary=baseline, speedups={"cpu": speedup, "p99": speedup})
        record = self.make(verdict="trade_off", front=(point,), winner=None, speedup=None)
        workload = msgspec.structs.replace(record.workload, objectives=("cpu", "p99"))
        text = print_verdict(msgspec.structs.replace(record, workload=workload))
        assert f"hold simultaneously with 95% confidence. They rest on {self.FEW}." in text

    def test_enough_calls(self) -> None:
        sides = (SERVER.evidence.baseline, SERVER.evidence.winner)
        baseline, winner = (side and msgspec.structs.replace(side, n_calls=1522) for side in sides)
        text = print_verdict(self.make(verdict="faster", baseline=baseline, winner=winner))
        assert "1522" not in text and "58.0x as fast (p99) as" in text


class TestDifferingRatio:
    """A headline of 1.58x beside figures of 135 and 75 µs."""

    SPEEDUP = Speedup(estimate=1.58, low=1.5, high=1.66, confidence=0.95, n_pairs=80, n_launches=8)

    def show(self, p50_ns: float, two_speeds: TwoSpeeds | None = None, speedup: Speedup = SPEEDUP) -> str:
        baseline, winner = SERVER.evidence.baseline, SERVER.evidence.winner
        assert baseline and winner
        record = change_evidence(
            SERVER,
            verdict="faster",
            objective="p50",
            baseline=msgspec.structs.replace(baseline, p50_ns=135e3),
            winner=msgspec.structs.replace(winner, p50_ns=p50_ns),
            speedup=speedup,
            noise=msgspec.structs.replace(SERVER.evidence.noise, two_speeds=two_speeds),
        )
        workload = msgspec.structs.replace(record.workload, objectives=("p50",))
        return print_verdict(msgspec.structs.replace(record, workload=workload))

    def test_two_speeds(self) -> None:
        speeds = TwoSpeeds(side="the default", slow_share=0.4, factor=1.8)
        text = self.show(75e3, speeds)
        assert (
            "The figures of both sides differ by 1.80x in p50 latency, and the ratio is 1.58x: the default ran at two "
            "speeds, and the figures are of all blocks together." in text
        )

    def test_other_causes(self) -> None:
        assert (
            "the ratio is 1.58x: it compares neighbors in time, and the figures are of all blocks together."
            in self.show(75e3)
        )

    def test_a_small_difference_in_direction(self) -> None:
        speedup = Speedup(estimate=1.009, low=1.004, high=1.014, confidence=0.95, n_pairs=80, n_launches=8)
        assert "The figures of both sides differ by 0.99" in self.show(135.4e3, speedup=speedup)
        assert "The figures of both sides" not in self.show(134.8e3, speedup=speedup)

    def test_two_speeds_of_another_side_of_a_bench(self) -> None:
        default, tuned, other = make_bench_result().rows
        assert default.summary
        summary = msgspec.structs.replace(default.summary, p50_ns=default.summary.p50_ns / 2)
        rows = (default, msgspec.structs.replace(tuned, summary=summary), other)
        for side, cause in ((other.name, "it compares neighbors in time"), (tuned.name, "ran at two speeds")):
            speeds = TwoSpeeds(side=side, slow_share=0.4, factor=1.8)
            noise = msgspec.structs.replace(SERVER.evidence.noise, two_speeds=speeds)
            file = io.StringIO()
            show_comparison(SafeConsole(file=file, width=120), make_bench_result(rows=rows, noise=noise))
            assert f"{cause}, and the figures are of all blocks" in " ".join(file.getvalue().split())

    def test_figures_within_the_interval(self) -> None:
        assert "The figures of both sides" not in self.show(135e3 / 1.6)

    def test_a_bench(self) -> None:
        default, tuned, _ = make_bench_result().rows
        assert default.summary
        summary = msgspec.structs.replace(default.summary, p50_ns=default.summary.p50_ns / 2)
        file = io.StringIO()
        rows = (default, msgspec.structs.replace(tuned, summary=summary))
        show_comparison(SafeConsole(file=file, width=120), make_bench_result(rows=rows))
        assert f"{SETTINGS}: The figures of both sides differ by 2.00x in p50" in " ".join(file.getvalue().split())


class TestFront:
    def show(self, n_points: int, width: int = 100) -> str:
        baseline = SERVER.evidence.baseline
        assert baseline
        points = [
            FrontPoint(
                summary=msgspec.structs.replace(
                    baseline,
                    config=Config(session_options={"intra_op_num_threads": number}),
                    p99_ns=baseline.p99_ns * number,
                    cpu_ns_per_call=baseline.cpu_ns_per_call / number,
                ),
                speedups={"cpu": Speedup(estimate=1.3, low=1.2, high=1.4, confidence=0.95, n_pairs=8, n_launches=4)},
                recommended=number == 1,
            )
            for number in range(1, n_points + 1)
        ]
        record = change_evidence(SERVER, verdict="trade_off", front=tuple(points))
        workload = msgspec.structs.replace(record.workload, objectives=("p99", "cpu"))
        file = io.StringIO()
        show_verdict(
            SafeConsole(file=file, width=width), msgspec.structs.replace(record, workload=workload), Path("c.json")
        )
        return file.getvalue()

    def test_table_and_plot(self) -> None:
        text = self.show(3)
        assert "Pareto front of 3 configs" in text
        rows = [" ".join(line.split()) for line in text.splitlines()]
        assert "→1 428 µs 10.4 ms 1.30x [1.20, 1.40] intra threads=1" in rows
        assert "2 856 µs 5.21 ms 1.30x [1.20, 1.40] intra threads=2" in rows
        assert "→ marks the knee" in " ".join(text.split())
        assert [line.strip(" │") for line in text.splitlines() if line.startswith("  │") and line.strip(" │")] == [
            "1",
            "2",
            "3",
        ]

    def test_a_single_point(self) -> None:
        text = self.show(1)
        assert "Pareto front of 1 config" in text
        assert "knee" not in text and "│" not in text

    @pytest.mark.parametrize("width", [45, 80])
    def test_it_fits_the_terminal(self, width: int) -> None:
        text = self.show(3, width)
        assert "…" not in text
        assert all(len(line.rstrip()) <= width for line in text.splitlines())


SETTINGS = "intra_op_num_threads=1,session.intra_op.allow_spinning=0"


def make_bench_result(**changes: Any) -> BenchResult:
    baseline, winner = SERVER.evidence.baseline, SERVER.evidence.winner
    assert baseline and winner
    speedup = Speedup(estimate=1.1, low=1.08, high=1.12, confidence=0.95, n_pairs=60, n_launches=6)
    winner = msgspec.structs.replace(winner, p50_ns=baseline.p50_ns / 1.1)
    failure = Failure(kind="not_applied", stage="load", message="the workers are not pinned")
    rows = (
        Row(name="default", config=DEFAULT, summary=baseline),
        Row(name=SETTINGS, config=ONE_THREAD, summary=winner, speedup=speedup),
        Row(name="other.json", config=ONE_THREAD, failure=failure),
    )
    noise = msgspec.structs.replace(SERVER.evidence.noise, regime="quiet")
    result = BenchResult(
        objective="p50",
        rows=rows,
        calls_needed=1,
        noise=noise,
        workload=SERVER.workload,
        model=SERVER.model,
        host=SERVER.host,
        runtime=SERVER.runtime,
    )
    return msgspec.structs.replace(result, **changes)


class TestBench:
    def show(self, result: BenchResult, width: int = 120) -> list[str]:
        file = io.StringIO()
        show_comparison(SafeConsole(file=file, width=width), result)
        assert all(len(line.rstrip()) <= width for line in file.getvalue().splitlines())
        assert "…" not in file.getvalue()
        return [" ".join(line.split()) for line in file.getvalue().splitlines()]

    def test_one_table_where_there_is_room(self) -> None:
        lines = self.show(make_bench_result(), width=160)
        assert "config p50 p99 calls/s CPU memory p50 ratio" in lines
        assert f"2 {SETTINGS} 180 µs 363 µs 93.4 181 µs 69.8 MB 1.10x [1.08, 1.12]" in lines
        assert "3 other.json failed" in lines
        assert "failed: other.json: not applied: the workers are not pinned" in lines
        assert not any(line.startswith("warning:") for line in lines)

    @pytest.mark.parametrize("width", [45, 80])
    def test_two_tables_elsewhere(self, width: int) -> None:
        lines = self.show(make_bench_result(), width)
        assert "config p50 ratio" in lines
        assert "p50 p99 calls/s CPU memory" in lines
        assert "2 180 µs 363 µs 93.4 181 µs 69.8 MB" in lines

    def test_warnings(self) -> None:
        noise = msgspec.structs.replace(SERVER.evidence.noise, regime="contended")
        baseline = SERVER.evidence.baseline
        assert baseline
        row = Row(name="default", config=DEFAULT, summary=msgspec.structs.replace(baseline, utilization=2.0))
        text = " ".join(self.show(make_bench_result(rows=(row,), calls_needed=1522, objective="p99", noise=noise)))
        assert "p99 needs 1522 calls of each config, but only 209 were measured." in text
        assert "Other processes used the CPUs during the measurement, so the result" in text
        assert "default is overloaded: it can serve 50.0 of 100 requests per second." in text

    def test_slow_calls_that_are_not_excluded(self) -> None:
        default, tuned, _ = make_bench_result().rows
        few = FewCalls(n_calls=344, supported="p95", speedup=tuned.speedup, slowest_ns=31.8e6, one_in=115)
        result = make_bench_result(rows=(default, msgspec.structs.replace(tuned, few_calls=few)), objective="p99")
        text = " ".join(self.show(result))
        assert f"{SETTINGS}: p95 gains 1.10x [1.08, 1.12]; calls slower than 31.8 ms, if rarer than 1 in 115" in text

    @pytest.mark.parametrize(
        ("objective", "advice"),
        [("p50", "--objective p99"), ("p99", "--objective p50"), ("mean", "--objective p99")],
    )
    def test_figures_that_disagree(self, objective: str, advice: str) -> None:
        default, tuned, _ = make_bench_result().rows
        assert default.summary and tuned.summary
        slower = {"p99_ns": 2 * default.summary.p99_ns, "p50_ns": default.summary.p50_ns / 1.3, "n_calls": 2000}
        summary = msgspec.structs.replace(tuned.summary, **slower)
        baseline = msgspec.structs.replace(default.summary, n_calls=2000)
        rows = (msgspec.structs.replace(default, summary=baseline), msgspec.structs.replace(tuned, summary=summary))
        text = " ".join(self.show(make_bench_result(rows=rows, objective=objective)))
        assert "The figures disagree: p50 from" in text
        assert f"use {advice}." in text
        few = msgspec.structs.replace(summary, n_calls=50)
        rows = (rows[0], msgspec.structs.replace(tuned, summary=few))
        assert "p99 from" not in " ".join(self.show(make_bench_result(rows=rows, objective=objective)))

    def test_an_objective_that_two_speeds_changed(self) -> None:
        file = io.StringIO()
        console = SafeConsole(file=file, width=120)
        show_changed_objective(console, Goal(), make_bench_result())
        assert not file.getvalue()
        show_changed_objective(console, Goal(), make_bench_result(objective="mean"))
        assert file.getvalue().startswith("goal: mean latency: calls run at two speeds")


class TestVerification:
    def show(self, verification: Verification) -> str:
        file = io.StringIO()
        show_verification(SafeConsole(file=file, width=100), verification)
        return " ".join(file.getvalue().split())

    @pytest.mark.parametrize(
        ("answer", "text"),
        [
            ("holds", "The recorded gain holds on this host Why. recorded 1.10x [1.08, 1.12] here 1.10x [1.08, 1.12]"),
            ("does_not_hold", "The recorded gain does not hold on this host Why."),
            ("inconclusive", "Inconclusive Why."),
            ("nothing_to_verify", "Nothing to verify Why."),
        ],
    )
    def test_answers(self, answer: Answer, text: str) -> None:
        speedup = make_bench_result().rows[1].speedup
        shown = self.show(Verification(answer=answer, reason="why", recorded=speedup, here=speedup))
        assert shown.startswith(text)

    def test_mismatches(self) -> None:
        mismatch = Mismatch(what="physical cores", recorded="64", here="2", hint="Search again.")
        gain = make_bench_result().rows[1].speedup
        shown = self.show(Verification(answer="holds", reason="why", recorded=gain, mismatches=(mismatch,)))
        assert shown.startswith("mismatch: physical cores: 64 in the record, 2 on this host. The recorded gain holds")

    @pytest.mark.parametrize(
        ("answer", "claims_limits", "text"),
        [
            ("holds", True, "The config stays within the recorded limits on this host"),
            ("does_not_hold", True, "The config does not stay within the recorded limits on this host"),
            ("holds", False, "The config is better than the baseline on this host"),
            ("does_not_hold", False, "The config is not better than the baseline on this host"),
        ],
    )
    def test_a_record_without_a_gain(self, answer: Answer, claims_limits: bool, text: str) -> None:
        assert self.show(Verification(answer=answer, reason="why", claims_limits=claims_limits)).startswith(text)

    @pytest.mark.parametrize(
        ("others", "text"),
        [
            ((), "No other host of this class has verified the record yet."),
            (("b",), "1 other host of this class verified the record, but fewer than two hosts have a speedup"),
        ],
    )
    def test_hosts_without_a_common_result(self, others: tuple[str, ...], text: str) -> None:
        nodes = {f"{place:08x}": name for place, name in enumerate(("a", *others))}
        assert text in self.show(SharedVerification(answer="inconclusive", reason="why", node="a", nodes=nodes))

    @pytest.mark.parametrize(
        ("measured", "why"),
        [
            ({}, "nothing was measured"),
            ({"comparison": True}, "no speedup was measured"),
            ({"comparison": True, "here": True}, "only measurements on this class of host"),
        ],
    )
    def test_why_it_is_not_added(self, measured: dict[str, bool], why: str) -> None:
        result = make_bench_result()
        verification = Verification(
            answer="inconclusive",
            reason="why",
            comparison=result if "comparison" in measured else None,
            here=result.rows[1].speedup if "here" in measured else None,
        )
        file = io.StringIO()
        show_verification(SafeConsole(file=file, width=200), verification, "tuned.json")
        assert f"not added {why}" in " ".join(file.getvalue().split())


class TestApply:
    def show(self, record: Record) -> str:
        file = io.StringIO()
        show_config(SafeConsole(file=file, width=100), record)
        return " ".join(file.getvalue().split())

    def test_a_gain(self) -> None:
        record = msgspec.structs.replace(change_evidence(SERVER, verdict="faster"), config=ONE_THREAD)
        text = self.show(record)
        assert text.startswith("1 setting for models/tiny_cnn.onnx: 58.0x [50.9, 66.0] in cpu when the record was made")
        assert text.endswith("setting default tuned intra_op_num_threads 0 1")

    def test_the_default(self) -> None:
        text = self.show(SERVER)
        assert text.startswith("The record recommends ONNX Runtime's default. The best candidate is too near")
        assert "setting default" not in text

    def test_a_fixed_base_is_not_shown_as_a_gain(self) -> None:
        """The speedup in the evidence belongs to a candidate that is not recommended."""
        fixed = Config(session_options={"intra_op_num_threads": 4})
        text = self.show(msgspec.structs.replace(SERVER, config=fixed, base=fixed))
        assert text.startswith("The record recommends the default with intra threads=4.")
        assert "58.0x" not in text
        assert "intra_op_num_threads 0 4" in text


class TestWarnings:
    @pytest.mark.parametrize(
        ("noise", "text"),
        [
            ({"regime": "contended"}, "Other processes used the CPUs during confirmation, so the result"),
            (
                {"n_contended": 30, "n_blocks": 71},
                "during 30 of 71 blocks. The confirmation leaves them out. Before it, they may have decided which",
            ),
            ({"drift": 1.4}, "in racing was 1.4 times the speedup measured in confirmation"),
            ({"one_at_a_time": True}, "Configs were therefore launched and measured one at a time"),
            ({"n_throttled": 71}, "due to heat or power, in 71 of 71 blocks"),
        ],
    )
    def test_noise(self, noise: dict[str, Any], text: str) -> None:
        quiet = msgspec.structs.replace(SERVER.evidence.noise, regime="quiet", n_contended=0, drift=1.1, n_throttled=0)
        assert "warning:" not in print_verdict(change_evidence(SERVER, noise=quiet))
        noisy = msgspec.structs.replace(quiet, **noise)
        assert text in print_verdict(change_evidence(SERVER, noise=noisy)).partition("warning: ")[2]

    @pytest.mark.parametrize(
        ("verdict", "objective", "expected"),
        [("inconclusive", "p50", True), ("inconclusive", "mean", False), ("faster", "p50", False)],
    )
    def test_two_speeds(self, verdict: str, objective: str, expected: bool) -> None:
        speeds = TwoSpeeds(side="the default", slow_share=0.4, factor=2.75)
        noise = msgspec.structs.replace(SERVER.evidence.noise, two_speeds=speeds)
        text = print_verdict(change_evidence(SERVER, verdict=verdict, objective=objective, noise=noise))
        assert "The default ran at two speeds: in 40% of its blocks, calls took 2.8 times as long." in text
        assert ("--objective mean may prove more" in text) == expected

    def test_a_server_with_one_port_is_not_said_to_lack_memory(self) -> None:
        run = ProgramRun(program="server", kind="server", sha256="0" * 64, url="http://127.0.0.1/")
        noise = msgspec.structs.replace(SERVER.evidence.noise, one_at_a_time=True)
        record = change_evidence(SERVER, noise=noise)
        workload = msgspec.structs.replace(record.workload, program=run)
        text = print_verdict(msgspec.structs.replace(record, workload=workload))
        assert "cannot run twice at the same time, as it has one port, or as there is too little memory." in text
        assert "sessions of this model" not in text

    def test_only_outputs_of_programs_are_said_not_to_be_compared(self) -> None:
        """The candidates of a model may all have failed before their outputs could be."""
        check = msgspec.structs.replace(SERVER.evidence.output_check, compared="nothing")
        assert "The program's outputs" not in print_verdict(change_evidence(SERVER, output_check=check))

    def test_outputs_that_differ_from_run_to_run(self) -> None:
        check = msgspec.structs.replace(SERVER.evidence.output_check, compared="shapes")
        assert "differ from run to run" in print_verdict(change_evidence(SERVER, output_check=check))

    def test_texts_name_the_flags(self) -> None:
        assert "--dim, --shape or --inputs" in warn_guessed_dimensions({"ids": ("batch=1",)})
        assert "Increase --budget" in warn_few_calls("p99", 1522, 100)
        assert "pass --beside" in warn_load_mismatch("stress {budget}", "none")
        assert "stress {budget}" in warn_load_mismatch("stress {budget}", "yes")

    def test_guessed_dimensions_are_grouped(self) -> None:
        sizes = ("batch=1", "sequence=128")
        text = warn_guessed_dimensions({"ids": sizes, "mask": sizes, "image": ("axis 2 = 224",)})
        assert "Assumed batch=1, sequence=128 for ids, mask; axis 2 = 224 for image." in text

    def test_overload(self) -> None:
        assert "it can serve 3512 of 500000 requests per second" in warn_overload("default", 3512.4, 500_000)

    def test_kinds_of_failures(self) -> None:
        assert warn_failures(3, 30, ["wrong_output", "crash", "crash"]) == (
            "3 of 30 candidates failed (crash, wrong output)."
        )
        text = warn_failures(1, 30, ["crash"], "tuned.trials.jsonl.gz")
        assert text == "1 of 30 candidates failed (crash). See tuned.trials.jsonl.gz for their messages."


class TestProgress:
    LONG = Config(
        session_options={"intra_op_num_threads": 1, "execution_mode": "ORT_PARALLEL"},
        session_config={"session.intra_op.allow_spinning": "0"},
    )

    def report(self, stage: Stage, done: int, **changes: Any) -> Progress:
        best = Candidate(config=self.LONG)
        speedup = Interval(estimate=1.1, low=1.08, high=1.12, confidence=0.95)
        total = {"screening": 340, "racing": None, "confirmation": 16}[stage]
        report = Progress(
            stage=stage,
            done=done,
            total=total,
            share=0.5,
            left_s=12.3,
            may_end_early=stage != "confirmation",
            best=best,
            speedup=speedup,
            notes=("a note",),
        )
        return msgspec.structs.replace(report, **changes)

    def show(self, width: int, *, terminal: bool, quiet: bool = False) -> str:
        file = io.StringIO()
        console = SafeConsole(file=file, width=width, force_terminal=terminal, no_color=True)
        with SearchProgress(console, quiet=quiet) as progress:
            for stage in ("screening", "racing", "confirmation"):
                progress(self.report(stage, 0, best=None, speedup=None))
                for done in (8, 16):
                    progress(self.report(stage, done))
        return file.getvalue()

    def draw(self, width: int, *reports: Progress) -> list[str]:
        """Return what a terminal shows after some reports."""
        terminal = SafeConsole(file=io.StringIO(), width=width, force_terminal=True, no_color=True)
        console = SafeConsole(file=io.StringIO(), width=width, no_color=True)
        with SearchProgress(terminal) as progress:
            for report in reports:
                progress(report)
            console.print(progress.render())
        return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]

    @pytest.mark.parametrize("high", [math.inf, 1e9])
    def test_an_interval_that_says_nothing_is_not_shown(self, high: float) -> None:
        wide = Interval(estimate=3.0, low=0.0, high=high, confidence=0.95)
        text = "\n".join(self.draw(80, self.report("screening", 8, speedup=wide)))
        assert "3.00x" in text
        assert "[" not in text

    def test_a_log_has_a_line_at_the_start_and_the_first_result_of_each_stage(self) -> None:
        label = Candidate(config=self.LONG).label
        lines = [line for line in self.show(80, terminal=False).splitlines() if line != "a note"]
        assert lines == [
            f"screening: {STAGES['screening']}",
            "screening 0 of 340, at most 12 s, best so far: no result yet",
            f"screening 8 of 340, at most 12 s, best so far: 1.10x [1.08, 1.12]  {label}",
            f"racing: {STAGES['racing']}",
            "racing 0 launches, at most 12 s, best so far: no result yet",
            f"racing 8 launches, at most 12 s, best so far: 1.10x [1.08, 1.12]  {label}",
            f"confirmation: {STAGES['confirmation']}",
            "confirmation 0 of 16 rounds, 12 s left, no result yet",
            f"confirmation 8 of 16 rounds, 12 s left, 1.10x [1.08, 1.12]  {label}",
            f"confirmation 16 of 16 rounds, 12 s left, 1.10x [1.08, 1.12]  {label}",
        ]

    @pytest.mark.parametrize(("share", "left"), [(0.0612, "at most 6.2% left to gain"), (0.7, None), (None, None)])
    @pytest.mark.parametrize("width", [45, 200])
    def test_what_is_left_to_gain(self, width: int, share: float | None, left: str | None) -> None:
        report = self.report("screening", 8, gain_left=share)
        log = io.StringIO()
        with SearchProgress(SafeConsole(file=log, width=width)) as progress:
            progress(report)
        drawn = "\n".join(self.draw(width, report))
        for shown in (" ".join(text.split()) for text in (drawn, log.getvalue())):
            assert ("left to gain" in shown) == (left is not None)
            assert left is None or f"{Candidate(config=self.LONG).label}; {left}" in shown

    def test_totals_are_of_the_space(self) -> None:
        (line, *_) = self.draw(100, self.report("screening", 4))
        assert "4 of 340" in line
        (line, *_) = self.draw(100, self.report("racing", 1))
        assert "1 launch " in line

    def test_a_confirmation_may_end_early(self) -> None:
        (line, *_) = self.draw(100, self.report("confirmation", 8))
        assert "12 s left" in line
        (line, *_) = self.draw(100, self.report("confirmation", 8, may_end_early=True))
        assert "at most 12 s" in line

    def test_time_that_is_over_is_not_shown_as_zero(self) -> None:
        (line, *_) = self.draw(100, self.report("confirmation", 16, left_s=0.0))
        assert "nearly done" in line
        assert " 0 s" not in line

    @pytest.mark.parametrize("width", [45, 60, 80, 100, 200])
    def test_nothing_that_matters_is_cut(self, width: int) -> None:
        lines = self.draw(width, *(self.report(stage, 8) for stage in ("screening", "racing", "confirmation")))
        assert all(len(line) <= width for line in lines)
        text = "\n".join(lines)
        assert text.count("1.10x [1.08, 1.12]") == 3
        assert "…" not in text
        below = " ".join(text.split()).partition("1.10x [1.08, 1.12]")[2]
        assert below.endswith(f"{Candidate(config=self.LONG).label} {STAGES['confirmation']}")
        assert ("━" in text) == (width >= 80)

    def test_the_end_of_a_stage_fills_its_bar(self) -> None:
        first, second, *_ = self.draw(100, self.report("screening", 4), self.report("confirmation", 8))
        assert first.count("━") > second.count("━")
        assert "left" not in first

    def test_quiet(self) -> None:
        assert self.show(80, terminal=True, quiet=True) == ""


def count_tickers() -> int:
    """Return how many threads draw steps. Other tests may have left threads of their own, which end at any time."""
    return sum(thread.name == TICKER for thread in threading.enumerate())


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class TestSpinner:
    def test_it_shows_each_step_and_leaves_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with show_steps():
            enter_step("reading \x1b[31mmodel.onnx")
            n_threads = count_tickers()
            enter_step("calibrating", is_measured=True)
            # Nothing runs in the background while something is measured.
            assert count_tickers() == n_threads - 1
            SafeConsole(file=terminal).print("the result")
        drawn = terminal.getvalue()
        assert drawn.startswith("\r⠋ starting")
        assert "⠋ reading ␛[31mmodel.onnx" in drawn
        shown = drawn.rpartition("\r")[2]
        assert shown == "the result\n"
        enter_step("not observed")
        assert terminal.getvalue() == drawn

    def test_a_block_that_ends_late_does_not_end_the_step_of_another(self) -> None:
        """Such as that of a display that was not closed, when Python deletes it."""
        seen: dict[str, list[str]] = {"early": [], "late": [], "last": []}
        observers = {name: lambda step, is_measured, steps=steps: steps.append(step) for name, steps in seen.items()}
        blocks = {name: observe_steps(observe) for name, observe in observers.items()}
        for name, block in blocks.items():
            block.__enter__()
            enter_step(f"step of {name}")
        blocks["late"].__exit__(None, None, None)
        assert seen["last"] == ["step of last"]
        blocks["last"].__exit__(None, None, None)
        enter_step("another")
        blocks["early"].__exit__(None, None, None)
        assert seen == {
            "early": ["step of early", "another", ""],
            "late": ["step of late", ""],
            "last": ["step of last", ""],
        }

    def test_it_is_shown_while_libraries_are_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "xterm")
        shown = {}
        for words in ("search m.onnx", "search -- python app.py -q", "search m.onnx -q", "search --help", "knobs", ""):
            terminal = Terminal()
            monkeypatch.setattr("sys.stderr", terminal)
            with show_start(words.split()):
                shown[words] = terminal.getvalue()
            assert not terminal.getvalue().rpartition("\r")[2]
        assert [words for words, drawn in shown.items() if "starting" in drawn] == [
            "search m.onnx",
            "search -- python app.py -q",
        ]

    def test_every_command_with_steps_is_known(self) -> None:
        folder = ROOT / "ortune" / "cli"
        with_steps = {path.stem for path in folder.glob("*.py") if "has_steps=True" in path.read_text()}
        assert with_steps - {"command"} == STEPPED | {
            "gate_program",
            "plan_several",
            "search_program",
            "verify_program",
        }

    def test_plain_terminals(self) -> None:
        terminal = Terminal()
        terminal.encoding = "ascii"
        Spinner(terminal).show("calibrating", True)
        assert terminal.getvalue().isascii()

    def test_a_long_line_is_cut_to_the_terminal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "20")
        terminal = Terminal()
        Spinner(terminal).show("x" * 50, True)
        assert len(terminal.getvalue().strip("\r")) == 19

    @pytest.mark.parametrize(("quiet", "term"), [(True, "xterm"), (False, "dumb")])
    def test_nothing_is_shown(self, quiet: bool, term: str, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", term)
        with show_steps(quiet=quiet):
            enter_step("reading")
        assert terminal.getvalue() == ""


INTERIM = InterimResult(launches=1, pairs=2, findings=(), contended=False, spent_s=1.0, budget_s=60.0)


class TestLiveSteps:
    """Displays that draw themselves show steps between their reports, such as launches of large models."""

    def wait_for(self, terminal: Terminal, text: str) -> None:
        end_s = time.monotonic() + 10
        while text not in terminal.getvalue() and time.monotonic() < end_s:
            time.sleep(0.01)
        assert text in terminal.getvalue()

    @contextlib.contextmanager
    def show(self, name: str, console: SafeConsole) -> Iterator[None]:
        """Show a display after its first report."""
        if name == "search":
            with SearchProgress(console) as progress:
                progress(TestProgress().report("screening", 8))
                yield
        elif name == "comparison":
            with ComparisonProgress(console) as comparison:
                comparison(1, 8)
                yield
        elif name == "plan":
            with PlanProgress(console) as plan:
                plan("capacity", 1, 8)
                yield
        else:
            with GateDisplay(console) as gate:
                gate.observer("x")(INTERIM)
                yield

    @pytest.mark.parametrize("name", ["search", "comparison", "plan", "gate"])
    def test_a_step_moves_and_ends(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = Terminal()
        monkeypatch.setattr("sys.stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        console = SafeConsole(file=terminal, width=100, force_terminal=True)
        n_threads = count_tickers()
        with show_steps():
            with self.show(name, console):
                terminal.truncate(0)
                enter_step("loading 8 \x1b[31mconfigs")
                # It is part of the display.
                for frame in "⠙⠹":
                    self.wait_for(terminal, f"{frame} loading 8 ␛[31mconfigs")
                enter_measuring()
                assert count_tickers() == n_threads
                terminal.truncate(0)
                enter_measuring()
                assert terminal.getvalue() == ""
                enter_step("loading 2 configs")
            assert count_tickers() == n_threads
            enter_step("writing")
            self.wait_for(terminal, "writing")

    def test_a_report_ends_a_step(self) -> None:
        console = SafeConsole(file=Terminal(), width=100, force_terminal=True)
        n_threads = count_tickers()
        with SearchProgress(console) as progress:
            progress(TestProgress().report("screening", 8))
            enter_step("loading 8 configs")
            assert count_tickers() == n_threads + 1
            progress(TestProgress().report("screening", 16))
            assert count_tickers() == n_threads


class TestFormats:
    @pytest.mark.parametrize(
        ("ns", "text"), [(0, "0 ns"), (999, "999 ns"), (1234, "1.23 µs"), (12_345_678, "12.3 ms"), (2e9, "2.00 s")]
    )
    def test_durations(self, ns: float, text: str) -> None:
        assert format_duration(ns) == text

    @pytest.mark.parametrize(
        ("n", "text"), [(12, "12 B"), (8720, "8.72 kB"), (67_900_000, "67.9 MB"), (3e9, "3.00 GB")]
    )
    def test_bytes(self, n: float, text: str) -> None:
        assert format_bytes(n) == text

    @pytest.mark.parametrize(
        ("low", "high", "text"),
        [
            (1.19, 1.36, "[1.19, 1.36]"),
            (0.5, 12.34, "[0.50, 12.3]"),
            (0.001, 11020910035.5, "[0, no upper bound]"),
            (0.9, 1e300, "[0.90, no upper bound]"),
            (1e-9, 2.0, "[0, 2.00]"),
            (0.0, 0.0, "[0.00, 0.00]"),
            (1.5, float("inf"), "[1.50, no upper bound]"),
            (2000.0, 40_000.0, "[2000.0, 40000.0]"),
            (1e299, 2e299, "[1e+299, 2e+299]"),
        ],
    )
    def test_intervals(self, low: float, high: float, text: str) -> None:
        """An end that says nothing is not shown as a number."""
        assert format_interval(low, high) == text

    @pytest.mark.parametrize(("value", "text"), [(1.008, "1.008x"), (1.27, "1.27x"), (12.34, "12.3x"), (0.5, "0.50x")])
    def test_ratios(self, value: float, text: str) -> None:
        assert format_ratio(value) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [(0.0000123, "0.0000123"), (0.5, "0.5"), (1.234, "1.23"), (1574.3, "1574"), (2e7, "20000000")],
    )
    def test_numbers(self, value: float, text: str) -> None:
        assert format_number(value) == text

    @pytest.mark.parametrize(
        ("value", "digits", "text"),
        [(1574.3, 3, "1570"), (80, 3, "80"), (0.333333, 3, "0.333"), (1e6, 6, "1000000"), (1234.5, 6, "1234.5")],
    )
    def test_digits(self, value: float, digits: int, text: str) -> None:
        assert format_digits(value, digits) == text

    def test_counts(self) -> None:
        assert [format_count(n, "launch", "launches") for n in (0, 1, 2)] == ["0 launches", "1 launch", "2 launches"]
