"""`ortune report`: what it recognizes, what pages show, and that texts of files stay texts."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune import BenchResult, Config, Load, RecordError, Speedup, Tolerance, UsageError, read_record
from ortune.gates.reporters.history import HistoryEntry, append_history
from ortune.host import Core, NumaNode, Topology
from ortune.knobs import DEFAULT
from ortune.measure.comparison import FewCalls
from ortune.measure.interval import Interval
from ortune.measure.paired_run import PairedRun, Side
from ortune.options import parse_shapes
from ortune.record.files import encode_record, read_trials
from ortune.record.files import write_record as write_both
from ortune.record.schema import RECORD_SCHEMA, Bundle
from ortune.record.trials import TrialRound, encode_trials
from ortune.report import trials as trials_page
from ortune.report import write
from ortune.report.blocks import Block, Cell, Chart, Code, Facts, HostMap, Page, Section, Table, Text
from ortune.report.charts.gates import GateMark, draw_gates
from ortune.report.charts.latencies import draw_latencies
from ortune.report.charts.ratios import Pairs, draw_effects, draw_pairs
from ortune.report.charts.search import Attempt, FrontMark, draw_attempts, draw_front
from ortune.report.effects import estimate_effects
from ortune.report.history import find_levels
from ortune.report.history import make_page as make_history_page
from ortune.report.host_map import draw_host
from ortune.report.make import make_page
from ortune.report.source import History, Records, read_source
from ortune.sanitize import printable
from ortune.worker import CpuPlace, Failure, SessionInfo
from ortune.worker.session_info import PoolThread
from ortune.workload import APPROXIMATE_TOLERANCE, InputData
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.gate_results import make_interval, make_result
from tests.hostile import ALL_TEXTS
from tests.records import ELSEWHERE, ONE_THREAD, make_local_record
from tests.records import write as write_record
from tests.test_paired_run import make_round

DATA = ROOT / "tests" / "data" / "report"
SEARCH, FRONT, BENCH = (DATA / f"{name}.json" for name in ("search", "front", "bench"))


def page_of(path: Path) -> Page:
    return make_page(read_source(str(path)), path.name)


def blocks_of(page: Page, kind: type[Any]) -> list[Any]:
    return [block for section in page.sections for block in section.blocks if isinstance(block, kind)]


def titles_of(page: Page) -> list[str]:
    return [section.title for section in page.sections]


def make_history(n: int = 6) -> list[HistoryEntry]:
    return [
        HistoryEntry(
            time=f"2026-01-{day:02}T03:04:05+01:00",
            name="encoder",
            decision="fail" if day == n else "pass",
            reason="why",
            slowdowns={"p50": make_interval(0.99, 1.0 + day / 100, 1.08)},
            allowed={"p50": 1.05},
            head="m.onnx",
        )
        for day in range(1, n + 1)
    ]


def make_levels(*levels: tuple[int, float, dict[str, Any]]) -> list[HistoryEntry]:
    """Return runs with levels, in percent, each for some runs with some fields."""
    runs = [(1 + level / 100, own) for n, level, own in levels for _ in range(n)]
    noise = np.exp(np.random.default_rng(0).normal(0, 0.004, len(runs)))
    return [
        HistoryEntry(
            time=f"2026-{1 + day // 28:02}-{1 + day % 28:02}T00:00:00+00:00",
            name="encoder",
            decision="pass",
            reason="why",
            slowdowns={"p50": make_interval(0.9, level * float(noise[day]), 1.2)},
            allowed={"p50": 1.1},
            **own,
        )
        for day, (level, own) in enumerate(runs)
    ]


class TestLevels:
    def test_a_change_of_head_is_found(self) -> None:
        (change,) = find_levels(make_levels((15, 0, {}), (15, 4, {})), "p50")
        assert change.first == 15

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            *((name, ("a", "b")) for name in ("host", "load", "base_digest", "base_onnxruntime")),
            ("base_settings", ({}, {"intra_op_num_threads": 1})),
        ],
    )
    def test_other_conditions_are_no_change_of_level(self, field: str, values: tuple[Any, Any]) -> None:
        a, b = ({field: value} for value in values)
        assert not find_levels(make_levels((15, 0, a), (15, 4, b)), "p50")
        # Nor if they alternate.
        assert not find_levels(make_levels(*15 * [(1, 0, a), (1, 4, b)]), "p50")

    def test_the_path_of_base_is_no_condition(self) -> None:
        assert find_levels(make_levels((15, 0, {"base": "/tmp/a/m.onnx"}), (15, 4, {"base": "/tmp/b/m.onnx"})), "p50")

    def test_a_change_among_other_runs(self) -> None:
        """Its positions are those in the whole history."""
        a, b = {"host": "a"}, {"host": "b"}
        (change,) = find_levels(make_levels(*12 * [(1, 0, a), (1, 6, b)], *12 * [(1, 4, a)]), "p50")
        assert change.first == 24 and change.found > 24

    def test_void_runs_are_left_out(self) -> None:
        void = {"is_void": True}
        assert not find_levels(make_levels((15, 0, {}), (11, 6, void)), "p50")


class TestSource:
    @pytest.mark.parametrize("path", [SEARCH, FRONT])
    def test_a_record_with_its_trials(self, path: Path) -> None:
        source = read_source(str(path))
        assert isinstance(source, Records)
        (one,) = source.records
        assert one.record == read_record(path) and one.trials == read_trials(path)
        assert not one.lack and not one.fault

    def test_a_record_whose_trials_are_missing(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").write_bytes(SEARCH.read_bytes())
        source = read_source(str(tmp_path / "r.json"))
        assert isinstance(source, Records)
        assert source.records[0].trials is None and "There is no file" in source.records[0].lack
        page = page_of(tmp_path / "r.json")
        assert "Candidates" not in titles_of(page) and "Reproduce" in titles_of(page)

    def test_a_bundle(self, tmp_path: Path) -> None:
        record = read_record(SEARCH)
        (tmp_path / "b.json").write_bytes(encode_record(Bundle(schema=RECORD_SCHEMA, records=(record, record))))
        page = page_of(tmp_path / "b.json")
        assert page.verdict == "A bundle of 2 records"
        assert sum(title.startswith("Record ") for title in titles_of(page)) == 2

    def test_a_bench(self) -> None:
        assert isinstance(read_source(str(BENCH)), BenchResult)

    def test_a_history(self, tmp_path: Path) -> None:
        append_history(tmp_path / "h.jsonl", [make_result()])
        assert isinstance(read_source(str(tmp_path / "h.jsonl")), History)

    @pytest.mark.parametrize("content", ["", "x", "[]", "{}", '{"schema": 1}', '{"rows": []}', "\0\1", '{"a":' * 2000])
    def test_other_files(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text(content)
        with pytest.raises(RecordError, match=r"x\.json is not a record, a bundle"):
            read_source(str(tmp_path / "x.json"))

    def test_trials_are_not_a_record(self) -> None:
        with pytest.raises(RecordError, match="holds the trials of a search"):
            read_source(str(DATA / "search.trials.jsonl.gz"))

    def test_a_broken_bench(self, tmp_path: Path) -> None:
        (tmp_path / "x.json").write_text('{"rows": 1, "workload": 2, "calls_needed": 3}')
        with pytest.raises(RecordError, match="is not a result of ortune bench"):
            read_source(str(tmp_path / "x.json"))

    def test_a_record_that_must_not_be_applied_is_shown_without_exports(self, tmp_path: Path) -> None:
        config = Config(session_config={"session.load_model_format": "x"}, environment={"LD_PRELOAD": "/tmp/x.so"})
        page = page_of(write_record(make_local_record(TINY_CNN, config), tmp_path / "r.json"))
        assert any("is not exported" in block.text for block in blocks_of(page, Text))
        assert not [block for block in blocks_of(page, Code) if block.folded]


class TestPages:
    def test_a_search(self) -> None:
        page = page_of(SEARCH)
        assert page.verdict.endswith("as fast as ONNX Runtime's default")
        names = [chart.name for chart in page.charts]
        assert {"pairs", "latencies", "candidates", "effects", "noise"} <= set(names)
        (candidates,) = (table for table in blocks_of(page, Table) if table.sortable)
        assert len(candidates.rows) == read_record(SEARCH).search.n_tried
        maps = blocks_of(page, HostMap)
        assert [host_map.title for host_map in maps] == ["Default", "Tuned"]
        commands = [block.text for block in blocks_of(page, Code) if not block.folded]
        assert any(text.startswith("ortune search ") and "--budget" in text for text in commands)
        assert {"python", "cpp"} <= {block.title.partition(":")[0] for block in blocks_of(page, Code)}

    def test_a_search_with_fixed_settings_is_repeated_with_them(self, tmp_path: Path) -> None:
        base = Config(
            providers=(("CUDAExecutionProvider", {"device_id": "1"}), ("CPUExecutionProvider", {})),
            session_options={"intra_op_num_threads": 1, "enable_mem_pattern": False},
        )
        record = msgspec.structs.replace(make_local_record(TINY_CNN, ONE_THREAD), base=base)
        page = page_of(write_record(record, tmp_path / "r.json"))
        (command,) = (block.text for block in blocks_of(page, Code) if block.title == "Search again")
        fixed = "--fix intra_op_num_threads=1 --fix enable_mem_pattern=false --fix cuda.device_id=1"
        assert f" --provider cuda,cpu {fixed} --budget " in command

    def test_a_search_is_repeated_with_its_shapes_and_tolerance(self, tmp_path: Path) -> None:
        record = make_local_record(TINY_CNN, ONE_THREAD)
        inputs = {
            "ids": InputData(dtype="int64", shapes=((8, 128),), origin="random, 0 to 30521"),
            "a b": InputData(dtype="float32", shapes=((8, 3),), origin="random"),
            "scale": InputData(dtype="float32", shapes=((),), origin="random"),
            "mask": InputData(dtype="int64", shapes=((8, 16), (8, 32), (8, 16)), origin="ones"),
            "image": InputData(dtype="float32", shapes=((1, 3),), origin="from x.npz"),
        }
        workload = msgspec.structs.replace(record.workload, inputs=inputs, tolerance=APPROXIMATE_TOLERANCE)
        page = page_of(write_record(msgspec.structs.replace(record, workload=workload), tmp_path / "r.json"))
        commands = {block.title: block.text for block in blocks_of(page, Code) if not block.folded}
        options = "--shape ids=8x128 --shape 'a b=8x3' --allow-approximate"
        assert f" {options} --budget" in commands["Search again"]
        assert commands["Compare under any load"].endswith(options)
        words = shlex.split(options.removesuffix("--allow-approximate"))
        assert parse_shapes(words[1::2]) == {"ids": (8, 128), "a b": (8, 3)}
        texts = [block.text for block in blocks_of(page, Text)]
        assert "mask had several shapes: 8x16, 8x32. Give their sizes with --dim." in texts
        assert any("does not hold the options --tune, --only, --simplify, --trials" in text for text in texts)

    def test_a_search_is_repeated_with_its_own_tolerance(self, tmp_path: Path) -> None:
        record = make_local_record(TINY_CNN, ONE_THREAD)
        for relative, absolute, is_own in ((0.02, 1e-4, True), (1e-3, 1e-4, False), (5e-3, 1 / 127, False)):
            tolerance = Tolerance(relative=relative, absolute=absolute)
            workload = msgspec.structs.replace(record.workload, tolerance=tolerance)
            page = page_of(write_record(msgspec.structs.replace(record, workload=workload), tmp_path / "r.json"))
            (command,) = (block.text for block in blocks_of(page, Code) if block.title == "Search again")
            assert (f" --rtol {relative:g} --atol {absolute:g} " in command) == is_own

    def test_candidates_that_there_was_no_time_for_did_not_fail(self, tmp_path: Path) -> None:
        record, trials = read_record(SEARCH), read_trials(SEARCH)
        first, *others = trials.trials
        skipped = Failure(kind="timeout", stage="skipped", message="there was no time")
        crash = Failure(kind="crash", stage="load", message="it crashed")
        for changes, n_crosses in (
            ({"failure": skipped, "speedups": None}, 0),
            ({"failure": None, "speedups": None}, 0),
            ({"failure": crash, "speedups": None}, 1),
        ):
            changed = msgspec.structs.replace(others[0], **changes)
            with_it = msgspec.structs.replace(trials, trials=(first, changed, *others[1:]))
            write_both(record, tmp_path / "r.json", encode_trials(with_it))
            (chart,) = (drawing for drawing in page_of(tmp_path / "r.json").charts if drawing.name == "candidates")
            assert ("1 candidate failed" in chart.note) == bool(n_crosses)
            marks = [layer for layer in chart.spec["layer"] if layer["mark"].get("shape") == "cross"]
            assert sum(len(mark["data"]["values"]) for mark in marks) == n_crosses

    def test_a_fixed_base_is_to_be_set(self, tmp_path: Path) -> None:
        """The search recommends it, and it is not ONNX Runtime's default."""
        record = msgspec.structs.replace(make_local_record(TINY_CNN, ONE_THREAD), base=ONE_THREAD)
        texts = [block.text for block in blocks_of(page_of(write_record(record, tmp_path / "r.json")), Text)]
        assert "The recommended config is the default with intra threads=1: there is nothing else to set." in texts

    def test_a_front(self) -> None:
        page = page_of(FRONT)
        assert page.verdict.startswith("Pareto front of")
        assert "front-p50-cpu" in [chart.name for chart in page.charts]

    def test_a_bench(self) -> None:
        page = page_of(BENCH)
        assert [chart.name for chart in page.charts][:2] == ["ratios", "latencies"]
        assert any(block.text.startswith("ortune bench ") for block in blocks_of(page, Code))

    @pytest.mark.parametrize(
        ("speedups", "verdict"),
        [
            # The one with the largest estimate is uncertain, and another one is not.
            (((0.9, 1.4, 1.9), (1.1, 1.2, 1.3)), "row-1: 1.20x as fast as the default"),
            (((0.9, 1.4, 1.9), (0.7, 0.8, 0.9)), "No config is clearly better than the default in p50 latency"),
            (((0.8, 0.9, 0.95), (0.7, 0.8, 0.9)), "The default is the best in p50 latency"),
            ((None, None), "No config could be compared with the default"),
            ((), "Only the baseline was measured"),
        ],
    )
    def test_the_verdict_of_a_bench(
        self, speedups: tuple[tuple[float, float, float] | None, ...], verdict: str
    ) -> None:
        assert make_page(self.make_bench(speedups), "b.json").verdict == verdict

    def make_bench(
        self, speedups: tuple[tuple[float, float, float] | None, ...], few_calls: FewCalls | None = None, **changes: Any
    ) -> BenchResult:
        result = read_source(str(BENCH))
        assert isinstance(result, BenchResult)
        base, row, *_ = result.rows
        rows = [base]
        for number, bounds in enumerate(speedups):
            speedup = None
            if bounds:
                low, estimate, high = bounds
                speedup = Speedup(low=low, estimate=estimate, high=high, confidence=0.95, n_pairs=60, n_launches=6)
            own = msgspec.structs.replace(row, name=f"row-{number}", speedup=speedup, few_calls=few_calls)
            rows.append(own)
        return msgspec.structs.replace(result, rows=tuple(rows), **changes)

    def test_a_bench_of_few_calls(self) -> None:
        """The headline names them. The interval includes that of a figure with enough of them."""
        for low, verdict in (
            (1.2, "row-0: 1.50x as fast (p99 over 344 calls) as the default"),
            (0.9, "No config is clearly better than the default in p99 latency"),
        ):
            few = FewCalls(n_calls=344, supported="p90", slowest_ns=3e7, one_in=114)
            page = make_page(self.make_bench(((low, 1.5, 1.7),), few, objective="p99", calls_needed=1522), "b.json")
            assert page.verdict == verdict

    @pytest.mark.parametrize(
        ("objective", "in_turn", "ticks"),
        [
            ("p50", False, "pairs of blocks measured right after each other"),
            ("p50", True, "pairs of blocks, measured one config after the other"),
            ("p99", False, "launches: the figure needs all calls of one"),
            ("mean", False, "launches: the figure needs all calls of one"),
        ],
    )
    def test_what_the_ticks_of_a_bench_are(self, objective: Any, in_turn: bool, ticks: str) -> None:
        result = self.make_bench(((1.1, 1.2, 1.3),), objective=objective)
        result = msgspec.structs.replace(result, noise=msgspec.structs.replace(result.noise, one_at_a_time=in_turn))
        (chart,) = (drawing for drawing in make_page(result, "b.json").charts if drawing.name == "ratios")
        assert chart.note.startswith(f"Ticks are {ticks}.")

    def test_a_history(self) -> None:
        page = make_history_page(make_history(), "h.jsonl")
        assert page.verdict == "Failing: encoder" and page.tone == "bad"
        assert [chart.name for chart in page.charts] == ["gate-1-p50"]
        (table,) = (block for block in blocks_of(page, Table) if "head vs. base" in block.columns)
        assert table.rows[0][3].text == "p50 +6.0% [-1.0%, +8.0%]"

    def test_the_verdict_is_that_of_the_latest_run(self) -> None:
        """Histories of several hosts may be joined in any order."""
        *others, last = make_history()
        other_zone = msgspec.structs.replace(others[-1], time="2026-01-06T03:04:04+02:00")
        for entries in ([last, *others], [*others, last, other_zone]):
            assert make_history_page(entries, "h.jsonl").verdict == "Failing: encoder"

    def test_wide_intervals_do_not_hide_the_rest(self) -> None:
        """An interval of two launches can be astronomically wide."""
        entry = msgspec.structs.replace(make_history(1)[0], slowdowns={"p50": make_interval(1e-9, 1.01, 1e30)})
        (chart,) = make_history_page([*make_history(), entry], "h.jsonl").charts
        domains = [
            layer["encoding"]["y"]["scale"]["domain"] for layer in chart.spec["layer"] if "y2" in layer["encoding"]
        ]
        assert all(high - low < 100 for low, high in domains)

    def test_pairs_agree_with_the_estimate(self) -> None:
        """The ticks of the chart are the measurements that the interval was computed from."""
        record, trials = read_record(SEARCH), read_trials(SEARCH)
        rows = trials_page.list_pairs(record, trials)
        ratios = [ratio for row in rows[1:] for ratio in row.ratios]
        speedup = record.evidence.speedup
        assert speedup and len(ratios) == speedup.n_pairs
        assert speedup.low <= float(np.median(ratios)) <= speedup.high

    @pytest.mark.parametrize(
        ("regime", "n_contended", "n_counted", "n_dropped"),
        [
            ("quiet", 3, 7, 1),
            ("contended", 7, 7, 1),
            ("contended", 0, 10, 0),  # the host was busy throughout, without a single block that was contended
            ("unknown", 0, 10, 0),
        ],
    )
    def test_pairs_that_do_not_count_are_drawn_as_such(
        self, tmp_path: Path, regime: Any, n_contended: int, n_counted: int, n_dropped: int
    ) -> None:
        """Launches that the evaluation left out were drawn like all others, under an interval over all launches."""
        record, trials = read_record(SEARCH), read_trials(SEARCH)
        of_confirmation = [
            place for place, trial_round in enumerate(trials.rounds) if trial_round.stage == "confirmation"
        ]
        busy = set(of_confirmation[:n_contended])
        rounds = tuple(
            msgspec.structs.replace(trial_round, contended=(0,) if place in busy else ())
            for place, trial_round in enumerate(trials.rounds)
        )
        evidence = msgspec.structs.replace(
            record.evidence, noise=msgspec.structs.replace(record.evidence.noise, regime=regime)
        )
        changed = msgspec.structs.replace(record, evidence=evidence)
        all_trials = msgspec.structs.replace(trials, rounds=rounds)
        rows = trials_page.list_pairs(changed, all_trials)
        assert sum(len(row.ratios) for row in rows) == n_counted
        assert sum(len(row.left_out) for row in rows) == len(of_confirmation) - n_counted
        assert sum("(left out)" in row.label for row in rows) == n_dropped
        write_both(changed, tmp_path / "r.json", encode_trials(all_trials))
        (chart,) = (drawing for drawing in page_of(tmp_path / "r.json").charts if drawing.name == "pairs")
        assert ("do not count" in chart.note) == ("over the pairs that count" in chart.note) == (n_counted < 10)
        (ticks,) = (layer["data"]["values"] for layer in chart.spec["layer"] if "state" in str(layer["encoding"]))
        assert sum(tick["state"] == "left out" for tick in ticks) == len(of_confirmation) - n_counted

    @pytest.mark.parametrize("foreign_share", [0.0, 0.2])
    @pytest.mark.parametrize("n_contended", range(5))
    def test_the_pairs_that_count_are_those_of_the_result(self, n_contended: int, foreign_share: float) -> None:
        run = PairedRun([Side(name="default", config=DEFAULT)], Load())
        for number in range(4):
            measured = make_round(1e6)
            block = msgspec.structs.replace(measured.blocks[0], foreign_share=foreign_share)
            is_contended = number < n_contended
            run.launches.append([msgspec.structs.replace(measured, blocks={0: block}, contended=is_contended)])
        selected = run.in_one_regime()
        counted = {id(measured_round) for launch in selected.launches for measured_round in launch}
        rounds = [
            TrialRound(
                stage="confirmation",
                launch=number,
                values={0: (1e6,)},
                contended=(0,) * measured_round.contended,
                at_s=0.0,
            )
            for number, (measured_round,) in enumerate(run.launches)
        ]
        places = {place for place, (measured_round,) in enumerate(run.launches) if id(measured_round) in counted}
        assert trials_page.find_counted(rounds, "contended" if selected.contended else "quiet") == places

    def test_latencies_agree_with_the_figures(self) -> None:
        record, trials = read_record(SEARCH), read_trials(SEARCH)
        for (_, latencies), summary in zip(
            trials_page.select_latencies(record, trials),
            (record.evidence.baseline, record.evidence.winner),
            strict=True,
        ):
            assert summary
            assert (
                latencies.ns == tuple(sorted(latencies.ns)) and latencies.shares[0] == 0 and latencies.shares[-1] == 1
            )
            assert math.isclose(latencies.ns[latencies.shares.index(0.5)], summary.p50_ns, rel_tol=0.02)


