"""Every command that writes a file follows links, and writes to pipes and devices instead of replacing them."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ortune import GateResult, HostError, InputsError, ModelError, UsageError, read_plan, read_record
from ortune.cli.gate import run_and_report, write_reports
from ortune.cli.output import write_found
from ortune.errors import explain_lack
from ortune.gates.reporters.history import append_history
from ortune.gates.results import GateError
from ortune.model.child import check_file
from ortune.planning.files import decode_plan
from ortune.program_options import parse_output
from ortune.record import files, rescue
from ortune.record.files import check_writable, place_file, read_trials, write_atomically, write_record
from ortune.record.rescue import rescue_record, save_record
from ortune.record.trials import encode_trials
from ortune.requests import GateReportOptions
from ortune.streams import find_descriptor, replace_characters, show_what_fits
from ortune.tuning import hints
from ortune.workload.data import load_data
from tests.conftest import TINY_CNN, run_ortune
from tests.gate_results import make_result
from tests.plans import DEPLOYMENTS, make_plan
from tests.records import ONE_THREAD, make_local_record, write
from tests.test_record import trials

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
needs_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs root to make device nodes")

COMMANDS = [
    pytest.param(("suggest", TINY_CNN, "-o"), id="suggest"),
    pytest.param(("merge", "r.json", "-o"), id="merge"),
    pytest.param(("apply", "r.json", "--to", "cpp", "-o"), id="text"),
    pytest.param(("apply", "r.json", TINY_CNN, "--to", "embedded", "-o"), id="embedded"),
    pytest.param(("apply", "r.json", TINY_CNN, "--to", "ort", "-o"), id="ort"),
    pytest.param(("report", "h.jsonl", "-o"), id="report"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
    append_history(tmp_path / "h.jsonl", [make_result("gate", "pass", 0.5)])
    return tmp_path


def read_in_background(pipe: Path) -> Callable[[], bytes]:
    """Return a function that waits for what is written to a pipe."""
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()

    def wait() -> bytes:
        reader.join(60)
        return b"".join(read)

    return wait


@pytest.mark.parametrize("command", COMMANDS)
def test_a_link_is_followed(command: tuple[object, ...], folder: Path) -> None:
    (folder / "real").mkdir()
    link, target = folder / "link.png", folder / "real" / "target.png"
    link.symlink_to(target)
    done = run_ortune(*command, link, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert link.is_symlink()
    assert target.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["target.png"]


@needs_pipes
@pytest.mark.parametrize("command", COMMANDS)
def test_a_pipe_is_written_to(command: tuple[object, ...], folder: Path) -> None:
    pipe = folder / "pipe.png"
    os.mkfifo(pipe)
    wait = read_in_background(pipe)
    done = run_ortune(*command, pipe, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert wait()
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@needs_root
@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_is_written_to(command: tuple[object, ...], folder: Path) -> None:
    node = folder / "null.png"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    done = run_ortune(*command, node, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert stat.S_ISCHR(node.stat().st_mode)


def test_a_file_is_placed_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    for content in (b"new", b"replaced"):
        (tmp_path / "complete").write_bytes(content)
        place_file(tmp_path / "complete", tmp_path / "link")
        assert (tmp_path / "target").read_bytes() == content
        assert (tmp_path / "link").is_symlink()
        assert not (tmp_path / "complete").exists()
    with pytest.raises(UsageError, match="Cannot write"):
        place_file(tmp_path / "complete", tmp_path / "gone" / "target")


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
class TestModes:
    def test_a_file_that_is_replaced_keeps_its_mode(self, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        for mode in (0o600, 0o644, 0o660):
            path.touch()
            path.chmod(mode)
            write_atomically(path, b"new")
            assert stat.S_IMODE(path.stat().st_mode) == mode

    def test_so_does_the_copy_of_a_record_that_proves_more(self, tmp_path: Path) -> None:
        path = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "r.json")
        path.chmod(0o600)
        record = read_record(path)
        assert record.is_proven
        unproven = msgspec.structs.replace(
            record, config=record.base, evidence=msgspec.structs.replace(record.evidence, verdict="inconclusive")
        )
        kept = write_record(unproven, path).kept
        assert kept
        assert {stat.S_IMODE(file.stat().st_mode) for file in (path, kept)} == {0o600}

    @needs_root
    def test_and_its_owner(self, tmp_path: Path) -> None:
        path = tmp_path / "r.json"
        path.touch()
        os.chown(path, 1234, 2345)
        write_atomically(path, b"new")
        found = path.stat()
        assert (found.st_uid, found.st_gid, path.read_bytes()) == (1234, 2345, b"new")


def test_a_file_that_is_a_mount_point_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be replaced, as with `docker run -v $PWD/tuned.json:/out/tuned.json`."""
    mounted = tmp_path / "tuned.json"
    mounted.write_text("of an earlier search, and longer than what replaces it")
    replace = Path.replace

    def refuse(path: Path, target: Path) -> Path:
        if target == mounted:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", refuse)
    write_atomically(mounted, b"new")
    assert mounted.read_bytes() == b"new"
    (tmp_path / "complete").write_bytes(b"placed")
    place_file(tmp_path / "complete", mounted)
    assert mounted.read_bytes() == b"placed"
    assert [file.name for file in tmp_path.iterdir()] == ["tuned.json"]
    record = make_local_record(TINY_CNN, ONE_THREAD)
    saved = save_record(record, mounted, encode_trials(trials(1)))
    assert not saved.fault
    assert read_trials(mounted) == trials(1)


