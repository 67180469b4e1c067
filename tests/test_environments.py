"""Full disks, limits, missing folders, odd names, terminals and locales: each its message and exit code.

Each test is a row of the table in docs/environments.md. If that differs, run pytest with --golden on this file.
Device nodes are made in temporary folders: those of the host are never named as outputs.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
from onnx import TensorProto, helper

from ortune import read_record
from ortune.console.verdict import format_headline
from ortune.record.files import PROBE_BYTES, read_trials
from ortune.tuning.hints import VARIABLE
from tests.conftest import ROOT, TINY_CNN, run_in_fork
from tests.records import ONE_THREAD, make_local_record, write
from tests.simulated import Scenario

if sys.platform != "linux":
    pytest.skip("mounts, device nodes and limits of Linux", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("no_workers_left")

PAGE = ROOT / "docs" / "environments.md"
START, END = "<!-- environments -->\n", "<!-- end of environments -->"

SHORT = ("--budget", "2s", "--trials", "1")
LONG = ("--budget", "60s", "--trials", "1")
"""Budgets of a search that ends soon, and of one that something ends before its time."""

CHANGE_AT = 60
"""Number of the block of a simulated search before which a situation changes. Some candidates have an interval then."""

INTERRUPTED = Scenario(is_here=True, interrupt_at=CHANGE_AT + 20)
"""A host on which a search is interrupted some blocks after the change."""

AS_USUAL = "as usual"

RECORD = make_local_record(TINY_CNN, ONE_THREAD)

GIB = 1 << 30


class Done(NamedTuple):
    """A process that has ended."""

    code: int
    stdout: str
    stderr: str


Situation = Callable[[Path], Done]


class Row(NamedTuple):
    """A row of the table.

    Attributes:
        section: Title of its part of the table.
        what: The situation.
        code: The exit code, or `AS_USUAL`.
        message: What is on stderr, without the word `error`; empty if nothing is.
        then: What else is true then; empty if nothing is worth saying.
        bring_about: Brings the situation about in an empty folder, checks `then`, and returns the process.
    """

    section: str
    what: str
    code: int | str
    message: str
    then: str
    bring_about: Situation


ROWS: list[Row] = []

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
needs_ascii = pytest.mark.skipif(
    not f"{sys.prefix}{ROOT}".isascii(),
    reason="in such a locale, Python does not start if the name of a folder of its packages is not ASCII",
)
MARKS: dict[str, pytest.MarkDecorator] = {}


def row(
    section: str,
    what: str,
    code: int | str,
    message: str = "",
    then: str = "",
    *,
    mark: pytest.MarkDecorator | None = None,
) -> Callable[[Situation], Situation]:
    """Return a decorator that makes a situation a row of the table."""

    def add(bring_about: Situation) -> Situation:
        ROWS.append(Row(section, what, code, message, then, bring_about))
        if mark is not None:
            MARKS[what] = mark
        return bring_about

    return add


def make_process(
    folder: Path,
    *arguments: object,
    prefix: tuple[str, ...] = (),
    limit: tuple[int, int] | None = None,
    environment: Mapping[str, str | None] | None = None,
    **options: Any,
) -> subprocess.Popen[str]:
    """Start ortune.

    Args:
        folder: Its working directory.
        arguments: Its arguments.
        prefix: A command that starts it.
        limit: A limit of `resource`, and its value.
        environment: Variables to change; None removes one.
        options: Options of Popen.
    """
    changed = {"COLUMNS": "100", "TMPDIR": str(folder.parent), **(environment or {})}
    inherited = {name: value for name, value in os.environ.items() if name not in changed}
    variables = {name: value for name, value in changed.items() if value is not None}

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a script ignores it
        if limit is not None:
            resource.setrlimit(limit[0], (limit[1], limit[1]))

    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [*prefix, sys.executable, "-u", "-P", "-m", "ortune", *(os.fspath(argument) for argument in arguments)],  # type: ignore[call-overload]
        **{**streams, **options},
        cwd=folder,
        text=True,
        errors="surrogateescape",
        encoding="utf-8",
        env={**inherited, **variables},
        preexec_fn=prepare,
    )


def finish(process: subprocess.Popen[str], stdout: str = "") -> Done:
    try:
        rest, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    return Done(process.returncode, stdout + (rest or ""), errors or "")


def run(
    folder: Path,
    *arguments: object,
    environment: Mapping[str, str | None] | None = None,
    simulate: bool | Scenario = False,
    **surroundings: Any,
) -> Done:
    """Run ortune in a fork, which takes little time.

    Args:
        folder: Its working directory.
        arguments: Its arguments.
        environment: Variables to change; None removes one.
        simulate: Whether its measurements are simulated, or the host that is simulated.
        surroundings: Arguments of `tests.surroundings.run_command`.
    """
    changed = {"COLUMNS": "100", "NO_COLOR": "1", "TMPDIR": str(folder.parent), **(environment or {})}
    names = [os.fspath(argument) for argument in arguments]  # type: ignore[call-overload]
    done = run_in_fork(
        ["ortune", *names],
        names,
        code=f"from tests.surroundings import run_command; run_command(**{surroundings!r})",
        cwd=folder,
        timeout=120,
        environment=changed,
        simulate=simulate,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_process(folder: Path, *arguments: object, **options: Any) -> Done:
    """Run ortune in a process of its own, for what happens when Python starts, or when it imports modules."""
    return finish(make_process(folder, *arguments, **options))


def run_in_shell(folder: Path, command: str) -> Done:
    """Run a command of a shell, in which `ortune` is the program."""
    alias = f'ortune() {{ "{sys.executable}" -P -m ortune "$@"; }}\n'
    done = subprocess.run(
        ["sh", "-c", alias + command],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "100"},
    )
    return Done(done.returncode, done.stdout, done.stderr)


def run_on_mount(folder: Path, setup: str, *arguments: object, **options: Any) -> Done:
    """Run ortune where `disk` is a file system of its own, which only this process sees."""
    (folder / "disk").mkdir()
    return run(folder, *arguments, mounts=f"mount -t tmpfs -o size=160k none disk; {setup}", **options)


FILL = "dd if=/dev/zero of=disk/other bs=4k status=none 2>/dev/null || true"


def can_mount() -> bool:
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return os.geteuid() == 0 and bool(shutil.which("unshare")) and subprocess.run(command, check=False).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces")


def check_rescued(done: Done, *, is_complete: bool = True) -> None:
    """Check that a record was kept, with its trials, and that a complete search has shown the headline of this record.

    A search that ended because of the situation shows none.
    """
    found = re.search(r"The record was written to (\S+) instead", done.stderr)
    assert found, done.stderr
    record = read_record(found[1])
    assert record.search.n_tried
    assert read_trials(found[1]).trials
    headline = " ".join(format_headline(record).plain.split())
    assert (headline in " ".join(done.stdout.split())) == is_complete, done.stdout
    assert "written" not in done.stdout
    shutil.rmtree(Path(found[1]).parent)


def make_node(path: Path, minor: int) -> Path:
    """Make a device like /dev/null (3), /dev/zero (5) or /dev/full (7)."""
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    return path


# --- outputs -------------------------------------------------------------------------------------------------------

OUTPUTS = "Output files"


@row(OUTPUTS, "the folder does not exist", 2, "--output no/tuned.json: there is no folder no.")
def no_folder(folder: Path) -> Done:
    return run(folder, "search", TINY_CNN, "-o", "no/tuned.json")


@row(
    OUTPUTS,
    "the folder is read-only",
    2,
    "--output disk/tuned.json: cannot be written: Read-only file system.",
    mark=needs_mounts,
)
def read_only_folder(folder: Path) -> Done:
    return run_on_mount(folder, "mount -o remount,ro disk", "search", TINY_CNN, "-o", "disk/tuned.json")


@row(
    OUTPUTS,
    "the disk is full at the start",
    2,
    "--output disk/tuned.json: cannot be written: No space left on device.",
    mark=needs_mounts,
)
def full_at_start(folder: Path) -> Done:
    return run_on_mount(folder, FILL, "search", TINY_CNN, "-o", "disk/tuned.json")


@row(
    OUTPUTS,
    "the disk becomes full during a search",
    2,
    "disk/tuned.unfinished.jsonl: cannot be written: No space left on device.",
    "The search ends. The record of the best so far and its trials are in the temporary folder. `--resume` goes on.",
    mark=needs_mounts,
)
def full_in_screening(folder: Path) -> Done:
    done = run_on_mount(
        folder,
        "true",
        "search",
        TINY_CNN,
        "-o",
        "disk/tuned.json",
        *LONG,
        before_block=(CHANGE_AT, FILL),
        simulate=True,
    )
    check_rescued(done, is_complete=False)
    assert "To go on, repeat the command with --resume." in done.stderr
    return done


@row(
    OUTPUTS,
    "writing fails at the end",
    2,
    "Cannot write full: No space left on device.",
    "The verdict is shown. The record and its trials are in the temporary folder.",
    mark=needs_root,
)
def full_at_end(folder: Path) -> Done:
    node = make_node(folder / "full", 7)
    done = run(folder, "search", TINY_CNN, "-o", "full", *LONG, simulate=True)
    check_rescued(done)
    assert stat.S_ISCHR(node.stat().st_mode)
    return done


@row(
    OUTPUTS,
    "writing fails at the end, and no other folder has space",
    2,
    "Cannot write full: No space left on device. Nor can any other folder be written. This is the record:",
    "The record is part of the message.",
    mark=needs_mounts,
)
def full_everywhere(folder: Path) -> Done:
    make_node(folder / "full", 7)
    done = run_on_mount(
        folder,
        "true",
        "search",
        TINY_CNN,
        "-o",
        "full",
        *LONG,
        environment={"TMPDIR": "disk", "HOME": str(folder / "disk")},
        before_block=(CHANGE_AT, FILL),
        simulate=INTERRUPTED,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("  ")]
    record = json.loads("".join(lines))
    assert record["search"]["interrupted"]
    return done


@row(
    OUTPUTS,
    "the folder is removed during the search",
    2,
    "Cannot write out/tuned.json: No such file or directory.",
    "The verdict is shown. The record and its trials are in the temporary folder.",
)
def vanished_folder(folder: Path) -> Done:
    (folder / "out").mkdir()
    command = ("search", TINY_CNN, "-o", "out/tuned.json", *LONG)
    done = run(folder, *command, before_block=(CHANGE_AT, "rm -r out"), simulate=INTERRUPTED)
    check_rescued(done)
    return done


@row(
    OUTPUTS,
    "files may not become larger than a few bytes (`ulimit -f 1`)",
    2,
    "--output tuned.json: cannot be written: File too large.",
)
def file_size_limit(folder: Path) -> Done:
    return run(folder, "search", TINY_CNN, "-o", "tuned.json", limit=(resource.RLIMIT_FSIZE, 512))


@row(OUTPUTS, "a link", AS_USUAL, "", "The file that it leads to is replaced.")
def link(folder: Path) -> Done:
    (folder / "link.json").symlink_to("target.json")
    for _ in range(2):
        done = run(folder, "suggest", TINY_CNN, "-o", "link.json")
        assert (folder / "link.json").is_symlink()
        assert json.loads((folder / "target.json").read_bytes())["proven"] is False
    return done


@row(OUTPUTS, "a link to a folder that does not exist", 2, "--output link.json: there is no folder <folder>/gone.")
def broken_link(folder: Path) -> Done:
    (folder / "link.json").symlink_to("gone/target.json")
    return run(folder, "search", TINY_CNN, "-o", "link.json")


@row(OUTPUTS, "a device, such as `/dev/null`", AS_USUAL, "", "It is written to.", mark=needs_root)
def device(folder: Path) -> Done:
    node = make_node(folder / "null", 3)
    done = run(folder, "suggest", TINY_CNN, "-o", "null")
    assert stat.S_ISCHR(node.stat().st_mode)
    assert [entry.name for entry in folder.iterdir()] == ["null"]
    return done


@row(OUTPUTS, "a named pipe", AS_USUAL, "", "It is written to.")
def named_pipe(folder: Path) -> Done:
    os.mkfifo(folder / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((folder / "pipe").read_bytes()), daemon=True)
    reader.start()
    done = run(folder, "suggest", TINY_CNN, "-o", "pipe")
    reader.join(30)
    assert read and json.loads(read[0])
    assert stat.S_ISFIFO((folder / "pipe").stat().st_mode)
    return done


@row(OUTPUTS, "a socket", 2, "--output socket: this is a socket.")
def a_socket(folder: Path) -> Done:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(folder):
        made.bind("socket")
        return run(folder, "search", TINY_CNN, "-o", "socket")


@row(OUTPUTS, "`/dev/stdout`", AS_USUAL, "", "The same as `-`.")
def standard_output(folder: Path) -> Done:
    (folder / "stdout").symlink_to("/proc/self/fd/1")  # what /dev/stdout is
    done = run(folder, "suggest", TINY_CNN, "-o", "stdout")
    assert json.loads(done.stdout)["proven"] is False
    assert (folder / "stdout").is_symlink()
    return done


# --- other files ---------------------------------------------------------------------------------------------------

FILES = "Other files and folders"


@row(
    FILES,
    "no temporary folder can be written",
    2,
    "Cannot write a temporary file: No usable temporary directory found in "
    "['<folder>/disk', '/tmp', '/var/tmp', '/usr/tmp', '/proc'].",
    mark=needs_mounts,
)
def no_temporary_folder(folder: Path) -> Done:
    # Nothing is hidden: ortune itself may be in one of these folders.
    setup = "mount -o remount,ro disk"
    for place in ("/tmp", "/var/tmp"):
        setup += f"; mount --rbind {place} {place}; mount -o remount,bind,ro {place}"
    command = ("search", TINY_CNN, "-o", "-", "-q", *SHORT)
    return run_on_mount(folder, setup, *command, environment={"TMPDIR": str(folder / "disk")}, cwd="/proc")


@row(
    FILES,
    "the temporary folder is full",
    2,
    "Cannot write a temporary file: No space left on device.",
    mark=needs_mounts,
)
def full_temporary_folder(folder: Path) -> Done:
    setup = "mount -o remount,size=8k disk"
    return run_on_mount(folder, setup, "search", TINY_CNN, *SHORT, environment={"TMPDIR": str(folder / "disk")})


@row(
    FILES,
    "the temporary folder has no space for the outputs of the model",
    2,
    "Cannot write the outputs of the model to a temporary file: No space left on device.",
    mark=needs_mounts,
)
def full_of_outputs(folder: Path) -> Done:
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [100, 1000])
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        "large_outputs",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [100, 1000])],
        [shape],
    )
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), folder / "m.onnx")
    return run_on_mount(folder, "true", "search", "m.onnx", *SHORT, environment={"TMPDIR": str(folder / "disk")})


@row(FILES, "the working folder was removed", 2, "--output tuned.json: cannot be written: No such file or directory.")
def no_working_directory(folder: Path) -> Done:
    (folder / "gone").mkdir()
    return run_in_shell(folder, f'cd gone; rmdir ../gone; ortune search "{TINY_CNN}" -o tuned.json')


@row(FILES, "there is no `HOME`", AS_USUAL, "", "Without the history of searches.")
def no_home(folder: Path) -> Done:
    for home in (None, "", str(folder / "nowhere")):
        done = run(folder, "suggest", TINY_CNN, environment={"HOME": home, VARIABLE: None, "XDG_STATE_HOME": None})
        assert done.code == 0
        # ONNX Runtime has a cache of its own.
        assert not (folder / "nowhere" / ".local").exists()
        assert not (folder / "~").exists()
    return done


@row(FILES, "the history of searches cannot be read or written", AS_USUAL, "", "Without the history of searches.")
def unwritable_history(folder: Path) -> Done:
    (folder / "file").touch()
    return run(
        folder,
        "search",
        TINY_CNN,
        *SHORT,
        environment={VARIABLE: str(folder / "file" / "history.jsonl")},
        simulate=True,
    )


@row(
    FILES,
    "`ORTUNE_HISTORY` is a device or a pipe",
    AS_USUAL,
    "",
    "Without the history of searches.",
    mark=needs_root,
)
def device_as_history(folder: Path) -> Done:
    os.mkfifo(folder / "pipe")
    make_node(folder / "zero", 5)
    run(folder, "suggest", TINY_CNN, environment={VARIABLE: str(folder / "zero")})
    return run(folder, "suggest", TINY_CNN, environment={VARIABLE: str(folder / "pipe")})


# --- names ---------------------------------------------------------------------------------------------------------

NAMES = "Names"


@row(NAMES, "spaces, quotes and newlines", AS_USUAL, "", "Newlines are printed as spaces.")
def odd_names(folder: Path) -> Done:
    model = folder / "a model\n'of' \"mine\"; $(x).onnx"
    shutil.copy(TINY_CNN, model)
    done = run(folder, "search", model.name, *SHORT, simulate=True)
    record = model.with_suffix(".ortune.json")
    assert read_record(record).model.path == model.name
    assert read_trials(record).trials
    assert "a model 'of' \"mine\"; $(x).ortune.json" in done.stdout
    return done


@row(
    NAMES,
    "a model whose name is not UTF-8",
    2,
    "a\ufffd.onnx has a name or a folder whose name is not UTF-8. ONNX Runtime cannot open such files.",
)
def model_not_utf8(folder: Path) -> Done:
    name = os.fsdecode(b"a\xff.onnx")
    shutil.copy(TINY_CNN, folder / name)
    return run_process(folder, "search", name)


@row(NAMES, "an output whose name is not UTF-8", AS_USUAL)
def output_not_utf8(folder: Path) -> Done:
    name = os.fsdecode(b"a\xff.json")
    done = run(folder, "suggest", TINY_CNN, "-o", name)
    assert json.loads((folder / name).read_bytes())["proven"] is False
    return done


# --- streams, terminals, locales -----------------------------------------------------------------------------------

STREAMS = "Terminals, streams and locales"


@row(STREAMS, "stdout is closed", 2, "Cannot write to stdout: Bad file descriptor.")
def closed_stdout(folder: Path) -> Done:
    return run_in_shell(folder, "ortune knobs >&-")


@row(
    STREAMS,
    "stdout is closed, and the result goes to a file",
    2,
    "Cannot write to stdout: Bad file descriptor.",
    "The result is written.",
)
def closed_stdout_with_an_output(folder: Path) -> Done:
    done = run_in_shell(folder, f'ortune suggest "{TINY_CNN}" -o suggested.json >&-')
    assert json.loads((folder / "suggested.json").read_bytes())["proven"] is False
    return done


@row(STREAMS, "stdout is full", 2, "Cannot write to stdout: No space left on device.", mark=needs_root)
def full_stdout(folder: Path) -> Done:
    make_node(folder / "full", 7)
    return run_in_shell(folder, "ortune knobs > full")


@row(
    STREAMS,
    "stderr is full",
    AS_USUAL,
    "",
    "Messages are lost, and the result is written.",
    mark=needs_root,
)
def full_stderr(folder: Path) -> Done:
    make_node(folder / "full", 7)
    done = run(folder, "search", TINY_CNN, *SHORT, "-o", "tuned.json", streams={2: "full"}, simulate=True)
    assert read_record(folder / "tuned.json").search.n_tried
    assert run_in_shell(folder, "ortune nothing 2> full").code == 2
    return done


@row(STREAMS, "stdin and stderr are closed", AS_USUAL)
def closed_stdin_and_stderr(folder: Path) -> Done:
    assert run_in_shell(folder, "ortune nothing <&- 2>&-").code == 2
    return run_in_shell(folder, f'ortune apply "{write(RECORD, folder / "tuned.json")}" <&- 2>&-')


def run_on_terminal(folder: Path, *arguments: object, **environment: str | None) -> Done:
    """Run ortune on a pseudo-terminal."""
    ours, theirs = os.openpty()
    terminal = os.ttyname(theirs)
    done = run(folder, *arguments, streams={1: terminal, 2: terminal}, environment={"NO_COLOR": None, **environment})
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while data := os.read(ours, 65536):
            shown += data
    os.close(ours)
    return Done(done.code, "", shown.decode())


@row(STREAMS, "`TERM=dumb`", AS_USUAL, "", "No codes for colors or the cursor.")
def dumb_terminal(folder: Path) -> Done:
    done = run_on_terminal(folder, "suggest", TINY_CNN, TERM="dumb")
    assert "\x1b" not in done.stderr
    assert "\x1b[" in run_on_terminal(folder, "suggest", TINY_CNN, TERM="xterm").stderr
    return Done(done.code, done.stderr, "")


@row(STREAMS, "`NO_COLOR=1`", AS_USUAL, "", "No colors.")
def no_color(folder: Path) -> Done:
    done = run_on_terminal(folder, "suggest", TINY_CNN, TERM="xterm", NO_COLOR="1")
    codes = [int(code) for found in re.findall(r"\x1b\[([\d;]*)m", done.stderr) for code in found.split(";") if code]
    assert codes
    assert not [code for code in codes if code >= 30]
    return Done(done.code, done.stderr, "")


@row(STREAMS, "stdout can show only ASCII", AS_USUAL, "", "`µ` becomes `u`, `·` becomes `+`, and others become `?`.")
def ascii_stdout(folder: Path) -> Done:
    shutil.copy(TINY_CNN, folder / "é.onnx")
    done = run(folder, "space", "é.onnx", encoding="ascii")
    assert done.stdout.isascii()
    assert re.search(r"intra threads=2 \+ ", done.stdout)
    return done


@row(STREAMS, "the locale is C or POSIX", AS_USUAL, mark=needs_ascii)
def c_locale(folder: Path) -> Done:
    plain: dict[str, str | None] = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = run_process(folder, "space", TINY_CNN, environment=plain)
    assert done.stdout.isascii()
    return done


@row(
    STREAMS,
    "names of files are ASCII in the locale, and one is not",
    2,
    "??.onnx has a name or a folder whose name is not UTF-8. ONNX Runtime cannot open such files.",
    mark=needs_ascii,
)
def ascii_names(folder: Path) -> Done:
    shutil.copy(TINY_CNN, folder / "é.onnx")
    plain: dict[str, str | None] = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = run_process(folder, "doctor", "é.onnx", environment=plain)
    assert "Set PYTHONUTF8=1" in done.stderr
    return done


# --- limits --------------------------------------------------------------------------------------------------------

LIMITS = "Memory, processes and large models"


@row(
    LIMITS,
    "`ulimit -v 200000`: less memory than libraries take",
    2,
    "ulimit -v 200000: 195 MiB of memory is too little to start ortune.",
)
def memory_limit(folder: Path) -> Done:
    return run_process(folder, "suggest", TINY_CNN, limit=(resource.RLIMIT_AS, 200000 << 10))


@row(LIMITS, "`ulimit -v 400000`: enough for a small model", AS_USUAL)
def larger_memory_limit(folder: Path) -> Done:
    return run_process(folder, "apply", write(RECORD, folder / "tuned.json"), limit=(resource.RLIMIT_AS, 400000 << 10))


@row(LIMITS, "`ulimit -n 6`: few open files", 2, "Cannot open another file: Too many open files.")
def open_files_limit(folder: Path) -> Done:
    return run_process(folder, "bench", TINY_CNN, limit=(resource.RLIMIT_NOFILE, 6))


@row(
    LIMITS,
    "no further process may be started",
    2,
    "Cannot start a process: Resource temporarily unavailable.",
    mark=pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv"),
)
def process_limit(folder: Path) -> Done:
    folder.chmod(0o777)
    # Limits of processes do not apply to root. The user may read this Python, wherever it is.
    user = ("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups")
    capabilities = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    environment = {"TMPDIR": None}
    return run_process(
        folder,
        "suggest",
        TINY_CNN,
        prefix=(*user, *capabilities, "prlimit", "--nproc=1"),
        environment=environment,
    )


@row(LIMITS, "a model of more than 2 GB, with external data", AS_USUAL, mark=pytest.mark.long)
def large_model(folder: Path) -> Done:
    n_rows, n_columns = 2 * GIB // 256 + 1000, 64
    size = n_rows * n_columns * 4
    assert size > 2**31
    index = helper.make_tensor_value_info("index", TensorProto.INT64, [1])
    found = helper.make_tensor_value_info("row", TensorProto.FLOAT, [1, n_columns])
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[n_rows, n_columns])
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "table.bin"), ("offset", "0"), ("length", str(size))):
        entry = table.external_data.add()
        entry.key, entry.value = key, value
    graph = helper.make_graph([helper.make_node("Gather", ["table", "index"], ["row"])], "g", [index], [found], [table])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    with (folder / "table.bin").open("wb") as file:
        file.truncate(size)  # sparse: it takes no space
    done = run(folder, "search", "m.onnx", "-o", "tuned.json", *SHORT)
    assert sum(file.size_bytes for file in read_record(folder / "tuned.json").model.files) > 2**31
    return done


# --- the tests -----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "folder"
    made.mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.parametrize(
    "table_row", [pytest.param(table_row, marks=MARKS.get(table_row.what, ()), id=table_row.what) for table_row in ROWS]
)
@pytest.mark.long
def test_message_and_exit_code(table_row: Row, folder: Path) -> None:
    done = table_row.bring_about(folder)
    shown = done.stdout + done.stderr
    assert "Traceback" not in shown
    assert done.code == table_row.code if table_row.code != AS_USUAL else done.code in {0, 1, 3}, shown
    first = done.stderr.replace(str(folder), "<folder>").replace("\r\n", "\n").partition("\n")[0]
    # On a terminal, the line that shows the current step is overwritten.
    first = first.rpartition("\r")[2]
    assert first == (f"error: {table_row.message}" if table_row.message else "")
    # Nothing is left but what the situation consists of and what was asked for.
    assert not list(folder.glob(".*"))


def render() -> str:
    """Return the table."""
    lines: list[str] = []
    section = ""
    for table_row in ROWS:
        if table_row.section != section:
            section = table_row.section
            lines += ["", f"## {section}", "", "| situation | exit code | message | and then |", "|---|---|---|---|"]
        message = f"`{table_row.message}`".replace("|", "\\|") if table_row.message else "-"
        lines.append(f"| {table_row.what} | {table_row.code} | {message} | {table_row.then or '-'} |")
    return "\n".join([*lines, "", ""])


def test_the_table_of_the_documentation(request: pytest.FixtureRequest) -> None:
    """If this fails, run `pytest tests/test_environments.py --golden`."""
    before, rest = PAGE.read_text().split(START)
    page = f"{before}{START}{render()}{END}{rest.split(END)[1]}"
    if request.config.getoption("--golden"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page


def test_the_space_that_the_documentation_promises() -> None:
    assert f"{PROBE_BYTES >> 10} KiB of free space" in PAGE.read_text()
