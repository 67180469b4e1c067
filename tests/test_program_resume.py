"""Searches of programs on disk: going on after an interrupt."""

from __future__ import annotations

import errno
import functools
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ortune import OrtuneError, UsageError, read_record
from ortune.cli.after_dashes import route
from ortune.cli.search import make_resume_command
from ortune.options import make_request
from ortune.program import prepare as preparing
from ortune.program import search as searching
from ortune.program.identity import digest_scripts
from ortune.program.observation import SeenShapes
from ortune.program.prepare import ObservedRun, PreparedProgram, observe_program, prepare_program, restore_shares
from ortune.program.search import ProgramResult, search_program
from ortune.record import files, rescue
from ortune.record.files import encode_record, read_records
from ortune.record.journal import Content
from ortune.record.schema import RECORD_SCHEMA, Bundle
from ortune.requests import ProgramSearchRequest
from ortune.worker import Runtime
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.journals import count_blocks, scan, suspended_search, wait_for_blocks
from tests.light_programs import light_sessions
from tests.simulated import Effect, Scenario, SimulatedPrograms, is_one_thread

PROGRAM = Path(__file__).parent / "programs" / "worker.py"
COMMAND = (sys.executable, str(PROGRAM), str(TINY_CNN), "run", "3")

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="programs are tuned on POSIX systems")


@functools.cache
def observe_once() -> ObservedRun:
    """Return what is seen of the program."""
    request = make_request(ProgramSearchRequest, {"command": COMMAND}, "python")
    with light_sessions():
        return observe_program(preparing.make_task(request), None, 0.0)


UNFINISHED: dict[str, bytes] = {}
"""The files of an unfinished search, by their names."""


