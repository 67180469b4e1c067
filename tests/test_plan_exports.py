"""`ortune apply PLAN`: the record of a deployment, and the exports of its processes, callers, batches and resources.

In `tests/consumers/test_plan_targets.py`, the systems that the exports are for read and run them.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

import ortune
from ortune import Config, Deployment, Plan, Record, RecordError, UsageError, read_record
from ortune.apply.plan import describe_measured
from ortune.errors import TrustWarning
from ortune.export import TARGETS, gunicorn, render
from ortune.export.compose import find_source
from ortune.export.selection import list_selection
from ortune.export.systemd import format_quota
from ortune.export.target import Job
from ortune.export.triton import make_text_of_ranges
from ortune.file_kinds import find_document
from ortune.host import HostClass, place_processes, read_host
from ortune.planning.files import decode_plan, encode_plan, write_plan
from ortune.planning.pick import PickedDeployment, pick_deployment
from ortune.planning.read import SourcedDeployment, read_configs
from ortune.planning.result import AtRate, LengthPlan, LengthPolicy, PlannedDeployment
from ortune.program_options import PICKS
from ortune.record.schema import FrontPoint
from ortune.record.select import Wanted
from ortune.sanitize import LOG_COMMAND
from tests.conftest import ROOT, TINY_CNN, run_ortune
from tests.hostile import ALL_TEXTS, CONFIGS, hostile_record
from tests.plans import DEPLOYMENTS, QUIET, SERVERS, make_estimate, make_plan, make_row, pick
from tests.records import ELSEWHERE, make_record
from tests.simulated import make_host
from tests.test_hostile_exports import PARSERS, make_twin

pytestmark = pytest.mark.usefixtures("models_read_here")

GOLDEN = ROOT / "tests" / "data" / "plan_exports"

HOST = make_host(4)

LENGTHS = LengthPlan(
    text="uniform:8-64",
    lengths=(8, 64),
    maximum=64,
    place=1,
    n_points=4,
    policies=(
        LengthPolicy(
            policy="sorted by tokens",
            parameter=256,
            items_per_s=make_estimate(300.0),
            predicted_per_s=310.0,
            padding=0.1,
            n_calls=2,
            longest_call_ns=5e6,
        ),
    ),
    recommended=0,
    reference=0,
)


@pytest.fixture
def measured_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports run on the host that was measured, which has four cores."""
    monkeypatch.setattr("ortune.export.target.read_host", lambda memory: HOST)


def pick_on(host: HostClass, deployment: Deployment, **changes: Any) -> PickedDeployment:
    """Return a deployment of a plan that does not depend on this host."""
    plan = make_plan(deployment, here=False, host=host, **changes)
    plan = msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, path="models/tiny_cnn.onnx"))
    return pick_deployment(plan)


def place_here(deployment: Deployment) -> Deployment:
    """Return a deployment with the CPUs of its processes on the host with four cores, if they are pinned."""
    placement = place_processes(HOST, deployment.processes) if deployment.pinned else None
    return msgspec.structs.replace(deployment, placement=placement)


def write_export(target: str, picked: PickedDeployment, source: str = "plan.json") -> ortune.Export:
    found = source_deployment(picked, source)
    selection = list_selection(found, Wanted(), trust=False)
    return render(target, picked.record, "models/tiny_cnn.onnx", source, None, picked, selection)


def source_deployment(picked: PickedDeployment, source: str) -> SourcedDeployment:
    return SourcedDeployment(record=picked.record, source=source, path=source, deployment=picked)


def unsupported(done: ortune.Export) -> set[str]:
    return {line.split("=")[0] for line in done.unsupported}