class TestReports:
    @needs_pipes
    def test_a_history_that_is_a_pipe(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        wait = read_in_background(pipe)
        append_history(pipe, [make_result("gate", "pass", 0.5)])
        assert msgspec.json.decode(wait())["decision"] == "pass"

    def test_one_that_cannot_be_written_does_not_stop_the_others(self, tmp_path: Path) -> None:
        reports = GateReportOptions(
            junit=str(tmp_path / "gone" / "junit.xml"),
            markdown=str(tmp_path / "page.md"),
            history=str(tmp_path / "gone" / "h.jsonl"),
        )
        with pytest.raises(UsageError, match=r"junit\.xml: No such file") as raised:
            write_reports((make_result("gate", "pass", 0.5),), reports)
        assert "h.jsonl: No such file" in "".join(raised.value.details)
        assert (tmp_path / "page.md").read_text()

    def test_the_error_that_came_first_is_reported(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def measure(done: list[GateResult | GateError]) -> list[GateResult | GateError]:
            done.append(make_result("gate", "pass", 0.5))
            raise KeyboardInterrupt

        reports = GateReportOptions(junit=str(tmp_path / "gone" / "junit.xml"))
        with pytest.raises(KeyboardInterrupt):
            run_and_report(measure, "gate", reports)
        assert "junit.xml:Nosuchfile" in "".join(capsys.readouterr().err.split())


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/fd")
class TestOpenFiles:
    def test_links_to_stdout_are_stdout(self, tmp_path: Path) -> None:
        (tmp_path / "one").symlink_to("/proc/self/fd/1")
        (tmp_path / "two").symlink_to("one")
        for path in ("-", "/proc/self/fd/1", tmp_path / "one", tmp_path / "two"):
            assert parse_output(str(path)) == Path("-")
        assert parse_output("x") == Path("x")

    def test_an_open_file_is_written_to(self, tmp_path: Path) -> None:
        with (tmp_path / "open").open("w+b") as file:
            path = Path(f"/proc/self/fd/{file.fileno()}")
            assert find_descriptor(path) == file.fileno()
            (tmp_path / "open").unlink()
            write_atomically(path, b"text")
            file.seek(0)
            assert file.read() == b"text"
        assert list(tmp_path.iterdir()) == []

    def test_an_open_file_keeps_what_it_has(self, tmp_path: Path) -> None:
        log = tmp_path / "log"
        log.write_bytes(b"earlier ")
        with log.open("ab") as file:
            path = Path(f"/dev/fd/{file.fileno()}")
            write_atomically(path, b"text ")
            (tmp_path / "complete").write_bytes(b"placed")
            place_file(tmp_path / "complete", path)
        assert log.read_bytes() == b"earlier text placed"

    def test_a_file_that_is_open_for_reading_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "log").touch()
        error = pytest.raises(UsageError, match="cannot be written: Bad file descriptor")
        with (tmp_path / "log").open("rb") as file, error:
            check_writable(Path(f"/dev/fd/{file.fileno()}"))

    def test_a_cycle_of_links(self, tmp_path: Path) -> None:
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        assert find_descriptor(tmp_path / "a") is None


class TestRescue:
    def test_the_record_and_its_trials_are_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rescue, "find_folders", lambda: iter([tmp_path / "gone", tmp_path]))
        record = make_local_record(TINY_CNN, ONE_THREAD)
        fault = rescue_record(record, Path("tuned.json"), encode_trials(trials(1)), UsageError("It is full."))
        (folder,) = tmp_path.iterdir()
        assert fault.message == "It is full."
        assert fault.hint == f"The record was written to {folder / 'tuned.json'} instead."
        assert read_record(folder / "tuned.json").config == ONE_THREAD
        assert read_trials(folder / "tuned.json") == trials(1)

    def test_a_folder_that_cannot_be_reached(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder, usable = tmp_path / "remote", tmp_path / "usable"
        usable.mkdir()
        is_special = files.is_special

        def ask(path: Path) -> bool:
            if path.parent == folder:
                raise OSError(errno.ESTALE, "Stale file handle")
            return is_special(path)

        monkeypatch.setattr(files, "is_special", ask)
        monkeypatch.setattr(rescue, "find_folders", lambda: iter([usable]))
        saved = save_record(make_local_record(TINY_CNN, ONE_THREAD), folder / "tuned.json", encode_trials(trials(1)))
        assert saved.fault
        assert "Stale file handle" in saved.fault.message
        assert saved.fault.hint.startswith(f"The record was written to {usable}")

    def test_a_record_for_stdout(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rescue, "find_folders", lambda: iter([tmp_path]))
        rescue_record(make_local_record(TINY_CNN, ONE_THREAD), Path("-"), None, UsageError("It is full."))
        (folder,) = tmp_path.iterdir()
        assert [path.name for path in folder.iterdir()] == ["record.json"]

    def test_nothing_is_left_where_there_is_no_space(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(path: Path, data: bytes, like: Path | None = None) -> None:
            (path.parent / "begun").touch()
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(rescue, "find_folders", lambda: iter([tmp_path]))
        monkeypatch.setattr(files, "write_complete", fail)
        record = make_local_record(TINY_CNN, ONE_THREAD)
        fault = rescue_record(record, Path("tuned.json"), b"", UsageError("It is full."))
        assert list(tmp_path.iterdir()) == []
        assert "".join(fault.details).replace(" ", "") == files.encode_record(record).decode().replace(" ", "").replace(
            "\n", ""
        )


class TestHistory:
    @needs_pipes
    def test_special_files_are_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path in (tmp_path / "pipe", tmp_path, Path(os.devnull)):
            monkeypatch.setenv(hints.VARIABLE, str(path))
            assert hints.history_path() is None
        for path in (tmp_path / "new", tmp_path / "folder" / "new"):
            monkeypatch.setenv(hints.VARIABLE, str(path))
            assert hints.history_path() == path

    @pytest.mark.skipif(sys.platform == "win32", reason="HOME")
    def test_no_folder_is_made_for_a_user_without_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(hints.VARIABLE, "")
        monkeypatch.delenv("XDG_STATE_HOME", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
        assert hints.history_path() is None
        monkeypatch.setenv("HOME", str(tmp_path))
        path = hints.history_path()
        assert path is not None
        assert path.is_relative_to(tmp_path)

    def test_only_the_end_of_a_large_file_is_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hints, "MOST_PAST_BYTES", 10)
        path = tmp_path / "h.jsonl"
        path.write_bytes(b"x" * 100 + b"0123456789")
        assert hints._read_end(path) == b"0123456789"


class TestStreams:
    def test_characters_that_an_encoding_lacks_are_replaced(self) -> None:
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, encoding="ascii")
        show_what_fits(stream)
        stream.write("1 µs · 2 … é\ud800")
        stream.flush()
        assert raw.getvalue() == b"1 us + 2 ... ??"

    def test_only_what_is_written_is_replaced(self) -> None:
        with pytest.raises(UnicodeDecodeError):
            replace_characters(UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"))

    def test_streams_without_an_encoding(self) -> None:
        show_what_fits(io.StringIO())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "There is not enough memory."),
        (OSError(errno.EMFILE, "Too many open files"), "Cannot open another file: Too many open files."),
        (OSError(errno.EAGAIN, "Try again"), "Cannot start a process: Try again."),
        (OSError(errno.ENOSPC, "Full", "/tmp/x"), "Cannot write a temporary file /tmp/x: Full."),
        (FileNotFoundError(2, "No usable temporary directory found"), "Cannot write a temporary file: No usable"),
        (
            FileNotFoundError(2, "No such file", "/tmp/ortune-12-a/b"),
            "/tmp/ortune-12-a/b is missing: something removed",
        ),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), "/root/x: cannot be accessed: Permission"),
    ],
)
def test_lacks_of_the_host_are_explained(error: BaseException, message: str) -> None:
    found = explain_lack(error)
    assert isinstance(found, HostError)
    assert found.message.startswith(message)


