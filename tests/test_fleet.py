"""`ortune fleet compare`: reading metrics of canaries, the comparison, and its interval."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.canary_coverage import ROLLOUTS, count
from ortune import Objective, UsageError
from ortune.apply.inside.canary import FIRST_BUCKET, GROWTH_SCALE, LAST_BUCKET
from ortune.fleet.canary_metrics import MOST_METRICS_BYTES, Metrics, add_buckets, find_quantile, read_metrics
from ortune.fleet.compare import FleetComparison, compare_arms, is_unlikely_split, judge
from ortune.fleet.mixed_model import Unit, estimate_effect
from ortune.measure.interval import Interval
from tests.conftest import run_ortune
from tests.metrics import make_metrics, make_model, make_rollout, write_metrics


def compare(folder: Path, *processes: dict[str, Any], metric: Objective = "p50", **options: Any) -> FleetComparison:
    return compare_arms(read_metrics(write_metrics(folder, *processes)), metric, **options)


class TestReading:
    def test_what_a_process_wrote(self, tmp_path: Path) -> None:
        metrics = read_metrics(write_metrics(tmp_path, make_metrics(8), make_metrics(7)))
        assert [process.pid for process in metrics.processes] == [7, 8]
        assert metrics.faults == ()
        assert metrics.processes[0].n_calls == 1000

    @pytest.mark.parametrize(
        "changes",
        [
            {"format": 2},
            {"arm": "other"},
            {"share": 1.5},
            {"pid": -1},
            {"cpu_ns": 1 << 63},
            {"host": "h" * 1000},
            {"config": "../x"},
            {"unknown": 1},
            {"models": [make_model([1e6])] * 17},
            {"models": [make_model([1e6], sha256="x")]},
            {"models": [make_model([1e6], buckets={"1": 1})]},
            {"models": [make_model([1e6], buckets={str(FIRST_BUCKET): 2})]},
            {"models": [make_model([1e6], buckets={str(LAST_BUCKET + 1): 1})]},
            {"models": [make_model([1e6], total_ns=10)]},
            {"models": [make_model([1e6], n_calls=1 << 60)]},
        ],
    )
    def test_hostile_values(self, changes: dict[str, Any], tmp_path: Path) -> None:
        good, bad = make_metrics(7), make_metrics(8)
        metrics = read_metrics(write_metrics(tmp_path, good, bad | changes | {"host": "b"}))
        name = f"canary-{b'b'.hex()}-8"
        (tmp_path / f"{name}-1.json").write_text(json.dumps(bad | changes))
        metrics = read_metrics(tmp_path)
        assert [process.pid for process in metrics.processes if process.host == "a"] == [7]
        assert any(name in fault for fault in metrics.faults)

    def test_hostile_files(self, tmp_path: Path) -> None:
        write_metrics(tmp_path, make_metrics())
        (tmp_path / "canary-aa-1-1.json").write_bytes(b"{" * 100_000)
        (tmp_path / "canary-aa-2-1.json").write_bytes(b" " * (MOST_METRICS_BYTES + 1))
        (tmp_path / "canary-aa-3-1.json").mkdir()
        (tmp_path / "canary-aa-4-1.json").symlink_to(tmp_path / "missing")
        (tmp_path / "canary-aa-5-1.json").symlink_to("/dev/zero")
        (tmp_path / "canary-aa-6-1.new").write_text("half")
        (tmp_path / "canary-aa-7-1.json").write_bytes(b"\xff")
        (tmp_path / "other.json").write_text("{}")
        metrics = read_metrics(tmp_path)
        assert len(metrics.processes) == 1
        assert len(metrics.faults) == 5

    def test_a_folder_that_is_missing(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="cannot be read"):
            read_metrics(tmp_path / "missing")

    def test_quantiles_are_within_the_bounds_of_a_bucket(self) -> None:
        rng = np.random.default_rng(0)
        parts = [np.exp(rng.normal(14, 0.5, 3000)) for _ in range(3)]
        counts = []
        for part in parts:
            buckets, n = np.unique((np.log(part) * GROWTH_SCALE).astype(int), return_counts=True)
            counts.append(dict(zip(buckets.tolist(), n.tolist(), strict=True)))
        pooled = add_buckets(counts)
        for share in (0.01, 0.5, 0.99):
            true = float(np.quantile(np.concatenate(parts), share))
            assert find_quantile(pooled, share) == pytest.approx(true, rel=0.01)


class TestComparison:
    @pytest.mark.parametrize(("ratio", "verdict"), [(0.8, "better"), (1.25, "worse")])
    @pytest.mark.parametrize("metric", ["p50", "p99", "mean", "cpu"])
    def test_a_config_that_matters(self, ratio: float, verdict: str, metric: Objective, tmp_path: Path) -> None:
        found = compare(tmp_path, *make_rollout(ratio, luck=0.01), metric=metric)
        (row,) = (total_row for total_row in found.total if total_row.metric == metric)
        assert row.speedup
        assert found.verdict == verdict
        assert row.speedup.low < 1 / ratio < row.speedup.high
        assert (row.canary.n_processes, row.control.n_processes, row.canary.n_hosts) == (6, 6, 2)
        assert found.warnings == ()

    def test_arms_on_the_same_hosts_are_free_of_their_differences(self, tmp_path: Path) -> None:
        """Hosts differ by 30%, processes by 1%."""
        found = compare(tmp_path, *make_rollout(0.9, luck=0.01, hosts=("a", "b", "c")))
        assert found.total[0].speedup
        assert found.total[0].speedup.high / found.total[0].speedup.low < 1.1

    def test_arms_on_one_host_each_are_inconclusive(self, tmp_path: Path) -> None:
        """Whether the host or the config is faster cannot be known."""
        processes = [{**process, "host": process["arm"]} for process in make_rollout(0.8, hosts=("a",))]
        found = compare(tmp_path, *processes)
        assert found.verdict == "inconclusive"
        assert found.total[0].speedup
        assert found.total[0].speedup.low < 0.9

    def test_two_processes_are_too_few(self, tmp_path: Path) -> None:
        found = compare(tmp_path, *make_rollout(0.5, n=2, hosts=("a",)))
        assert (found.verdict, found.total[0].speedup) == ("inconclusive", None)
        assert "two processes are too few" in found.reason

    def test_one_arm_alone(self, tmp_path: Path) -> None:
        found = compare(tmp_path, make_metrics(1), make_metrics(2), make_metrics(3))
        assert found.reason == "there are no canaries yet"

    def test_forked_children_count_as_one_process(self, tmp_path: Path) -> None:
        processes = make_rollout(0.5, n=2, hosts=("a",))
        child = {**processes[0], "pid": 900, "start_ns": 5}
        found = compare(tmp_path, *processes, child)
        assert found.total[0].control.n_processes == 1
        assert found.verdict == "inconclusive"

    def test_no_difference(self, tmp_path: Path) -> None:
        processes = make_rollout(1.0, n=40, luck=0.01, seed=3)
        assert compare(tmp_path, *processes).verdict == "not_worse"
        assert compare(tmp_path, *processes, max_slowdown=0.0001).verdict == "inconclusive"

    def test_verdicts(self) -> None:
        def interval(low: float, high: float) -> Interval:
            return Interval(estimate=math.sqrt(low * high), low=low, high=high, confidence=0.95)

        assert judge(None, 0.03) == "inconclusive"
        assert judge(interval(1.01, 1.1), 0.03) == "better"
        assert judge(interval(0.9, 0.99), 0.03) == "worse"
        assert judge(interval(0.98, 1.1), 0.03) == "not_worse"
        assert judge(interval(0.96, 1.1), 0.03) == "inconclusive"

    def test_several_models(self, tmp_path: Path) -> None:
        """One model is faster, the other is as fast. The total weighs them by their time."""
        processes = make_rollout(0.5, n=16, luck=0.01)
        other = make_model([2_000_000 + n for n in range(1000)], name="other.onnx", sha256="b" * 64)
        found = compare(tmp_path, *({**process, "models": [*process["models"], other]} for process in processes))
        speedups = {row.model: row.speedup for row in found.rows if row.metric == "p50"}
        assert speedups["model.onnx"]
        assert speedups["other.onnx"]
        assert speedups["model.onnx"].estimate == pytest.approx(2, rel=0.03)
        assert speedups["other.onnx"].estimate == pytest.approx(1, rel=0.01)
        assert found.total[0].speedup
        assert 1.2 < found.total[0].speedup.estimate < 1.6

    def test_processes_with_few_calls_do_not_count(self, tmp_path: Path) -> None:
        few = make_metrics(1, "canary", [make_model([1_000_000] * 19)])
        found = compare(tmp_path, few, *make_rollout())
        assert found.total[0].n_left_out == 1
        assert any(text.startswith("1 of 13 processes made fewer than 20 calls") for text in found.warnings)

    def test_several_configs(self, tmp_path: Path) -> None:
        processes = [*make_rollout(), make_metrics(1, config="ab")]
        with pytest.raises(UsageError, match=r"several configs: .*0123456789ab \(12 processes\)"):
            compare(tmp_path, *processes)
        assert compare(tmp_path, *processes, config="0123456789ab").config == "0123456789ab"
        with pytest.raises(UsageError, match="no metrics of this config"):
            compare(tmp_path, *processes, config="cd")

    def test_nothing_to_compare(self) -> None:
        with pytest.raises(UsageError, match="no metrics that can be read"):
            compare_arms(Metrics(processes=()))


class TestWarnings:
    def test_different_loads(self, tmp_path: Path) -> None:
        processes = make_rollout()
        slow = [
            {**process, "wall_ns": process["wall_ns"] * (3 if process["arm"] == "canary" else 1)}
            for process in processes
        ]
        (text,) = compare(tmp_path, *slow).warnings
        assert text.startswith("The arms have different loads: 50 calls per second of each canary, and 150")

    def test_clients_that_wait_are_the_same_load(self, tmp_path: Path) -> None:
        """A canary that is twice as fast gets twice as many calls."""
        processes = [{**process, "wall_ns": process["models"][0]["total_ns"]} for process in make_rollout(0.5)]
        assert compare(tmp_path, *processes).warnings == ()

    def test_options_that_could_not_be_set(self, tmp_path: Path) -> None:
        processes = make_rollout()
        processes[1]["models"][0] |= {"n_own": 1, "reason": "no such provider"}
        (text,) = compare(tmp_path, *processes).warnings
        assert text == "Sessions of model.onnx in canaries kept the program's own options: no such provider."

    def test_failed_calls(self, tmp_path: Path) -> None:
        processes = make_rollout()
        processes[1]["models"][0]["n_failed"] = 90
        (text,) = compare(tmp_path, *processes).warnings
        assert text == "0.99% of the calls of canaries failed, and 0.00% of the others."

    def test_a_split_that_chance_does_not_explain(self, tmp_path: Path) -> None:
        assert not is_unlikely_split(1, 10, 0.1)
        assert not is_unlikely_split(0, 10, 0.1)
        assert not is_unlikely_split(5, 5, 1.0)
        assert is_unlikely_split(0, 100, 0.1)
        assert is_unlikely_split(30, 100, 0.1)
        control = [make_metrics(n) for n in range(1, 30)]
        assert "0 of 29 processes are canaries, and 0.5 of them should be." in " ".join(
            compare(tmp_path, *control).warnings
        )


class TestInterval:
    def test_one_host_is_a_test_of_two_groups(self) -> None:
        """Student's interval with a common variance, for a = (1, 2, 3) and b = (2, 4)."""
        values = [(True, 2.0), (True, 4.0), (False, 1.0), (False, 2.0), (False, 3.0)]
        found = estimate_effect([Unit(host="a", is_canary=is_canary, value=value) for is_canary, value in values], 0.95)
        assert found
        half = 3.182446 * math.sqrt(4 / 3 * (1 / 2 + 1 / 3))
        assert (found.estimate, found.low, found.high) == pytest.approx((1, 1 - half, 1 + half), abs=1e-5)

    def test_the_same_values_everywhere(self) -> None:
        units = [Unit(host=str(n // 2), is_canary=bool(n % 2), value=3.0) for n in range(8)]
        found = estimate_effect(units, 0.95)
        assert found
        assert -1e-6 < found.low <= found.high < 1e-6

    def test_more_confidence_is_wider(self) -> None:
        rng = np.random.default_rng(0)
        units = [Unit(host=str(n // 4), is_canary=bool(n % 2), value=float(rng.normal())) for n in range(12)]
        narrow, wide = estimate_effect(units, 0.8), estimate_effect(units, 0.99)
        assert narrow
        assert wide
        assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high

    @pytest.mark.parametrize("name", ["one host, 8 processes", "5 hosts of 4, effects differ by 1.5%"])
    def test_coverage(self, name: str) -> None:
        """Of 200 intervals of 95%, 184 or more contain the effect with a probability of 97%."""
        found = count(ROLLOUTS[name], 200, seed=1)
        assert found["coverage"] >= 0.92
        assert found["wrong"] <= 0.02


class TestCommand:
    @pytest.mark.parametrize(("ratio", "code", "text"), [(0.8, 0, "is better"), (1.3, 1, "is worse")])
    def test_exit_codes(self, ratio: float, code: int, text: str, tmp_path: Path) -> None:
        write_metrics(tmp_path / "metrics", *make_rollout(ratio, luck=0.01))
        done = run_ortune("fleet", "compare", "metrics", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        assert text in done.stdout
        assert "6 canaries on 2 hosts and 6 other processes on 2 hosts" in done.stdout

    def test_json(self, tmp_path: Path) -> None:
        write_metrics(tmp_path / "metrics", *make_rollout(0.8, n=2))
        done = run_ortune("fleet", "compare", "metrics", "--json", "--metric", "p99", cwd=tmp_path)
        assert done.returncode == 3
        document = json.loads(done.stdout)
        assert (document["verdict"], document["metric"]) == ("inconclusive", "p99")
        assert [row["metric"] for row in document["total"]] == ["p50", "p99", "mean", "cpu"]

    def test_any_percentile_decides(self, tmp_path: Path) -> None:
        write_metrics(tmp_path / "metrics", *make_rollout(0.8))
        done = run_ortune("fleet", "compare", "metrics", "--json", "--metric", "p97.5", cwd=tmp_path)
        document = json.loads(done.stdout)
        assert (done.returncode, document["metric"]) == (0, "p97.5")
        assert [row["metric"] for row in document["total"]] == ["p50", "p97.5", "p99", "mean", "cpu"]

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("compare", "missing"), "missing: cannot be read"),
            (("compare", ".", "--confidence", "95"), "must be a share"),
            (("compare", ".", "--confidence", "100%"), "at least 50%"),
            (("compare", ".", "--metric", "p42"), "is not one of the choices"),
            (("compare", ".", "--metric", "memory"), "is not one of the choices"),
            (("compare", ".", "--metrics", "p50"), "Did you mean --metric?"),
            (("compare", "."), "There are no metrics"),
            (("measure", "."), "there is no such command"),
        ],
    )
    def test_mistakes(self, words: tuple[str, ...], text: str, tmp_path: Path) -> None:
        done = run_ortune("fleet", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert text in " ".join(done.stderr.split())

    def test_hostile_names_are_not_interpreted(self, tmp_path: Path) -> None:
        processes = make_rollout()
        for process in processes:
            process["models"][0]["name"] = "\x1b[31m[red]x\n"
        write_metrics(tmp_path / "metrics", *processes)
        done = run_ortune("fleet", "compare", "metrics", cwd=tmp_path)
        assert done.returncode in {0, 3}
        assert "\x1b" not in done.stdout
