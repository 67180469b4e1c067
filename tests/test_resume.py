"""Searches on disk: their journal, and going on after an interrupt."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import optuna
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ortune import Config, MeasureError, OrtuneError, Tolerance, UsageError, Workload, checked_lines, read_record
from ortune.host import HostClass
from ortune.knobs import CPU, DEFAULT, SpaceOptions, build_space
from ortune.knobs.config import Plugin
from ortune.model import InputInfo
from ortune.options import make_request
from ortune.record.files import read_trials
from ortune.record.journal import (
    Begin,
    Journal,
    Launched,
    LaunchResult,
    Line,
    Measured,
    Resume,
    encode_event,
    pack_block,
    path_of_journal,
    read_unfinished,
)
from ortune.requests import SearchRequest
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Outcome
from ortune.tuning.prepare import prepare
from ortune.tuning.resume import check_identity, describe_identity, find_unfinished, make_begin, open_journal
from ortune.tuning.study import open_storage, open_study
from ortune.worker import Block, BlockPlan, Failure, Memory, SessionInfo
from ortune.workload import InputOptions, make_feed
from tests.budgets import scale_budget
from tests.conftest import TINY_CNN, run_ortune
from tests.journals import count_blocks, list_events, scan, suspended_search, wait_for_blocks
from tests.records import ONE_THREAD
from tests.simulated import RUNTIME, Scenario, SimulatedExecutor, make_host, make_model, open_with_journal
from tests.test_tuning import one_thread_wins

MODEL = make_model(
    inputs=(InputInfo(name="x", dtype="float32", shape=(2, 3)), InputInfo(name="s", dtype="string", shape=(2,)))
)
QNN = "QNNExecutionProvider"
SPACE_WITH_PLUGIN = SpaceOptions(providers=(CPU, QNN), plugins={QNN: Plugin(package="onnxruntime-qnn")})
BEGIN = Begin(id="1", pid=os.getpid(), started="2026-01-01T00:00:00+00:00", identity={})
AGAIN = Resume(pid=os.getpid(), started="2026-01-02T00:00:00+00:00")


def search(
    path: Path,
    executor: SimulatedExecutor,
    *,
    seconds: float = 40,
    study: Path | None = None,
    replaced_id: str = "",
    seed: int = 0,
) -> Outcome:
    """Run a search with a journal, and go on with the one in the file if there is one."""
    with Journal(path, BEGIN, AGAIN) as journal:
        opened = open_with_journal(executor, journal, seed=seed)
        assert not isinstance(opened, Failure)
        outcome = run_search(
            build_space(make_host(), make_model()),
            opened,
            SearchSettings(budget_s=seconds, study_path=study, study_id=BEGIN.id, replaced_study_id=replaced_id),
        )
    assert not executor.live
    return outcome


def read_blocks(path: Path) -> list[Measured]:
    return [event for event in list_events(path.read_bytes()) if isinstance(event, Measured)]


class TestContent:
    """What a file says is checked, also if its checksums are right."""

    @pytest.mark.parametrize(
        "changes",
        [
            {"answers": ()},
            {"answers": (LaunchResult(),)},
            {"runtime": None},
            {"at_s": -1.0},
            {"at_s": 1e300},
        ],
    )
    def test_a_launch_that_no_search_writes_ends_the_file(self, changes: dict[str, object]) -> None:
        launched = list_events(b"".join(LINES))[0]
        assert isinstance(launched, Launched)
        changed = msgspec.structs.replace(launched, **changes)
        assert list_events(LINES[0] + encode_event(changed)) == ()
        assert list_events(LINES[0] + encode_event(launched)) == (launched,)

    @pytest.mark.parametrize("changes", [{"block": None}, {"launch": -1}, {"at_s": -1.0}])
    def test_a_block_that_no_search_writes_ends_the_file(self, changes: dict[str, object]) -> None:
        measured = list_events(b"".join(LINES))[1]
        changed = msgspec.structs.replace(measured, **changes)
        assert len(list_events(b"".join(LINES[:2]) + encode_event(changed))) == 1

    @pytest.mark.parametrize(
        "changes",
        [
            {"wall_ns": 0},
            {"n_calls": -1.0},
            {"service_ns": 1e300},
            {"cpu_ns": -1},
            {"samples_ns": zlib.compress(b"")},
            {"samples_ns": zlib.compress(b"\0" * 8)},
            {"samples_ns": zlib.compress(b"\1" * 7)},
            {"cases": zlib.compress(b"\1" * 8)},
            {"memory": Memory(steady_bytes=-1, peak_bytes=1)},
        ],
    )
    def test_a_block_that_no_worker_sends(self, changes: dict[str, object]) -> None:
        measured = list_events(b"".join(LINES))[1]
        assert isinstance(measured, Measured)
        assert measured.block
        measured.unpack()
        changed = msgspec.structs.replace(measured, block=msgspec.structs.replace(measured.block, **changes))
        with pytest.raises(ValueError, match=r"no worker sends|buffer size"):
            changed.unpack()


class TestGoingOn:
    @pytest.mark.parametrize("block", [4, 30, 150, 200, 270])
    def test_what_is_kept_is_not_measured_again(self, tmp_path: Path, block: int) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        interrupted = search(path, SimulatedExecutor(one_thread_wins, interrupt_at=block))
        assert interrupted.interrupted
        kept = path.read_bytes()
        assert len(read_blocks(path)) == block - 1
        executor = SimulatedExecutor(one_thread_wins, seed=1)
        outcome = search(path, executor)
        assert path.read_bytes().startswith(kept)
        assert len(read_blocks(path)) == block - 1 + executor.n_blocks
        assert not outcome.interrupted
        assert outcome.evidence.verdict == "faster"
        assert outcome.config.session_options["intra_op_num_threads"] == 1
        n_before = len(interrupted.rounds)
        assert outcome.rounds[:n_before] == interrupted.rounds

    def test_a_search_that_was_done_comes_to_the_same_result(self, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        done = search(path, SimulatedExecutor(one_thread_wins))
        executor = SimulatedExecutor(one_thread_wins, seed=1)
        again = search(path, executor)
        assert msgspec.json.encode(again) == msgspec.json.encode(done)
        assert executor.n_blocks == 0
        assert executor.launched == []

    def test_again_and_again(self, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        for attempt in range(100):
            executor = SimulatedExecutor(one_thread_wins, seed=attempt, interrupt_at=31)
            outcome = search(path, executor)
            if not outcome.interrupted:
                break
            assert len(read_blocks(path)) == 30 * (attempt + 1)
        assert attempt > 3
        assert outcome.evidence.verdict == "faster"

    def test_interruptions_do_not_use_up_the_budget(self, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        search(path, SimulatedExecutor(one_thread_wins, interrupt_at=100))
        at_s = read_blocks(path)[-1].at_s
        executor = SimulatedExecutor(one_thread_wins)
        executor.time_s = 1e6
        search(path, executor)
        times = [event.at_s for event in list_events(path.read_bytes())]
        assert times == sorted(times)
        assert at_s < times[-1] < 44

    def test_workers_that_end_are_kept_too(self, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        rng = np.random.default_rng(0)
        broken = Failure(kind="crash", stage="load", message="ended by SIGSEGV")

        def fails(config: object) -> Failure | None:
            return broken if executor.launched[1:] and rng.random() < 0.2 else None

        executor = SimulatedExecutor(one_thread_wins, fails_to_launch=fails, interrupt_at=200)
        before = search(path, executor)
        executor = SimulatedExecutor(one_thread_wins)
        outcome = search(path, executor)
        assert outcome.rounds[: len(before.rounds)] == before.rounds
        assert outcome.evidence.noise.n_relaunched == before.evidence.noise.n_relaunched > 5

    @pytest.mark.parametrize("stage", ["start", "load", "measure"])
    def test_what_ended_a_search_is_done_again(self, tmp_path: Path, stage: str) -> None:
        """An error of the host, or a baseline that failed, would otherwise end the search again without a new block."""
        path = tmp_path / "a.unfinished.jsonl"
        broken = Failure(kind="crash", stage=stage, message="a passing reason")

        def fail(config: Config) -> Failure | None:
            if executor.n_blocks <= 40:
                return None
            executor.dies_when_measured = (DEFAULT,)
            return None if stage == "measure" else broken

        executor = SimulatedExecutor(one_thread_wins, fails_to_launch=fail)
        before = search(path, executor)
        assert before.fault
        n_kept = len(read_blocks(path))
        assert n_kept > 40
        for seed in (1, 2):  # also a second time
            executor = SimulatedExecutor(one_thread_wins, seed=seed, interrupt_at=60 if seed == 1 else None)
            outcome = search(path, executor)
            assert executor.n_blocks
        assert not outcome.fault
        assert outcome.evidence.verdict == "faster"
        assert outcome.rounds[: len(before.rounds) - 1] == before.rounds[:-1]

    def test_a_clock_that_runs_backwards_is_no_traceback(self, tmp_path: Path) -> None:
        """As in a file that no search wrote."""
        path = tmp_path / "a.unfinished.jsonl"
        search(path, SimulatedExecutor(one_thread_wins, interrupt_at=30))
        first, block, *rest = list_events(path.read_bytes())
        events = (first, msgspec.structs.replace(block, at_s=7.0), *rest)
        path.write_bytes(b"".join(map(encode_event, (BEGIN, *events))))
        with contextlib.suppress(MeasureError):  # other decisions
            search(path, SimulatedExecutor(one_thread_wins))

    def test_another_runtime_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        search(path, SimulatedExecutor(one_thread_wins, interrupt_at=100))
        kept = path.read_bytes()
        executor = SimulatedExecutor(one_thread_wins)
        executor.runtime = msgspec.structs.replace(RUNTIME, onnxruntime="9.9")
        outcome = search(path, executor)
        assert isinstance(outcome.fault, UsageError)
        assert "onnxruntime: simulated then, 9.9 now" in str(outcome.fault)
        assert len(read_blocks(path)) == len(list_events(kept)) - kept.count(b'"type":"launch"')

    def test_another_decision_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        search(path, SimulatedExecutor(one_thread_wins, interrupt_at=200))
        outcome = search(path, SimulatedExecutor(one_thread_wins), seed=1)
        assert isinstance(outcome.fault, MeasureError)
        assert "decides differently" in outcome.fault.message

    @pytest.mark.parametrize("suffix", [".db", ".journal"])
    def test_the_study_is_made_again(self, tmp_path: Path, suffix: str) -> None:
        path, study = tmp_path / "a.unfinished.jsonl", tmp_path / f"study{suffix}"
        search(path, SimulatedExecutor(one_thread_wins, interrupt_at=20), seconds=10, study=study)
        with pytest.raises(UsageError, match="the file exists already"):
            search(path, SimulatedExecutor(one_thread_wins), seconds=10, study=study, replaced_id="other")
        outcome = search(path, SimulatedExecutor(one_thread_wins), seconds=10, study=study, replaced_id=BEGIN.id)
        loaded = optuna.load_study(study_name="ortune", storage=open_storage(study))
        configs = {trial.user_attrs.get("config") for trial in loaded.trials}  # none where there was no time
        assert configs >= {trial.config.key for trial in outcome.trials}

    @pytest.mark.parametrize("suffix", [".db", ".journal"])
    def test_of_two_searches_that_start_together_one_gets_the_study(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
    ) -> None:
        """Both find that there is no file."""
        path, sampler = tmp_path / f"study{suffix}", optuna.samplers.RandomSampler()
        monkeypatch.setattr("ortune.tuning.study.check_study", lambda *arguments: None)
        first = open_study(path, sampler, 1, search_id="first")
        with pytest.raises(UsageError, match="cannot be created: File exists"):
            open_study(path, sampler, 1, search_id="second")
        first.tell(first.ask(), 1.0)
        loaded = optuna.load_study(study_name="ortune", storage=open_storage(path))
        assert loaded.user_attrs == {"search": "first"}
        assert [trial.value for trial in loaded.trials] == [1.0]

    def test_a_disk_that_is_full_ends_the_search_and_keeps_what_it_has(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        write, n_written = os.write, 0

        def write_until_full(descriptor: int, data: bytes) -> int:
            nonlocal n_written
            n_written += 1
            if n_written == 100:
                return write(descriptor, data[: len(data) // 2])
            if n_written > 100:
                raise OSError(28, "No space left on device")
            return write(descriptor, data)

        monkeypatch.setattr(os, "write", write_until_full)
        outcome = search(path, SimulatedExecutor(one_thread_wins))
        monkeypatch.undo()
        assert isinstance(outcome.fault, UsageError)
        assert "No space left on device" in outcome.fault.message
        assert outcome.evidence.best_so_far is not None
        content = scan(path.read_bytes())
        assert content.n_bytes == path.stat().st_size
        assert content.n_events == 98
        assert search(path, SimulatedExecutor(one_thread_wins)).evidence.verdict == "faster"


def make_block(rng: np.random.Generator) -> Block:
    executor = SimulatedExecutor(one_thread_wins, seed=int(rng.integers(99)))
    (live,) = executor.launch([DEFAULT], deadline_s=1)
    assert not isinstance(live, Failure)
    block = live.measure(PLAN)
    assert isinstance(block, Block)
    return block


PLAN = BlockPlan(duration_ns=10**7, lead_in_ns=0, min_calls=3, deadline_s=9.0)


def make_lines(n: int = 4) -> list[bytes]:
    rng = np.random.default_rng(0)
    works = LaunchResult(session_info=SessionInfo(load_ns=1, providers=("CPUExecutionProvider",), max_error=0.0))
    lines: list[Line] = [BEGIN, Launched(configs=("{}",), answers=(works,), runtime=RUNTIME, at_s=0.0)]
    lines += [
        Measured(launch=0, position=0, plan=PLAN, block=pack_block(make_block(rng)), at_s=float(number))
        for number in range(n)
    ]
    return [encode_event(line) for line in lines]


LINES = make_lines()


class TestFile:
    @pytest.mark.skipif(sys.platform == "win32", reason="named pipes")
    def test_a_pipe_is_no_journal(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "c.unfinished.jsonl")
        with pytest.raises(UsageError, match="not a regular file"):
            Journal(tmp_path / "c.unfinished.jsonl", BEGIN, AGAIN)

    @pytest.mark.parametrize("exists", [True, False])
    def test_a_link_is_no_journal(self, tmp_path: Path, *, exists: bool) -> None:
        """It may have come with the folder, and lead to any file of the user."""
        target = tmp_path / "target"
        if exists:
            target.touch()
        path = tmp_path / "c.unfinished.jsonl"
        path.symlink_to(target)
        for use in (read_unfinished, lambda path: Journal(path, BEGIN, AGAIN)):
            with pytest.raises(UsageError, match="it is a link"):
                use(path)
        assert target.exists() == exists
        assert not exists or not target.read_bytes()

    def test_blocks_are_what_they_were(self) -> None:
        block = make_block(np.random.default_rng(0))
        cases = np.arange(len(block.samples_ns))
        block = msgspec.structs.replace(
            block,
            cases=cases,
            creations_ns=np.array([7, 8]),
            clock_jump_s=2.0,
            foreign_share=-0.01,
            metric=0.5,
            frequency_hz=2.9e9,
        )
        line = encode_event(Measured(launch=0, position=0, plan=PLAN, block=pack_block(block), at_s=1.5))
        (event,) = list_events(encode_event(BEGIN) + line)
        assert isinstance(event, Measured)
        again = event.unpack()
        assert isinstance(again, Block)
        for name in Block.__struct_fields__:
            one, other = getattr(again, name), getattr(block, name)
            assert np.array_equal(one, other) if isinstance(other, np.ndarray) else one == other, name

    @given(st.integers(0, len(b"".join(LINES))))
    def test_a_file_that_was_cut_off_has_the_lines_before(self, end: int) -> None:
        content = scan(b"".join(LINES)[:end])
        n_whole = sum(1 for number in range(len(LINES)) if end >= len(b"".join(LINES[: number + 1])))
        assert content.n_events == max(n_whole - 1, 0)
        assert (content.begin is not None) == (n_whole > 0)
        assert content.n_bytes == len(b"".join(LINES[:n_whole]))

    @given(st.integers(0, len(b"".join(LINES)) - 1), st.integers(1, 255))
    def test_a_damaged_line_ends_the_file(self, place: int, change: int) -> None:
        data = bytearray(b"".join(LINES))
        data[place] ^= change
        content = scan(bytes(data))
        n_whole = next(number for number in range(len(LINES)) if place < len(b"".join(LINES[: number + 1])))
        assert content.n_events == max(n_whole - 1, 0)

    @given(st.binary(max_size=200))
    @settings(suppress_health_check=[HealthCheck.too_slow])
    def test_any_bytes(self, data: bytes) -> None:
        assert list_events(data) == ()
        assert len(list_events(b"".join(LINES) + data)) == len(LINES) - 1

    def test_it_goes_on_after_the_last_whole_line(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        path.write_bytes(b"".join(LINES)[:-9])
        with Journal(path, BEGIN, AGAIN) as journal:
            assert journal.n_blocks == 3
            assert journal.n_resumes == 1
            journal.append(Launched(configs=(), answers=(), at_s=9.0))
        content = scan(path.read_bytes())
        assert content.n_bytes == path.stat().st_size
        assert content.n_events == 5
        assert content.pid == os.getpid()

    @pytest.mark.parametrize("number", range(1, len(LINES) - 1))
    def test_damage_before_sound_lines_is_refused(self, number: int, tmp_path: Path) -> None:
        """Going on would throw away what follows, and starting over all of it."""
        path = tmp_path / "j"
        lines = [line if place != number else b"0" * 9 + line[9:] for place, line in enumerate(LINES)]
        path.write_bytes(b"".join(lines))
        with pytest.raises(UsageError, match="is damaged"):
            read_unfinished(path)
        for resume in (AGAIN, None):
            with pytest.raises(UsageError, match="is damaged"):
                Journal(path, BEGIN, resume)
        assert path.read_bytes() == b"".join(lines)

    @pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
    def test_a_journal_that_does_not_fit_into_memory(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        block = make_block(np.random.default_rng(0))
        samples = np.random.default_rng(0).integers(1, 2**62, 1 << 17)
        block = msgspec.structs.replace(block, samples_ns=samples, n_calls=float(len(samples)))
        measured = Measured(launch=0, position=0, plan=PLAN, block=pack_block(block), at_s=1.0)
        line = encode_event(measured)
        n = (96 << 20) // len(line)
        with path.open("wb") as file:
            file.write(b"".join(LINES[:2]))
            for _ in range(n):
                file.write(line)
        code = (
            "import numpy, psutil, resource, sys; from pathlib import Path\n"
            "from ortune.record.journal import Begin, Journal, Measured, Resume\n"
            "begin, again = Begin(id='1', pid=1, started='', identity={}), Resume(pid=1, started='')\n"
            "resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + (48 << 20),) * 2)\n"
            "with Journal(Path(sys.argv[1]), begin, again) as journal:\n"
            "    events = [event.unpack().n_calls for event in journal.read_earlier() if isinstance(event, Measured)]\n"
            "    print(journal.n_blocks, len(events))"
        )
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        assert done.stdout == f"{n} {n}\n", done.stderr

    def test_a_line_that_is_too_long_ends_the_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        most = max(len(line) for line in LINES)
        monkeypatch.setattr(checked_lines, "MOST_LINE_BYTES", most)
        path = tmp_path / "j"
        longer = encode_event(msgspec.structs.replace(BEGIN, identity={"x": "y" * most}))
        path.write_bytes(b"".join(LINES) + longer)
        found = read_unfinished(path)
        assert found
        assert found.n_blocks == len(LINES) - 2
        path.write_bytes(b"".join(LINES[:-1]) + longer + LINES[-1])
        with pytest.raises(UsageError, match="is damaged"):
            read_unfinished(path)

    def test_a_file_that_is_too_large(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        path.write_bytes(b"".join(LINES))
        os.truncate(path, 1 << 40)
        with pytest.raises(UsageError, match="1024 GiB, more than the journal"):
            read_unfinished(path)

    def test_it_is_not_locked_any_more_after_it_was_closed(self, tmp_path: Path) -> None:
        """Also if what reads it is kept, as in the traceback of an exception."""
        path = tmp_path / "j"
        path.write_bytes(b"".join(LINES))
        journal = Journal(path, BEGIN, AGAIN)
        reading = journal.read_earlier()
        assert isinstance(next(reading), Launched)
        journal.close()
        with Journal(path, BEGIN, AGAIN) as again:
            assert len(list(again.read_earlier())) == len(LINES) - 1
        with pytest.raises(UsageError):
            list(reading)

    def test_a_journal_that_changes_while_it_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        path.write_bytes(b"".join(LINES))
        with Journal(path, BEGIN, AGAIN) as journal:
            path.write_bytes(b"".join(LINES[:2]))
            with pytest.raises(UsageError, match="it was changed while it was read"):
                list(journal.read_earlier())

    def test_a_journal_without_blocks_is_removed(self, tmp_path: Path) -> None:
        with Journal(tmp_path / "j", BEGIN) as journal:
            assert journal.path.exists()
        assert not journal.path.exists()

    def test_another_file_is_not_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        for text in ("my notes\n", "my notes", "0123abcd my notes", '0123abcd {"type":"end', "\n"):
            path.write_text(text)
            with pytest.raises(UsageError, match="is not the journal of a search"):
                Journal(path, BEGIN)
            with pytest.raises(UsageError, match="is not the journal of a search"):
                read_unfinished(path)
            assert path.read_text() == text

    def test_a_first_line_that_was_interrupted_is_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        for data in (b"", bytes(4096), LINES[0][:5], LINES[0][:9], LINES[0][:-1]):
            path.write_bytes(data)
            with Journal(path, BEGIN, AGAIN) as journal:
                assert journal.n_resumes == 0

    def test_a_newer_format_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "j"
        path.write_bytes(encode_event(msgspec.structs.replace(BEGIN, format=99)))
        with pytest.raises(UsageError, match="another version of ortune"):
            read_unfinished(path)

    def test_a_second_search_is_refused_with_the_process_of_the_first(self, tmp_path: Path) -> None:
        path = tmp_path / "a.unfinished.jsonl"
        path.write_bytes(b"".join(LINES))
        code = (
            "import os, sys; from pathlib import Path; from ortune.record.journal import Begin, Journal, Resume\n"
            "begin = Begin(id='1', pid=os.getpid(), started='2026-01-01T00:00:00+00:00', identity={})\n"
            "again = Resume(pid=os.getpid(), started='2026-01-02T00:00:00+00:00')\n"
            f"journal = Journal(Path({str(path)!r}), begin, again)\nprint('open', flush=True)\nsys.stdin.read()"
        )
        first = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert first.stdout and first.stdout.readline() == "open\n"
            for again in (None, AGAIN):
                with pytest.raises(UsageError, match=f"Process {first.pid} is running a search"):
                    Journal(path, BEGIN, again)
        finally:
            first.kill()
            first.communicate()
        with Journal(path, BEGIN, AGAIN) as journal:
            assert (journal.n_blocks, journal.n_resumes) == (4, 2)

    @pytest.mark.parametrize("name", ["-", "fifo"])
    def test_records_that_are_no_files_have_none(self, tmp_path: Path, name: str) -> None:
        if name == "fifo":
            os.mkfifo(tmp_path / name)
        assert path_of_journal(tmp_path / name if name == "fifo" else Path(name)) is None

    def test_it_is_next_to_what_a_link_leads_to(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "a.json").symlink_to(tmp_path / "real" / "b.json")
        assert path_of_journal(tmp_path / "a.json") == tmp_path / "real" / "b.unfinished.jsonl"


class TestIdentity:
    def describe(self, **changes: object) -> dict[str, str]:
        request = SearchRequest(model="m.onnx", budget=changes.pop("budget", None))  # type: ignore[arg-type]
        return describe_identity(
            request,
            model=str(changes.pop("model", "1")),
            host=HostClass.of(make_host(int(str(changes.pop("n_cores", 2))))),
            feed=make_feed(MODEL, InputOptions(seed=int(str(changes.pop("data", 0))))),
            workload=Workload(inputs={}, **changes),  # type: ignore[arg-type]
            space=build_space(make_host(2), make_model(), SPACE_WITH_PLUGIN),
        )

    def test_the_versions_of_plugins_that_it_may_choose(self, monkeypatch: pytest.MonkeyPatch) -> None:
        installed = {"onnxruntime-qnn": "2.7.0", "onnxruntime-ep-mlx": "0.1"}
        monkeypatch.setattr("ortune.tuning.resume.find_plugin_versions", lambda: installed)
        then = self.describe()
        installed["onnxruntime-ep-mlx"] = "0.2"
        check_identity(Path("j"), then, self.describe())
        installed["onnxruntime-qnn"] = "2.8.0"
        with pytest.raises(UsageError) as caught:
            check_identity(Path("j"), then, self.describe())
        assert caught.value.details == ("onnxruntime-qnn: 2.7.0 then, 2.8.0 now",)
        del installed["onnxruntime-qnn"]
        assert self.describe()["onnxruntime-qnn"] == "not installed"

    def test_nothing_changed(self) -> None:
        check_identity(Path("j"), self.describe(), self.describe())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"model": "2"}, "model: 1 then, 2 now"),
            ({"data": 1}, "data: "),
            ({"budget": 9.0}, "budget: null then, 9.0 now"),
            ({"n_cores": 4}, "physical cores: 2 then, 4 now"),
            ({"tolerance": Tolerance(relative=0.05)}, "tolerance: "),
        ],
    )
    def test_what_changed_is_named(self, changes: dict[str, object], message: str) -> None:
        with pytest.raises(UsageError, match="something changed since it began") as caught:
            check_identity(Path("j"), self.describe(), self.describe(**changes))
        assert message in str(caught.value)


class TestRequest:
    def request(self, folder: Path, **options: object) -> SearchRequest:
        return SearchRequest(model="m.onnx", output=folder / "a.json", **options)  # type: ignore[arg-type]

    def test_an_unfinished_search_is_not_overwritten(self, tmp_path: Path) -> None:
        (tmp_path / "a.unfinished.jsonl").write_bytes(b"".join(LINES))
        with pytest.raises(UsageError, match=r"did not finish\. 4 blocks of it are kept") as caught:
            find_unfinished(self.request(tmp_path))
        assert "resume" in caught.value.hint and "restart" in caught.value.hint
        for options in ({"resume": True}, {"restart": True}):
            found = find_unfinished(self.request(tmp_path, **options))
            assert found and found.n_blocks == 4

    def test_one_without_blocks_is(self, tmp_path: Path) -> None:
        (tmp_path / "a.unfinished.jsonl").write_bytes(LINES[0])
        assert find_unfinished(self.request(tmp_path)) is None

    def test_one_without_blocks_is_not_gone_on_with(self, tmp_path: Path) -> None:
        """There is nothing to keep, and its model may have been another one."""
        path = tmp_path / "a.unfinished.jsonl"
        path.write_bytes(b"".join(LINES[:2]))
        journal = open_journal(self.request(tmp_path, resume=True), make_begin({"model": "new"}, free_bytes=None))
        assert journal
        with journal:
            assert journal.n_resumes == 0
            assert journal.begin.identity == {"model": "new"}
            assert list(journal.read_earlier()) == []

    def test_there_may_be_none(self, tmp_path: Path) -> None:
        assert find_unfinished(self.request(tmp_path, resume=True)) is None

    def test_only_files_can_go_on(self) -> None:
        with pytest.raises(UsageError, match="only a search that writes its record to a file"):
            find_unfinished(SearchRequest(model="m.onnx", output=Path("-"), resume=True))

    def test_contradictory_options(self, tmp_path: Path) -> None:
        with pytest.raises(OrtuneError, match="contradict"):
            self.request(tmp_path, resume=True, restart=True).check()


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_search_that_was_killed_goes_on(tmp_path: Path) -> None:
    journal, study = tmp_path / "c.unfinished.jsonl", tmp_path / "c.journal"
    options = ["search", TINY_CNN, "-o", "c.json", "--budget", "60s", "--study", study.name]
    only = ["--only", "intra_op_num_threads"]
    command = [sys.executable, "-P", "-m", "ortune", *map(str, options), *only]
    with suspended_search(command, journal, 8) as process:
        refused = run_ortune(*options, *only, cwd=tmp_path)
        assert refused.returncode == 2
        assert f"Process {process.pid} is running a search" in refused.stderr
    assert not (tmp_path / "c.json").exists()
    n_kept = count_blocks(journal)
    assert n_kept >= 8

    refused = run_ortune(*options, *only, cwd=tmp_path)
    assert refused.returncode == 2
    assert f"{n_kept} blocks of it are kept" in refused.stderr
    assert "--resume" in refused.stderr
    changed = run_ortune(*options, "--only", "graph_optimization_level", "--resume", cwd=tmp_path)
    assert changed.returncode == 2
    assert "space: " in changed.stderr

    # Here, the journal matters. Simulated workers take less time than real ones.
    resumed = run_ortune(*options, *only, "--resume", cwd=tmp_path, simulate=True)
    assert resumed.returncode in {0, 3}, resumed.stderr
    assert f"{n_kept} blocks measured before" in resumed.stdout
    record = read_record(tmp_path / "c.json")
    assert record.search.n_resumes == 1
    assert not record.search.interrupted
    assert ONE_THREAD in [trial.config for trial in read_trials(tmp_path / "c.json").trials]
    assert not journal.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.journal", "c.json", "c.trials.jsonl.gz"]
    assert not [
        running_process
        for running_process in psutil.process_iter(["cwd"])
        if running_process.info["cwd"] == str(tmp_path)
    ]


def test_an_interrupted_search_says_how_to_go_on(tmp_path: Path) -> None:
    """Signals of real processes: `test_cli.py`, and below."""
    command = ("search", TINY_CNN, "-o", "c.json")
    interrupted = Scenario(is_here=True, interrupt_at=60)
    done = run_ortune(*command, "--budget", "30s", cwd=tmp_path, simulate=interrupted)
    assert done.returncode == 130
    assert "-o c.json --budget 30s --resume" in done.stdout
    assert read_record(tmp_path / "c.json").search.interrupted
    assert count_blocks(tmp_path / "c.unfinished.jsonl") == 59
    anew = run_ortune(*command, "--trials", "1", "--budget", "5s", "--restart", cwd=tmp_path, simulate=True)
    assert anew.returncode in {0, 3}, anew.stderr
    search = read_record(tmp_path / "c.json").search
    assert (search.n_resumes, search.budget_s, search.interrupted) == (0, 5.0, False)
    assert not (tmp_path / "c.unfinished.jsonl").exists()


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_search_that_a_signal_ends_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ortune", "search", str(TINY_CNN), "-o", "c.json", "--budget", "30s"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Under nohup or in the background of a shell, signals are ignored, which processes inherit.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    wait_for_blocks(tmp_path / "c.unfinished.jsonl", 5)
    process.send_signal(number)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert "-o c.json --budget 30s --resume" in output
    assert read_record(tmp_path / "c.json").search.interrupted


@pytest.mark.skipif(sys.platform == "win32", reason="open files cannot be removed there")
@pytest.mark.long
def test_where_temporary_files_are_removed_the_search_fails_and_keeps_what_it_has(tmp_path: Path) -> None:
    """The default was called best, because all candidates failed on a missing file."""
    temporary, journal = tmp_path / "tmp", tmp_path / "c.unfinished.jsonl"
    temporary.mkdir()
    command = [sys.executable, "-P", "-m", "ortune", "search", str(TINY_CNN), "-o", "c.json"]
    process = subprocess.Popen(
        [*command, "--budget", f"{scale_budget(12)}s", "--trials", "1"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for_blocks(journal, 3)
    shutil.rmtree(temporary, ignore_errors=True)
    output, _ = process.communicate()
    assert process.returncode == 2, output
    assert "something removed ortune's temporary files" in output
    assert "--resume" in output
    record = read_record(tmp_path / "c.json")
    assert record.evidence.verdict == "inconclusive"
    assert record.search.interrupted
    assert count_blocks(journal) >= 3


def test_the_options_are_in_python_too() -> None:
    import ortune

    parameters: Sequence[str] = ortune.search.__signature__.parameters  # type: ignore[attr-defined]
    assert {"resume", "restart"} <= set(parameters)


@pytest.mark.parametrize("option", ["resume", "restart"])
def test_a_storage_of_the_environment_has_all_that_it_needs_to_go_on(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORTUNE_STORAGE", str(tmp_path / "fleet.journal"))
    request = make_request(SearchRequest, {"model": str(TINY_CNN), option: True, "output": str(tmp_path / "t.json")})
    with pytest.raises(UsageError, match="the storage that the environment names"):
        prepare(request)