class Searches:
    """Searches of one program on a simulated host.

    Attributes:
        output: The record.
        observed: What is seen of the program.
        executor: The executor of the last search.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.output = folder / "a.json"
        self.observed = observe_once()
        self.executor: SimulatedPrograms | None = None
        self.interrupt_at: int | None = None
        monkeypatch.setattr(preparing, "observe_program", lambda task, server, observe_s: self.observed)
        monkeypatch.setattr(searching, "open_program_executor", self._open)

    def _open(self, task: object, models: object, runtime: Runtime, *others: Any, **options: Any) -> SimulatedPrograms:
        self.executor = SimulatedPrograms(
            Scenario(
                call_ms=20,
                effects=(Effect(settings={"intra_op_num_threads": 1}, factor=0.25),),
                interrupt_at=self.interrupt_at,
            ),
            task,
            runtime,
        )
        return self.executor

    def prepare(self, **options: Any) -> PreparedProgram:
        """Return a search that is ready to run."""
        values = {"command": COMMAND, "output": self.output, "budget": "40s", **options}
        return prepare_program(make_request(ProgramSearchRequest, values, "python"))

    def run(self, interrupt_at: int | None = None, **options: Any) -> ProgramResult:
        """Run a search; an interrupt may come before this block."""
        self.interrupt_at = interrupt_at
        return search_program(self.prepare(**options))

    def leave_unfinished(self) -> None:
        """Have the files of a search that was interrupted, which is run once for all tests."""
        if not UNFINISHED:
            self.run(interrupt_at=50)
            UNFINISHED.update({path.name: path.read_bytes() for path in self.output.parent.glob("a.*")})
        for name, data in UNFINISHED.items():
            self.output.with_name(name).write_bytes(data)

    def read_journal(self) -> Content:
        """Return what the journal has."""
        return scan(self.output.with_name("a.unfinished.jsonl").read_bytes())

    @property
    def has_journal(self) -> bool:
        """Whether there is a journal."""
        return self.output.with_name("a.unfinished.jsonl").exists()


@pytest.fixture
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models_read_here: None) -> Searches:
    return Searches(tmp_path, monkeypatch)


class TestGoingOn:
    @pytest.mark.parametrize("block", [20, 60])
    def test_what_is_kept_is_not_measured_again(self, searches: Searches, block: int) -> None:
        interrupted = searches.run(interrupt_at=block)
        assert interrupted.outcome.interrupted
        assert interrupted.unfinished
        kept = searches.read_journal()
        prepared = searches.prepare(resume=True)
        assert prepared.n_kept_blocks == kept.n_blocks
        searches.interrupt_at = None
        result = search_program(prepared)
        assert result.outcome.evidence.verdict == "faster"
        assert is_one_thread(result.outcome.config)
        assert result.outcome.rounds[: len(interrupted.outcome.rounds)] == interrupted.outcome.rounds
        assert result.unfinished is None
        assert not searches.has_journal
        record = read_record(searches.output)
        assert record.search.n_resumes == 1
        assert not record.search.interrupted
        assert record.search.started == interrupted.records[0].search.started

    def test_an_interrupt_before_the_program_is_known(self, searches: Searches) -> None:
        with pytest.raises(KeyboardInterrupt):
            searches.run(interrupt_at=2)
        n_kept = searches.read_journal().n_blocks
        assert 0 < n_kept <= 3
        assert searches.prepare(resume=True).n_kept_blocks == n_kept
        assert searches.run(resume=True).outcome.evidence.verdict == "faster"

    def test_each_block_is_measured_once(self, searches: Searches) -> None:
        whole = searches.run()
        assert searches.executor
        n_blocks = searches.executor.n_blocks
        n_measured = 0
        for attempt in range(20):
            result = searches.run(interrupt_at=20, resume=bool(attempt))
            n_measured += searches.executor.n_blocks
            if not result.outcome.interrupted:
                break
        assert attempt > 2
        assert whole.outcome.evidence.verdict == result.outcome.evidence.verdict == "faster"
        assert 0.5 < n_measured / n_blocks < 2

    def test_one_that_is_done_leaves_no_journal(self, searches: Searches) -> None:
        assert searches.run().unfinished is None
        assert not searches.has_journal
        searches.run()

    def test_an_error_says_how_to_go_on(self, searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
        searches.run(interrupt_at=40)
        prepared = searches.prepare(resume=True)
        runtime = msgspec.structs.replace(prepared.runtime, providers=("OtherProvider",))
        with pytest.raises(OrtuneError, match="providers: ") as caught:
            search_program(msgspec.structs.replace(prepared, runtime=runtime))
        assert any("What was measured is kept in" in text for text in caught.value.details)
        assert "resume" in caught.value.hint


class TestRefusal:
    def test_an_unfinished_search_is_not_overwritten(self, searches: Searches) -> None:
        searches.leave_unfinished()
        n_blocks = searches.read_journal().n_blocks
        with pytest.raises(UsageError, match=rf"{n_blocks} blocks of it are kept"):
            searches.prepare()
        searches.run(restart=True)
        assert not searches.has_journal

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"command": (*COMMAND[:-1], "4")}, "command: "),
            ({"command": (sys.executable, "-P", *COMMAND[1:])}, "command: "),
            ({"only": ("intra_op_num_threads",)}, "space: "),
            ({"fix": {"session.intra_op.allow_spinning": "0"}}, "base: "),
            ({"budget": "41s"}, "budget: 40.0 then, 41.0 now"),
            ({"trials": 3}, "trials: null then, 3 now"),
            ({"seed": 3}, "seed: 0 then, 3 now"),
            ({"objective": "cpu"}, "objectives: "),
            ({"limit": "memory<1GB"}, "limits: "),
            ({"call": "__main__:work"}, "measured: "),
            ({"metric": "rate", "maximize": True}, "measured: "),
            ({"ignore_outputs": True}, "outputs: "),
            ({"stdin": TINY_CNN}, "stdin: "),
            ({"beside": "sleep 1000"}, "background load: "),
        ],
    )
    def test_options_that_differ(self, searches: Searches, options: dict[str, Any], message: str) -> None:
        searches.leave_unfinished()
        kept = searches.read_journal()
        with pytest.raises(UsageError, match="something changed since it began") as caught:
            searches.run(resume=True, **options)
        assert message in str(caught.value)
        assert searches.read_journal() == kept

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda session: {"sha256": "1" * 64}, "model tiny_cnn.onnx: "),
            (lambda session: {"n_sessions": 2}, "sessions of tiny_cnn.onnx: 1 then, 2 now"),
            (lambda session: {"options": {"intra_op_num_threads": 2}}, "own settings of tiny_cnn.onnx: "),
        ],
    )
    def test_a_program_that_differs(
        self, searches: Searches, change: Callable[[object], dict[str, Any]], message: str
    ) -> None:
        searches.leave_unfinished()
        (process,) = searches.observed.reading.processes
        (session,) = process.sessions
        changes = change(session)
        if "sha256" in changes:  # the file is another one, too
            changes |= {"path": str(TINY_ENCODER), "model": "tiny_cnn.onnx"}
        sessions = (msgspec.structs.replace(session, **changes),)
        processes = (msgspec.structs.replace(process, sessions=sessions),)
        reading = msgspec.structs.replace(searches.observed.reading, processes=processes)
        searches.observed = msgspec.structs.replace(searches.observed, reading=reading)
        with pytest.raises(UsageError, match="something changed since it began") as caught:
            searches.run(resume=True)
        assert message in str(caught.value) or "model tiny_encoder.onnx: unknown then" in str(caught.value)

    def test_a_script_that_was_edited(self, searches: Searches, tmp_path: Path) -> None:
        script = tmp_path / "app.py"
        script.write_bytes(PROGRAM.read_bytes())
        command = (sys.executable, "-u", str(script), *COMMAND[2:])
        searches.run(interrupt_at=20, command=command)
        script.write_bytes(PROGRAM.read_bytes() + b"# edited")
        with pytest.raises(UsageError, match="script: "):
            searches.run(resume=True, command=command)

    @pytest.mark.parametrize("before", [[], ["python"], ["python", "-u"], ["env", "python"], ["run", "other.py"]])
    def test_every_python_file_of_a_command_is_compared(self, before: list[str], tmp_path: Path) -> None:
        script = tmp_path / "app.py"
        command = [*before, str(script)]
        assert digest_scripts(command) == ""
        digests = set()
        for text in ("a", "b"):
            script.write_text(text)
            digests.add(digest_scripts(command))
        assert len(digests) == 2
        assert digest_scripts(["python", "-m", "app"]) == digest_scripts(["uvicorn", "app:app"]) == ""

    def test_another_host_or_runtime(self, searches: Searches) -> None:
        searches.leave_unfinished()
        prepared = searches.prepare(resume=True)
        runtime = msgspec.structs.replace(prepared.runtime, onnxruntime="9.9")
        host = msgspec.structs.replace(prepared.host, cpu_model="another")
        with pytest.raises(UsageError) as caught:
            search_program(msgspec.structs.replace(prepared, runtime=runtime, host=host))
        assert f"onnxruntime: {prepared.runtime.onnxruntime} then, 9.9 now" in str(caught.value)
        assert "another now" in str(caught.value)

    def test_passwords_are_not_kept(self, searches: Searches) -> None:
        searches.run(interrupt_at=50, command=(*COMMAND, "--password=secret"), check_command="true secret")
        assert b"secret" not in searches.output.with_name("a.unfinished.jsonl").read_bytes()

    def test_contradictory_options(self, searches: Searches) -> None:
        with pytest.raises(UsageError, match="contradict"):
            searches.prepare(resume=True, restart=True)
        with pytest.raises(UsageError, match="only a search that writes its record to a file"):
            searches.prepare(resume=True, output=None)


class TestShares:
    """The models of a program are in the order of their time, which differs from run to run."""

    def test_what_varies_from_run_to_run_stays_what_it_was(self, searches: Searches) -> None:
        prepared = searches.prepare()
        one, other = prepared.models[0], msgspec.structs.replace(prepared.models[0], name="b", share=0.4)
        own = prepared.identities[0]
        identities = (own, msgspec.structs.replace(own, digest="b"))
        shapes = (SeenShapes(inputs=(), count=9),)
        models = (msgspec.structs.replace(one, share=0.6, shapes=shapes), other)
        then = {"b": 0.51, own.digest: 0.49}
        found, order = restore_shares(models, identities, then)
        assert [(model.name, model.share) for model in found] == [("b", 0.51), (one.name, 0.49)]
        assert found[1].shapes == shapes
        assert [identity.digest for identity in order] == ["b", own.digest]
        assert restore_shares(models, identities, {"c": 1.0}) == (models, identities)

    def test_they_are_kept(self, searches: Searches) -> None:
        searches.leave_unfinished()
        begin = searches.read_journal().begin
        assert begin
        (share,) = begin.shares.values()
        assert 0 < share <= 1


@pytest.mark.parametrize(
    ("arguments", "again"),
    [
        ("ortune search -o a.json -- app --resume", "ortune search -o a.json --resume -- app --resume"),
        ("ortune search --restart -- app -- x", "ortune search --resume -- app -- x"),
        ("ortune search m.onnx --resume", "ortune search m.onnx --resume"),
    ],
)
def test_the_command_that_goes_on(arguments: str, again: str) -> None:
    assert make_resume_command(route(arguments.split())) == again


class TestWriting:
    def test_a_record_that_proves_more_is_kept(self, searches: Searches) -> None:
        proven = searches.run()
        assert proven.outcome.evidence.verdict == "faster"
        assert proven.kept is None
        interrupted = searches.run(interrupt_at=20)
        assert interrupted.kept == searches.output.with_name("a.before.json")
        assert read_record(interrupted.kept).evidence == proven.records[0].evidence

    def test_a_bundle_that_proves_more_is_kept(self, searches: Searches) -> None:
        (record,) = searches.run().records
        other = msgspec.structs.replace(record, model=msgspec.structs.replace(record.model, digest="0" * 64))
        searches.output.write_bytes(encode_record(Bundle(schema=RECORD_SCHEMA, records=(record, other))))
        kept = searches.run(interrupt_at=20).kept
        assert kept
        assert len(read_records(kept)) == 2

    def test_a_record_that_cannot_be_written_is_rescued(
        self, searches: Searches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = files.write_complete

        def fail(path: Path, data: bytes, like: Path | None = None) -> AbstractContextManager[Path]:
            if path.parent == searches.output.parent:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(path, data, like)

        (tmp_path / "other").mkdir()
        monkeypatch.setattr(rescue, "find_folders", lambda: iter([tmp_path / "other"]))
        monkeypatch.setattr(files, "write_complete", fail)
        result = searches.run()
        assert result.fault
        (folder,) = (tmp_path / "other").iterdir()
        assert result.fault.hint == f"The record was written to {folder / 'a.json'} instead."
        assert read_record(folder / "a.json").evidence.verdict == "faster"
        assert searches.has_journal


@pytest.mark.parametrize(
    ("measure", "arguments"),
    [
        (("--call", "__main__:work"), ("forever", "0")),
        pytest.param((), ("run", "3"), marks=pytest.mark.long),
        pytest.param(("--url", "http://127.0.0.1:{port}/"), ("serve", "{port}"), marks=pytest.mark.long),
    ],
    ids=["calls", "runs", "server"],
)
@pytest.mark.long
def test_a_search_that_was_killed_goes_on(
    measure: Sequence[str], arguments: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIGHT_SESSIONS", "1")
    journal = tmp_path / "c.unfinished.jsonl"
    options = ("search", "-o", "c.json", "--budget", "10s", *measure, "--only", "intra_op_num_threads")
    program = ("--", sys.executable, str(PROGRAM), str(TINY_CNN), *arguments)
    command = [sys.executable, "-P", "-m", "ortune", *options, *program]
    with suspended_search(command, journal, 4) as process:
        refused = run_ortune(*options, *program, cwd=tmp_path)
        assert refused.returncode == 2
        assert f"Process {process.pid} is running a search" in refused.stderr
    n_kept = count_blocks(journal)
    assert n_kept >= 4
    refused = run_ortune(*options, *program, cwd=tmp_path)
    assert refused.returncode == 2
    assert f"{n_kept} blocks of it are kept" in refused.stderr
    resumed = run_ortune(*options, "--resume", *program, cwd=tmp_path)
    assert resumed.returncode in {0, 3}, resumed.stderr
    assert f"{n_kept} blocks measured before" in resumed.stdout
    record = read_record(tmp_path / "c.json")
    assert record.search.n_resumes == 1
    assert not record.search.interrupted
    assert sorted(file.name for file in tmp_path.iterdir()) == ["c.json", "c.trials.jsonl.gz"]


@pytest.mark.long
def test_an_interrupted_search_says_how_to_go_on(tmp_path: Path) -> None:
    program = (sys.executable, str(PROGRAM), str(TINY_CNN), "run", "3")
    command = [sys.executable, "-P", "-m", "ortune", "search", "-o", "c.json", "--budget", "30s", "--", *program]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_for_blocks(tmp_path / "c.unfinished.jsonl", 5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert f"ortune search -o c.json --budget 30s --resume -- {shlex.join(program)}" in output
    assert read_record(tmp_path / "c.json").search.interrupted
