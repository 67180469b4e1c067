"""Kill searches of programs at random moments, to see whether anything is left: processes, files, ports.

    python -m benchmarks.program_kills [--searches 50] [--first 0] [--json FILE]
    python -m benchmarks.program_kills --report FILE

`--first` is the number of the first search. With `--json`, results are added to a file, so that a run can be made in
parts. The exit code is 1 if a search failed the check.

In turn, searches measure complete runs, calls in programs that stay alive, and a server. The program has children: one
of its own group, and a daemon that left its process group, its session and its parent. Each search is hit at a random
moment, most often after it has begun to measure, by SIGKILL, SIGTERM, SIGHUP or SIGINT. The signal goes to the search,
to a supervisor, to a process of the program, or to the search and a supervisor. What must hold:

- two seconds after the search ended, none of its processes is left, and nothing listens on a port that one of them had.
  Processes are recognized by a variable in their environment;
- a search whose supervisor was ended goes on. One whose program was ended goes on, too, or ends with a message;
- a search that was hit ends by the signal if it is SIGKILL, and with status 130 otherwise, unless Python had just
  started or was about to exit. If it had begun to measure, it then writes a record that says that it was interrupted;
- the output is absent or valid, and no message is a traceback;
- after the next search, which starts anew, none of the temporary files is left.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.parts import (
    Row,
    add_part_options,
    reopen_rows,
    run_part,
    show_faulty,
    show_without_output,
    take_signals,
)
from ortune.errors import OrtuneError
from ortune.record.files import read_records, read_trials
from ortune.record.schema import Record

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "models" / "tiny_cnn.onnx"
PROGRAM = ROOT / "tests" / "programs" / "worker.py"

MARK = "PROGRAM_KILLS_RUN"

SUPERVISOR = "ortune.program.supervisor"

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
TARGETS = ("search", "supervisor", "program", "search and supervisor")
WAYS = {
    "runs": (("--metric", r"result ([\d.]+)", "--maximize"), ("run", "5")),
    "calls": (("--call", "__main__:work"), ("forever", "0")),
    "server": (("--url", "http://127.0.0.1:{port}/"), ("serve", "{port}")),
}
"""Options of the search, and arguments of the program."""

SEARCH_BUDGET_S = 12.0
"""Budget of a search. The first run of the program is part of it."""

LATEST_S = 6.0
LONGEST_S = 9.0
EARLY = 0.25
"""A search is hit within the first time after its program was started again after its first observation. Of this share,
it is hit at any time after its own start, up to the second time."""

CALIBRATION_RUNS = 20
"""Runs to completion after which a search has begun to compare candidates."""

END_S = 2.0
"""Time after the end of a search in which its processes must end."""

LIMIT_S = 180.0
"""Time after which a search counts as hanging."""

EXPECTED = {".ses"}
"""File that ONNX Runtime itself leaves in the folder of temporary files."""


class Folder:
    """The folder of one search, with its output and its temporary files."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self.temporary = path / "tmp"
        self.record = path / "c.json"
        self.output = path / "output"
        self.temporary.mkdir()
        self._searches: list[subprocess.Popen[bytes]] = []

    def start(self, way: str, *more: str) -> subprocess.Popen[bytes]:
        """Start a search."""
        options, arguments = WAYS[way]
        command = [sys.executable, "-P", "-m", "ortune", "search", "-o", str(self.record), *options, *more]
        command += ["--only", "intra_op_num_threads", "--", sys.executable, str(PROGRAM), str(MODEL), *arguments]
        environment = {**os.environ, "TMPDIR": str(self.temporary), "ORTUNE_HISTORY": "off", MARK: self.name}
        with self.output.open("ab") as output:
            search = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment, "WORKER_FAMILY": "1"},
            )
        self._searches.append(search)
        return search

    def close(self) -> None:
        """Kill the searches that still run, as they do after an exception."""
        for search in self._searches:
            search.kill()
            search.wait()

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this search that are left."""
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError, psutil.Error):
                if f"{MARK}={self.name}".encode() in path.read_bytes().split(b"\0"):
                    process = psutil.Process(int(path.parent.name))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def count_runs(self) -> int:
        """Return how often the search has started its program so far, according to its files."""
        runs = []
        for folder in self.temporary.iterdir():
            with contextlib.suppress(OSError):  # a file, or a folder that its search just removed
                runs += [path.name for path in folder.iterdir() if path.name.startswith("run-")]
        return max((int(name.partition("-")[2]) for name in runs), default=0)

    def read_output(self) -> str:
        """Return what its searches printed."""
        return self.output.read_text(errors="replace")


@contextlib.contextmanager
def make_folder(name: str) -> Iterator[Folder]:
    """Make a folder. In the end, kill its searches and remove it."""
    with tempfile.TemporaryDirectory(prefix="program-kills-") as path:
        folder = Folder(Path(path), f"{os.getpid()}-{name}")
        with contextlib.closing(folder):
            yield folder


def find_ports(processes: Sequence[psutil.Process]) -> set[int]:
    """Return the TCP ports on which these processes listen."""
    ports = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            listening = [
                net_connection
                for net_connection in process.net_connections("tcp")
                if net_connection.status == psutil.CONN_LISTEN
            ]
            ports |= {connection.laddr.port for connection in listening}
    return ports


def count_supervisors(processes: Sequence[psutil.Process]) -> int:
    """Return how many of these processes supervise programs: two for each one, as each supervisor has a guard."""
    count = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            count += SUPERVISOR in process.cmdline()
    return count


def choose(target: str, search: int, processes: Sequence[psutil.Process], rng: random.Random) -> list[psutil.Process]:
    """Return the processes that get the signal; none if the target does not run at this moment."""
    kinds: dict[str, list[psutil.Process]] = {"search": [], "supervisor": [], "program": []}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            line = process.cmdline()
            if process.pid == search:
                kinds["search"].append(process)
            elif SUPERVISOR in line:  # the supervisor itself or its guard
                kinds["supervisor"].append(process)
            # That of a process that is ending is empty.
            elif str(PROGRAM) in line or any("time.sleep(600)" in word for word in line):
                kinds["program"].append(process)
    return [rng.choice(kinds[kind]) for kind in target.split(" and ") if kinds[kind]]


def wait_for_end(folder: Folder, search: subprocess.Popen[bytes]) -> list[str]:
    """Wait until a search and all of its processes have ended. Return those that are left after two seconds."""
    faults = []
    try:
        search.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        search.kill()
        search.wait()
        faults.append("the search hangs")
    end_s = time.monotonic() + END_S
    while (left := folder.processes()) and time.monotonic() < end_s:
        time.sleep(0.02)
    for process in left:
        with contextlib.suppress(psutil.Error):
            faults.append(f"left: {' '.join(process.cmdline())[-90:]} ({process.status()})")
            process.kill()
    return faults


def read_outcome(folder: Folder) -> tuple[tuple[Record, ...], list[str]]:
    """Return the records of a search, and what is wrong with its output."""
    faults = ["a traceback"] if "Traceback" in folder.read_output() else []
    if not folder.record.exists():
        return (), faults
    try:
        records = tuple(read_records(folder.record))
        read_trials(folder.record)
    except OrtuneError as error:
        return (), [*faults, f"invalid output: {error}"]
    return records, faults


def judge_end(
    code: int, hit: str, number: signal.Signals, records: Sequence[Record], *, measured: bool, alone: bool = False
) -> list[str]:
    """Return what is wrong with the end of a search.

    Args:
        code: Its exit status.
        hit: What got the signal.
        number: The signal.
        records: What it wrote.
        measured: Whether it had begun to measure when it was hit.
        alone: Whether it had no other process then, as at its start and at its exit.
    """
    finished = bool(records) and not records[0].search.interrupted
    if code in {0, 3}:  # it had ended, or it went on
        return [] if finished else [f"status {code} without a finished record"]
    if "search" not in hit:
        return [] if code == 2 and hit == "program" else [f"a search that was not hit ended with {code}"]
    if number == signal.SIGKILL:
        return [] if code == -signal.SIGKILL else [f"a search that was killed ended with {code}"]
    if alone and -code in {number, signal.SIGINT}:  # Python starts or exits: there is nothing to clean up
        return []
    if code != 130:
        return [f"a search that was interrupted ended with {code}"]
    if measured and not (records and records[0].search.interrupted):
        return ["an interrupted search did not write what it had"]
    return []


def kill_search(seed: int) -> Row:
    """Hit one search, run another one, and return what happened."""
    rng = random.Random(seed)
    ways = tuple(WAYS)
    way, target, number = ways[seed % 3], TARGETS[seed % 4], SIGNALS[seed // 4 % 4]
    is_early = rng.random() < EARLY
    moment_s = rng.uniform(0.0, LONGEST_S if is_early else LATEST_S)
    with make_folder(str(seed)) as folder:
        search = folder.start(way, "--budget", f"{SEARCH_BUDGET_S}s")
        while not is_early and folder.count_runs() < 2 and search.poll() is None:
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            search.wait(moment_s)
        processes, chosen = [], list[psutil.Process]()
        while search.poll() is None and not chosen:
            processes = folder.processes()
            chosen = choose(target, search.pid, processes, rng)
        ports = find_ports(processes)
        n_runs = folder.count_runs()
        measured = count_supervisors(processes) > 2 or n_runs > CALIBRATION_RUNS
        for process in chosen:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        hit = target if chosen else ""
        faults = wait_for_end(folder, search)
        faults += [f"port {port} is in use" for port in find_ports(list(psutil.process_iter())) & ports]
        records, wrong = read_outcome(folder)
        alone = len(processes) == 1
        faults += wrong + judge_end(search.returncode, hit, number, records, measured=measured, alone=alone)
        folder.record.unlink(missing_ok=True)
        following = folder.start(way, "--budget", "1s", "--trials", "1", "--restart")
        faults += [f"next search: {fault}" for fault in wait_for_end(folder, following)]
        if following.returncode not in {0, 3}:
            faults.append(f"the next search ended with {following.returncode}")
        faults += [f"left: {path.name}" for path in folder.temporary.iterdir() if path.name not in EXPECTED]
        row = {"seed": seed, "way": way, "hit": hit, "signal": number.name, "moment_s": round(moment_s, 2)}
        row |= {
            "n_processes": len(processes),
            "n_runs": n_runs,
            "ports": len(ports),
            "code": search.returncode,
            "wrote": len(records),
        }
        row |= {"interrupted": bool(records and records[0].search.interrupted), "measured": measured, "faults": faults}
        if faults:
            row["output"] = folder.read_output()[-2000:]
    return row


def report(rows: Sequence[Row]) -> bool:
    """Print all results, and return whether nothing was left and all searches ended as they must."""
    print(f"{len(rows)} searches of programs were hit at a random moment")
    for name in ("way", "hit", "signal", "code"):
        counts = Counter(str(row[name]) or "nothing" for row in rows)
        print(f"  {name:6} {', '.join(f'{key}: {count}' for key, count in sorted(counts.items()))}")
    print(f"  processes at that moment: {min(row['n_processes'] for row in rows)} to ", end="")
    print(f"{max(row['n_processes'] for row in rows)}")
    print(f"  had begun to measure: {sum(row['measured'] for row in rows)}")
    print(f"  wrote what they had: {sum(row['interrupted'] for row in rows)}")
    faulty = [row for row in rows if row["faults"]]
    print(f"  with a fault: {len(faulty)}")
    show_faulty(rows)
    return not faulty


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=50)
    add_part_options(parser)
    options = parser.parse_args()
    if options.report:
        return not report(reopen_rows(options.report))
    take_signals()
    rows = (kill_search(seed) for seed in range(options.first, options.first + options.searches))
    return not report(run_part(rows, options.json, show_without_output))


if __name__ == "__main__":
    sys.exit(main())