class TestEffects:
    def test_known_effects_are_found(self) -> None:
        rng = np.random.default_rng(0)
        trials = []
        for number in range(80):
            a, b, c = (bool(number >> bit & 1) for bit in range(3))
            options: dict[str, int | bool | str] = {}
            options |= {"intra_op_num_threads": 1} if a else {}
            options |= {"execution_mode": "ORT_PARALLEL"} if b else {}
            options |= {"enable_mem_pattern": False} if c else {}
            value = 0.2 * a - 0.1 * b + 0.15 * (a and b) + rng.normal(0, 0.01)
            trials.append((Config(session_options=options), math.exp(value)))
        effects = estimate_effects(trials)
        assert effects
        found = dict(effects.settings)
        threads, mode, pattern = (
            next(effect for name, effect in found.items() if name.endswith(end))
            for end in ("=1", "=parallel", "=false")
        )
        assert threads.low <= math.exp(0.2) <= threads.high and threads.low > 1
        assert mode.low <= math.exp(-0.1) <= mode.high < 1
        assert pattern.low < 1 < pattern.high
        ((_, pair),) = effects.pairs
        assert pair.low <= math.exp(0.15) <= pair.high

    def test_a_setting_that_only_undoes_the_harm_of_another_one_is_no_gain(self) -> None:
        """The number of threads between operators matters only if these run in parallel, which takes twice as long."""
        rng = np.random.default_rng(0)
        trials = [(DEFAULT, 1.0)]
        for number in range(40):
            is_parallel = number % 2 == 0
            is_undone = number % 4 == 0
            options: dict[str, int | bool | str] = {"execution_mode": "ORT_PARALLEL"} if is_parallel else {}
            options |= {"inter_op_num_threads": 1} if is_undone else {}
            options |= {"enable_mem_pattern": False} if number % 3 == 0 else {}
            value = -0.7 * is_parallel + 0.68 * is_undone + rng.normal(0, 0.01)
            trials.append((Config(session_options=options), math.exp(value)))
        effects = estimate_effects(trials)
        assert effects
        found = dict(effects.settings)
        assert all(effect.low <= 1 for effect in found.values())
        undone = found["inter threads=1 and execution mode=parallel"]
        assert undone.low <= math.exp(-0.02) <= undone.high
        assert found["execution mode=parallel"].high < 0.6

    def test_settings_that_were_always_tried_together_are_one(self) -> None:
        both = Config(session_options={"intra_op_num_threads": 1, "enable_mem_pattern": False})
        effects = estimate_effects([*[(DEFAULT, 1.0), (both, 1.2)] * 8])
        assert effects
        ((name, effect),) = effects.settings
        assert sorted(name.split(" and ")) == ["intra threads=1", "memory pattern=false"]
        assert effect.low <= 1.2 <= effect.high

    def test_too_few_trials_say_nothing(self) -> None:
        assert estimate_effects([(ONE_THREAD, 1.1)] * 5) is None
        assert estimate_effects([(DEFAULT, 1.0)] * 20) is None

    def test_intervals_cover_what_they_say(self) -> None:
        """Effects are drawn from the model; of 95 % intervals, about 95 % contain the truth."""
        rng = np.random.default_rng(1)
        hits = []
        for _ in range(20):
            truth = rng.normal(0, 0.1, 8)
            trials = []
            for _ in range(60):
                chosen = rng.random(8) < 0.3
                options = {f"option_{place}": "1" for place in np.flatnonzero(chosen)}
                value = float(truth @ chosen + rng.normal(0, 0.03))
                trials.append((Config(session_config=options), math.exp(value)))
            effects = estimate_effects(trials)
            assert effects
            hits += [
                effect.low <= math.exp(truth[int(name.removesuffix("=1").removeprefix("option_"))]) <= effect.high
                for name, effect in effects.settings
            ]
        assert 0.88 <= np.mean(hits) <= 1.0


