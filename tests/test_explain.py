"""The result of a search in a sentence, and the statistics behind a result in words."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ortune import Record, Speedup, Verdict
from ortune.console.explain import explain_bench, explain_gates, explain_noise, explain_search, explain_speedup
from ortune.console.gate import describe_measurement
from ortune.console.sentence import summarize
from ortune.measure.comparison import Noise, Row
from ortune.measure.interval import share_error
from ortune.record.schema import FrontPoint
from ortune.workload.program import ProgramRun
from tests.conftest import TINY_CNN, run_ortune
from tests.gate_results import make_result, make_results
from tests.records import ONE_THREAD, claim_limits, make_local_record
from tests.test_console import make_bench_result

pytestmark = pytest.mark.usefixtures("models_read_here")


def make_speedup(low: float, estimate: float, high: float) -> Speedup:
    return Speedup(low=low, estimate=estimate, high=high, confidence=0.95, n_pairs=31, n_launches=4, span_s=25)


def make(verdict: Verdict = "faster", objective: str = "p50", **evidence: Any) -> Record:
    record = make_local_record(TINY_CNN, ONE_THREAD)
    values = {"speedup": make_speedup(1.5, 1.6, 1.7), "verdict": verdict, "objective": objective, **evidence}
    return msgspec.structs.replace(record, evidence=msgspec.structs.replace(record.evidence, **values))


@pytest.mark.parametrize("n", [2, 12])
def test_the_confidence_of_several_intervals_is_that_of_all_together(n: int) -> None:
    speedup = msgspec.structs.replace(make_speedup(1.5, 1.6, 1.7), confidence=share_error(n))
    rows = (Row(name="default", config=make().base), *n * [Row(name="a", config=ONE_THREAD, speedup=speedup)])
    assert dict(explain_bench(make_bench_result(rows=rows)))["intervals"].startswith(
        f"With 95% confidence, all {n} intervals"
    )


class TestSentence:
    @pytest.mark.parametrize("verdict", get_args(Verdict))
    def test_no_terms_of_statistics(self, verdict: Verdict) -> None:
        """But the confidence, which many readers know."""
        text = summarize(make(verdict))
        assert text.endswith(".")
        assert not re.search(r"interval|median|launch|block|baseline|candidate|p50|\dx", text)

    @pytest.mark.parametrize(
        ("objective", "text"),
        [
            ("p50", "Calls take 38% less time than before: at least 33% less, with 95% confidence."),
            ("p99", "The time that 99% of the calls do not exceed is 38% less than before"),
            ("p99.9", "The time that 99.9% of the calls do not exceed is 38% less than before"),
            ("anything else", "Calls take 38% less time than before: at least 33% less, with 95% confidence."),
            ("throughput", "This host handles 60% more calls than before: at least 50% more"),
            ("cpu", "Each call uses 38% less CPU time than before"),
            ("memory", "The model needs 38% less memory than before"),
        ],
    )
    def test_gain(self, objective: str, text: str) -> None:
        assert text in summarize(make(objective=objective))

    def test_large_gains_have_no_exponent(self) -> None:
        record = make(objective="throughput", speedup=make_speedup(2.86, 3.44, 4.15))
        assert "This host handles 240% more calls than before: at least 186% more" in summarize(record)

    def test_the_least_gain_is_rounded_down(self) -> None:
        """It is a promise."""
        assert "at least 4.7%" in summarize(make(speedup=make_speedup(1.05, 1.06, 1.07)))
        assert "at least 0%" in summarize(make(speedup=make_speedup(1.0004, 1.06, 1.07)))

    @pytest.mark.parametrize("verdict", ["default_is_best", "nothing_found", "inconclusive"])
    def test_a_program_is_kept_as_it_is(self, verdict: Verdict) -> None:
        """It may have settings of its own."""
        record = make(verdict)
        program = ProgramRun(program="app.py", sha256="0" * 64, kind="run")
        workload = msgspec.structs.replace(record.workload, program=program)
        assert summarize(record).startswith("Keep the default settings")
        assert summarize(msgspec.structs.replace(record, workload=workload)).startswith("Keep the program as it is")

    def test_what_is_known_of_others_is_stated_as_it_is(self) -> None:
        """The default is best if others probably gain less than 5%, also where memory is optimized."""
        text = summarize(make("default_is_best", "memory"))
        assert text == (
            "Keep the default settings: on this host, no other settings are likely to be better by more than 5%."
        )
        limited = claim_limits(make("default_is_best"))
        evidence = msgspec.structs.replace(limited.evidence, verdict="default_is_best")
        assert "no other settings within the limits" in summarize(msgspec.structs.replace(limited, evidence=evidence))
        assert "none of the settings that were tried is proven to be better" in summarize(make("nothing_found"))
        bounded = make("nothing_found")
        evidence = msgspec.structs.replace(bounded.evidence, most_gain=0.0233)
        text = summarize(msgspec.structs.replace(bounded, evidence=evidence))
        assert text == "Keep the default settings: none of the settings that were tried gains more than 2.4%."
        assert "No settings were found" in summarize(make("infeasible"))
        assert "no settings were found" in summarize(make("overload"))

    def test_a_front_of_one_config_is_no_choice(self) -> None:
        record = make("trade_off", speedup=None)
        assert record.evidence.winner
        one = FrontPoint(summary=record.evidence.winner)
        for front, text in (((one,), "better than the default"), ((one, one), "choose the point of the front")):
            evidence = msgspec.structs.replace(record.evidence, front=front)
            assert text in summarize(msgspec.structs.replace(record, evidence=evidence))

    def test_a_gain_over_a_queue_without_bound_is_no_number(self) -> None:
        record = make(objective="p99")
        assert record.evidence.baseline
        baseline = msgspec.structs.replace(record.evidence.baseline, utilization=1.3, utilization_low=1.2)
        evidence = msgspec.structs.replace(record.evidence, baseline=baseline)
        text = summarize(msgspec.structs.replace(record, evidence=evidence))
        assert text == (
            "With these settings, this host can serve the requests. With the default settings, requests pile up."
        )

    def test_an_interrupted_search(self) -> None:
        record = make("inconclusive", speedup=None)
        stopped = msgspec.structs.replace(record, search=msgspec.structs.replace(record.search, interrupted=True))
        assert "stopped" in summarize(stopped)
        assert "stopped" not in summarize(record)


class TestExplanations:
    @pytest.mark.parametrize(
        ("interval", "text"),
        [
            ((1.5, 1.6, 1.7), "the gain is proven"),
            ((1.001, 1.005, 1.01), "there is a gain, but one below 2%"),
            ((0.9, 1.1, 1.3), "neither a gain nor a loss is proven"),
            ((0.7, 0.8, 0.9), "the default is better"),
        ],
    )
    def test_interval(self, interval: tuple[float, float, float], text: str) -> None:
        found = dict(explain_speedup(make_speedup(*interval), "p50"))
        assert text in found["interval"]
        assert "of 100 such intervals, about 95 contain it" in found["interval"]
        assert "31 paired blocks in 4 launches of each config within 25.0 s" in found["data"]

    def test_ratio(self) -> None:
        speedup = make_speedup(1.5, 1.6, 1.7)
        assert "1.60x the other config's, which is 37.5% lower" in dict(explain_speedup(speedup, "p50"))["ratio"]
        assert "1.60x as much as the default, in throughput" in dict(explain_speedup(speedup, "throughput"))["ratio"]

    def test_scores(self) -> None:
        """Larger is better, as with throughput."""
        assert (
            "1.60x as much as the default, in score"
            in dict(explain_speedup(make_speedup(1.5, 1.6, 1.7), "score"))["ratio"]
        )

    def test_search(self) -> None:
        record = make()
        found = dict(explain_search(record))
        assert f"{record.search.n_tried} of {record.search.n_candidates - 1} candidates" in found["choice"]
        assert "therefore do not count" in found["choice"]
        assert "--verify --update" in found["validity"]
        without = dict(explain_search(make("nothing_found", speedup=None)))
        assert "there is no interval" in without["choice"]
        assert "interval" not in without
        assert "quiet blocks only" not in without["other load"]

    def test_what_is_not_recommended_is_not_verified_again(self) -> None:
        """A verification of the baseline measures nothing."""
        record = make("inconclusive")
        found = dict(explain_search(msgspec.structs.replace(record, config=record.base)))
        assert found["validity"].endswith("Other days may differ.")

    def test_sides_that_were_measured_one_after_the_other(self) -> None:
        found = dict(explain_speedup(make_speedup(1.5, 1.6, 1.7), "p50", one_at_a_time=True))
        assert "right after the other" not in found["data"]
        assert "The configs were launched and measured one after the other" in found["data"]

    def test_a_front_of_the_baseline_alone(self) -> None:
        record = make("default_is_best", speedup=None)
        assert record.evidence.baseline
        point = FrontPoint(summary=record.evidence.baseline)
        evidence = msgspec.structs.replace(record.evidence, front=(point,))
        found = dict(explain_search(msgspec.structs.replace(record, evidence=evidence)))
        assert "not proven to be better in any objective" in found["choice"]

    @pytest.mark.parametrize(
        ("regime", "text"),
        [("quiet", "on the quiet blocks only"), ("contended", "holds for a busy host"), ("unknown", "not known")],
    )
    def test_noise(self, regime: Any, text: str) -> None:
        noise = Noise(n_blocks=40, n_contended=3, n_repeated=2, regime=regime)
        assert text in explain_noise(noise)
        # A search used the others, too.
        assert ("The confirmation" in explain_noise(noise, "confirmation")) == (regime != "unknown")

    def test_gates(self) -> None:
        one, several = dict(explain_gates([make_result()])), dict(explain_gates(make_results()))
        assert {"decision", "interval", "data", "other load"} <= one.keys()
        assert "Holm" in several["gates"]
        assert "data" not in several


class TestRareCalls:
    """A mean that passes contains only the calls that occurred."""

    @pytest.mark.parametrize("objective", ["mean", "throughput", "cpu"])
    def test_a_total_that_passes(self, objective: Any) -> None:
        result = make_result()
        finding = msgspec.structs.replace(result.findings[0], objective=objective)
        result = msgspec.structs.replace(result, findings=(finding,))
        assert result.head.summary
        n = result.head.summary.n_calls
        expected = f"a slow call that occurs less than once in {round(n / math.log(100))} may not be among them"
        (line,) = [text for text in describe_measurement(result) if "slow call" in text]
        assert line.startswith(f"{objective}: contains {n}")
        assert line.endswith(expected)

    def test_other_figures_and_failures(self) -> None:
        result = make_result()
        failed = msgspec.structs.replace(result.findings[0], objective="mean", decision="fail")
        assert not any("slow call" in text for text in describe_measurement(result))
        assert not any(
            "slow call" in text for text in describe_measurement(msgspec.structs.replace(result, findings=(failed,)))
        )


@pytest.mark.parametrize(
    ("words", "explained"),
    [
        (("search", TINY_CNN, "-o", "tuned.json"), "the interval is from other launches"),
        (("bench", TINY_CNN, "--set", "intra_op_num_threads=1"), "A launch is a new process."),
        (("gate", TINY_CNN, TINY_CNN), "Checking early therefore does not cause more"),
    ],
)
def test_option(words: tuple[object, ...], explained: str, tmp_path: Path) -> None:
    done = run_ortune(*words, "--explain", cwd=tmp_path, simulate=True)
    assert explained in " ".join(done.stdout.split()), done.stdout + done.stderr


def test_stages_say_what_they_do(tmp_path: Path) -> None:
    """Once each, where there is no terminal."""
    done = run_ortune("search", TINY_CNN, "-o", "tuned.json", cwd=tmp_path, simulate=True)
    assert done.stdout.count("confirmation: the leader against the default, in new processes") == 1
    assert done.stdout.count("screening: many candidates") == 1
