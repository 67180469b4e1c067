"""Several records: merged into one file, and the right one picked."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import msgspec
import pytest

import ortune
from ortune import Config, Load, ModelError, RecordError, UsageError, read_record
from ortune.apply.bench import read_sides
from ortune.host import HostClass, read_host
from ortune.host.processor import Caches, CpuType, Processor
from ortune.measure.hosts import pool_hosts
from ortune.model import read_model
from ortune.profile.run import read_config
from ortune.record.files import encode_record, read_records
from ortune.record.schema import RECORD_SCHEMA
from ortune.record.select import (
    Sourced,
    Wanted,
    choose,
    load_distance,
    merge,
    read_sourced,
    select_per_model,
    select_record,
)
from ortune.workload import make_load
from ortune.workload.workload import BackgroundProgram
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import EXAMPLE, make_record, write
from tests.simulated import make_host
from tests.test_hosts import speedup

HERE = HostClass.of(read_host())
ONE, FOUR, BUSY = make_load(), make_load(clients=4), make_load(rate_per_s=100)


def threads(n: int) -> Config:
    return Config(session_options={"intra_op_num_threads": n})


def sourced(n: int, load: Load = ONE, *, here: bool = True, started: str = "", model: Path = TINY_CNN) -> Sourced:
    record = make_record(model, threads(n), load=load, here=here)
    search = msgspec.structs.replace(record.search, started=started or record.search.started)
    return Sourced(record=msgspec.structs.replace(record, search=search), source=f"{n}.json")


KNOWN = HostClass.of(
    msgspec.structs.replace(
        make_host(4),
        cpu_model="AMD EPYC",
        processor=Processor(
            cpu=CpuType(vendor="AuthenticAMD", family="25", model="17", stepping="1"),
            instructions="avx avx2 avx512f",
            caches=Caches(l1d_bytes=32 << 10),
            virtual=True,
        ),
    )
)


def of_class(n: int, host: HostClass, load: Load = ONE) -> Sourced:
    given = sourced(n, load)
    return msgspec.structs.replace(given, record=msgspec.structs.replace(given.record, host=host))


def on_gpu(n: int, gpu: str) -> Sourced:
    given = sourced(n)
    config = Config(providers=(("CUDAExecutionProvider", {}), ("CPUExecutionProvider", {})))
    runtime = msgspec.structs.replace(given.record.runtime, gpus=(gpu,))
    return msgspec.structs.replace(given, record=msgspec.structs.replace(given.record, config=config, runtime=runtime))


class TestChoice:
    def test_the_host_goes_first(self) -> None:
        choice = choose([sourced(1, FOUR, here=False), sourced(2, ONE)], HERE, FOUR)
        assert (choice.source, choice.fits) == ("2.json", True)
        assert choice.why == "tuned for one client, back to back, the closest to 4 clients, back to back"

    def test_then_the_load(self) -> None:
        records = [sourced(1, ONE), sourced(2, FOUR), sourced(3, BUSY)]
        for load, source in ((ONE, "1.json"), (FOUR, "2.json"), (make_load(clients=3), "2.json")):
            assert choose(records, HERE, load).source == source
        assert choose(records, HERE, make_load(rate_per_s=500)).source == "3.json"
        untold = choose(records, HERE, None)
        assert untold.source == "1.json"
        assert "other records are for 100 requests/s" in untold.why

    def test_then_the_latest(self) -> None:
        records = [sourced(1, started="2026-01-01"), sourced(2, started="2026-03-01"), sourced(3, started="2026-02-01")]
        assert choose(records, HERE, None).source == "2.json"

    def test_what_proved_something_goes_before_the_latest(self) -> None:
        proven, later = sourced(1, started="2026-01-01"), sourced(2, started="2026-02-01")
        evidence = msgspec.structs.replace(later.record.evidence, verdict="inconclusive")
        record = msgspec.structs.replace(later.record, evidence=evidence, config=later.record.base)
        unproven = msgspec.structs.replace(later, record=record)
        assert not record.is_proven
        for records in ([proven, unproven], [unproven, proven]):
            assert choose(records, HERE, None).source == "1.json"
            assert merge(records)[0].records == (proven.record,)

    def test_the_installed_version_goes_before_the_latest(self, monkeypatch: pytest.MonkeyPatch) -> None:
        records = [sourced(1, started="2026-01-01"), sourced(2, started="2026-02-01")]
        for place, version in enumerate(("1.22.0", "1.31.0")):
            runtime = msgspec.structs.replace(records[place].record.runtime, onnxruntime=version)
            record = msgspec.structs.replace(records[place].record, runtime=runtime)
            records[place] = msgspec.structs.replace(records[place], record=record)
        for installed, source in (("1.22.1", "1.json"), ("1.31.1", "2.json"), ("1.25.0", "2.json"), ("", "2.json")):
            monkeypatch.setattr("ortune.record.select.find_installed_version", lambda installed=installed: installed)
            assert choose(records, HERE, None).source == source

    def test_another_gpu_does_not_fit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ortune.worker.gpu.list_gpus", lambda: (("H100",), "580"))
        a100, h100 = (on_gpu(number, gpu) for number, gpu in enumerate(("A100", "H100")))
        choice = choose([a100], HERE, None)
        assert (choice.fits, choice.why) == (False, "tuned on another GPU: A100; here: H100")
        assert choose([a100], HERE, None, any_host=True).fits
        assert choose([h100, a100], HERE, None).source == "1.json"
        assert choose([a100, sourced(3)], HERE, None).source == "3.json"
        monkeypatch.setattr("ortune.worker.gpu.list_gpus", lambda: ((), ""))
        assert choose([a100], HERE, None).fits

    def test_another_host(self) -> None:
        choice = choose([sourced(1, here=False)], HERE, None)
        assert not choice.fits
        assert "logical CPUs 64 in the record" in choice.why
        assert choose([sourced(1, here=False)], HERE, None, any_host=True).fits

    def test_the_class_that_differs_least_goes_first(self) -> None:
        older = msgspec.structs.replace(
            KNOWN, cpu=CpuType(vendor="AuthenticAMD", family="25", model="1", stepping="1"), instructions="avx avx2"
        )
        stepping = msgspec.structs.replace(
            KNOWN, cpu=CpuType(vendor="AuthenticAMD", family="25", model="17", stepping="0")
        )
        smaller = msgspec.structs.replace(older, cpu_quota=1.0)
        for hosts, source in (((older, stepping, smaller), "1.json"), ((smaller, older), "1.json")):
            choice = choose([of_class(number, host) for number, host in enumerate(hosts)], KNOWN, None)
            assert (choice.source, choice.fits) == (source, False)

    def test_each_model_has_its_own(self) -> None:
        records = [sourced(1), sourced(2, model=TINY_ENCODER), sourced(3, FOUR)]
        choices = select_per_model(records, Wanted(load=FOUR))
        assert [choice.source for choice in choices] == ["3.json", "2.json"]

    def test_one_answer_for_one_model(self, tmp_path: Path) -> None:
        records = [sourced(1), sourced(2, model=TINY_ENCODER)]
        assert select_record(records, Wanted(), TINY_ENCODER).source == "2.json"
        other = tmp_path / "other.onnx"
        other.write_bytes(b"nothing")
        for wanted, model, error, message in (
            (Wanted(), None, RecordError, "There are records for several models: .*cnn.onnx, .*encoder.onnx"),
            (Wanted(pick=1), TINY_CNN, RecordError, "no Pareto front"),
            (Wanted(), other, RecordError, "The record is for another model"),
            (Wanted(), tmp_path / "nothing.onnx", ModelError, "There is no file"),
        ):
            with pytest.raises(error, match=message):
                select_record(records, wanted, model)
        with pytest.raises(RecordError, match="There are records for several models"):
            select_per_model(records, Wanted(pick=1))
        with pytest.raises(RecordError, match="There are no records"):
            select_per_model([], Wanted())

    def test_loads_that_are_alike_are_near(self) -> None:
        assert load_distance(FOUR, FOUR) == 0
        assert load_distance(FOUR, make_load(clients=8)) < load_distance(FOUR, ONE)
        assert load_distance(make_load(processes=2), make_load(processes=3)) < load_distance(
            make_load(processes=2), FOUR
        )
        assert 0 < load_distance(make_load(processes=2), make_load(processes=2, pinned=True)) < 10
        assert load_distance(make_load(sessions=2), make_load(sessions=3)) < load_distance(make_load(sessions=2), BUSY)


class TestBundle:
    def test_a_bundle_comes_back(self, tmp_path: Path) -> None:
        paths = [
            write(entry.record, tmp_path / name)
            for entry, name in (
                (sourced(1), "a.json"),
                (sourced(2, FOUR), "b.json"),
                (sourced(3, here=False), "c.json"),
            )
        ]
        done = run_ortune("merge", *paths, "-o", "bundle.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "3 records" in done.stdout
        assert read_records(tmp_path / "bundle.json") == tuple(map(read_record, paths))
        assert [entry.source for entry in read_sourced([tmp_path / "bundle.json"])][2].endswith("bundle.json[3]")
        # A bundle can be merged again.
        again = run_ortune("merge", "bundle.json", paths[0], "-o", "again.json", cwd=tmp_path)
        assert "skipped" in again.stdout
        assert len(read_records(tmp_path / "again.json")) == 3

    def test_the_latest_of_the_same_stays(self) -> None:
        old, new = sourced(1, started="2026-01-01"), sourced(2, started="2026-02-01")
        for records in ([old, new], [new, old]):
            bundle, dropped = merge(records)
            assert bundle.records == (new.record,)
            assert dropped == (old,)

    def test_searches_of_something_else_stay(self) -> None:
        record = sourced(1, started="2026-01-01").record
        workload = record.workload
        loaded = msgspec.structs.replace(workload, background_load=BackgroundProgram.of("stress"))
        batches = msgspec.structs.replace(workload, batches=(1, 8))
        others = [msgspec.structs.replace(record, workload=changed_workload) for changed_workload in (loaded, batches)]
        gpus = [on_gpu(2, "A100").record, on_gpu(3, "H100").record]
        given = [Sourced(record=given_record, source="") for given_record in (record, *others, *gpus)]
        bundle, dropped = merge(given)
        assert len(bundle.records) == 5
        assert not dropped

    def test_evidence_of_other_hosts_stays(self) -> None:
        plain = sourced(1)
        hosts = pool_hosts([speedup(1.3)] * 3)
        evidence = msgspec.structs.replace(plain.record.evidence, hosts=hosts)
        more = Sourced(record=msgspec.structs.replace(plain.record, evidence=evidence), source="more.json")
        for records in ([plain, more], [more, plain]):
            assert merge(records)[0].records == (more.record,)

    def test_nothing_to_merge(self) -> None:
        with pytest.raises(RecordError, match="no records to merge"):
            merge([])

    def test_a_bundle_is_no_record(self, tmp_path: Path) -> None:
        bundle, _ = merge([sourced(1), sourced(2, FOUR)])
        path = tmp_path / "b.json"
        path.write_bytes(msgspec.json.encode(bundle))
        with pytest.raises(RecordError, match="bundle of 2 records"):
            read_record(path)

    def test_another_schema_in_a_bundle(self, tmp_path: Path) -> None:
        path = tmp_path / "b.json"
        record = json.loads(EXAMPLE.read_text())
        path.write_text(json.dumps({"schema": RECORD_SCHEMA, "records": [record, {**record, "schema": 99}]}))
        with pytest.raises(RecordError, match=r"b\.json has schema 99, and this version of ortune reads schema 1\."):
            read_records(path)

    def test_a_bundle_stays_small(self, tmp_path: Path) -> None:
        bundle, _ = merge([sourced(1), sourced(2, FOUR), sourced(3, BUSY)])
        text = encode_record(bundle)
        assert len(text) < 8000 * len(bundle.records)
        assert text.count(b"\n") < 200 * len(bundle.records)

    def test_pipes(self, tmp_path: Path) -> None:
        """`ortune merge` and `ortune apply` as filters."""
        records = [write(sourced(1).record, tmp_path / "a.json"), write(sourced(2, FOUR).record, tmp_path / "b.json")]
        merged = run_ortune("merge", *records, "-o", "-", cwd=tmp_path)
        assert merged.returncode == 0, merged.stderr
        assert len(json.loads(merged.stdout)["records"]) == 2
        assert "2 records" in merged.stderr
        command = [sys.executable, "-P", "-m", "ortune", "apply", "-", "--clients", "4", "--to", "python", "-o", "-"]
        applied = subprocess.run(
            command, input=merged.stdout, capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert applied.returncode == 0, applied.stderr
        assert "intra_op_num_threads = 2" in applied.stdout

    def test_a_file_that_is_no_record_is_not_replaced(self, tmp_path: Path) -> None:
        path = write(sourced(1).record, tmp_path / "a.json")
        (tmp_path / "notes.txt").write_text("mine")
        done = run_ortune("merge", path, "-o", "notes.txt", cwd=tmp_path)
        assert done.returncode == 2
        assert "--output notes.txt: this file exists" in done.stderr
        assert (tmp_path / "notes.txt").read_text() == "mine"

    def test_a_file_that_cannot_be_written(self, tmp_path: Path) -> None:
        path = write(sourced(1).record, tmp_path / "a.json")
        done = run_ortune("merge", path, "-o", "nowhere/b.json", cwd=tmp_path)
        assert done.returncode == 2
        assert "there is no folder" in done.stderr


class TestApi:
    """The Python interface picks too."""

    @pytest.fixture
    def bundle(self, tmp_path: Path) -> Path:
        records = [sourced(1), sourced(2, FOUR), sourced(1, model=TINY_ENCODER), sourced(1, here=False)]
        path = tmp_path / "bundle.json"
        path.write_bytes(msgspec.json.encode(merge(records)[0]))
        return path

    def test_a_session(self, bundle: Path) -> None:
        def n_threads(clients: int | None = None) -> int:
            session = ortune.create_session(TINY_CNN, bundle, clients=clients)
            return int(session.get_session_options().intra_op_num_threads)

        assert (n_threads(), n_threads(4)) == (1, 2)
        assert ortune.create_session(TINY_ENCODER, bundle).get_session_options().intra_op_num_threads == 1

    def test_options_of_several_models_need_a_model(self, bundle: Path) -> None:
        with pytest.raises(RecordError, match="records for several models"):
            ortune.session_options(bundle)

    def test_a_model_that_none_is_for(self, bundle: Path, tmp_path: Path) -> None:
        other = tmp_path / "other.onnx"
        other.write_bytes(b"nothing")
        with pytest.raises(RecordError, match="is for another model"):
            ortune.create_session(other, bundle)

    def test_another_host_has_the_default(self) -> None:
        record = make_record(TINY_CNN, threads(1), here=False)
        with pytest.warns(UserWarning, match="is not used: tuned on another class of host"):
            assert ortune.session_options(record).intra_op_num_threads == 0
        with pytest.warns(UserWarning, match="is not used"):
            assert ortune.run_options(record) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            same_version = msgspec.structs.replace(record, runtime=make_record(TINY_CNN, threads(1)).runtime)
            assert ortune.session_options(same_version, any_host=True).intra_op_num_threads == 1

    def test_another_version_of_onnxruntime(self) -> None:
        record = make_record(TINY_CNN, threads(1))
        other = msgspec.structs.replace(record.runtime, onnxruntime="1.2.3")
        with pytest.warns(UserWarning, match="was tuned with onnxruntime 1.2.3; this is onnxruntime "):
            options = ortune.session_options(msgspec.structs.replace(record, runtime=other))
        assert options.intra_op_num_threads == 1

    def test_a_load_that_makes_no_sense(self, bundle: Path) -> None:
        with pytest.raises(UsageError, match="clients 0: must be from 1"):
            ortune.create_session(TINY_CNN, bundle, clients=0)


def test_the_latest_is_found_across_time_zones() -> None:
    """Eleven at night in New York is later than one in the morning in London."""
    later = sourced(1, started="2026-01-01T23:00:00-05:00")
    earlier = sourced(2, started="2026-01-02T01:00:00+00:00")
    assert choose([later, earlier], HERE, None).source == "1.json"
    bundle, dropped = merge([later, earlier])
    assert bundle.records == (later.record,)
    assert dropped == (earlier,)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="only POSIX systems set the zone of a process")
@pytest.mark.parametrize("zone", ["UTC0", "JST-9"])
def test_a_time_without_a_zone_is_the_same_on_all_hosts(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    records = [sourced(1, started="2026-01-01T12:00:00"), sourced(2, started="2026-01-01T11:00:00+00:00")]
    with monkeypatch.context() as here:
        here.setenv("TZ", zone)
        time.tzset()
        chosen = choose(records, HERE, None)
    time.tzset()
    assert chosen.source == "1.json"


def test_options_of_a_bundle_for_several_models(tmp_path: Path) -> None:
    records = [make_record(TINY_CNN, threads(1)), make_record(TINY_ENCODER, threads(2))]
    bundle, _ = merge([Sourced(record=record, source="") for record in records])
    path = tmp_path / "b.json"
    path.write_bytes(msgspec.json.encode(bundle))
    assert ortune.session_options(path, model=TINY_ENCODER).intra_op_num_threads == 2
    assert ortune.run_options(path, model=TINY_CNN) is None
    with pytest.raises(RecordError, match="records for several models"):
        ortune.session_options(path)


def test_bench_and_profile_select_too(tmp_path: Path) -> None:
    records = [sourced(1), sourced(2, FOUR), sourced(3, model=TINY_ENCODER)]
    path = tmp_path / "b.json"
    path.write_bytes(encode_record(merge(records)[0]))
    for model, load, n_threads in ((TINY_CNN, ONE, 1), (TINY_CNN, FOUR, 2), (TINY_ENCODER, ONE, 3)):
        (side,) = read_sides([path], [], str(model), load)
        assert side.config == threads(n_threads)
    (side,) = read_sides([write(records[0].record, tmp_path / "a.json")], [], str(TINY_ENCODER))
    assert side.config == threads(1)  # a config may be tried on another model
    found = read_config(path, read_model(TINY_ENCODER))
    assert found and found.config == threads(3)