class TestHost:
    TOPOLOGY = Topology(
        online=(0, 1, 2, 3),
        cores=(Core(cpus=(0, 2)), Core(cpus=(1, 3))),
        packages=((0, 1, 2, 3),),
        numa_nodes=(NumaNode(id=0, cpus=(0, 1, 2, 3)),),
        source="sysfs",
    )

    def draw(self, *threads: tuple[int, ...], usable: tuple[int, ...] = (0, 1, 2)) -> HostMap:
        session = SessionInfo(load_ns=1, providers=(), threads=tuple(PoolThread(cpus=thread) for thread in threads))
        return draw_host("x", self.TOPOLOGY, usable, session)

    def test_pinned_threads_are_marked(self) -> None:
        drawn = self.draw((1,), (1,), (0, 2), (0, 1, 2))
        cpus = {cpu.id: cpu for package in drawn.packages for core in package for cpu in core}
        assert {cpu_id: cpu.n_threads for cpu_id, cpu in cpus.items()} == {0: 1, 1: 2, 2: 1, 3: 0}
        assert [cpu_id for cpu_id, cpu in cpus.items() if not cpu.usable] == [3]
        assert drawn.note == "Allowed: 3 pool threads only on the CPUs with a frame, 1 pool thread on any usable CPU."
        assert drawn.largest == 0

    def test_where_threads_ran(self) -> None:
        session = SessionInfo(load_ns=1, providers=(), threads=(PoolThread(cpus=(0, 1, 2)),))
        places = (CpuPlace(cpu=0, pool_ns=10, calls_ns=50), CpuPlace(cpu=1, pool_ns=40, calls_ns=0))
        drawn = draw_host("x", self.TOPOLOGY, (0, 1, 2), session, places)
        cpus = {cpu.id: cpu for package in drawn.packages for core in package for cpu in core}
        assert {cpu_id: (cpu.pool_share, cpu.calls_share) for cpu_id, cpu in cpus.items()} == {
            0: (0.1, 0.5),
            1: (0.4, 0.0),
            2: (0.0, 0.0),
            3: (0.0, 0.0),
        }
        assert drawn.largest == pytest.approx(0.6)
        assert "Pool threads used 50% of it" in drawn.note
        assert drawn.note.endswith("Allowed: 1 pool thread on any usable CPU.")

    def test_no_threads(self) -> None:
        assert "no pool threads" in self.draw().note
        assert "not recorded" in draw_host("x", self.TOPOLOGY, (), None).note


