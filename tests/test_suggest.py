"""Suggestions without measuring: when there is one, what speaks for it, and that it is never a bad one."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from benchmarks.fit_suggest import PRIOR_FREE, PRIOR_SIGMA, PRIOR_WEIGHT, Recorded, fit_effects, predict, read_recorded
from benchmarks.landscape import recorded_paths
from benchmarks.suggest import KEYS, use_all
from ortune import Config, Goal, UsageError, Verdict
from ortune.cli.suggest import is_suggestion
from ortune.host import Host, HostClass, HostLimits, Quota
from ortune.knobs import SearchSpace, SpaceOptions, build_space
from ortune.knobs.parse_config import make_config, split_settings
from ortune.model import Traits
from ortune.options import make_request
from ortune.requests import PlanRequest, SearchRequest, SuggestRequest
from ortune.tuning.effects import Effect, read_effects
from ortune.tuning.hints import PastSearch, describe_search, name_shapes
from ortune.tuning.job import SearchSettings
from ortune.tuning.prepare import PreparedSearch, prepare
from ortune.tuning.search import describe_result
from ortune.tuning.search import search as run_whole_search
from ortune.tuning.situation import Situation
from ortune.tuning.suggest import NoSuggestion, SuggestedConfig, suggest
from ortune.workload import Feed, make_goal, make_load
from ortune.workload.feed import Tensor
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.simulated import SimulatedExecutor, make_host, make_model, open_simulated
from tests.test_strategy import additive_landscape, search, small_space

ONE_THREAD = Config(session_options={"intra_op_num_threads": 1})
TWO_CLIENTS = make_goal(make_load(2), None)
SERVER = make_goal(make_load(None, 20.0), None)


def limit(host: Host, quota: float) -> Host:
    limits = HostLimits(usable=host.limits.usable, quota=Quota(cpus=quota, where="test"))
    return msgspec.structs.replace(host, limits=limits)


def situate(host: Host, goal: Goal, *, beside: bool = False) -> Situation:
    return Situation.of(HostClass.of(host), goal, has_background_load=beside)


def ask(
    host: Host,
    goal: Goal,
    *,
    beside: bool = False,
    effects: Sequence[Effect] | None = None,
    options: SpaceOptions | None = None,
    past: Sequence[PastSearch] = (),
) -> SuggestedConfig | NoSuggestion:
    model = make_model()
    space = build_space(host, model, options or SpaceOptions())
    known = read_effects() if effects is None else effects
    return suggest(space, situate(host, goal, beside=beside), known, traits=model.traits, past=past)


def make_effect(rule: str, kind: str = "unsaturated, p50", **fields: Any) -> Effect:
    usual: dict[str, Any] = {"mean": 0.2, "low": 0.1, "high": 0.3, "least": 0.1, "most": 0.3, "n_cores": (2, 2)}
    names: dict[str, Any] = {"recordings": ("a", "b"), "models": ("a", "b")}
    return Effect(rule=rule, kind=kind, **{**usual, **names, **fields})


@functools.cache
def recorded() -> list[Recorded]:
    return read_recorded(recorded_paths())


class TestSituation:
    @pytest.mark.parametrize(
        ("n_cores", "clients", "quota", "beside", "expected"),
        [
            (2, 1, None, False, False),
            (2, 2, None, False, True),
            (4, 3, None, False, False),
            (2, 1, 1.0, False, True),
            (8, 1, 1.5, False, False),
            (8, 4, 4.0, False, True),
            (2, 1, None, True, True),
            (4, 1, None, True, False),
        ],
    )
    def test_saturated_if_there_is_one_core_for_each_client(
        self, n_cores: int, clients: int, quota: float | None, beside: bool, expected: bool
    ) -> None:
        host = make_host(n_cores) if quota is None else limit(make_host(n_cores), quota)
        assert situate(host, make_goal(make_load(clients), None), beside=beside).is_saturated is expected

    def test_loads_and_objectives_that_differ_are_of_different_kinds(self) -> None:
        goals = [Goal(), Goal(objectives=("mean",)), TWO_CLIENTS, SERVER, make_goal(make_load(2, sessions=2), None)]
        kinds = [situate(make_host(2), goal).kind for goal in goals]
        assert len(set(kinds)) == len(kinds)

    def test_mean_and_throughput_are_of_the_same_kind(self) -> None:
        by_mean = make_goal(make_load(2), "mean")
        assert situate(make_host(2), by_mean).kind == situate(make_host(2), TWO_CLIENTS).kind

    def test_rules_have_the_same_name_on_all_hosts(self) -> None:
        names = []
        for n_cores in (2, 16):
            host = make_host(n_cores)
            space = build_space(host, make_model())
            names.append({situate(host, Goal()).name_rule(space.select(rule.labels)) for rule in space.rules})
        assert "intra_op_num_threads=cores" in names[0]
        assert names[0] <= names[1]


class TestSuggest:
    def test_one_thread_for_as_many_clients_as_cores(self) -> None:
        answer = ask(make_host(2), TWO_CLIENTS)
        assert isinstance(answer, SuggestedConfig)
        assert answer.config == ONE_THREAD
        assert "2 clients on 2 cores" in answer.reasons["intra_op_num_threads"]
        assert answer.gain is not None
        assert answer.gain.low < 1.2 < answer.gain.high
        assert answer.basis == "recordings"
        assert set(answer.recordings) <= {path.stem for path in recorded_paths()}

    def test_a_single_client_depends_on_the_model(self) -> None:
        answer = ask(make_host(2), Goal())
        assert isinstance(answer, NoSuggestion)
        assert re.search(r"depend on the model.* 0\.\d\dx to 1\.\d\dx", answer.why)
        assert not answer.hint

    @pytest.mark.parametrize("goal", [make_goal(make_load(2), "p99"), make_goal(make_load(2), "p50")])
    def test_other_objectives_get_a_hint(self, goal: Goal) -> None:
        answer = ask(make_host(2), goal, effects=())
        assert isinstance(answer, NoSuggestion)
        assert "no recordings" in answer.why
        assert "{objective=mean}" in answer.hint

    def test_nothing_for_loads_that_are_not_known(self) -> None:
        answer = ask(make_host(2), SERVER)
        assert isinstance(answer, NoSuggestion)
        assert not answer.hint

    def test_nothing_beside_fixed_settings_and_other_providers(self) -> None:
        fixed = SpaceOptions(fix={"session.intra_op.allow_spinning": "0"})
        both = SpaceOptions(providers=("CPUExecutionProvider", "CUDAExecutionProvider"))
        for options in (fixed, both):
            assert isinstance(ask(make_host(2), TWO_CLIENTS, options=options), NoSuggestion)

    def test_the_provider_is_the_cpu_unless_it_is_named(self) -> None:
        """On a host with others, a search space of all would have no suggestion."""
        assert make_request(SuggestRequest, {"model": "m.onnx"}).provider is None
        with pytest.raises(UsageError, match="auto: is not the name of an execution provider"):
            make_request(SuggestRequest, {"model": "m.onnx", "provider": "auto"})
        with pytest.raises(UsageError, match="auto: is not the name of an execution provider"):
            make_request(PlanRequest, {"model": "m.onnx", "provider": "auto"})

    def test_only_settings_of_the_space(self) -> None:
        options = SpaceOptions(only=("graph_optimization_level",))
        assert isinstance(ask(make_host(2), TWO_CLIENTS, options=options), NoSuggestion)

    def test_on_larger_hosts_the_gain_is_unknown(self) -> None:
        answer = ask(make_host(16), make_goal(make_load(16), None))
        assert isinstance(answer, SuggestedConfig)
        assert (answer.config, answer.basis, answer.gain) == (ONE_THREAD, "documentation", None)
        assert isinstance(ask(make_host(16), make_goal(make_load(4), None)), NoSuggestion)

    @pytest.mark.parametrize(("quota", "threads"), [(4.0, 4), (1.0, 1), (0.5, 1), (1.5, None), (12.0, None)])
    def test_a_pool_that_fits_the_quota(self, quota: float, threads: int | None) -> None:
        answer = ask(limit(make_host(16), quota), make_goal(make_load(1), "mean"))
        found = answer.config.session_options if isinstance(answer, SuggestedConfig) else None
        assert found == ({"intra_op_num_threads": threads} if threads else None)

    def test_the_median_under_a_quota_is_another_matter(self) -> None:
        assert isinstance(ask(limit(make_host(2), 1.0), Goal()), NoSuggestion)

    def test_nothing_if_the_default_has_one_thread(self) -> None:
        assert isinstance(ask(make_host(1), TWO_CLIENTS), NoSuggestion)

    def test_recordings_can_contradict_the_documentation(self) -> None:
        kind = situate(make_host(2), TWO_CLIENTS).kind
        harmful = make_effect("intra_op_num_threads=1", kind, mean=-0.1, low=-0.2, high=0.0)
        assert isinstance(ask(make_host(2), TWO_CLIENTS, effects=()), SuggestedConfig)
        assert isinstance(ask(make_host(2), TWO_CLIENTS, effects=(harmful,)), NoSuggestion)

    def test_recordings_of_several_models_are_enough(self) -> None:
        effect = make_effect("session.dynamic_block_base=4")
        answer = ask(make_host(2), Goal(), effects=(effect,))
        assert isinstance(answer, SuggestedConfig)
        assert answer.config.settings == {"session.dynamic_block_base": "4"}
        assert "blocks of decreasing size" in answer.reasons["session.dynamic_block_base"]

    @pytest.mark.parametrize(
        "fields", [{"models": ("a",)}, {"low": -0.01}, {"n_cores": (4, 8)}, {"mean": 0.01}, {"kind": "saturated, p50"}]
    )
    def test_recordings_that_are_not_enough(self, fields: dict[str, Any]) -> None:
        effect = make_effect("session.dynamic_block_base=4", **fields)
        assert isinstance(ask(make_host(2), Goal(), effects=(effect,)), NoSuggestion)

    def test_the_best_of_several(self) -> None:
        effects = (
            make_effect("session.dynamic_block_base=4", mean=0.2),
            make_effect("session.intra_op.allow_spinning=off", mean=0.3),
        )
        for given in (effects, effects[::-1]):
            answer = ask(make_host(2), Goal(), effects=given)
            assert isinstance(answer, SuggestedConfig)
            assert answer.config.settings == {"session.intra_op.allow_spinning": "0"}


class TestHistory:
    TRAITS = make_model().traits
    CONFIG = Config(session_config={"session.dynamic_block_base": "4"})

    def past(self, traits: Traits = TRAITS, **fields: Any) -> PastSearch:
        known: dict[str, Any] = {"speedup": (1.1, 1.2), "has_background_load": False, "inputs": "x 1x8", **fields}
        configs = known.pop("configs", [self.CONFIG])
        return describe_search(HostClass.of(make_host(2)), traits, Goal(), configs, **known)

    def test_an_earlier_search_for_the_same_graph(self) -> None:
        answer = ask(make_host(2), Goal(), past=[self.past()])
        assert isinstance(answer, SuggestedConfig)
        assert (answer.config, answer.basis) == (self.CONFIG, "history")
        assert answer.gain is not None
        assert (answer.gain.low, answer.gain.high) == (1.1, 1.2)
        assert list(answer.reasons) == ["session.dynamic_block_base"]
        assert "for the same graph and this load, with inputs x 1x8" in answer.evidence

    def test_the_range_is_not_that_of_a_larger_graph(self) -> None:
        """It has the same mix of operators."""
        larger = msgspec.structs.replace(self.TRAITS, ops={name: 4 * n for name, n in self.TRAITS.ops.items()})
        answer = ask(make_host(2), Goal(), past=[self.past(larger)])
        assert isinstance(answer, SuggestedConfig)
        assert (answer.config, answer.basis, answer.gain) == (self.CONFIG, "history", None)
        assert "for a very similar graph" in answer.evidence

    @pytest.mark.parametrize(
        "fields",
        [
            {"speedup": None},
            {"speedup": (0.99, 1.2)},
            {"has_background_load": True},
            {"configs": []},
            {"configs": [Config(session_options={"intra_op_num_threads": 99})]},
            {"traits": msgspec.structs.replace(TRAITS, ops={"Conv": 9, "MatMul": 3})},
        ],
    )
    def test_searches_that_are_no_reason(self, fields: dict[str, Any]) -> None:
        assert isinstance(ask(make_host(2), Goal(), past=[self.past(**fields)]), NoSuggestion)

    def test_a_search_stores_a_proven_speedup(self) -> None:
        prepared = prepare(SearchRequest(model=str(TINY_CNN), beside="sleep 1", objective="mean"))
        outcome = search(additive_landscape(small_space()))
        kept = describe_result(prepared, outcome, [self.CONFIG])
        assert outcome.evidence.speedup is not None
        assert kept.speedup == (outcome.evidence.speedup.low, outcome.evidence.speedup.high)
        assert kept.has_background_load
        assert kept.inputs == "image 1x3x32x32"
        fixed = msgspec.structs.replace(prepared, base=ONE_THREAD)
        assert describe_result(fixed, outcome, [self.CONFIG]).speedup is None
        assert outcome.evidence.baseline is not None
        overloaded = msgspec.structs.replace(outcome.evidence.baseline, utilization=1.5)
        evidence = msgspec.structs.replace(outcome.evidence, baseline=overloaded)
        at_a_rate = msgspec.structs.replace(outcome, evidence=evidence)
        assert describe_result(prepared, at_a_rate, [self.CONFIG]).speedup is None
        verdict: Verdict = "within_limits"
        evidence = msgspec.structs.replace(outcome.evidence, verdict=verdict)
        outcome = msgspec.structs.replace(outcome, evidence=evidence)
        assert describe_result(prepared, outcome, [self.CONFIG]).speedup is None

    def test_the_shapes_of_many_inputs_are_a_short_text(self) -> None:
        tensors = [np.zeros((1, n)) for n in (8, 8, 16, 32, 64)]
        samples = [{f"in{k}": Tensor(array=tensor, origin="") for k in range(5)} for tensor in tensors]
        text = "1x8 or 1x16 or 1x32 or others"
        assert name_shapes(Feed(samples=tuple(samples))) == f"in0 {text}, in1 {text}, in2 {text}, in3 {text}, ..."


class TestFit:
    @pytest.mark.long
    def test_the_data_are_those_of_the_recordings(self) -> None:
        """If this fails, run `python -m benchmarks.fit_suggest` and `python -m benchmarks.suggest`."""
        fitted, shipped = fit_effects(recorded()), read_effects()
        numbers = ("mean", "low", "high", "least", "most")
        assert len(fitted) == len(shipped)
        for new, old in zip(fitted, shipped, strict=True):
            # The last digit may differ between processors.
            assert [getattr(new, name) for name in numbers] == pytest.approx(
                [getattr(old, name) for name in numbers], abs=2e-4
            )
            same = dict.fromkeys(numbers, 0.0)
            assert msgspec.structs.replace(new, **same) == msgspec.structs.replace(old, **same)

    @pytest.mark.parametrize("what", KEYS)
    def test_without_recordings_of_the_same_model_or_load_no_suggestion_loses(self, what: str) -> None:
        key = KEYS[what]
        gains = {
            recording.name: use_all(recording, [other for other in recorded() if key(other) != key(recording)])
            for recording in recorded()
        }
        # Where launches of one config differ by more than 2 %, the recorded gain is not known any better.
        least = {recording.name: -max(math.log(1.02), recording.landscape.usual_luck) for recording in recorded()}
        found = {name: gain for name, gain in gains.items() if gain is not None}
        assert len(found) >= 3
        assert all(gain >= least[name] for name, gain in found.items()), gains

    def test_few_recordings_say_little(self) -> None:
        mean, low, high = predict([0.3])
        assert 0 < mean < 0.3
        assert low < 0 < high
        more = predict([0.3] * 10)
        assert mean < more[0] < 0.3
        assert more[1] > 0
        assert more[2] - more[1] < high - low

    def test_the_range_is_that_of_the_conjugate_prior(self) -> None:
        """By hand for one recording without gain: Student's t with three degrees of freedom."""
        mean, low, high = predict([0.0])
        scale = PRIOR_SIGMA * math.sqrt(PRIOR_FREE / (PRIOR_FREE + 1) * (1 + 1 / (PRIOR_WEIGHT + 1)))
        assert mean == 0
        assert high == pytest.approx(1.6377 * scale, rel=1e-4)
        assert low == -high


