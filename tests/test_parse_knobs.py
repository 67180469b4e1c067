"""What the user says about knobs: --tune, --fix, --only, --allow-approximate, and the space that results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortune import Config, UsageError, read_record
from ortune.errors import spell_as_flag
from ortune.host import Quota
from ortune.host.allocators import find_allocators
from ortune.knobs import CPU, KNOBS, Candidate, SearchSpace, SpaceOptions, build_space
from ortune.knobs.environment import variables_of
from ortune.knobs.knob import Knob
from ortune.knobs.parse_config import make_config, split_settings
from ortune.knobs.parse_knobs import check_fix, check_only, check_tune, split_fix, split_tune
from ortune.knobs.providers import PROVIDERS
from ortune.knobs.space import MAX_SPACE_CANDIDATES
from ortune.options import make_request, parse_names
from ortune.program.space import LIBRARY_VARIABLES, library_dimensions, workers_dimension
from ortune.record.files import read_trials
from ortune.requests import SearchRequest
from ortune.workload import APPROXIMATE_TOLERANCE
from tests.conftest import TINY_CNN, run_ortune
from tests.simulated import make_host, make_model

SPIN = "session.intra_op.spin_duration_us"
BACKOFF = "session.intra_op.spin_backoff_max"
AFFINITY = "session.intra_op_thread_affinities"
BLOCK = "session.dynamic_block_base"


def parse_tune(texts: list[str], *, approximate: bool = False) -> dict[str, Any]:
    """Values as `--tune` gives them."""
    return dict(check_tune(split_tune(texts), approximate=approximate))


def parse_fix(texts: list[str], *, approximate: bool = False) -> dict[str, Any]:
    """Values as `--fix` gives them."""
    return dict(check_fix(split_fix(texts), approximate=approximate))


def parse_only(texts: list[str]) -> tuple[str, ...]:
    """Names as `--only` gives them."""
    return check_only(parse_names(texts))


def space_of(n_cores: int = 4, model: Any = None, **options: Any) -> SearchSpace:
    return build_space(make_host(n_cores), model or make_model(), SpaceOptions(**options))


def names(space: SearchSpace) -> set[str]:
    return {dimension.name for dimension in space.dimensions}


def values(space: SearchSpace, name: str) -> set[Any]:
    return {candidate.config.settings.get(name) for candidate in space.candidates}


def minor_knobs(space: SearchSpace, candidate: Candidate) -> set[str]:
    alone = {dimension.name for dimension in space.dimensions if dimension.alone}
    return {name for name, label in candidate.labels.items() if name in alone and label != "default"}


class TestTune:
    def test_values_are_tried_in_addition_to_the_default(self) -> None:
        space = space_of(tune=parse_tune([f"{SPIN}=50,5000"]))
        assert values(space, SPIN) == {None, "50", "5000"}

    def test_values_replace_those_that_are_tried_by_default(self) -> None:
        space = space_of(tune=parse_tune(["intra_op_num_threads=3"]))
        assert values(space, "intra_op_num_threads") == {None, 3}

    def test_a_setting_without_effect_is_not_tried(self) -> None:
        for candidate in space_of(tune=parse_tune([f"{SPIN}=50"])).candidates:
            settings = candidate.config.settings
            if SPIN in settings:
                assert settings.get("session.intra_op.allow_spinning") != "0"
                assert settings.get("intra_op_num_threads") != 1

    def test_values_with_commas_are_separated_by_bars(self) -> None:
        requested = parse_tune([f"{AFFINITY}=1,2;3,4|1;2"])
        assert requested == {AFFINITY: ("1,2;3,4", "1;2")}
        placed = {
            c.config.settings[AFFINITY]: c.config.settings["intra_op_num_threads"]
            for c in space_of(tune=requested).candidates
            if AFFINITY in c.config.settings
        }
        assert placed == {"1,2;3,4": 3, "1;2": 3}

    def test_an_affinity_for_other_thread_counts_is_rejected(self) -> None:
        with pytest.raises(UsageError, match="this affinity is for 6 threads"):
            space_of(tune=parse_tune([f"{AFFINITY}=1;2;3;4;5|"]))
        assert AFFINITY in names(space_of(tune=parse_tune([f"{AFFINITY}=1;2;3;4;5|", "intra_op_num_threads=6"])))

    def test_a_knob_with_only_the_default_is_skipped(self) -> None:
        space = space_of(tune=parse_tune(["session.dynamic_block_base=0"]))
        assert "session.dynamic_block_base" not in names(space)
        assert any(skipped.knob.id == "session.dynamic_block_base" for skipped in space.skipped)

    def test_values_of_a_repeated_knob_are_combined(self) -> None:
        assert parse_tune([f"{SPIN}=50", f"{SPIN}=60"]) == {SPIN: ("50", "60")}

    def test_requested_values_are_combined_with_each_other(self) -> None:
        space = space_of(clients=4, tune=parse_tune([f"{SPIN}=50", f"{BACKOFF}=4"]))
        assert any({SPIN, BACKOFF} <= set(candidate.config.settings) for candidate in space.candidates)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("session.intra_op.spin_durations_us=1", "no such knob"),
            ("intra_op_num_threads", "not a knob and a value"),
            ("intra_op_num_threads=", "not a knob and a value"),
            ("intra_op_num_threads=two", "intra_op_num_threads=two"),
            ("session.intra_op.allow_spinning=true", 'every value except "1" as off'),
            ("session.intra_op.spin_duration_us=99999", "from 0 to 10000"),
            ("enable_profiling=1", "a search cannot try this knob"),
            ("ep.dynamic.workload_type=Efficient", "a search cannot try this knob"),
            ("optimization.enable_gelu_approximation=1", "allow_approximate"),
            ("providers=cuda", "provider"),
        ],
    )
    def test_illegal_requests_are_rejected(self, text: str, message: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_tune([text])
        assert message in str(caught.value)
        assert caught.value.message.startswith(text.split("=")[0])
        assert caught.value.option == "tune"

    def test_approximations_must_be_allowed(self) -> None:
        assert parse_tune(["optimization.enable_gelu_approximation=1"], approximate=True)

    def test_values_of_python_callers_are_typed_or_text(self) -> None:
        given: dict[str, Any] = {
            "intra_op_num_threads": [1, "2"],
            "enable_mem_pattern": False,
            "dynamic_block_base": (2, "4"),
        }
        assert check_tune(given) == {
            "intra_op_num_threads": (1, 2),
            "enable_mem_pattern": (False,),
            "session.dynamic_block_base": ("2", "4"),
        }
        assert check_tune({"session.force_spinning_stop": [True]}) == {"session.force_spinning_stop": ("1",)}
        assert check_tune({AFFINITY: "1,2;3,4"}) == {AFFINITY: ("1,2;3,4",)}

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("intra_op_num_threads", [True]),
            ("intra_op_num_threads", [2.5]),
            ("intra_op_num_threads", None),
            ("intra_op_num_threads", []),
            ("session.force_spinning_stop", ["true"]),
            ("session.force_spinning_stop", [2]),
            ("execution_mode", ["parallel"]),
        ],
    )
    def test_illegal_values_of_python_callers_are_rejected(self, name: str, values: Any) -> None:
        with pytest.raises(UsageError) as caught:
            check_tune({name: values})
        assert caught.value.option == "tune"
        assert caught.value.message.startswith(name)

    def test_environment_variables_can_be_tried(self) -> None:
        space = space_of(tune=parse_tune(["ORT_INTRA_OP_NUM_THREADS=1", "OMP_NUM_THREADS=2,4"]))
        environments = [candidate.config.environment for candidate in space.candidates]
        assert {"ORT_INTRA_OP_NUM_THREADS": "1", "OMP_NUM_THREADS": "4"} in environments


class TestFix:
    def test_all_candidates_have_it_including_the_baseline(self) -> None:
        space = space_of(fix=parse_fix(["intra_op_num_threads=2", "session.intra_op.allow_spinning=0"]))
        assert space.base.settings == {"intra_op_num_threads": 2, "session.intra_op.allow_spinning": "0"}
        assert space.candidates[0].config == space.base
        for candidate in space.candidates:
            assert candidate.config.settings["intra_op_num_threads"] == 2
        assert {"intra_op_num_threads", "session.intra_op.allow_spinning"} <= {s.knob.id for s in space.skipped}

    def test_a_fixed_thread_count_still_gets_affinities(self) -> None:
        space = space_of(fix=parse_fix(["intra_op_num_threads=2"]))
        assert len(values(space, AFFINITY)) > 1

    def test_approximations_must_be_allowed(self) -> None:
        with pytest.raises(UsageError, match="beyond rounding"):
            parse_fix(["optimization.enable_gelu_approximation=1"])
        assert parse_fix(["optimization.enable_gelu_approximation=1"], approximate=True)

    def test_values_of_python_callers_are_typed_or_text(self) -> None:
        given: dict[str, Any] = {"intra_op_num_threads": 2, "enable_mem_pattern": "off", "force_spinning_stop": True}
        assert check_fix(given) == {
            "intra_op_num_threads": 2,
            "enable_mem_pattern": False,
            "session.force_spinning_stop": "1",
        }

    @pytest.mark.parametrize("second", ["dynamic_block_base", BLOCK])
    def test_a_knob_has_one_value(self, second: str) -> None:
        with pytest.raises(UsageError, match=r"session\.dynamic_block_base: is given twice") as caught:
            parse_fix([f"{BLOCK}=4", f"{second}=2"])
        assert caught.value.option == "fix"

    def test_knobs_without_effect_are_not_tried(self) -> None:
        space = space_of(fix=parse_fix(["intra_op_num_threads=1"]))
        assert not {AFFINITY, "session.dynamic_block_base"} & names(space)
        assert any("without effect" in skipped.why for skipped in space.skipped)

    @pytest.mark.parametrize("text", ["providers=cuda", "ep.dynamic.workload_type=Default", "nonsense=1", "x"])
    def test_illegal_requests_are_rejected(self, text: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_fix([text])
        assert caught.value.option == "fix"


class TestOnly:
    def test_nothing_else_is_tried(self) -> None:
        space = space_of(only=parse_only(["intra_op_num_threads,graph_optimization_level"]))
        assert names(space) == {"intra_op_num_threads", "graph_optimization_level"}

    def test_a_knob_without_values_to_try_is_rejected_with_the_reason(self) -> None:
        with pytest.raises(UsageError, match="in parallel"):
            space_of(model=make_model(width=1), only=parse_only(["execution_mode"]))
        with pytest.raises(UsageError, match="tune="):
            space_of(only=parse_only([SPIN]))

    @pytest.mark.parametrize(
        ("only", "options", "message"),
        [
            ("inter_op_num_threads", {}, "without effect, given the value of execution_mode"),
            ("graph_optimization_level,inter_op_num_threads", {}, "given the value of execution_mode"),
            (AFFINITY, {}, "no value to try for the values of intra_op_num_threads"),
            ("intra_op_num_threads", {"fix": {"intra_op_num_threads": 2}}, "fixed to 2"),
            ("intra_op_num_threads", {"tune": {"intra_op_num_threads": (0,)}}, "no value to try except the default"),
        ],
    )
    def test_a_knob_that_would_not_be_tried_is_rejected_with_the_reason(
        self, only: str, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(UsageError, match=message) as caught:
            space_of(only=parse_only([only]), **options)
        assert caught.value.option == "only"

    def test_knobs_that_depend_on_each_other_can_be_the_only_ones(self) -> None:
        both = {"execution_mode", "inter_op_num_threads"}
        assert names(space_of(only=parse_only([",".join(both)]))) == both

    def test_names_of_python_callers_are_checked(self) -> None:
        assert check_only(["dynamic_block_base", "session.dynamic_block_base"]) == ("session.dynamic_block_base",)
        with pytest.raises(UsageError, match="no such knob") as caught:
            check_only(["nonsense"])
        assert caught.value.option == "only"

    def test_a_knob_with_requested_values_can_be_the_only_one(self) -> None:
        space = space_of(only=(SPIN,), tune=parse_tune([f"{SPIN}=50"]))
        assert names(space) == {SPIN}
        assert len(space.candidates) == 2


class TestTogether:
    @pytest.mark.parametrize(
        ("values", "message"),
        [
            ({"fix": [f"{BLOCK}=4"], "tune": ["dynamic_block_base=2"]}, f"--fix {BLOCK}: would have this value"),
            ({"fix": [f"{BLOCK}=4"], "only": [BLOCK]}, "but --only names values to try"),
            ({"tune": [f"{BLOCK}=4"], "only": [SPIN]}, f"--tune {BLOCK}: is not among the knobs of --only"),
        ],
    )
    def test_values_that_would_not_be_tried_are_an_error(self, values: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError) as caught:
            make_request(SearchRequest, {"model": "m.onnx", **values}, "cli")
        assert message in caught.value.render(spell_as_flag)[0]

    def test_options_that_go_together(self) -> None:
        values = {"tune": [f"{BLOCK}=4", f"{BLOCK}=2"], "fix": ["intra_op_num_threads=2"], "only": f"{SPIN},{BLOCK}"}
        request = make_request(SearchRequest, {"model": "m.onnx", **values}, "cli")
        assert request.tune == {BLOCK: ("4", "2")}
        assert request.replace(seed=1).fix == {"intra_op_num_threads": 2}


@pytest.mark.parametrize("second", ["dynamic_block_base", BLOCK])
def test_a_setting_of_a_config_is_given_once(second: str) -> None:
    text = f"{BLOCK}=4,{second}=2"
    with pytest.raises(UsageError) as caught:
        make_config(split_settings(text), text)
    assert caught.value.message == f"{text}: {BLOCK} is given twice."


class TestByDefault:
    """What a search tries by default in addition to threads and optimization levels."""

    @pytest.mark.parametrize(
        "options", [{"clients": 4}, {"has_rate": True}, {"figures": ("cpu",)}, {"has_background_load": True}]
    )
    def test_spinning_knobs(self, options: dict[str, Any]) -> None:
        spinning = {SPIN, BACKOFF, "session.force_spinning_stop"}
        assert spinning <= names(space_of(**options))
        assert not spinning & names(space_of())

    def test_spinning_knobs_under_a_quota(self) -> None:
        host = make_host(4)
        quota = Quota(cpus=1.5, where="/")
        host = msgspec.structs.replace(host, limits=msgspec.structs.replace(host.limits, quota=quota))
        assert SPIN in names(build_space(host, make_model()))

    @pytest.mark.parametrize("figure", ["memory", "load-time"])
    def test_memory_knobs(self, figure: str) -> None:
        memory = {
            "enable_cpu_mem_arena",
            "enable_mem_pattern",
            "enable_mem_reuse",
            "session.disable_prepacking",
            "session.graph_optimizations_loop_level",
        }
        assert memory <= names(space_of(figures=(figure,)))
        assert not memory & names(space_of())

    def test_quantized_graphs(self) -> None:
        model = make_model()
        ops = {"QuantizeLinear": 3, "DequantizeLinear": 5, "Conv": 2}
        model = msgspec.structs.replace(model, traits=msgspec.structs.replace(model.traits, ops=ops, quantized=True))
        assert "session.disable_quant_qdq" in names(space_of(model=model))
        assert "session.disable_quant_qdq" not in names(space_of())

    def test_execution_order_for_parallel_branches(self) -> None:
        assert "execution_order" in names(space_of())
        assert "execution_order" not in names(space_of(model=make_model(width=1)))

    def test_minor_knobs_are_tried_one_at_a_time(self) -> None:
        space = space_of(clients=4, figures=("memory",))
        assert max(len(minor_knobs(space, candidate)) for candidate in space.candidates) == 1

    def test_knobs_of_newer_versions_are_skipped(self) -> None:
        space = space_of(clients=4, onnxruntime="1.22.0")
        assert SPIN not in names(space)
        assert any(skipped.knob.id == SPIN and "1.26" in skipped.why for skipped in space.skipped)
        assert SPIN in names(space_of(clients=4, onnxruntime="1.31.1"))

    def test_requested_knobs_of_newer_versions_are_rejected(self) -> None:
        with pytest.raises(UsageError, match=r"1\.22\.0 does not support this knob"):
            space_of(tune={SPIN: ("50",)}, onnxruntime="1.22.0")

    def test_values_and_pools_of_newer_versions(self) -> None:
        new, old = (space_of(sessions=2, onnxruntime=version) for version in ("1.23.0", "1.22.1"))
        assert "ORT_ENABLE_LAYOUT" in values(new, "graph_optimization_level")
        assert "ORT_ENABLE_LAYOUT" not in values(old, "graph_optimization_level")
        assert "global_thread_pool" in names(new) - names(old)
        assert any(skipped.knob.name == "global_thread_pool" and "1.23" in skipped.why for skipped in old.skipped)
        with pytest.raises(UsageError, match=r"1\.22\.1 does not have this value"):
            space_of(fix={"graph_optimization_level": "ORT_ENABLE_LAYOUT"}, onnxruntime="1.22.1")

    def test_every_value_is_legal(self) -> None:
        options = {"clients": 4, "sessions": 2, "figures": ("memory",), "approximate": True}
        for dimension in space_of(8, **options).dimensions:
            for choice in dimension.choices[1:]:
                if dimension.knob.where != "config" and choice.value is not None:
                    dimension.knob.check(choice.value)

    def test_a_large_space_keeps_the_candidates_nearest_to_the_default(self) -> None:
        tune = {name: tuple(str(n) for n in range(1, 9)) for name in (SPIN, BACKOFF)}
        space = build_space(make_host(8), make_model(4), SpaceOptions(tune=tune))
        assert len(space.candidates) == MAX_SPACE_CANDIDATES
        far = [sum(label != "default" for label in c.labels.values()) for c in space.candidates]
        assert far == sorted(far)
        for dimension in space.dimensions:
            seen = {candidate.labels.get(dimension.name) for candidate in space.candidates}
            assert {choice.label for choice in dimension.choices} <= seen, dimension.name


class TestSessions:
    def test_a_global_pool_is_tried(self) -> None:
        space = space_of(8, clients=2, sessions=2)
        pools = {c.config.global_thread_pool for c in space.candidates}
        assert None in pools
        assert len(pools) > 2
        for candidate in space.candidates:
            if candidate.config.global_thread_pool:
                assert "intra_op_num_threads" not in candidate.config.session_options

    def test_sessions_get_separate_cores(self) -> None:
        apart = [c.config for c in space_of(8, clients=2, sessions=2).candidates if c.config.per_session]
        assert apart
        for config in apart:
            first, second = (config.of_session(number).session_config[AFFINITY] for number in range(2))
            assert not set(first.split(";")) & set(second.split(";"))
            n_threads = int(config.session_options["intra_op_num_threads"])
            assert len(first.split(";")) == len(second.split(";")) == n_threads - 1


class TestAllocators:
    def test_they_are_found_in_the_folders_of_distributions(self, tmp_path: Path) -> None:
        assert find_allocators(tmp_path) == {}
        folder = tmp_path / "usr/lib64"
        folder.mkdir(parents=True)
        for name in ("libtcmalloc.so.4", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"):
            (folder / name).touch()
        assert find_allocators(tmp_path) == {
            "mimalloc": str(folder / "libmimalloc.so.2"),
            "tcmalloc": str(folder / "libtcmalloc_minimal.so.4"),
        }

    def test_configs_name_them(self) -> None:
        candidate = space_of(allocators=("mimalloc",)).select({"allocator": "mimalloc"})
        assert candidate.config == Config(allocator="mimalloc")
        assert candidate.label == "mimalloc"

    def test_their_libraries_are_preloaded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.host.allocators.find_allocators", lambda: {"jemalloc": "/lib/libjemalloc.so.2"})
        config = Config(environment={"OMP_NUM_THREADS": "2"}, allocator="jemalloc")
        assert variables_of(config, {}) == {"OMP_NUM_THREADS": "2", "LD_PRELOAD": "/lib/libjemalloc.so.2"}
        assert variables_of(config, {"LD_PRELOAD": "/a.so"})["LD_PRELOAD"] == "/lib/libjemalloc.so.2 /a.so"
        already = {"LD_PRELOAD": "/a.so /lib/libjemalloc.so.2"}
        assert variables_of(config, already) == {"OMP_NUM_THREADS": "2"}
        assert variables_of(Config(allocator="mimalloc"), {}) == {}
        assert variables_of(Config(), {}) == {}


class TestCommand:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--tune", "intra_op_num_thread=2"], "Did you mean"),
            (["--fix", "session.intra_op.allow_spinning=false"], "Write"),
            (["--only", "intra_op_threads"], "knob"),
            (["--provider", "cuad"], "Did you mean cuda?"),
            (["--provider", ""], "not a list"),
            (["--tune", "cuda.device_id=1"], "Add --provider cuda"),
            (["--sessions", "3", "--clients", "4"], "multiple of --sessions 3"),
            (["--sessions", "0"], "must be from 1 to 64"),
        ],
    )
    def test_illegal_input_gets_a_message(self, arguments: list[str], message: str, tmp_path: Path) -> None:
        done = run_ortune("search", TINY_CNN, *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stderr
        if message not in {"Write", "knob"}:
            assert message in " ".join(done.stderr.split())

    def test_the_space_contains_requests(self, tmp_path: Path) -> None:
        done = run_ortune(
            "space", TINY_CNN, "--tune", f"{SPIN}=50", "--fix", "intra_op_num_threads=2", "--json", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert SPIN in {dimension["knob"]["name"] for dimension in shown["dimensions"]}
        assert all(
            candidate["config"]["session_options"]["intra_op_num_threads"] == 2 for candidate in shown["candidates"]
        )

    def test_a_search_tries_only_what_is_requested(self, tmp_path: Path) -> None:
        done = run_ortune(
            "search", TINY_CNN, "--allow-approximate", "--fix", "intra_op_num_threads=1", "--tune",
            "enable_mem_pattern=False", "--only", "session.set_denormal_as_zero,enable_mem_pattern", "--budget", "15s",
            "--provider", "cpu", "-o", "r.json", cwd=tmp_path, simulate=True,
        )  # fmt: skip
        assert done.returncode in {0, 3}, done.stderr
        assert "in every candidate and in the baseline" in " ".join(done.stdout.split())
        record = read_record(tmp_path / "r.json")
        assert record.workload.tolerance == APPROXIMATE_TOLERANCE
        assert record.search.n_candidates == 4
        measured = [trial.config.settings for trial in read_trials(tmp_path / "r.json").trials if trial.failure is None]
        assert {"intra_op_num_threads": 1, "session.set_denormal_as_zero": "1"} in measured
        assert {"intra_op_num_threads": 1, "enable_mem_pattern": False} in measured
        assert all(settings["intra_op_num_threads"] == 1 for settings in measured)
        assert record.evidence.baseline is None or record.evidence.baseline.config.settings == {
            "intra_op_num_threads": 1
        }
        done = run_ortune("apply", "r.json", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


def test_default_options() -> None:
    assert SpaceOptions().providers == (CPU,)
    assert {"providers", "io_binding", "global_thread_pool"} <= set(KNOBS)


def test_the_catalogue_states_what_a_search_tries() -> None:
    model = make_model(4)
    ops = dict.fromkeys(("Conv", "Attention", "QuantizeLinear", "DequantizeLinear", "Erf", "Cast", "MatMulNBits"), 1)
    model = msgspec.structs.replace(model, traits=msgspec.structs.replace(model.traits, ops=ops, quantized=True))
    tried = {
        dimension.name
        for options in (
            SpaceOptions(clients=4, sessions=2, figures=("memory",), approximate=True, allocators=("mimalloc",)),
            SpaceOptions(batches=(1, 8)),
            *(
                SpaceOptions(providers=(CPU, name), figures=("memory",), approximate=True)
                for name in PROVIDERS
                if name != CPU
            ),
            SpaceOptions(providers=("OpenVINOExecutionProvider",), clients=4),
        )
        for dimension in build_space(make_host(8), model, options).dimensions
    }
    of_programs = [*library_dimensions(tuple(LIBRARY_VARIABLES), SpaceOptions()), workers_dimension(make_host(8), 2)]
    tried |= {dimension.name for dimension in of_programs}
    assert tried == {name for name, knob in KNOBS.items() if knob.tuned}


@pytest.mark.parametrize("option", ["tune", "fix", "only", "set"])
class TestEntriesWithoutEffect:
    """Entries that ONNX Runtime ignores in Python, and entries that it does not know and accepts silently."""

    def use(self, option: str, name: str) -> None:
        if option == "set":
            make_config({name: "1"}, f"{name}=1")
        elif option == "only":
            parse_only([name])
        else:
            (parse_tune if option == "tune" else parse_fix)([f"{name}=1"])

    @pytest.mark.parametrize("knob", [knob for knob in KNOBS.values() if knob.instead], ids=lambda knob: knob.id)
    def test_ignored(self, knob: Knob, option: str) -> None:
        with pytest.raises(UsageError, match="ignores this entry in Python") as caught:
            self.use(option, knob.id)
        assert caught.value.hint == f"Did you mean {knob.instead}?"
        assert caught.value.option == option
        assert KNOBS[knob.instead].where == "session_options"

    @pytest.mark.parametrize(
        ("name", "right"),
        [
            ("session.intra_op.allow_spining", "session.intra_op.allow_spinning"),
            ("session.disable_prepackings", "session.disable_prepacking"),
            ("session.enable_mem_reuse", "enable_mem_reuse"),
            ("intra_op_num_thread", "intra_op_num_threads"),
            ("OMP_NUM_THREAD", "OMP_NUM_THREADS"),
            ("cuda.use_tf_32", "cuda.use_tf32"),
        ],
    )
    def test_misspelled(self, name: str, right: str, option: str) -> None:
        with pytest.raises(UsageError, match="there is no such knob") as caught:
            self.use(option, name)
        assert "Did you mean" in caught.value.hint
        assert right in caught.value.hint


def test_all_entries_without_effect_are_known() -> None:
    """Those that the catalog lists because of other languages."""
    ignored = {knob.id for knob in KNOBS.values() if knob.not_tunable == "it has no effect in Python"}
    assert ignored == {knob.id for knob in KNOBS.values() if knob.instead}