class _Reader(HTMLParser):
    """Collects elements, attributes, and the content of script elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script:
            self.scripts[-1] += data
        else:
            self.text.append(data)


def parse(text: str) -> _Reader:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader


@pytest.mark.parametrize(
    ("times", "days"),
    [
        (["2026-01-01T03:00:00+00:00", "2026-03-11T03:00:00+00:00"], True),
        (["2026-01-01T03:00:00+00:00", "2026-01-01T09:00:00+00:00"], False),
        (["2021-01-01T03:00:00+00:00", "2026-01-01T09:00:00+00:00"], False),
        (["yesterday", "2026-01-01"], False),
    ],
)
def test_the_axis_of_a_history_of_weeks_has_days(times: list[str], days: bool) -> None:
    interval = Interval(estimate=1.1, low=1.0, high=1.2, confidence=0.95)
    marks = [GateMark(time=time, slowdown=interval, decision="pass", head="main") for time in times]
    points = draw_gates(marks, 1.05)["layer"][-1]
    axis = points["encoding"]["x"]["axis"]
    assert ("format" in axis) == days
    # Labels side by side are left out before they touch.
    assert axis["labelOverlap"] == "greedy" and axis["labelSeparation"] > 0


def every_block(text: str) -> Page:
    """Return a page with a hostile text in every place."""
    interval = Interval(estimate=1.1, low=1.0, high=1.2, confidence=0.95)
    time = "2026-01-01T00:00:00Z"
    specs = [
        draw_pairs([Pairs(label=text, ratios=(1.0,), interval=interval)], "x"),
        draw_latencies({text: [(0.0, 1.0), (1.0, 2.0)]}),
        draw_attempts([Attempt(at=1, speedup=1.1, stage="racing", settings=text)], title="x"),
        draw_effects([(text, interval)]),
        draw_front([FrontMark(x=1, y=1, label=text, kind="default", settings=text)], "p50", "cpu"),
        draw_gates([GateMark(time=time, slowdown=interval, decision=text, head=text)], 1.05),
    ]
    charts = tuple(Chart(name=f"c{number}", title=text, spec=spec, note=text) for number, spec in enumerate(specs))
    blocks: tuple[Block, ...] = (
        *charts,
        Table(
            columns=(text, "b"), rows=((Cell(text), Cell(text, key=1.0)),) * 10, sortable=True, title=text, note=text
        ),
        Facts(facts=((text, text),)),
        Code(title=text, text=text, note=text, folded=True),
        Text(text=text),
        HostMap(title=text, packages=(), note=text),
    )
    return Page(title=text, verdict=text, tone="plain", lead=(text,), sections=(Section(title=text, blocks=blocks),))


@pytest.fixture(scope="class")
def light_pages() -> Iterator[None]:
    """Leave Vega out of pages, which makes them small. Its script does not depend on the data, and contains `<img`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "read_vega", lambda: "/* Vega */")
        yield