@pytest.mark.usefixtures("measured_host")
@pytest.mark.parametrize("case", DEPLOYMENTS)
@pytest.mark.parametrize("target", SERVERS)
def test_output(target: str, case: str, request: pytest.FixtureRequest) -> None:
    """After a change, write the files with `pytest tests/test_plan_exports.py --golden`, and read the difference."""
    done = write_export(target, pick_on(HostClass.of(HOST), place_here(DEPLOYMENTS[case])))
    path = GOLDEN / f"{case}.{target}.txt"
    if request.config.getoption("--golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(done.text)
    assert done.text == path.read_text()
    assert all(line in done.text for line in done.unsupported)


class TestWhatIsReported:
    @pytest.mark.parametrize("target", SERVERS)
    def test_pinned_elsewhere(self, target: str) -> None:
        """The CPUs of another host have other numbers. Kubernetes gives each process CPUs without numbers."""
        done = write_export(target, pick_on(ELSEWHERE, DEPLOYMENTS["pinned"]))
        assert ("pinned" in unsupported(done)) == (target != "kubernetes")
        assert not re.search(r"taskset|cpuset|PARTS|host_policy", done.text)

    @pytest.mark.parametrize("target", SERVERS)
    def test_batches(self, target: str) -> None:
        done = write_export(target, pick_on(ELSEWHERE, DEPLOYMENTS["batching"]))
        assert ("batching" in unsupported(done)) == (target not in {"triton", "ray-serve"})
        done = write_export(target, pick_on(ELSEWHERE, DEPLOYMENTS["batch"]))
        assert "batch" in unsupported(done)

    @pytest.mark.parametrize("target", SERVERS)
    def test_several_hosts(self, target: str) -> None:
        done = write_export(target, pick_on(ELSEWHERE, DEPLOYMENTS["processes"]))
        assert ("replicas" in unsupported(done)) == (target not in {"kubernetes", "ray-serve"})
        done = write_export(target, pick_on(ELSEWHERE, DEPLOYMENTS["processes"], replicas=1))
        assert "replicas" not in unsupported(done)

    @pytest.mark.parametrize("target", [name for name in TARGETS if not TARGETS[name].binary and name not in SERVERS])
    def test_other_targets_write_the_settings(self, target: str) -> None:
        """A deployment is a record for them."""
        picked = pick_on(ELSEWHERE, DEPLOYMENTS["processes"])
        done = write_export(target, picked)
        plain = render(target, picked.record, "models/tiny_cnn.onnx", "plan.json")
        assert done.unsupported == plain.unsupported
        if TARGETS[target].comment:
            assert "Deployment 2 of the plan, recommended: 2 processes" in done.text


@pytest.mark.usefixtures("measured_host")
def test_triton_gets_ranges_of_cpus() -> None:
    """It does not start instances with a host policy whose `cpu-cores` has a number without a range."""
    text = write_export("triton", pick_on(HostClass.of(HOST), place_here(DEPLOYMENTS["pinned"]))).text
    found = re.findall(r"cpu-cores=(\S+)", text)
    assert found == ["0-1", "2-3"]
    assert make_text_of_ranges((0, 1, 4, 6, 7)) == "0-1,4-4,6-7"


@pytest.mark.parametrize("target", ["compose", "systemd", "gunicorn", "uvicorn"])
def test_a_part_of_the_cpus_is_named(target: str) -> None:
    """With all CPUs of the machine, the program would run on another class of host."""
    host = msgspec.structs.replace(HostClass.of(HOST), n_logical=64)
    done = write_export(target, pick_on(host, DEPLOYMENTS["processes"]))
    assert [line for line in done.unsupported if line.startswith("cpus=4 of 64")]


@pytest.mark.usefixtures("measured_host")
class TestGunicorn:
    def load(self, case: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        text = write_export("gunicorn", pick_on(HostClass.of(HOST), place_here(DEPLOYMENTS[case]))).text
        exec(compile(text, "gunicorn.conf.py", "exec"), names)  # the code of the export is under test
        return names

    @pytest.mark.parametrize("case", DEPLOYMENTS)
    def test_processes_and_threads(self, case: str) -> None:
        names, deployment = self.load(case), DEPLOYMENTS[case]
        # While full batches run, as many requests wait for the next one, in threads of their own.
        batching = deployment.batching
        threads = (deployment.clients + 1) * batching.max_batch if batching else deployment.clients
        assert (names["workers"], names["threads"]) == (deployment.processes, threads)
        assert names["worker_class"] == ("gthread" if threads > 1 else "sync")

    def test_a_new_worker_gets_the_part_of_the_one_that_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclasses.dataclass
        class Worker:
            part: int = -1

        @dataclasses.dataclass
        class Server:
            WORKERS: dict[int, Worker]

        set_to: list[list[int]] = []
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: set_to.append(cpus))
        names, server = self.load("pinned"), Server({})

        def start(pid: int) -> Worker:
            worker = Worker()
            names["pre_fork"](server, worker)
            server.WORKERS[pid] = worker
            names["post_fork"](server, worker)
            return worker

        assert [start(1).part, start(2).part] == [0, 1]
        del server.WORKERS[1]
        assert start(3).part == 0
        # During a reload, old and new workers run at the same time.
        assert {start(4).part, start(5).part} == {0, 1}
        assert set_to[:2] == [[0, 1], [2, 3]]

    def test_the_pinning_is_valid_code(self) -> None:
        assert ast.parse(gunicorn.PINNING)


class TestResources:
    def test_memory_has_a_margin_for_each_process(self) -> None:
        picked = pick_on(ELSEWHERE, DEPLOYMENTS["processes"])
        text = write_export("kubernetes", picked).text
        (mib,) = set(re.findall(r"memory: (\d+)Mi", text))
        measured = picked.row.memory_bytes / (1 << 20)
        assert 1.25 * measured + 2 * 64 <= int(mib) <= 1.25 * measured + 2 * 64 + 64

    @pytest.mark.parametrize("deployment", ["processes", "pinned"])
    def test_memory_is_never_a_limit(self, deployment: str) -> None:
        """What the program itself needs is not known, and a process that exceeds a limit is killed."""
        picked = pick_on(HostClass.of(make_host(5)), DEPLOYMENTS[deployment])
        text = write_export("kubernetes", picked).text
        (container,) = next(yaml.safe_load_all(text))["spec"]["template"]["spec"]["containers"]
        assert "memory" in container["resources"]["requests"] and "memory" not in container["resources"]["limits"]
        services = yaml.safe_load(write_export("compose", picked).text)["services"].values()
        assert all("mem_reservation" in service and "mem_limit" not in service for service in services)
        unit = write_export("systemd", picked).text
        assert "MemoryLow=" in unit and "MemoryMax" not in unit and "MemoryHigh" not in unit
        assert "Add what your program needs." in " ".join(unit.replace("#", "").split())

    def test_a_folder_of_compiled_models_needs_a_volume(self) -> None:
        picked = pick_on(ELSEWHERE, DEPLOYMENTS["processes"])
        selection = ("--cache-dir", "/var/keep")
        text = render("kubernetes", picked.record, "m.onnx", "plan.json", None, picked, selection).text
        assert "# Compiled models are kept in /var/keep of the container. Add a volume there" in text
        assert "Compiled models" not in write_export("kubernetes", picked).text

    def test_the_autoscaler_keeps_the_headroom(self) -> None:
        """The target is the CPU use at the highest planned rate: the capacity without the headroom."""
        picked = pick_on(ELSEWHERE, DEPLOYMENTS["processes"])
        deployment, _, autoscaler = yaml.safe_load_all(write_export("kubernetes", picked).text)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        cpus = float(container["resources"]["requests"]["cpu"])
        assert cpus == 2
        (metric,) = autoscaler["spec"]["metrics"]
        percent = metric["resource"]["target"]["averageUtilization"]
        # 190/s of capacity, 20 % headroom, 7 ms of CPU time for a call. Kubernetes adds pods 10 % above the target.
        assert percent == math.floor(100 * 190 * 0.8 * 0.007 / cpus / 1.1)
        assert autoscaler["spec"]["minReplicas"] == deployment["spec"]["replicas"] == 3

    @pytest.mark.parametrize(("utilization", "percent"), [(0.4, 45), (0.9, None)])
    def test_the_autoscaler_of_batches_knows_that_they_are_smaller(
        self, utilization: float, percent: int | None
    ) -> None:
        """At half the highest rate, they are busy for more than half of the time; at full load, they use 2.5 CPUs."""
        picked = pick_on(HostClass.of(HOST), DEPLOYMENTS["batching"], rate_per_s=300.0)
        assert isinstance(picked.row, PlannedDeployment)
        at_rate = AtRate(
            rate_per_s=picked.most_per_s / 2, p50_ns=1e6, p99_ns=2e6, utilization=utilization, source="predicted"
        )
        row = msgspec.structs.replace(picked.row, cpu_cores=2.5, at_rate=at_rate)
        picked = msgspec.structs.replace(picked, row=row)
        export = write_export("kubernetes", picked)
        deployment, _, *autoscalers = yaml.safe_load_all(export.text)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["requests"]["cpu"] == "4"
        found = [
            autoscaler["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"] for autoscaler in autoscalers
        ]
        assert found == ([percent] if percent else [])
        assert any("overloaded" in reason for reason in export.unsupported) == (not percent)

    def test_a_deployment_that_keeps_no_target(self) -> None:
        plan = make_plan(DEPLOYMENTS["processes"], here=False)
        row = msgspec.structs.replace(plan.rows[1], capacity=make_estimate(0.0), replicas=None)
        picked = pick_deployment(msgspec.structs.replace(plan, rows=(plan.rows[0], row)))
        done = write_export("kubernetes", picked)
        assert "HorizontalPodAutoscaler" not in done.text
        assert "replicas" in unsupported(done)
        assert "no number of hosts is enough" in done.text

    def test_pinned_processes_are_pods_with_whole_cpus(self) -> None:
        picked = pick_on(HostClass.of(make_host(5)), DEPLOYMENTS["pinned"])
        deployment, _, _ = yaml.safe_load_all(write_export("kubernetes", picked).text)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["resources"]["limits"] == {"cpu": "1"}
        assert container["resources"]["requests"]["cpu"] == "1"
        assert "--workers=1" in container["command"]
        assert deployment["spec"]["replicas"] == 2 * 3

    @pytest.mark.parametrize("target", ["kubernetes", "compose", "systemd"])
    def test_a_quota_is_part_of_the_host(self, target: str) -> None:
        """The container has the same quota, so that the settings are for its class of host."""
        host = msgspec.structs.replace(ELSEWHERE, cpu_quota=1.5)
        text = write_export(target, pick_on(host, DEPLOYMENTS["processes"])).text
        assert {"kubernetes": 'cpu: "1500m"', "compose": "cpus: 1.5", "systemd": "CPUQuota=150%"}[target] in text
        assert "--any-host" not in text


class TestSources:
    """The file that was read is in the commands."""

    @pytest.mark.parametrize(
        "source",
        ["my $(plan) `x` %i.json", 'a";b\\.json', "it's #1.json", "-q;.json", "##[error]x.json", "'##vso[x].json"],
    )
    def test_it_stays_a_word(self, source: str) -> None:
        picked = pick_on(ELSEWHERE, DEPLOYMENTS["processes"])
        for target in ("uvicorn", "systemd", "compose", "gunicorn", "kubernetes"):
            assert not LOG_COMMAND.search(write_export(target, picked, source).text)
        (words,) = PARSERS["uvicorn"](write_export("uvicorn", picked, source).text)
        assert words[:4] == ["ortune", "apply", source, "--"]
        unit = PARSERS["systemd"](write_export("systemd", picked, source).text)
        (command,) = [value for name, value in unit["Service"] if name == "ExecStart"]
        assert command[1:4] == ["apply", source, "--"]
        (service,) = PARSERS["compose"](write_export("compose", picked, source).text)["services"].values()
        assert service["volumes"][0]["source"] == source
        assert ast.parse(write_export("gunicorn", picked, source).text)

    @pytest.mark.parametrize("target", ["gunicorn", "uvicorn", "compose", "kubernetes", "systemd"])
    def test_a_line_break_is_an_error(self, target: str) -> None:
        with pytest.raises(UsageError, match="not printable"):
            write_export(target, pick_on(ELSEWHERE, DEPLOYMENTS["processes"]), "plan\nrm -r x.json")

    def test_another_deployment_is_picked_there_too(self) -> None:
        picked = pick_deployment(make_plan(DEPLOYMENTS["processes"], here=False), 1)
        assert "ortune apply plan.json --pick 1 -- gunicorn" in write_export("gunicorn", picked).text

    def test_a_point_of_a_front_is_picked_there_too(self, tmp_path: Path) -> None:
        """And the load that selected it, and what its file may name."""
        record = make_record(TINY_CNN, QUIET)
        summary = record.evidence.winner
        assert summary
        points = tuple(
            FrontPoint(
                summary=msgspec.structs.replace(summary, config=config), speedups={}, limits=(), recommended=best
            )
            for config, best in ((Config(), True), (QUIET, False))
        )
        evidence = msgspec.structs.replace(record.evidence, winner=None, front=points)
        path = tmp_path / "front.json"
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, evidence=evidence)))
        done = run_ortune(
            "apply",
            path,
            TINY_CNN,
            "--to",
            "gunicorn",
            "--pick",
            "2",
            "--clients",
            "3",
            "--rate",
            "5/s",
            "--trust",
            cwd=tmp_path,
        )
        assert f"ortune apply {path} --pick 2 --clients 3 --rate 5/s --trust -- gunicorn" in done.stdout, done.stderr
        assert "selection=" not in done.stderr
        same = ortune.export_config(path, "gunicorn", model=TINY_CNN, pick=2, clients=3, rate=5, trust=True)
        assert "--pick 2 --clients 3 --rate 5/s --trust -- gunicorn" in same.text

    def test_a_variable_cannot_pick(self) -> None:
        picked = pick_deployment(make_plan(DEPLOYMENTS["processes"], here=False), 1)
        assert "selection" in unsupported(write_export("environment", picked))

    @pytest.mark.parametrize("target", SERVERS)
    def test_groups_of_items(self, target: str) -> None:
        """The program must do it."""
        picked = pick_on(ELSEWHERE, DEPLOYMENTS["processes"], lengths=LENGTHS)
        assert "grouping" in unsupported(write_export(target, picked))
        other = msgspec.structs.replace(LENGTHS, place=0)
        assert "grouping" not in unsupported(
            write_export(target, pick_on(ELSEWHERE, DEPLOYMENTS["processes"], lengths=other))
        )


