"""`ortune apply HOSTPLAN`: the models of a plan for one host, each with its own processes, CPUs, name and port."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import ortune
from ortune import Config, Deployment, HostPlan, RecordError, UsageError
from ortune.export import render
from ortune.export.target import describe_deployment
from ortune.host import HostClass, ProcessPlacement, read_host
from ortune.options import make_request
from ortune.planning.colocation.pick import name_servers, pick_models
from ortune.planning.colocation.prepare import prepare_host_plan
from ortune.planning.colocation.result import PlannedModel
from ortune.planning.colocation.sharing import Demand
from ortune.planning.files import encode_plan
from ortune.planning.read import SourcedDeployment, read_configs
from ortune.record.select import Wanted, select_per_model, select_record
from ortune.requests import HostPlanRequest
from ortune.workload import parse_limit
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.plans import QUIET, SERVERS
from tests.records import ONE_THREAD, make_local_record, make_record, write
from tests.test_colocation import make_example, make_result, make_row

USABLE = sorted(cpu for core in read_host(memory=False).usable_cores for cpu in core)

PROGRAM = """
import json
import onnxruntime
found = [onnxruntime.InferenceSession(path).get_session_options().intra_op_num_threads for path in {paths!r}]
print(json.dumps(found))
"""


def make_host_plan(paths: Sequence[Path] = (TINY_CNN, TINY_ENCODER), **changes: Any) -> HostPlan:
    """Return a plan for two models on this host: the default misses a target, and divided cores meet both."""
    deployments = (
        Deployment(config=QUIET, placement=ProcessPlacement(unit="cores", cpus=((USABLE[0],),))),
        Deployment(
            processes=2, config=QUIET, placement=ProcessPlacement(unit="cores", cpus=((USABLE[-1],), (USABLE[-1],)))
        ),
    )
    models = [make_result(deployment, cpu_ns_per_call=4e6, memory_bytes=80_000_000) for deployment in deployments]
    divided = msgspec.structs.replace(make_row("divided"), models=tuple(models))
    demands = (
        Demand(name="shop/Images v2", rate_per_s=50.0, slo=parse_limit("p99<50ms")),
        Demand(name="9.encoder", rate_per_s=10.0),
    )
    records = [make_record(path, QUIET) for path in paths]
    plan = make_example(
        models=tuple(
            PlannedModel(demand=demand, model=record.model, workload=record.workload)
            for demand, record in zip(demands, records, strict=True)
        ),
        rows=(make_row("default", "broken"), divided, make_row("unpinned", "unclear")),
        recommended=1,
        host=HostClass.of(read_host()),
        runtime=records[0].runtime,
    )
    return msgspec.structs.replace(plan, **changes)


def write_host_plan(folder: Path, **changes: Any) -> Path:
    path = folder / "host.json"
    path.write_bytes(encode_plan(make_host_plan(**changes)))
    return path


class TestPick:
    def test_each_model_has_its_deployment(self) -> None:
        first, second = pick_models(make_host_plan())
        assert first.is_recommended
        assert first.number == 2
        assert (first.name, second.name) == ("model-shop-images-v2", "model-9-encoder")
        assert (first.n_before, second.n_before) == (0, 1)
        # 50/s can be multiplied by 1.5, of which 20 % are left unused.
        assert first.sustained_per_s == pytest.approx(75)
        assert first.most_per_s == pytest.approx(60)
        assert first.rate_of_replica_per_s == 50
        assert first.record.config == QUIET
        assert first.record.evidence.verdict == "within_limits"
        assert first.record.is_proven
        assert second.record.workload.load.processes == 2

    def test_what_proves_nothing_says_so(self) -> None:
        plan = make_host_plan()
        (first, _) = pick_models(plan, 1)
        assert not first.is_recommended
        assert first.record.evidence.verdict == "default_is_best"
        kept = (make_row("default"), *plan.rows[1:])
        assert pick_models(msgspec.structs.replace(plan, rows=kept))[0].record.evidence.verdict == "inconclusive"
        unclear = msgspec.structs.replace(
            plan.rows[1],
            models=tuple(msgspec.structs.replace(model, verdict="unclear") for model in plan.rows[1].models),
        )
        rows = (plan.rows[0], unclear)
        assert pick_models(msgspec.structs.replace(plan, rows=rows))[0].record.evidence.verdict == "inconclusive"

    def test_a_plan_that_recommends_nothing(self) -> None:
        plan = make_host_plan(recommended=None)
        with pytest.raises(RecordError, match="recommends no way to share the host"):
            pick_models(plan)
        assert pick_models(plan, 2)[0].number == 2
        for wrong in (0, 4, "memory"):
            with pytest.raises(RecordError, match="this plan has rows 1 to 3"):
                pick_models(plan, wrong)

    def test_names_of_servers(self) -> None:
        names = ["a.b", "a b", "A-B", "", "é", "x" * 90, "y/" + "x" * 90, "7", "no", "ssh", "a b-2", "a-b-2"]
        found = name_servers(names)
        assert len(set(found)) == len(names)
        for name in found:
            assert name.startswith("model") and len(name) <= 50 and name[-1] != "-"
            assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert found[-4:-2] == ["model-no", "model-ssh"]


class TestRead:
    def test_the_model_decides(self, tmp_path: Path) -> None:
        records = read_configs([write_host_plan(tmp_path)])
        assert [type(record) for record in records] == [SourcedDeployment] * 2
        found = select_record(records, Wanted(), TINY_ENCODER)
        assert found.record.model.path == str(TINY_ENCODER)
        with pytest.raises(RecordError, match="records for several models"):
            select_record(records, Wanted())

    def test_a_picked_row_is_that_of_all_models(self, tmp_path: Path) -> None:
        records = read_configs([write_host_plan(tmp_path)], pick=1)
        choices = select_per_model(records, Wanted(pick=1))
        assert [choice.record.config for choice in choices] == [Config(), Config()]

    def test_the_api(self) -> None:
        plan = make_host_plan()
        options = ortune.session_options(plan, model=str(TINY_CNN))
        assert options.intra_op_num_threads == 1


def render_for(plan: HostPlan, target: str, number: int) -> ortune.Export:
    picked = pick_models(plan)[number]
    return render(target, picked.record, "model.onnx", "host.json", None, picked)


class TestExports:
    def test_compose_files_go_together(self) -> None:
        services: dict[str, Any] = {}
        for number in range(2):
            services |= yaml.safe_load(render_for(make_host_plan(), "compose", number).text)["services"]
        assert list(services) == ["model-shop-images-v2", "model-9-encoder.1", "model-9-encoder.2"]
        assert [service["ports"] for service in services.values()] == [["8000:8000"], ["8001:8000"], ["8002:8000"]]
        assert [service["cpuset"] for service in services.values()] == [str(USABLE[0]), *[str(USABLE[-1])] * 2]

    def test_manifests_go_together(self) -> None:
        names = []
        for number in range(2):
            manifests = list(yaml.safe_load_all(render_for(make_host_plan(), "kubernetes", number).text))
            assert len(manifests) == 3
            names.append({manifest["metadata"]["name"] for manifest in manifests})
        assert names == [{"model-shop-images-v2"}, {"model-9-encoder"}]

    @pytest.mark.parametrize(("target", "port"), [("gunicorn", ":8001"), ("uvicorn", "--port=8001")])
    def test_each_server_has_a_port_of_its_own(self, target: str, port: str) -> None:
        assert "800" not in render_for(make_host_plan(), target, 0).text.replace("--port=8000", "")
        assert port in render_for(make_host_plan(), target, 1).text

    @pytest.mark.parametrize("target", SERVERS)
    def test_it_is_said_that_cores_are_shared(self, target: str) -> None:
        plan = make_host_plan(recommended=2)
        assert any(line.startswith("sharing=") for line in render_for(plan, target, 0).unsupported)
        assert not any(line.startswith("sharing=") for line in render_for(make_host_plan(), target, 0).unsupported)

    def test_the_header_says_what_was_planned(self) -> None:
        text = render_for(make_host_plan(), "gunicorn", 0).text
        assert "# Deployment 2 of the plan, recommended: 1 process" in text
        assert "# It shares the host with the other models of the plan (cores divided among the models" in text
        assert "# Capacity within p99<50ms: 75/s" in text


class TestCommand:
    def test_it_cannot_be_verified(self, tmp_path: Path) -> None:
        done = run_ortune("apply", write_host_plan(tmp_path), TINY_CNN, "--verify", cwd=tmp_path)
        assert done.returncode == 2
        assert "is a plan, and only records can be verified" in " ".join(done.stderr.split())

    def test_a_model_on_another_host(self, tmp_path: Path) -> None:
        path = write_host_plan(tmp_path)
        document = json.loads(path.read_bytes())
        document["models"][1]["model"]["path"] = "/srv/models/encoder.onnx"
        path.write_text(json.dumps(document))
        done = run_ortune("apply", path, "/srv/models/encoder.onnx", "--to", "gunicorn", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "workers = 2" in done.stdout

    def test_exports(self, tmp_path: Path) -> None:
        path = write_host_plan(tmp_path)
        done = run_ortune("apply", path, TINY_CNN, "--to", "systemd", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "/etc/systemd/system/model-shop-images-v2@.service" in done.stdout
        done = run_ortune("apply", path, "--to", "systemd", cwd=tmp_path)
        assert done.returncode == 2
        assert "records for several models" in done.stderr

    def test_a_program_gets_the_settings_of_each_model(self, tmp_path: Path) -> None:
        path = write_host_plan(tmp_path)
        (tmp_path / "app.py").write_text(PROGRAM.format(paths=[str(TINY_CNN), str(TINY_ENCODER)]))
        done = run_ortune("apply", path, "--", sys.executable, "app.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1]) == [1, 1]

    def test_it_is_checked_here(self, tmp_path: Path) -> None:
        done = run_ortune("apply", write_host_plan(tmp_path), TINY_CNN, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "Deployment 2 of the plan, recommended" in done.stdout


def test_a_rate_that_was_served_stands_for_a_scale_that_is_not_known() -> None:
    plan = make_host_plan()
    rows = (plan.rows[0], msgspec.structs.replace(plan.rows[1], scale=None))
    (first, _) = pick_models(msgspec.structs.replace(plan, rows=rows))
    assert first.capacity is None
    assert first.sustained_per_s == 50
    assert "Throughput: 50/s, measured." in describe_deployment(first)


def test_several_hosts(tmp_path: Path) -> None:
    plan = make_host_plan()
    rows = (plan.rows[0], msgspec.structs.replace(plan.rows[1], replicas=3))
    plan = msgspec.structs.replace(plan, rows=rows)
    (first, _) = pick_models(plan)
    assert first.rate_of_replica_per_s == pytest.approx(50 / 3)
    (deployment, *_) = yaml.safe_load_all(render_for(plan, "kubernetes", 1).text)
    assert deployment["spec"]["replicas"] == 6
    assert any(line.startswith("replicas=3") for line in render_for(plan, "systemd", 0).unsupported)


def test_a_plan_and_a_record_together(tmp_path: Path) -> None:
    """A picked row is that of the plan, and what is picked of the record is a point of its front."""
    path = write_host_plan(tmp_path)
    record = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
    records = read_configs([path, record], pick=1)
    with pytest.raises(RecordError, match="records for several models"):
        select_per_model(records, Wanted(pick=1))


def test_the_same_model_twice_is_refused(tmp_path: Path) -> None:
    shutil.copy(TINY_CNN, tmp_path / "copy.onnx")
    request = make_request(HostPlanRequest, {"models": {str(TINY_CNN): "50/s", str(tmp_path / "copy.onnx"): "10/s"}})
    with pytest.raises(UsageError, match=r"copy.onnx are the same model"):
        prepare_host_plan(request)