class TestScripts:
    @pytest.mark.long
    def test_only_own_scripts_are_allowed(self) -> None:
        page = write.render_page(page_of(BENCH))
        reader = parse(page)
        (policy,) = (attributes["content"] for name, attributes in reader.elements if attributes.get("http-equiv"))
        assert policy and policy.startswith("default-src 'none'; script-src 'sha256-")
        for script in reader.scripts[1:]:
            assert write.hash_script(script) in policy
        assert "unsafe-eval" not in policy and "unsafe-inline" not in policy.split("style-src")[0]
        assert not [
            attributes
            for _, attributes in reader.elements
            if "src" in attributes or any(name.startswith("on") for name in attributes)
        ]
        addresses = [attributes["href"] for _, attributes in reader.elements if "href" in attributes]
        assert all(str(address).startswith(("#", "data:")) for address in addresses)


@pytest.mark.usefixtures("light_pages")
class TestHostileTexts:
    @settings(max_examples=60, deadline=None)
    @given(
        text=ALL_TEXTS | st.sampled_from(["</script><script>alert(1)</script>", "<!--<script>", "]]>", "{{ 7 * 7 }}"])
    )
    def test_the_structure_of_a_page_does_not_depend_on_texts(self, text: str) -> None:
        text = f"x{text}"  # an empty text leaves its element out
        usual, hostile = (parse(write.render_page(every_block(content))) for content in ("plain", text))
        assert [name for name, _ in hostile.elements] == [name for name, _ in usual.elements]
        assert [set(attributes) for _, attributes in hostile.elements] == [
            set(attributes) for _, attributes in usual.elements
        ]
        assert len(hostile.scripts) == 3 and hostile.scripts[1:] == usual.scripts[1:]
        shown = json.loads(hostile.scripts[0])
        assert shown[0]["spec"]["layer"][1]["data"]["values"][0]["label"] == printable(text)

    def test_texts_are_shown_as_they_are(self) -> None:
        text = "<b>&amp;</b> {{ 7*7 }}"
        assert parse(write.render_page(every_block(text))).text.count(text) > 10

    def test_control_characters_are_visible(self) -> None:
        page = write.render_page(every_block("a\x1b[31m\u202eb"))
        assert "\x1b" not in page and "\u202e" not in page

    def test_a_hostile_record(self, tmp_path: Path) -> None:
        hostile = "</script><img src=x onerror=alert(1)>"
        record = make_local_record(TINY_CNN, ONE_THREAD)
        record = msgspec.structs.replace(
            record,
            host=msgspec.structs.replace(ELSEWHERE, cpu_model=hostile),
            evidence=msgspec.structs.replace(record.evidence, reason=hostile),
            model=msgspec.structs.replace(record.model, path=f"/x/{hostile}.onnx"),
        )
        page = write.render_page(page_of(write_record(record, tmp_path / "r.json")))
        assert "<img" not in page

    def test_whole_numbers_that_no_float_holds(self, tmp_path: Path) -> None:
        record = msgspec.to_builtins(make_local_record(TINY_CNN, ONE_THREAD))
        record["config"]["session_options"]["intra_op_num_threads"] = record["search"]["seed"] = 10**400
        (tmp_path / "r.json").write_text(json.dumps(record))
        write.render_page(page_of(tmp_path / "r.json"))

    def test_numbers_that_no_search_writes(self, tmp_path: Path) -> None:
        """A file may hold any number. Nothing fails, and the JSON of charts stays valid."""
        trials = read_trials(SEARCH)
        odd = (0.0, -1.0, 1e300, 5e-324)
        changed = msgspec.structs.replace(
            trials,
            trials=tuple(
                msgspec.structs.replace(trial, speedups=(odd[place % 4],) if place else trial.speedups)
                for place, trial in enumerate(trials.trials)
            ),
            rounds=tuple(
                msgspec.structs.replace(
                    trial_round, values=dict.fromkeys(trial_round.values, (odd[place % 4],)), at_s=1e300
                )
                for place, trial_round in enumerate(trials.rounds)
            ),
        )
        write_both(read_record(SEARCH), tmp_path / "r.json", encode_trials(changed))
        page = write.render_page(page_of(tmp_path / "r.json"))
        json.loads(parse(page).scripts[0], parse_constant=pytest.fail)