class TestSearch:
    def test_a_search_starts_with_the_suggestion(self, monkeypatch: pytest.MonkeyPatch) -> None:
        prepared = prepare(SearchRequest(model=str(TINY_CNN)))
        hint, suggested = Config(session_config={"a": "1"}), ONE_THREAD
        prepared = msgspec.structs.replace(prepared, hints=(hint,), suggested=(suggested,))
        seen: list[SearchSettings] = []

        class Stop(Exception):  # noqa: N818
            pass

        def stop(space: SearchSpace, opened: object, settings: SearchSettings, observe: object) -> None:
            seen.append(settings)
            raise Stop

        opened = open_simulated(SimulatedExecutor(lambda config: 5e6))
        monkeypatch.setattr(
            "ortune.tuning.search.open_comparison", lambda setup, **options: contextlib.nullcontext(opened)
        )
        monkeypatch.setattr("ortune.tuning.search.run_search", stop)
        with pytest.raises(Stop):
            run_whole_search(prepared)
        assert seen[0].hints == (hint, suggested)

    def test_only_adaptive_searches_get_the_suggestion(self, monkeypatch: pytest.MonkeyPatch) -> None:
        answer = SuggestedConfig(config=ONE_THREAD, reasons={}, basis="documentation", evidence="")
        monkeypatch.setattr("ortune.tuning.prepare.suggest", lambda *args: answer)
        assert suggested_by("adaptive").suggested == (ONE_THREAD,)
        assert suggested_by("tpe").suggested == ()