@pytest.mark.parametrize(
    "error",
    [ValueError("x"), FileNotFoundError(2, "No such file"), FileNotFoundError(2, "No such file", "a"), KeyError("x")],
)
def test_other_exceptions_are_not(error: BaseException) -> None:
    assert explain_lack(error) is None


@pytest.mark.parametrize("words", [("search", TINY_CNN), ("plan", TINY_CNN), ("inspect", "--")])
def test_a_name_that_is_too_long(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    name = "x" * 400 + ".json"
    command, *rest = words
    done = run_ortune(command, "-o", name, *rest, *(["true"] if "--" in rest else []), cwd=tmp_path)
    assert done.returncode == 2
    assert "File name too long" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert find_descriptor(Path(name)) is None


@pytest.mark.parametrize(
    "words",
    [("search", "x" * 400 + ".onnx"), ("search", TINY_CNN, "--inputs", "x" * 400 + ".npz")],
)
def test_a_name_of_a_file_to_read_that_is_too_long(words: tuple[str | Path, ...], tmp_path: Path) -> None:
    done = run_ortune(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_accessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who is not root may not look into the folders of others."""

    def refuse(path: Path, **options: bool) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ModelError, match=r"m\.onnx: cannot be accessed: Permission denied"):
        check_file(tmp_path / "m.onnx")
    with pytest.raises(InputsError, match=r"x\.npz: cannot be accessed: Permission denied"):
        load_data(tmp_path / "x.npz", ())


class TestPlans:
    """A plan whose file cannot be written any more when it is complete, or that names a file with odd bytes."""

    def test_a_name_that_is_not_utf8_costs_no_plan(self, tmp_path: Path) -> None:
        plan = make_plan(DEPLOYMENTS["processes"], TINY_CNN)
        plan = msgspec.structs.replace(plan, model=msgspec.structs.replace(plan.model, path=os.fsdecode(b"\xff.onnx")))
        assert write_found(plan, tmp_path / "plan.json", to_stdout=False) is None
        assert read_plan(tmp_path / "plan.json").model.path == "?.onnx"

    def test_it_is_written_elsewhere(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rescue, "find_folders", lambda: iter([tmp_path / "gone", tmp_path]))
        plan = make_plan(DEPLOYMENTS["processes"], TINY_CNN)
        assert write_found(plan, tmp_path / "kept.json", to_stdout=False) is None
        fault = write_found(plan, tmp_path / "removed" / "plan.json", to_stdout=False)
        assert fault
        assert "removed" in fault.message
        (path,) = tmp_path.glob("rescued-by-ortune-*/plan.json")
        assert str(path) in fault.hint
        assert read_plan(path) == read_plan(tmp_path / "kept.json")

    def test_it_is_printed_if_nothing_can_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rescue, "find_folders", lambda: iter([tmp_path / "gone"]))
        plan = make_plan(DEPLOYMENTS["processes"], TINY_CNN)
        fault = write_found(plan, tmp_path / "removed" / "plan.json", to_stdout=False)
        assert fault
        assert decode_plan("\n".join(fault.details).encode()) == plan