@pytest.mark.parametrize("target", ["gunicorn", "uvicorn", "systemd", "compose", "kubernetes"])
def test_a_command_cannot_name_stdin(target: str) -> None:
    picked = pick(DEPLOYMENTS["processes"])
    with pytest.raises(UsageError, match="read from stdin"):
        render(target, picked.record, "m.onnx", "stdin", picked=picked)


def test_without_the_file_of_a_record_a_comment_stands_for_it() -> None:
    text = render("environment", pick(DEPLOYMENTS["processes"]).record, "m.onnx", "stdin").text
    assert "# ENV ORTUNE_CONFIG=CONFIG\n" in text


class TestSpeedup:
    """What the record of a deployment says that it gains."""

    def make(self, **fields: Any) -> Record:
        plan = make_plan(DEPLOYMENTS["processes"])
        default, row = plan.rows
        rows = (
            msgspec.structs.replace(default, capacity=fields.pop("default")),
            msgspec.structs.replace(row, **fields),
        )
        return pick_deployment(msgspec.structs.replace(plan, rows=rows)).record

    def test_with_a_target_it_is_the_ratio_of_the_capacities(self) -> None:
        """The throughput may even be lower."""
        record = self.make(default=make_estimate(70.0), ratio=make_estimate(0.9))
        assert record.evidence.verdict == "faster"
        assert record.gain
        assert record.gain.estimate == pytest.approx(190 / 70)
        assert record.gain.low == pytest.approx(190 / 70 / 1.0734, rel=1e-3)

    def test_capacities_that_are_not_known(self) -> None:
        predicted = make_estimate(70.0, source="predicted")
        assert self.make(default=predicted, ratio=make_estimate(0.9)).gain is None
        proven = self.make(default=predicted, ratio=make_estimate(1.3)).gain
        assert proven and proven.estimate == 1.3

    @pytest.mark.parametrize("changes", [{"high": 0.0}, {"low": 80.0}, {"low": 1e-279}, {"high": None}])
    def test_capacities_that_no_measurement_shows(self, changes: dict[str, Any]) -> None:
        """A plan is a file that anything can have written."""
        assert self.make(default=make_estimate(70.0, **changes), ratio=make_estimate(0.9)).gain is None


