"""The search space: valid, distinct, canonical, and in ONNX Runtime's own grammar."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ortune import Config
from ortune.host import Core, Host, HostLimits, NumaNode, Quota, Topology, read_host
from ortune.knobs import DEFAULT, KNOBS, SearchSpace, build_space, describe
from ortune.knobs.affinity import format_group, parse_affinity
from ortune.knobs.canonical import canonical
from ortune.knobs.space_options import SpaceOptions
from ortune.knobs.thread_dimensions import thread_counts
from ortune.worker.session import ENUMS, make_session_options
from tests.conftest import TINY_CNN
from tests.simulated import make_host, make_model

AFFINITY = "session.intra_op_thread_affinities"

cpu_groups = st.lists(st.frozensets(st.integers(0, 600), min_size=1, max_size=9), min_size=1, max_size=9)


@given(cpu_groups)
def test_affinity_strings_round_trip(groups: list[frozenset[int]]) -> None:
    text = ";".join(map(format_group, groups))
    assert parse_affinity(text) == tuple(tuple(sorted(group)) for group in groups)
    assert " " not in text


@pytest.mark.parametrize("text", ["", "0", "1-2,3", "2-1", "1;", ";1", "1, 2", "a", "1--2", "1-2-3", "01"])
def test_illegal_affinity_strings_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither|backwards"):
        parse_affinity(text)


@st.composite
def groupings(draw: st.DrawFn, cpus: list[int]) -> tuple[tuple[int, ...], ...]:
    """Assign each CPU to one of a few groups, in arbitrary order."""
    labels = draw(st.lists(st.integers(0, 3), min_size=len(cpus), max_size=len(cpus)))
    groups: dict[int, list[int]] = {}
    for cpu, label in zip(cpus, labels, strict=True):
        groups.setdefault(label, []).append(cpu)
    return tuple(sorted(tuple(group) for group in groups.values()))


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    """Any topology: sparse ids, uneven cores, kinds that cut across nodes, masks and quotas."""
    online = sorted(draw(st.sets(st.integers(0, 300), min_size=1, max_size=16)))
    kinds = draw(st.one_of(st.just(()), groupings(online)))
    topology = Topology(
        online=tuple(online),
        cores=tuple(Core(cpus=group) for group in draw(groupings(online))),
        packages=draw(groupings(online)),
        numa_nodes=tuple(NumaNode(id=3 * n, cpus=group) for n, group in enumerate(draw(groupings(online))))
        + ((NumaNode(id=99),) if draw(st.booleans()) else ()),
        l3_domains=draw(st.one_of(st.just(()), groupings(online))),
        kinds=kinds if len(kinds) > 1 else (),
        source="sysfs",
    )
    usable = sorted(draw(st.sets(st.sampled_from(online), min_size=1)))
    quota = draw(st.one_of(st.none(), st.floats(0.1, 20).map(lambda cpus: Quota(cpus=cpus, where="/x"))))
    return Host(
        system="Linux",
        machine="x86_64",
        cpu_model="",
        topology=topology,
        limits=HostLimits(usable=tuple(usable), quota=quota),
    )


@st.composite
def spaces(draw: st.DrawFn) -> tuple[SearchSpace, set[int]]:
    host = draw(hosts())
    return build_space(host, make_model(draw(st.integers(1, 5)))), set(host.limits.usable)


@settings(max_examples=20)
@given(spaces())
def test_every_candidate_is_valid_distinct_and_canonical(drawn: tuple[SearchSpace, set[int]]) -> None:
    space, usable = drawn
    candidates = space.candidates
    assert candidates[0].config == DEFAULT
    keys = [candidate.config.key for candidate in candidates]
    assert len(keys) == len(set(keys))
    for candidate in candidates:
        config = candidate.config
        assert canonical(config, space.n_default_threads) == config
        assert (config == DEFAULT) or candidate.why
        options, entries = config.session_options, config.session_config
        affinity = entries.get(AFFINITY)
        if affinity:
            groups = parse_affinity(affinity)
            assert len(groups) == int(options["intra_op_num_threads"]) - 1
            assert all(set(group) <= usable for group in groups)
        if options.get("execution_mode") != "ORT_PARALLEL":
            assert "inter_op_num_threads" not in options
            assert "session.inter_op.allow_spinning" not in entries
        if options.get("intra_op_num_threads") == 1:
            assert not {AFFINITY, "session.intra_op.allow_spinning", "session.dynamic_block_base"} & set(entries)
        for name, value in {**options, **entries}.items():
            assert value != KNOBS[name].default


@settings(max_examples=20)
@given(spaces())
def test_one_factor_selections_are_in_the_space(drawn: tuple[SearchSpace, set[int]]) -> None:
    space, _ = drawn
    keys = {candidate.config.key for candidate in space.candidates}
    for selection in space.one_factor():
        drawn_candidate = space.draw(lambda dimension, chosen=selection: chosen.get(dimension.name, "default"))  # type: ignore[misc]
        assert drawn_candidate.config.key in keys


def test_all_optimization_levels_are_tried() -> None:
    space = build_space(make_host(2), make_model())
    levels = {candidate.config.session_options.get("graph_optimization_level") for candidate in space.candidates}
    assert levels == {None, "ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT"}


def test_execution_mode_is_skipped_for_a_graph_without_branches() -> None:
    space = build_space(make_host(4), make_model(width=1))
    assert all("execution_mode" not in candidate.config.session_options for candidate in space.candidates)
    assert "execution_mode" in {skipped.knob.name for skipped in space.skipped}


def test_a_host_with_512_cpus_has_a_few_thousand_candidates() -> None:
    for width in (1, 3, 8):
        space = build_space(make_host(256, smt=2, n_nodes=8), make_model(width))
        assert 1000 < len(space.candidates) < 7000


def test_thread_counts_have_reasons() -> None:
    counts = thread_counts(make_host(16, smt=2, n_nodes=2))
    assert set(counts) == {1, 2, 3, 4, 6, 8, 12, 15, 16, 32}
    assert all(counts.values())


def test_labels_say_what_a_candidate_has() -> None:
    """An affinity policy that does not fit the number of threads is not a choice of the candidate."""
    space = build_space(make_host(32, n_nodes=2, domains_per_node=2), make_model(3))
    for candidate in space.candidates:
        assert (candidate.labels.get(AFFINITY, "default") != "default") == (AFFINITY in candidate.config.session_config)


def test_processes_divide_the_cores() -> None:
    host = make_host(12)
    assert 5 not in thread_counts(host)
    assert thread_counts(make_host(10), 2)[5] == "the cores, divided among 2 processes"
    space = build_space(make_host(10), make_model(1), SpaceOptions(clients=2, processes=2))
    skipped = {skip.knob.name: skip.why for skip in space.skipped}
    assert skipped[AFFINITY] == "all processes would pin their threads to the same CPUs"
    first = [rule.labels for rule in space.rules]
    assert {"intra_op_num_threads": "5"} in first
    (threads,) = [dimension for dimension in space.dimensions if dimension.name == "intra_op_num_threads"]
    assert {"1", "5", "10"} <= {choice.label for choice in threads.choices}
    pinned = build_space(make_host(10), make_model(1), SpaceOptions(processes=2, pinned=True))
    (threads,) = [dimension for dimension in pinned.dimensions if dimension.name == "intra_op_num_threads"]
    assert {choice.label for choice in threads.choices} == {"default", "1", "2", "3", "4", "5"}


def test_descriptions_are_short() -> None:
    config = Config(
        session_options={"intra_op_num_threads": 2, "execution_mode": "ORT_PARALLEL"},
        session_config={AFFINITY: "1;" * 40 + "2"},
    )
    assert describe(config).startswith("intra threads=2 · execution mode=parallel · affinity=1;1;1")
    assert len(describe(config)) < 90
    assert describe(DEFAULT) == "default"


def test_knobs_exist_in_the_installed_onnxruntime() -> None:
    options = onnxruntime.SessionOptions()
    for knob in KNOBS.values():
        if knob.where != "session_options":
            continue
        value = getattr(options, knob.name)
        assert getattr(value, "name", value) == knob.default, knob.name
    for name, kind in ENUMS.items():
        assert KNOBS[name].default in getattr(onnxruntime, kind).__members__


def test_candidates_of_this_host_create_sessions_without_errors() -> None:
    """Run in a separate process, to read what onnxruntime prints."""
    code = f"""
