"""The verdict on a candidate that was compared with the baseline."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest

from ortune import Config, Speedup, Summary, Verdict
from ortune.knobs import DEFAULT
from ortune.measure import judge as rules
from ortune.measure import limits
from ortune.measure.comparison import Comparison, FewCalls, LimitCheck, Noise, Row
from ortune.tuning.confirmation import predict_proof
from ortune.tuning.verdict import (
    LAST_CONFIRMED_ONE,
    TimeSpent,
    advise_budget,
    judge_confirmation,
    judge_interval,
    judge_untried,
)
from ortune.workload import make_goal, make_load, parse_limit

Kept = Literal["yes", "no", "unsure"]

UNCLEAR_REASON = "the confidence interval includes both no gain and a relevant gain"

FASTER, SAME, UNCLEAR = (1.1, 1.2, 1.3), (0.99, 1.0, 1.01), (0.95, 1.05, 1.15)


def make_row(
    name: str,
    config: Config,
    kept: Kept,
    utilization: float | tuple[float, float, float],
    *,
    speedup: Speedup | None = None,
    few_calls: FewCalls | None = None,
    values: tuple[float, float, float | None] = (1e6, 1e6, 1e6),
) -> Row:
    low, estimate, high = utilization if isinstance(utilization, tuple) else (None, utilization, None)
    least, value, most = values
    check = LimitCheck(limit="p99<1ms", figure="p99", bound=1e6, value=value, low=least, high=most, kept=kept)
    summary = Summary(
        config=config,
        p50_ns=1e6,
        p90_ns=1e6,
        p95_ns=1e6,
        p99_ns=1e6,
        mean_ns=1e6,
        calls_per_s=1000,
        cpu_ns_per_call=1e6,
        utilization=estimate,
        utilization_low=low,
        utilization_high=high,
        n_calls=100,
        load_ns=1e6,
    )
    return Row(name=name, config=config, summary=summary, speedup=speedup, limits=(check,), few_calls=few_calls)


def judge(
    interval: tuple[float, float, float] = FASTER,
    *,
    kept: Kept = "yes",
    baseline_kept: Kept = "yes",
    utilization: float | tuple[float, float, float] = 0.5,
    baseline_utilization: float | tuple[float, float, float] = 0.5,
    few_calls: FewCalls | None = None,
    others_left: bool = False,
    check: tuple[float, float, float | None] = (1e6, 1e6, 1e6),
    spent: TimeSpent | None = None,
    rate_per_s: float = 100.0,
    n_launches: int = 6,
    contended: bool = False,
    **names: str,
) -> tuple[Verdict, str]:
    low, estimate, high = interval
    speedup = Speedup(low=low, estimate=estimate, high=high, confidence=0.95, n_pairs=60, n_launches=n_launches)
    one_thread = Config(session_options={"intra_op_num_threads": 1})
    comparison = Comparison(
        objective="p99",
        rows=(
            make_row("the baseline", DEFAULT, baseline_kept, baseline_utilization),
            make_row("candidate", one_thread, kept, utilization, speedup=speedup, few_calls=few_calls, values=check),
        ),
        calls_needed=1522,
        noise=Noise(n_blocks=1, n_contended=0, n_repeated=0, regime="contended" if contended else "quiet"),
    )
    goal = make_goal(make_load(rate_per_s=rate_per_s), limits=(parse_limit("p99<1ms"),))
    return judge_confirmation(goal, comparison, others_left=others_left, spent=spent, **names)


@pytest.mark.parametrize("baseline_kept", ["yes", "no"])
def test_nothing_is_recommended_after_fewer_than_five_launches(baseline_kept: Kept) -> None:
    spent = TimeSpent(budget_s=60, confirmation_s=20)
    assert judge(baseline_kept=baseline_kept, n_launches=5, spent=spent)[0] in {"faster", "within_limits"}
    assert judge(baseline_kept=baseline_kept, n_launches=4, spent=spent) == (
        "inconclusive",
        "only 4 launches of each config count, where a proof needs 5: use a budget of 70 s, or a quieter host",
    )
    verdict, reason = judge(baseline_kept=baseline_kept, n_launches=1)
    assert verdict == "inconclusive"
    assert reason.startswith("only one launch of each config counts, where a proof needs 5: use a larger budget")


@pytest.mark.parametrize(
    ("n_tried", "unseen_gain", "verdict", "reason"),
    [
        (340, None, "default_is_best", "all 340 candidates were tried"),
        (4, None, "nothing_found", "4 of 340 candidates were tried; nothing is known of the other 336"),
        (
            325,
            0.04,
            "default_is_best",
            "325 of 340 candidates were tried; the other 15 probably gain less than 4.1%",
        ),
        (
            200,
            0.04,
            "nothing_found",
            "200 of 340 candidates were tried; the other 140 probably gain less than 4.1%, unless one of them is "
            "better than its settings suggest",
        ),
        (
            4,
            0.2,
            "nothing_found",
            "4 of 340 candidates were tried; the other 336 may gain up to 23%: use a larger budget",
        ),
        (
            4,
            1.25,
            "nothing_found",
            "4 of 340 candidates were tried; little is known of the other 336: use a larger budget",
        ),
    ],
)
def test_the_baseline_is_best_only_if_enough_is_known_of_the_others(
    n_tried: int, unseen_gain: float | None, verdict: Verdict, reason: str
) -> None:
    assert judge_untried(n_tried, 340, unseen_gain) == (verdict, reason)


def test_candidates_that_failed_for_other_reasons_are_not_said_to_gain_little() -> None:
    """The model of the search knows nothing of them, although none is left to propose."""
    lost = "58 of 60 candidates were tried; the other 2 failed for reasons that may not be their own"
    assert judge_untried(58, 60, 0.0, n_lost=2) == ("default_is_best", lost)
    assert judge_untried(58, 60, 0.0, 0.2, n_lost=2)[0] == "nothing_found"
    assert judge_untried(30, 60, 0.0, n_lost=30)[0] == "nothing_found"
    assert judge_untried(57, 60, 0.0, n_lost=2)[1].endswith("the other 3 probably gain less than 0.1%")


def test_what_stays_within_the_limits_must_serve_all_requests() -> None:
    found = judge(FASTER, kept="yes", baseline_kept="no", utilization=(0.94, 0.97, 1.07))
    assert found[0] == "inconclusive"
    assert "can serve all requests" in found[1]
    assert judge(FASTER, kept="yes", baseline_kept="no", utilization=(0.5, 0.5, 0.6))[0] == "within_limits"


def test_the_baseline_is_not_best_if_those_that_were_tried_may_be_better() -> None:
    assert judge_untried(340, 340, None, 0.04) == ("default_is_best", "all 340 candidates were tried")
    ruled_out = "it gains at most 0.5%, if anything"
    one = f"the only candidate was tried: {ruled_out}"
    assert judge_untried(1, 1, None, ruled_out=ruled_out) == ("default_is_best", one)
    assert judge_untried(340, 340, None, 0.2) == (
        "nothing_found",
        "all 340 candidates were tried; by the few blocks of each, another one may gain up to 23%: use a larger budget",
    )


def test_those_that_were_tried_may_be_better_also_if_a_few_were_not() -> None:
    """A search that knows less has no stronger verdict."""
    few = "97 of 100 candidates were tried"
    assert judge_untried(97, 100, 0.01, 0.25) == (
        "nothing_found",
        f"{few}; by the few blocks of each, another one may gain up to 29%: use a larger budget",
    )
    assert judge_untried(97, 100, 0.01, 0.04) == (
        "default_is_best",
        f"{few}; the other 3 probably gain less than 1.1%",
    )


@pytest.mark.parametrize(
    ("low", "high", "ruled_out"),
    [
        (0.6, 0.62, "the confirmed one is not better than the baseline"),
        (0.6, 1.013, "the confirmed one gains at most 1.3%, if anything"),
        (1.002, 1.013, "the confirmed one gains only 0.2% to 1.3%"),
    ],
)
def test_a_gain_is_ruled_out_only_for_the_candidates_that_were_tried(low: float, high: float, ruled_out: str) -> None:
    verdict, reason = judge_interval(
        Speedup(low=low, estimate=(low + high) / 2, high=high, confidence=0.95, n_pairs=7, n_launches=5)
    )
    assert (verdict, reason) == ("default_is_best", ruled_out)
    verdict, reason = judge_untried(4, 340, None, ruled_out=reason)
    assert verdict == "nothing_found"
    assert reason == f"4 of 340 candidates were tried: {ruled_out}; nothing is known of the other 336"


@pytest.mark.parametrize(
    ("interval", "verdict", "reason"),
    [
        ((0.990, 1.006, 1.022), "default_is_best", "the confirmed one gains at most 2.2%, if anything"),
        ((0.999, 1.024, 1.049), "default_is_best", "the confirmed one gains at most 4.9%, if anything"),
        ((0.93, 1.01, 1.09), "nothing_found", "the confirmed one gains at most 9.0%, if anything"),
        ((0.99, 1.03, 1.07), "inconclusive", UNCLEAR_REASON),
        ((0.88, 1.0, 1.12), "inconclusive", UNCLEAR_REASON),
    ],
)
def test_an_interval_that_contains_1_is_an_answer_if_it_bounds_the_gain(
    interval: tuple[float, float, float], verdict: Verdict, reason: str
) -> None:
    low, estimate, high = interval
    speedup = Speedup(low=low, estimate=estimate, high=high, confidence=0.95, n_pairs=60, n_launches=6)
    assert judge_interval(speedup) == (verdict, reason)


@pytest.mark.parametrize(
    ("interval", "contended", "advice"),
    [
        # A gain of 0.0392 whose interval begins 0.0493 below it takes 1.58 times as long.
        ((0.99, 1.04, 1.1), False, "the host is noisy for this budget: use a budget of 70 s, or a quieter host"),
        # The interval must end 0.0953 above 0, where it ends now at 0.2624.
        ((0.77, 1.0, 1.3), True, "other programs used the CPUs: use a budget of 210 s, or a quieter host"),
        ((0.5, 1.0, 2.0), False, "the host is noisy for this budget: use a quieter host"),
    ],
)
def test_an_interval_that_decides_nothing_says_why_and_what_to_do(
    interval: tuple[float, float, float], contended: bool, advice: str
) -> None:
    spent = TimeSpent(budget_s=60, confirmation_s=20)
    assert judge(interval, spent=spent, contended=contended) == ("inconclusive", f"{UNCLEAR_REASON}, as {advice}")
    assert judge(interval, contended=contended)[1].endswith(": use a larger budget or a quieter host")


def test_a_confirmation_that_will_hardly_prove_a_gain_is_predicted() -> None:
    """The less is left, the less can change."""
    speedup = Speedup(low=0.98, estimate=1.001, high=1.022, confidence=0.99, n_pairs=60, n_launches=6)
    chances = [predict_proof(speedup, n_left) for n_left in (0, 2, 10, 1000)]
    assert chances == sorted(chances)
    assert chances[0] == 0
    assert chances[1] < 0.01
    assert 0.4 < chances[3] < 0.6
    better = Speedup(low=1.002, estimate=1.03, high=1.06, confidence=0.99, n_pairs=60, n_launches=6)
    assert predict_proof(better, 0) == 1
    assert predict_proof(better, 10) > 0.95


def test_a_search_that_tried_all_pairs_of_settings_says_so() -> None:
    verdict, reason = judge_untried(40, 340, 0.3, all_pairs=True)
    assert verdict == "nothing_found"
    assert "each pair of settings" in reason
    assert judge_untried(330, 340, 0.01, all_pairs=True)[0] == "default_is_best"


@pytest.mark.parametrize(
    ("interval", "verdict"), [(FASTER, "faster"), (SAME, "default_is_best"), (UNCLEAR, "inconclusive")]
)
def test_the_interval_decides(interval: tuple[float, float, float], verdict: Verdict) -> None:
    assert judge(interval)[0] == verdict


@pytest.mark.parametrize(
    ("kept", "baseline_kept", "verdict"),
    [
        ("yes", "yes", "faster"),
        ("yes", "unsure", "faster"),
        ("yes", "no", "within_limits"),
        ("unsure", "yes", "inconclusive"),
        ("unsure", "unsure", "inconclusive"),
        ("unsure", "no", "inconclusive"),
        ("no", "yes", "default_is_best"),
        ("no", "unsure", "inconclusive"),
        ("no", "no", "infeasible"),
    ],
)
def test_limits_of_a_faster_candidate(kept: Kept, baseline_kept: Kept, verdict: Verdict) -> None:
    assert judge(FASTER, kept=kept, baseline_kept=baseline_kept)[0] == verdict


@pytest.mark.parametrize(
    ("check", "advice"),
    [
        # The distance to the limit is 0.105. The interval ends 0.211 above the value, so it takes four times as long.
        ((0.8e6, 0.9e6, 1.111e6), "use a budget of 450 s, which may decide it"),
        ((0.9e6, 1.1e6, 1.2e6), "use a budget of 500 s, which may decide it"),
        ((0.8e6, 0.99e6, 1.2e6), "p99 is too close to the limit to be decided, so use a different limit"),
        ((0.5e6, 0.95e6, 1.5e6), "p99 would take too long to decide on this host"),
        ((0.5e6, 0.9e6, None), "use a larger budget"),
    ],
)
def test_an_undecided_limit_says_how_much_time_would_decide_it(
    check: tuple[float, float, float | None], advice: str
) -> None:
    spent = TimeSpent(budget_s=150, confirmation_s=90)
    verdict, reason = judge(FASTER, kept="unsure", check=check, spent=spent)
    assert verdict == "inconclusive"
    assert reason == f"it is uncertain whether the best candidate stays within p99<1ms: {advice}"


@pytest.mark.parametrize(
    ("low", "value", "high"),
    [
        # The distance to the limit is a tenth in both cases, and the end beyond it is twice as far from the value.
        (110 / 1.21, 110.0, 1000.0),
        (1.0, 110 / 1.21, 110.0),
    ],
)
def test_the_end_beyond_a_limit_from_below_decides_the_advice(low: float, value: float, high: float) -> None:
    limit = parse_limit("throughput>100/s")
    check = LimitCheck(limit=limit.text, figure="throughput", bound=100, value=value, low=low, high=high, kept="unsure")
    row = Row(name="candidate", config=DEFAULT, limits=(check,))
    spent = TimeSpent(budget_s=150, confirmation_s=90)
    advice = advise_budget(make_goal(make_load(clients=2), limits=(limit,)), row, spent)
    assert advice == "use a budget of 450 s, which may decide it"


@pytest.mark.parametrize(
    ("kept", "baseline_kept", "verdict"),
    [("yes", "yes", "default_is_best"), ("yes", "unsure", "inconclusive"), ("yes", "no", "within_limits")],
)
def test_limits_of_a_candidate_that_is_not_faster(kept: Kept, baseline_kept: Kept, verdict: Verdict) -> None:
    assert judge(SAME, kept=kept, baseline_kept=baseline_kept)[0] == verdict


def test_a_candidate_that_exceeds_a_limit_does_not_end_the_search_if_others_are_left() -> None:
    verdict, reason = judge(kept="no", others_left=True)
    assert verdict == "inconclusive"
    assert reason == "the best candidate exceeds p99<1ms, and there was no time to try the next one"


@pytest.mark.parametrize("interval", [FASTER, SAME])
def test_a_limit_that_is_certainly_exceeded_is_not_called_uncertain(interval: tuple[float, float, float]) -> None:
    """A larger budget would not change it."""
    assert judge(interval, kept="no", baseline_kept="unsure") == (
        "inconclusive",
        "the best candidate exceeds p99<1ms, and the baseline may exceed p99<1ms",
    )


@pytest.mark.parametrize("baseline_kept", ["yes", "unsure", "no"])
def test_a_candidate_that_is_overloaded_does_not_end_the_search_if_others_are_left(baseline_kept: Kept) -> None:
    assert judge(utilization=(1.1, 1.2, 1.3), baseline_kept=baseline_kept, others_left=True) == (
        "inconclusive",
        "the best candidate can serve only 83.3 of 100 requests per second, and there was no time to try the next one",
    )


def test_a_bound_of_a_gain_is_rounded_up() -> None:
    """What is said to bound it must do so."""
    speedup = Speedup(low=0.99, estimate=1.0, high=1.0141, confidence=0.95, n_pairs=7, n_launches=5)
    assert judge_interval(speedup)[1] == "the confirmed one gains at most 1.5%, if anything"
    speedup = Speedup(low=1.0019, estimate=1.005, high=1.0141, confidence=0.95, n_pairs=7, n_launches=5)
    assert judge_interval(speedup)[1] == "the confirmed one gains only 0.1% to 1.5%"
    assert judge_untried(340, 340, None, math.log(1.101))[1].endswith("may gain up to 11%: use a larger budget")
    assert judge_untried(200, 340, math.log(1.0301))[1].endswith(
        "probably gain less than 3.1%, unless one of them is better than its settings suggest"
    )


@pytest.mark.parametrize(
    ("utilization", "reason"),
    [
        (0.5, "the confirmed candidate gains at most 1.0%, if anything, and the baseline may exceed p99<1ms"),
        ((1.1, 1.2, 1.3), "the baseline may exceed p99<1ms, and the best candidate can serve only 83.3 of 100"),
    ],
)
def test_what_is_said_to_be_no_better_is_the_confirmed_candidate(
    utilization: float | tuple[float, float, float], reason: str
) -> None:
    """Nothing is known of the others."""
    verdict, found = judge(SAME, baseline_kept="unsure", utilization=utilization)
    assert verdict == "inconclusive"
    assert found.startswith(reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"interval": SAME}, "gains at most 1.0%, if anything"),
        ({"interval": (0.7, 0.8, 0.9)}, "is not better than the baseline"),
        ({"kept": "no"}, "exceeds p99<1ms"),
        ({"utilization": 2.0}, "can serve only 50 of 100 requests per second"),
    ],
)
def test_a_candidate_has_the_name_that_fits_the_sentence(changes: dict[str, Any], reason: str) -> None:
    found = judge(**changes, called=LAST_CONFIRMED_ONE)
    assert found == ("default_is_best", f"the last one that was confirmed {reason}")
    assert judge(**changes) == ("default_is_best", f"the confirmed one {reason}")


def test_advice_names_only_what_is_undecided() -> None:
    limits = (parse_limit("p99<1ms"), parse_limit("cpu<1ms"))
    unsure = LimitCheck(limit="p99<1ms", figure="p99", bound=1e6, value=9.5e5, low=5e5, high=1.5e6, kept="unsure")
    met = LimitCheck(limit="cpu<1ms", figure="cpu", bound=1e6, value=5e5, low=4e5, high=6e5, kept="yes")
    row = Row(name="candidate", config=DEFAULT, limits=(unsure, met))
    advice = advise_budget(make_goal(make_load(), limits=limits), row, TimeSpent(budget_s=150, confirmation_s=90))
    assert advice == "p99 would take too long to decide on this host"


def few_calls(interval: tuple[float, float, float]) -> FewCalls:
    low, estimate, high = interval
    speedup = Speedup(low=low, estimate=estimate, high=high, confidence=0.95, n_pairs=60, n_launches=6)
    return FewCalls(n_calls=344, supported="p90", speedup=speedup, slowest_ns=31_800_000, one_in=114)


WHAT_FEW_CALLS_SHOW = (
    "p99 needs 1522 calls of each side, and there were 344: p90 gains 1.30x [1.20, 1.40]; calls slower than 31.8 ms, "
    "if rarer than 1 in 114, are not excluded"
)


def test_few_calls_prove_what_a_lower_percentile_shows_too() -> None:
    assert judge(few_calls=few_calls((1.2, 1.3, 1.4))) == ("faster", WHAT_FEW_CALLS_SHOW)


def test_few_calls_that_show_a_loss_are_named() -> None:
    assert judge((0.7, 0.8, 0.9), few_calls=few_calls((0.7, 0.8, 0.9))) == (
        "default_is_best",
        "the confirmed one is not better than the baseline over 344 calls, where p99 needs 1522",
    )


@pytest.mark.parametrize("interval", [(0.9, 1.1, 1.3), (0.7, 0.8, 0.9)])
def test_few_calls_prove_nothing_if_a_lower_percentile_does_not_agree(interval: tuple[float, float, float]) -> None:
    """The interval of the percentile includes that of the lower one."""
    verdict, reason = judge((interval[0], 1.5, 2.1), few_calls=few_calls(interval))
    assert verdict == "inconclusive"
    assert reason.endswith("are not excluded: use a larger budget or a lower percentile")


def test_few_calls_prove_nothing_if_the_percentile_itself_is_uncertain() -> None:
    spent = TimeSpent(budget_s=60, confirmation_s=20)
    verdict, reason = judge((0.9, 1.5, 2.1), few_calls=few_calls((1.2, 1.3, 1.4)), spent=spent)
    assert (verdict, reason) == ("inconclusive", f"{WHAT_FEW_CALLS_SHOW}: use a budget of 300 s, or a lower percentile")


def test_few_calls_do_not_exceed_a_limit() -> None:
    assert judge(few_calls=few_calls((1.2, 1.3, 1.4)), kept="unsure")[0] == "inconclusive"


@pytest.mark.parametrize(
    ("baseline_utilization", "utilization", "verdict", "reason"),
    [
        (1.25, 2.0, "overload", "the baseline can serve 80, and the confirmed candidate 50 of 100 requests per second"),
        (0.5, 2.0, "default_is_best", "the confirmed one can serve only 50 of 100 requests per second"),
        (1.25, 0.5, "faster", "the baseline can serve only 80 of 100 requests per second"),
        ((1.1, 1.25, 1.4), 0.5, "faster", "the baseline can serve only 80 of 100 requests per second"),
        # Where the interval includes 1, neither is certain.
        (0.5, (0.9, 1.05, 1.2), "inconclusive", "it is uncertain whether the best candidate can serve all requests"),
        (0.5, (0.8, 0.95, 1.1), "inconclusive", "it is uncertain whether the best candidate can serve all requests"),
        ((0.8, 1.05, 1.2), 0.5, "faster", "the whole confidence interval lies above 1"),
        (0.5, (0.7, 0.8, 0.9), "faster", "the whole confidence interval lies above 1"),
    ],
)
def test_overload(
    baseline_utilization: float | tuple[float, float, float],
    utilization: float | tuple[float, float, float],
    verdict: Verdict,
    reason: str,
) -> None:
    found = judge(utilization=utilization, baseline_utilization=baseline_utilization)
    assert found[0] == verdict
    assert found[1].startswith(reason)


@pytest.mark.parametrize(
    ("baseline_utilization", "utilization", "reason"),
    [
        (1.25, 2.0, "the baseline can serve 1260, and the confirmed candidate 788 of 1575 requests per second"),
        (0.5, 2.0, "the confirmed one can serve only 788 of 1575 requests per second"),
        (1.25, 0.5, "the baseline can serve only 1260 of 1575 requests per second"),
    ],
)
def test_an_overload_by_many_requests(baseline_utilization: float, utilization: float, reason: str) -> None:
    """Numbers from 1000 on have no exponent."""
    found = judge(utilization=utilization, baseline_utilization=baseline_utilization, rate_per_s=1575.0)
    assert found[1].startswith(reason)


@pytest.mark.parametrize(
    ("baseline_kept", "verdict"), [("yes", "default_is_best"), ("unsure", "inconclusive"), ("no", "infeasible")]
)
def test_a_candidate_that_is_overloaded_does_not_make_a_baseline_best_that_exceeds_a_limit(
    baseline_kept: Kept, verdict: Verdict
) -> None:
    found, reason = judge(utilization=(1.1, 1.2, 1.3), baseline_kept=baseline_kept)
    assert found == verdict
    assert "can serve only" in reason
    assert ("p99<1ms" in reason) == (baseline_kept != "yes")


def make_ends(low: float, high: float) -> Speedup:
    return Speedup(estimate=low, low=low, high=high, confidence=0.95, n_pairs=4, n_launches=2)


@pytest.mark.parametrize(
    ("low", "high", "place"),
    [
        (1.1, 1.2, "above"),
        (0.8, 0.9, "below"),
        (0.9, 1.1, "unclear"),
        (1.0, 1.1, "unclear"),
        (0.9, 1.0, "unclear"),
        (1.1, math.inf, "above"),
    ],
)
def test_where_an_interval_lies(low: float, high: float, place: rules.Place) -> None:
    assert rules.compare(make_ends(low, high), 1) == place


def test_a_negligible_gain() -> None:
    assert rules.is_negligible(make_ends(1.001, 1.019))
    assert not rules.is_negligible(make_ends(1.001, 1.03))


@pytest.mark.parametrize(
    ("limit", "low", "high", "kept"),
    [
        ("p99<20ms", 10, 20, "yes"),
        ("p99<20ms", 20, 21, "unsure"),
        ("p99<20ms", 21, math.inf, "no"),
        ("throughput>100/s", 100, 120, "yes"),
        ("throughput>100/s", 90, 120, "unsure"),
        ("throughput>100/s", 80, 90, "no"),
    ],
)
def test_a_figure_may_be_at_its_limit(limit: str, low: float, high: float, kept: rules.Kept) -> None:
    scale = 1e6 if limit.startswith("p99") else 1
    assert limits.judge_limit(parse_limit(limit), make_ends(scale * low, scale * high)) == kept


@pytest.mark.parametrize(
    ("low", "high", "served"), [(0.5, 0.9, "yes"), (0.9, 1.0, "unsure"), (1.0, 1.2, "no"), (0.5, math.inf, "unsure")]
)
def test_whether_requests_are_served(low: float, high: float, served: rules.Kept) -> None:
    assert rules.judge_utilization(low, high) == served


def test_what_decides_for_all() -> None:
    assert rules.find_deciding(["yes", "no", "unsure"], rules.KEPT) == "no"
    assert rules.find_deciding(["pass", "inconclusive"], rules.DECISIONS) == "inconclusive"
    assert rules.find_deciding([], rules.KEPT) == "yes"