@pytest.mark.parametrize("target", sorted(set(SERVERS) - {"triton"}))
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(config=CONFIGS, name=ALL_TEXTS)
def test_values_stay_values(target: str, config: Config, name: str) -> None:
    """A hostile plan has the statements of its harmless twin, with the hostile values in them.

    What a deployment adds for Triton are numbers only.
    """
    twin, marks = make_twin(config)

    def read(config: Config, name: str) -> Any:
        record = hostile_record(config, name)
        deployment = Deployment(processes=2, clients=2, config=config)
        row = make_row(deployment, 100.0)
        picked = PickedDeployment(row=row, number=2, is_recommended=True, record=record, throughput=row.throughput)
        text = render(target, record, "folder/model.onnx", "plan.json", None, picked).text
        if target == "kubernetes":
            return list(yaml.safe_load_all(text))
        return PARSERS[target](text)

    assert read(config, name) == marks.restore(read(twin, "m.onnx"))


class TestRecord:
    """The record that a deployment is for `ortune apply`."""

    def test_it_has_the_settings_and_the_load(self) -> None:
        plan = make_plan(DEPLOYMENTS["callers"])
        record = pick_deployment(plan).record
        assert record.config == QUIET
        assert (record.workload.load.processes, record.workload.load.clients) == (2, 3)
        # Several callers need not overlap at a low rate, of which a program is not warned.
        assert describe_measured(record)["clients"] is None
        assert describe_measured(pick(DEPLOYMENTS["processes"]).record)["clients"] == 1
        assert record.is_proven
        assert record.gain
        assert record.gain.estimate == 1.77
        assert record.tried.session_options == ("intra_op_num_threads",)

    def test_a_program_that_puts_requests_together_does_as_planned(self) -> None:
        plans = {name: make_plan(deployment) for name, deployment in DEPLOYMENTS.items()}
        found = {name: read_configs([plan])[0] for name, plan in plans.items()}
        assert [name for name, sourced in found.items() if sourced.shapes_vary] == ["batching"]
        (grouped,) = read_configs([msgspec.structs.replace(plans["processes"], lengths=LENGTHS)])
        assert grouped.shapes_vary
        assert describe_measured(grouped.record, shapes_vary=True)["shapes"] == {}

    def test_other_objects_are_not_used(self) -> None:
        with pytest.raises(RecordError, match="object: a record or a plan is needed"):
            read_configs([object()])  # type: ignore[list-item]

    def test_settings_that_need_trust(self, tmp_path: Path) -> None:
        """They may be given on the command line, and are then in the plan."""
        unsafe = Config(session_options={"enable_profiling": True})
        path = tmp_path / "plan.json"
        path.write_bytes(encode_plan(make_plan(Deployment(config=unsafe))))
        with pytest.raises(RecordError, match="must not set"):
            ortune.read_plan(path)
        with pytest.warns(TrustWarning):
            assert ortune.read_plan(path, trust=True).choice.deployment.config == unsafe

    def test_settings_that_were_tried_get_their_default(self) -> None:
        """Where the recommended deployment has default settings, those of the others count as tried."""
        record = pick_deployment(make_plan(DEPLOYMENTS["processes"]), 1).record
        assert record.config.is_default
        assert record.is_proven
        assert record.tried.session_options == ("intra_op_num_threads",)

    @pytest.mark.parametrize(("wanted", "number"), [(None, 2), (1, 1), (2, 2), ("memory", 1), ("throughput", 2)])
    def test_picks(self, wanted: int | str | None, number: int) -> None:
        picked = pick_deployment(make_plan(DEPLOYMENTS["processes"]), wanted)
        assert picked.number == number
        assert picked.is_recommended == (number == 2)

    @pytest.mark.parametrize(("wanted", "message"), [(3, "deployments 1 to 2"), (0, "1 to 2"), ("gpu", "the best in")])
    def test_there_is_no_such_deployment(self, wanted: int | str, message: str) -> None:
        with pytest.raises(RecordError, match=message):
            pick_deployment(make_plan(DEPLOYMENTS["processes"]), wanted)

    def test_names_are_those_of_the_plan(self) -> None:
        assert set(make_plan(DEPLOYMENTS["processes"]).best) == set(PICKS)

    def test_rates(self) -> None:
        picked = pick(DEPLOYMENTS["processes"])
        assert picked.most_per_s == pytest.approx(190 * 0.8)
        assert picked.rate_of_replica_per_s == pytest.approx(400 / 3)
        assert pick(DEPLOYMENTS["processes"], rate_per_s=None).rate_of_replica_per_s == picked.most_per_s