import onnxruntime
from ortune.host import read_host
from ortune.knobs import build_space
from ortune.worker.session import make_session
from ortune.model import read_model
model = read_model({str(TINY_CNN)!r})
n = 0
for candidate in build_space(read_host(), model).candidates:
    if {AFFINITY!r} in candidate.config.session_config or len(candidate.config.settings) <= 2:
        make_session(model.path, candidate.config)
        n += 1
print(n)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.strip().splitlines()[-1]) > 5
    assert "[E:" not in done.stderr
    assert "[W:" not in done.stderr


def test_settings_reach_session_options() -> None:
    config = Config(
        session_options={
            "intra_op_num_threads": 3,
            "execution_mode": "ORT_PARALLEL",
            "graph_optimization_level": "ORT_ENABLE_LAYOUT",
        },
        session_config={"session.dynamic_block_base": "4"},
    )
    options = make_session_options(config)
    assert options.intra_op_num_threads == 3
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_LAYOUT
    assert options.get_session_config_entry("session.dynamic_block_base") == "4"


def test_this_host_has_a_space() -> None:
    assert len(build_space(read_host(), make_model()).candidates) > 5


def test_rules_are_candidates_and_have_reasons() -> None:
    host = make_host(16, smt=2, n_nodes=2)
    space = build_space(host, make_model(width=4))
    keys = {candidate.config.key for candidate in space.candidates}
    found = {space.select(rule.labels).label: rule.why for rule in space.rules}
    assert all(space.select(rule.labels).config.key in keys and rule.why for rule in space.rules)
    assert "one thread" in found["intra threads=1"]
    assert any("one NUMA node" in why for why in found.values())
    assert any("up to 4 operators" in why for why in found.values())
    assert not any("quantized" in why for why in found.values())


def test_rules_depend_on_the_quota_and_the_graph() -> None:
    host = make_host(8)
    host = msgspec.structs.replace(host, limits=msgspec.structs.replace(host.limits, quota=Quota(cpus=2.5, where="/")))
    model = make_model(width=1)
    model = msgspec.structs.replace(model, traits=msgspec.structs.replace(model.traits, quantized=True))
    space = build_space(host, model)
    whys = [rule.why for rule in space.rules]
    assert any("fits the CPU quota" in why for why in whys)
    assert any("quantized" in why for why in whys)
    assert not any("in parallel" in why for why in whys)
    assert all(rule.labels.get("intra_op_num_threads") != "3" for rule in space.rules)
