"""Folders of compiled models: who names them, and what is written where."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import ortune
from ortune import Config, Record, RecordError, UsageError, read_record
from ortune.apply.check import CheckResult
from ortune.apply.fit import Mismatch
from ortune.apply.messages import describe_missing_cache
from ortune.apply.plan import choose_records
from ortune.apply.warm import WarmResult, warm
from ortune.console.apply import show_warm
from ortune.errors import spell_as_flag
from ortune.knobs import CPU, DEFAULT
from ortune.knobs.caches import list_cache_options, with_caches
from ortune.knobs.providers import PROVIDERS
from ortune.program_options import ProgramRequest
from ortune.record.files import encode_record
from ortune.record.schema import FrontPoint
from ortune.worker import Runtime, SessionInfo
from ortune.worker.compiled_models import CompiledModels, find_cache_options
from tests.applying import run as run_program
from tests.conftest import TINY_CNN, run_ortune
from tests.records import make_record, write
from tests.test_providers import OPENVINO, TENSORRT, needs_openvino

ON_OPENVINO = Config(
    session_options={"intra_op_num_threads": 1}, providers=((OPENVINO, {"device_type": "CPU"}), (CPU, {}))
)
ON_TENSORRT = Config(providers=((TENSORRT, {}), ("CUDAExecutionProvider", {}), (CPU, {})))

CODE = f"""
import onnxruntime
onnxruntime.InferenceSession({str(TINY_CNN)!r}, providers=["{OPENVINO}", "{CPU}"])
"""


def save(config: Config, folder: Path) -> Path:
    return write(make_record(TINY_CNN, config, cache_options=list_cache_options(config)), folder / "r.json")


def list_blobs(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.blob"))


class TestOptions:
    def test_each_provider_that_keeps_compiled_models_gets_the_folder(self) -> None:
        assert dict(with_caches(ON_TENSORRT, "/keep").providers)[TENSORRT] == {
            "trt_engine_cache_enable": "True",
            "trt_engine_cache_path": "/keep",
            "trt_timing_cache_enable": "True",
            "trt_timing_cache_path": "/keep",
        }
        assert dict(with_caches(ON_OPENVINO, "/keep").providers)[OPENVINO] == {
            "device_type": "CPU",
            "cache_dir": "/keep",
        }
        assert with_caches(DEFAULT, "/keep") is DEFAULT

    def test_a_provider_that_ortune_does_not_know(self) -> None:
        config = Config(providers=(("OtherExecutionProvider", {}), (CPU, {})))
        assert with_caches(config, "/keep") is config
        assert list_cache_options(config) == ()

    def test_what_a_record_says(self) -> None:
        assert list_cache_options(ON_OPENVINO) == ("openvino.cache_dir",)
        assert list_cache_options(ON_TENSORRT) == ("tensorrt.trt_engine_cache_path", "tensorrt.trt_timing_cache_path")

    def test_a_record_names_the_options_and_not_the_folder(self, tmp_path: Path) -> None:
        path = save(ON_OPENVINO, tmp_path)
        assert json.loads(path.read_text())["cache_options"] == ["openvino.cache_dir"]
        assert read_record(path).cache_options == ("openvino.cache_dir",)

    @pytest.mark.parametrize("name", sorted(name for name, provider in PROVIDERS.items() if provider.cache))
    def test_the_options_exist(self, name: str) -> None:
        from ortune.knobs import KNOBS

        known = {knob.name for knob in KNOBS.values() if knob.provider == name}
        assert known.issuperset(PROVIDERS[name].cache)


class TestSettings:
    def test_a_relative_folder_is_that_of_the_caller(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        request = ProgramRequest(cache_dir=Path("keep"))
        (choice,) = choose_records([save(ON_OPENVINO, tmp_path)], request)
        assert dict(choice.record.config.providers)[OPENVINO]["cache_dir"] == str(tmp_path / "keep")

    def test_the_evidence_still_belongs_to_the_config(self, tmp_path: Path) -> None:
        path = save(ON_OPENVINO, tmp_path)
        (choice,) = choose_records([path], ProgramRequest(cache_dir=tmp_path))
        assert choice.record.gain is not None
        assert choice.record.gain == read_record(path).gain

    def test_a_record_cannot_name_anything_else(self, tmp_path: Path) -> None:
        """The options are shown as advice."""
        path = save(ON_OPENVINO, tmp_path)
        document = json.loads(path.read_text())
        document["cache_options"] = ["x names no folder: run this"]
        path.write_text(json.dumps(document))
        with pytest.raises(RecordError, match="is not an option for the cache"):
            read_record(path)

    def test_points_of_a_front_get_it_too(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, ON_OPENVINO)
        winner = record.evidence.winner
        assert winner
        front = tuple(
            FrontPoint(summary=msgspec.structs.replace(winner, config=config)) for config in (ON_OPENVINO, DEFAULT)
        )
        evidence = msgspec.structs.replace(record.evidence, front=front)
        path = write(msgspec.structs.replace(record, evidence=evidence), tmp_path / "r.json")
        for pick, expected in ((1, str(tmp_path)), (2, None)):
            (choice,) = choose_records([path], ProgramRequest(cache_dir=tmp_path, pick=pick))
            assert dict(choice.record.config.providers).get(OPENVINO, {}).get("cache_dir") == expected


class TestCompiledModels:
    """Which files show that a provider uses what it compiled."""

    def test_configs_that_share_a_folder(self, tmp_path: Path) -> None:
        models, configs = CompiledModels(tmp_path / "own"), []
        for name in ("a", "b"):
            config = with_caches(ON_OPENVINO, tmp_path).with_setting("session_options", "logid", name)
            before = models.list_files(config)
            (tmp_path / f"{name}.blob").write_text(name)
            models.note(config, 1.5, None, before)
            configs.append(config)
        assert [models.check(config) for config in configs] == [1.5, 1.5]
        (tmp_path / "a.blob").write_text("compiled again")
        assert models.check(configs[0]) is None
        # From now on, compiling is a part of each launch with this provider.
        assert models.check(configs[1]) is None
        assert not models.is_needed(configs[0])
        assert models.compiles_again(configs[0])

    def test_a_folder_that_was_filled_before(self, tmp_path: Path) -> None:
        config, models = with_caches(ON_OPENVINO, tmp_path), CompiledModels(tmp_path / "own")
        (tmp_path / "a.blob").write_text("a")
        models.note(config, 1.5, None, models.list_files(config))
        (tmp_path / "other.blob").write_text("from another process")
        assert models.check(config) == 1.5

    def test_a_provider_that_writes_nothing(self, tmp_path: Path) -> None:
        models = CompiledModels(tmp_path / "own")
        models.note(ON_OPENVINO, 1.5, None, models.list_files(ON_OPENVINO))
        assert models.check(ON_OPENVINO) is None


class TestExports:
    def test_the_folder_is_written(self, tmp_path: Path) -> None:
        done = run_ortune(
            "apply", save(ON_OPENVINO, tmp_path), "--to", "python", "--cache-dir", "/var/keep it", cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        assert '"cache_dir": "/var/keep it"' in done.stdout

    def test_a_command_line_has_the_option(self, tmp_path: Path) -> None:
        done = ortune.export_config(save(ON_OPENVINO, tmp_path), "uvicorn", cache_dir="/var/keep it")
        assert "--cache-dir '/var/keep it'" in done.text

    @pytest.mark.parametrize("target", ["systemd", "uvicorn", "gunicorn", "compose"])
    def test_a_folder_with_a_line_break_is_refused(self, target: str, tmp_path: Path) -> None:
        """In a unit, the second line would be a setting of its own."""
        folder = "/var/keep\nExecStartPre=/bin/touch /tmp/x"
        with pytest.raises(UsageError, match="this path contains characters that are not printable"):
            ortune.export_config(save(ON_OPENVINO, tmp_path), target, cache_dir=folder)

    def test_a_container_needs_a_volume(self, tmp_path: Path) -> None:
        path = save(ON_OPENVINO, tmp_path)
        assert "Add a volume there" in ortune.export_config(path, "compose", cache_dir="/var/keep").text
        assert "volume there" not in ortune.export_config(path, "compose").text

    def test_without_a_folder_nothing_is_added(self, tmp_path: Path) -> None:
        assert "cache_dir" not in ortune.export_config(save(ON_OPENVINO, tmp_path), "python").text


class TestMistakes:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--warm"], "--warm needs a folder"),
            (["--warm", "--cache-dir", "keep", "--verify"], "--warm cannot be combined with --verify"),
            (["--warm", "--cache-dir", "keep", "--to", "python"], "--warm cannot be combined with --to"),
            (["--cache-dir", "keep", "--verify"], "--cache-dir keep: cannot be combined with --verify"),
        ],
    )
    def test_options_that_do_not_go_together(self, options: list[str], message: str, tmp_path: Path) -> None:
        done = run_ortune("apply", save(ON_OPENVINO, tmp_path), *options, cwd=tmp_path)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())

    def test_nothing_to_fill(self, tmp_path: Path) -> None:
        record = save(Config(session_options={"intra_op_num_threads": 1}), tmp_path)
        done = run_ortune("apply", record, "--warm", "--cache-dir", "keep", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "there is nothing to fill" in done.stdout
        assert not (tmp_path / "keep").exists()

    @needs_openvino
    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        done = run_ortune("apply", save(ON_OPENVINO, tmp_path), "--warm", "--cache-dir", "file/keep", cwd=tmp_path)
        assert done.returncode == 2
        assert "--cache-dir file/keep: Not a directory" in " ".join(done.stderr.split())


class TestWarm:
    """A provider is simulated: what it writes, and whether the session starts from that."""

    def check(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        is_used: bool,
        is_written: bool = True,
        mismatches: tuple[Mismatch, ...] = (),
    ) -> None:
        def run_once(record: Record, model: str | Path, data: str | None = None) -> CheckResult:
            folder = Path(dict(record.config.providers)[OPENVINO]["cache_dir"])
            if is_written and not (folder / "model.blob").exists():
                (folder / "model.blob").write_bytes(b"compiled")
            session = SessionInfo(load_ns=4_000_000, providers=(OPENVINO, CPU), build_s=1.5 if is_used else None)
            runtime = Runtime(onnxruntime="1", providers=(), python="3", ortune="1")
            return CheckResult(runtime=runtime, loaded=session, mismatches=mismatches)

        monkeypatch.setattr("ortune.apply.warm.run_once", run_once)

    def fill(self, tmp_path: Path) -> WarmResult:
        record = make_record(TINY_CNN, with_caches(ON_OPENVINO, tmp_path / "keep"))
        return warm(record, TINY_CNN, tmp_path / "keep")

    def show(self, result: WarmResult) -> str:
        console = Console(width=100, record=True, file=io.StringIO())
        show_warm(console, result, Path("keep"))
        return console.export_text()

    def test_a_cache_is_filled_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.check(monkeypatch, is_used=True)
        first, second = self.fill(tmp_path), self.fill(tmp_path)
        assert first.options == ("openvino.cache_dir",)
        assert (first.n_written, first.n_files, first.size_bytes, first.works) == (1, 1, 8, True)
        assert (second.n_written, second.n_files, second.works) == (0, 1, True)
        assert "compiled and run in 1.5 s" in self.show(first)
        assert "the folder was filled before" in self.show(second)

    def test_another_host_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        other = Mismatch(what="physical cores", recorded="8", here="2", hint="Search here.")
        self.check(monkeypatch, is_used=True, mismatches=(other,))
        assert "physical cores" in self.show(self.fill(tmp_path))

    @pytest.mark.parametrize(("is_written", "text"), [(True, "compiled the model again"), (False, "wrote nothing")])
    def test_a_cache_that_is_not_used(
        self, is_written: bool, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.check(monkeypatch, is_used=False, is_written=is_written)
        result = self.fill(tmp_path)
        assert not result.works
        assert text in " ".join(self.show(result).split())


def test_a_program_is_warned_if_the_record_needs_a_folder(tmp_path: Path) -> None:
    record = read_record(save(ON_OPENVINO, tmp_path))
    expected = "each new session compiles the model, because openvino.cache_dir names no folder: set --cache-dir"
    assert describe_missing_cache(record, spell_as_flag) == expected
    filled = record.map_configs(lambda config: with_caches(config, tmp_path))
    assert describe_missing_cache(filled) == ""
    assert describe_missing_cache(msgspec.structs.replace(record, cache_options=())) == ""


def test_a_record_names_options_only_if_sessions_start_from_what_was_compiled() -> None:
    compiled = SessionInfo(load_ns=1, providers=(OPENVINO, CPU), build_s=1.5)
    again = msgspec.structs.replace(compiled, build_s=None)
    assert find_cache_options(ON_OPENVINO, [again]) == ()
    assert find_cache_options(ON_OPENVINO, [again, compiled]) == ("openvino.cache_dir",)
    assert find_cache_options(DEFAULT, [compiled]) == ()


@needs_openvino
class TestOpenvinoCaches:
    def test_what_the_cache_is_good_for(self, tmp_path: Path) -> None:
        """OpenVINO's CPU device wrote the model again for each session in all versions that were tried, up to 1.24.1.

        If a later version uses it, the answer is the other one: in any case, it is that of the files.
        """
        record = save(ON_OPENVINO, tmp_path)
        done = run_ortune("apply", record, "--warm", "--cache-dir", "keep", "--json", cwd=tmp_path)
        result = json.loads(done.stdout)
        assert (result["n_written"], result["n_files"]) == (1, 1)
        is_used = result["check"]["loaded"]["build_s"] is not None
        assert done.returncode == (0 if is_used else 1)
        (blob,) = list_blobs(tmp_path / "keep")
        before = blob.stat().st_mtime_ns
        ortune.create_session(TINY_CNN, record, cache_dir=tmp_path / "keep")
        assert (blob.stat().st_mtime_ns == before) == is_used

    def test_a_program_gets_the_folder(self, tmp_path: Path) -> None:
        keep = tmp_path / "keep"
        keep.mkdir()
        record = save(ON_OPENVINO, tmp_path)
        done = run_program(sys.executable, "-c", CODE, record=record, options=("--cache-dir", str(keep)))
        assert done.returncode == 0, done.stderr
        assert len(list_blobs(keep)) == 1

    def test_create_session(self, tmp_path: Path) -> None:
        ortune.create_session(TINY_CNN, save(ON_OPENVINO, tmp_path), cache_dir=tmp_path / "keep")
        assert len(list_blobs(tmp_path / "keep")) == 1

    def test_a_search_says_what_production_needs(self, tmp_path: Path) -> None:
        done = run_ortune("search", TINY_CNN, "--provider", "openvino", "--budget", "20s", "-o", "r.json", cwd=tmp_path)
        assert done.returncode in {0, 3}, done.stderr
        record = read_record(tmp_path / "r.json")
        baseline = record.evidence.baseline
        assert record.cache_options == (("openvino.cache_dir",) if baseline and baseline.build_s else ())
        assert str(tmp_path) not in encode_record(record).decode().replace(str(TINY_CNN), "")