class TestHostileNumbers:
    @pytest.mark.parametrize(
        ("place", "value", "message"),
        [
            (("rows", 1, "replicas"), 0, "1 to"),
            (("rows", 1, "memory_bytes"), -1, "must be finite"),
            (("rows", 1, "cpu_ns_per_call"), 1e300, "must be finite"),
            (("headroom",), 1.0, "headroom"),
            (("rate_per_s",), -1.0, "must be finite"),
            (("rows", 1, "capacity", "estimate"), 5e-324, "must be finite"),
            (("seed",), -1, "below 0"),
            (("started",), "soon", "soon"),
        ],
    )
    def test_they_are_no_plan(self, place: tuple[Any, ...], value: Any, message: str) -> None:
        document = json.loads(encode_plan(make_plan(DEPLOYMENTS["processes"])))
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        with pytest.raises(RecordError, match=message):
            decode_plan(json.dumps(document).encode())


def test_a_file_that_is_too_large_is_no_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(encode_plan(make_plan(DEPLOYMENTS["processes"])) + b" " * (4 << 20))
    for read in (ortune.read_plan, ortune.session_options):
        with pytest.raises(RecordError, match="is not a plan"):
            read(path)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    write_plan(make_plan(DEPLOYMENTS["callers"]), path)
    return path