LIKE_COLORS = ("var(--x)", "var(--ink)", "a var(--bad) b", "var(--")
"""Texts that look like the CSS variables of charts."""


def write_names(path: Path, name: str) -> Path:
    """Write a comparison with a name in each row, in one of them alone."""
    document = json.loads(BENCH.read_text())
    for row in document["rows"]:
        row["name"] = f"{row['name']} {name}" if row is not document["rows"][1] else name
    path.write_text(json.dumps(document))
    return path


class TestCommand:
    def test_it_writes_a_page_and_charts(self, tmp_path: Path) -> None:
        """Also of texts that look like colors."""
        path = write_names(tmp_path / "b.json", " ".join(LIKE_COLORS))
        done = run_ortune("report", path, "-o", "x.html", "--png", "charts", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "x.html").read_text().startswith("<!DOCTYPE html>")
        assert {file.name for file in (tmp_path / "charts").iterdir()} >= {"latencies.png", "ratios.png"}
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in (tmp_path / "charts").iterdir())
        assert "written: x.html" in done.stdout

    @pytest.mark.parametrize("name", LIKE_COLORS)
    def test_texts_that_look_like_colors(self, name: str, tmp_path: Path) -> None:
        """Only colors of the chart are replaced on paper."""
        path = write_names(tmp_path / "b.json", name)
        for chart in page_of(path).charts:
            before, after = json.dumps(chart.spec), json.dumps(write.use_print_colors(chart.spec))
            assert (name in after) == (name in before)
            assert after.replace(name, "").count("var(--") == 0

    def test_the_default_output(self, tmp_path: Path) -> None:
        append_history(tmp_path / "h.jsonl", [make_result()])
        done = run_ortune("report", "h.jsonl", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "h.html").exists() and "pass" in done.stdout

    def test_stdout(self, tmp_path: Path) -> None:
        done = run_ortune("report", BENCH, "-o", "-", cwd=tmp_path)
        assert done.returncode == 0 and done.stdout.startswith("<!DOCTYPE html>")

    def test_the_input_is_not_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "x.html").write_bytes(BENCH.read_bytes())
        done = run_ortune("report", "x.html", cwd=tmp_path)
        assert done.returncode == 2 and "would be replaced" in done.stderr

    def test_only_is_for_histories(self, tmp_path: Path) -> None:
        done = run_ortune("report", BENCH, "--only", "x", cwd=tmp_path)
        assert done.returncode == 2 and "--only is for histories" in done.stderr

    def test_a_search_with_a_report(self, tmp_path: Path) -> None:
        environment = {"BROWSER": "true"}
        done = run_ortune(
            "search",
            TINY_CNN,
            "-o",
            "r.json",
            "--open",
            "--budget",
            "20s",
            cwd=tmp_path,
            simulate=True,
            environment=environment,
        )
        assert done.returncode in {0, 3}, done.stderr
        assert (tmp_path / "r.html").exists()


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(UsageError, match="jinja2 and vl-convert-python") as caught:
        write.check_installed()
    assert "ortune[report]" in str(caught.value.hint)


class TestNotebooks:
    def test_a_record_shows_itself(self) -> None:
        shown = read_record(SEARCH)._repr_html_()
        assert "<strong>Faster</strong>" in shown and "<td>intra_op_num_threads</td><td>1</td>" in shown

    def test_a_front_shows_its_points(self) -> None:
        assert "<th>cpu ratio</th>" in read_record(FRONT)._repr_html_()

    def test_texts_are_escaped(self) -> None:
        record = make_local_record(TINY_CNN, ONE_THREAD)
        hostile = msgspec.structs.replace(record.host, cpu_model="<script>alert(1)</script>")
        assert "<script" not in msgspec.structs.replace(record, host=hostile)._repr_html_()