def suggested_by(strategy: Any) -> PreparedSearch:
    return prepare(SearchRequest(model=str(TINY_CNN), strategy=strategy))


SATURATED = ("--clients", "1024")

needs_two_cores = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the default has one thread on one core")


class TestCommand:
    @needs_two_cores
    @pytest.mark.parametrize("model", [TINY_CNN, TINY_ENCODER], ids=lambda path: path.stem)
    def test_a_suggestion(self, model: Path, tmp_path: Path) -> None:
        done = run_ortune("suggest", model, *SATURATED, "-o", "found.json", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "intra_op_num_threads=1" in done.stdout
        assert "not proven" in done.stdout
        answer = json.loads((tmp_path / "found.json").read_text())
        assert answer["proven"] is False
        space = json.loads(run_ortune("space", model, *SATURATED, "--json", cwd=tmp_path).stdout)
        legal = [candidate["config"]["session_options"] for candidate in space["candidates"]]
        assert answer["config"] == {"session_options": {"intra_op_num_threads": 1}}
        assert answer["config"]["session_options"] in legal
        prove, measure = (shlex.split(answer["commands"][name]) for name in ("prove", "measure"))
        assert prove == ["ortune", "search", str(model), *SATURATED]
        assert measure[:5] == ["ortune", "bench", str(model), *SATURATED]
        assert make_config(split_settings(measure[-1]), measure[-1]) == ONE_THREAD

    def test_no_suggestion_is_no_error(self, tmp_path: Path) -> None:
        done = run_ortune("suggest", TINY_CNN, "--objective", "memory", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "no suggestion" in done.stdout
        answer = json.loads(run_ortune("suggest", TINY_CNN, "--objective", "memory", "--json", cwd=tmp_path).stdout)
        assert answer["config"] is None
        assert answer["why"]
        assert list(answer["commands"]) == ["prove"]

    @needs_two_cores
    def test_the_hint_names_the_option(self, tmp_path: Path) -> None:
        done = run_ortune("suggest", TINY_CNN, *SATURATED, "--objective", "p99", "--beside", "a b", cwd=tmp_path)
        assert "--objective mean" in done.stdout
        assert "--beside 'a b'" in done.stdout

    @needs_two_cores
    @pytest.mark.parametrize("columns", [45, 80, 200])
    def test_lines_fit_and_commands_are_whole(self, columns: int, tmp_path: Path) -> None:
        done = run_ortune("suggest", TINY_CNN, *SATURATED, cwd=tmp_path, columns=columns)
        lines = done.stdout.splitlines()
        commands = [line for line in lines if line.startswith("  ortune ")]
        assert len(commands) == 2
        assert all(len(line) <= columns for line in lines if line not in commands)

    def test_files_of_others_are_not_replaced(self, tmp_path: Path) -> None:
        path = tmp_path / "other.json"
        path.write_text('{"config": {}}')
        done = run_ortune("suggest", TINY_CNN, "-o", path, cwd=tmp_path)
        assert done.returncode == 2
        assert "was not written by ortune" in done.stderr
        path.unlink()
        for _ in range(2):
            assert run_ortune("suggest", TINY_CNN, "-o", path, cwd=tmp_path).returncode == 0

    def test_a_deep_file_is_no_suggestion(self) -> None:
        assert not is_suggestion(b"[" * 100_000)

    def test_a_suggestion_is_no_record(self, tmp_path: Path) -> None:
        run_ortune("suggest", TINY_CNN, *SATURATED, "-o", "found.json", cwd=tmp_path)
        done = run_ortune("apply", "found.json", TINY_CNN, cwd=tmp_path)
        assert done.returncode == 2
        assert "found.json" in done.stderr
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("arguments", [("nothing.onnx",), (TINY_CNN, "--clients", "0"), (TINY_CNN, "--only", "no")])
    def test_bad_input(self, arguments: tuple[object, ...], tmp_path: Path) -> None:
        done = run_ortune("suggest", *arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