APP = """\
import onnxruntime
session = onnxruntime.InferenceSession("model.onnx")
print(session.get_session_options().intra_op_num_threads)
"""


class TestCommand:
    def test_plans_and_records_are_told_apart(self, plan: Path) -> None:
        data = plan.read_bytes()
        assert find_document(data) == "plan"
        with pytest.raises(RecordError, match="is a plan of deployments"):
            read_record(plan)

    def test_export(self, plan: Path, tmp_path: Path) -> None:
        done = run_ortune("apply", "plan.json", "--to", "gunicorn", "-o", "gunicorn.conf.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "replicas=3" in done.stderr
        text = (tmp_path / "gunicorn.conf.py").read_text()
        assert "workers = 2\nthreads = 3\n" in text

    @pytest.mark.parametrize(("wanted", "workers"), [("memory", 1), ("1", 1), ("2", 2), ("throughput", 2)])
    def test_pick(self, plan: Path, tmp_path: Path, wanted: str, workers: int) -> None:
        done = run_ortune("apply", "plan.json", "--to", "gunicorn", "--pick", wanted, cwd=tmp_path)
        assert f"workers = {workers}\n" in done.stdout

    def test_bad_picks(self, plan: Path, tmp_path: Path) -> None:
        for wanted, message in (
            ("9", "the plan has deployments 1 to 2"),
            ("disk", "is not a whole number, and not one of"),
        ):
            done = run_ortune("apply", "plan.json", "--to", "gunicorn", "--pick", wanted, cwd=tmp_path)
            assert done.returncode == 2
            assert message in " ".join(done.stderr.split())

    def test_words_do_not_pick_points_of_records(self, tmp_path: Path) -> None:
        path = tmp_path / "tuned.json"
        path.write_bytes(msgspec.json.encode(make_record(TINY_CNN, QUIET)))
        done = run_ortune("apply", path, "--to", "gunicorn", "--pick", "memory", cwd=tmp_path)
        assert done.returncode == 2
        assert "only a deployment of a plan" in " ".join(done.stderr.split())

    def test_it_cannot_be_verified(self, plan: Path, tmp_path: Path) -> None:
        done = run_ortune("apply", "plan.json", TINY_CNN, "--verify", cwd=tmp_path)
        assert done.returncode == 2
        assert "is a plan, and only records can be verified" in " ".join(done.stderr.split())

    def test_the_config_is_checked_here(self, plan: Path, tmp_path: Path) -> None:
        done = run_ortune("apply", "plan.json", TINY_CNN, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "options.intra_op_num_threads = 1" in done.stdout
        assert "Deployment 2 of the plan, recommended: 2 processes · 3 callers each" in done.stdout
        assert "when the record was made" not in done.stdout

    @pytest.mark.parametrize(("options", "threads"), [([], "1"), (["--pick", "1"], "0")])
    def test_a_program_gets_the_settings(self, plan: Path, tmp_path: Path, options: list[str], threads: str) -> None:
        shutil.copy(TINY_CNN, tmp_path / "model.onnx")
        (tmp_path / "app.py").write_text(APP)
        command = [sys.executable, "-P", "-m", "ortune", "apply", "plan.json", *options, "--", sys.executable, "app.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == threads

    def test_python(self, plan: Path) -> None:
        session = ortune.create_session(TINY_CNN, plan)
        assert session.get_session_options().intra_op_num_threads == 1
        given: Plan = make_plan(DEPLOYMENTS["callers"])
        options = ortune.session_options(given, pick="memory")
        assert options.intra_op_num_threads == 0
        done = ortune.export_config(given, "gunicorn", pick="throughput")
        assert "ortune apply plan.json --" in done.text

    def test_python_writes_a_file(self, plan: Path, tmp_path: Path) -> None:
        done = ortune.export_config(plan, "uvicorn", output=tmp_path / "serve.sh")
        assert (tmp_path / "serve.sh").read_text() == done.text
        assert str(plan) in done.text

    def test_another_host(self, tmp_path: Path) -> None:
        """The settings are not applied there, as with a record."""
        write_plan(make_plan(DEPLOYMENTS["callers"], here=False), tmp_path / "plan.json")
        with pytest.warns(UserWarning, match="another class of host|in the record"):
            options = ortune.session_options(tmp_path / "plan.json")
        assert options.intra_op_num_threads == 0


@pytest.mark.skipif(len(read_host(memory=False).usable_cores) < 2, reason="needs two cores")
def test_parts_of_this_host() -> None:
    """Without a simulated host: the parts are those that planning pins processes to."""
    picked = pick(DEPLOYMENTS["pinned"])
    text = write_export("gunicorn", picked).text
    placement = place_processes(read_host(memory=False), 2)
    assert placement
    names: dict[str, Any] = {}
    exec(compile(text, "gunicorn.conf.py", "exec"), names)  # the code of the export is under test
    assert names["PARTS"] == [list(cpus) for cpus in placement.cpus]


@pytest.mark.parametrize(
    ("file", "output", "source"),
    [
        ("plan.json", None, "plan.json"),
        ("plan.json", "compose.yaml", "./plan.json"),
        ("plan.json", "deploy/compose.yaml", "../plan.json"),
        ("deploy/plan.json", "deploy/compose.yaml", "./plan.json"),
        ("/srv/plan.json", "deploy/compose.yaml", "/srv/plan.json"),
    ],
)
def test_compose_finds_the_plan_from_its_own_folder(file: str, output: str | None, source: str) -> None:
    record = pick_on(HostClass.of(HOST), DEPLOYMENTS["pinned"]).record
    assert find_source(Job(record, "m.onnx", file, None if output is None else Path(output))) == source


@pytest.mark.parametrize(("processes", "percent"), [(3, "33.33%"), (2, "50%"), (8, "12.5%")])
def test_systemd_reads_two_decimal_places(processes: int, percent: str) -> None:
    assert format_quota(1.0 / processes) == percent
