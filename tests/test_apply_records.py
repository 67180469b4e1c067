"""Which records a program uses, and errors of `ortune apply`."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from ortune import Config, Record, RecordError, UsageError, install, read_record
from ortune.apply.plan import choose_records
from ortune.program_options import ProgramRequest
from ortune.record.schema import FrontPoint
from tests.applying import PROGRAM, TUNED, outputs, run, sessions, write_tuned
from tests.conftest import TINY_CNN, TINY_ENCODER, run_ortune
from tests.records import ONE_THREAD, make_record, write


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return write_tuned(tmp_path)


class TestWhichRecords:
    def test_a_search_that_proved_no_gain_changes_nothing(self, tmp_path: Path) -> None:
        """Such a record holds the default because nothing better was proven."""
        record = write(make_record(TINY_CNN, Config()), tmp_path / "r.json")
        assert read_record(record).evidence.verdict == "inconclusive"
        code = f"""
        import onnxruntime as ort
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        print(ort.InferenceSession({str(TINY_CNN)!r}, options).get_session_options().intra_op_num_threads)
        """
        done = run(sys.executable, "-c", textwrap.dedent(code), record=record, options=("--explain",))
        assert done.stdout == "2\n"
        assert "is not used: its search proved no gain" in done.stderr
        assert "keeps the program's own options: its search proved no gain" in done.stderr

    def test_a_default_that_was_proven_to_be_best_is_used(self, tmp_path: Path) -> None:
        record = make_record(TINY_CNN, Config())
        best = msgspec.structs.replace(record.evidence, verdict="default_is_best")
        path = write(msgspec.structs.replace(record, evidence=best), tmp_path / "r.json")
        (choice,) = choose_records([path], ProgramRequest())
        assert choice.applies

    def front(self) -> Record:
        record = make_record(TINY_CNN, Config())
        winner = record.evidence.winner
        assert winner
        points = tuple(
            FrontPoint(
                summary=msgspec.structs.replace(winner, config=config), speedups={}, limits=(), recommended=number == 0
            )
            for number, config in enumerate((Config(), ONE_THREAD))
        )
        evidence = msgspec.structs.replace(record.evidence, verdict="trade_off", front=points)
        return msgspec.structs.replace(record, evidence=evidence)

    def test_another_point_of_a_front(self, tmp_path: Path) -> None:
        path = write(self.front(), tmp_path / "r.json")
        code = f"""
        import onnxruntime as ort
        print(ort.InferenceSession({str(TINY_CNN)!r}).get_session_options().intra_op_num_threads)
        """
        for options, threads in (((), "0"), (("--pick", "2"), "1")):
            done = run(sys.executable, "-c", textwrap.dedent(code), record=path, options=options)
            assert done.stdout.strip() == threads, done.stderr
        done = run(sys.executable, "-c", "", record=path, options=("--pick", "3"))
        assert done.returncode == 2
        assert "--pick 3: the front has points 1 to 2" in done.stderr
        inside = f"import ortune; ortune.install({str(path)!r}, pick=2)\n" + textwrap.dedent(code)
        assert run(sys.executable, "-P", "-c", inside).stdout.strip() == "1"

    def test_a_point_is_one_of_one_record(self, tmp_path: Path) -> None:
        paths = [
            write(make_record(TINY_CNN, ONE_THREAD), tmp_path / "a.json"),
            write(make_record(TINY_ENCODER, ONE_THREAD), tmp_path / "b.json"),
        ]
        with pytest.raises(RecordError, match="There are records for several models"):
            choose_records(paths, ProgramRequest(pick=1))

    def test_an_empty_list_of_records(self) -> None:
        with pytest.raises(UsageError, match="no record to install"):
            install([])


class TestBadInput:
    def refused(self, *arguments: object, tmp_path: Path) -> str:
        done = run_ortune("apply", *arguments, cwd=tmp_path)
        assert done.returncode == 2, done.stdout
        assert "Traceback" not in done.stderr
        return " ".join(done.stderr.split())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--"], "There is no command after --."),
            (["--", "nothere"], "There is no command nothere."),
            (["--", "app.py"], "Write: -- python app.py."),
            (["--", "./notes.txt"], "is not an executable file"),
            (["--nonsense", "--", "true"], "unrecognized arguments: --nonsense"),
            (["--clients", "x", "--", "true"], "--clients x: is not a whole number"),
            (["--clients", "0", "--", "true"], "--clients 0"),
            (["model.onnx", "--", "true"], "model.onnx is a model"),
            (["--explain-json", "nowhere/x", "--", "true"], "there is no folder"),
        ],
    )
    def test_commands(self, arguments: list[str], message: str, tuned: Path, tmp_path: Path) -> None:
        (tmp_path / "app.py").write_text("")
        (tmp_path / "notes.txt").write_text("")
        assert message in self.refused(tuned, *arguments, tmp_path=tmp_path)

    def test_no_record(self, tmp_path: Path) -> None:
        assert "There is no CONFIG." in self.refused("--", "true", tmp_path=tmp_path)
        assert "There is no CONFIG." in self.refused(tmp_path=tmp_path)
        assert "is a model, and there is no CONFIG" in self.refused("model.onnx", tmp_path=tmp_path)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("{", "is not JSON"),
            ('{"schema": 99}', "has schema 99, and this version of ortune reads schema 1"),
            ('{"schema": 1, "nonsense": 1}', "is not a valid record"),
            ('{"schema": 1, "records": []}', "is a bundle without records"),
            ('{"schema": 1, "records": [{}]}', "`$.records[0]`"),
            ('{"schema": 1, "records": [{"schema": 1, "search": {}}]}', "`$.records[0].search`"),
            ('{"schema": 1, "records": 5}', "`$.records`"),
        ],
    )
    def test_files_that_are_not_records(self, content: str, message: str, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        path.write_text(content)
        assert message in self.refused(path, "--", "true", tmp_path=tmp_path)

    def test_a_host_of_another_class(self, tmp_path: Path) -> None:
        path = write(make_record(TINY_CNN, TUNED, here=False), tmp_path / "r.json")
        done = run(sys.executable, PROGRAM, TINY_CNN, "by_path", record=path, options=("--explain",))
        assert outputs(done)[0]["intra"] == 0
        assert "warning" in done.stderr
        assert "tuned on another class of host" in done.stderr
        (found,) = sessions("by_path", record=path, options=("--any-host",))
        assert found["intra"] == 1

    def test_another_model_is_named_with_both_digests(self, tuned: Path, tmp_path: Path) -> None:
        other = make_record(TINY_ENCODER, TUNED).model.digest
        for arguments in (["--to", "python"], ["--verify"], []):
            text = self.refused(tuned, TINY_ENCODER, *arguments, tmp_path=tmp_path)
            assert other in text
            assert read_record(tuned).model.digest in text

    def test_options_that_exclude_each_other(self, tuned: Path, tmp_path: Path) -> None:
        assert "--any-model needs a command" in self.refused(tuned, "--any-model", tmp_path=tmp_path)
        assert "combined with --verify" in self.refused(tuned, "--to", "python", "--verify", tmp_path=tmp_path)
        assert "nothing to write without --to" in self.refused(tuned, "-o", "x", tmp_path=tmp_path)

    def test_any_model_of_several(self, tuned: Path, tmp_path: Path) -> None:
        other = write(make_record(TINY_ENCODER, TUNED), tmp_path / "o.json")
        for arguments in (("--any-model", "--", "true"), ("--pick", "1", "--", "true"), ()):
            message = self.refused(tuned, other, *arguments, tmp_path=tmp_path)
            assert "There are records for several models" in message
