"""Kill searches, and let their workers fail, to see whether work is lost or a failure is hidden.

    python -m benchmarks.chaos kills [--searches 200] [--first 0] [--json FILE]
    python -m benchmarks.chaos launches [--searches 100] [--first 0] [--json FILE]
    python -m benchmarks.chaos workers [--searches 20] [--first 0] [--json FILE]
    python -m benchmarks.chaos --report FILE

`--first` is the number of the first search. With `--json`, results are added to a file, so that a run can be made in
parts. The exit code is 1 if a search failed the check.

kills: each search is hit at a random moment, most often after its first block, by SIGKILL, SIGTERM, SIGHUP or SIGINT:
the search, one of its workers, or both. Half of the searches have a record of an earlier search as their output, and a
quarter has a background load. Then the search goes on with `--resume`. What must hold:

- each search that had measured a block goes on, and measures no block again: its workers measure as many blocks as are
  added to its journal, whose first lines stay what they were. At most the block that was being measured is lost;
- the output is absent or a valid record, and an earlier record is intact: in place after SIGKILL, and in place or kept
  as `.before.json` otherwise;
- two seconds after the search ended, none of its processes is left, and after the next run none of its files is.

launches: a fifth of all launches fails, in seven ways, when the session is loaded or in one of the next blocks, also
those of the default. The searches run on the recorded landscape of shufflenet, by replay, where the best candidate is
known: it gains 38 %, and only one other comes within 3 % of it. The right winner is within 3 % of the best. For
comparison, the same searches run without failures.

workers: the same with real processes, which do fail in these ways, on a tiny model. Each search must write a record.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import optuna
import psutil
from threadpoolctl import threadpool_limits

from benchmarks.chaos_worker import WAYS
from benchmarks.landscape import Landscape, load_landscape, recorded_paths
from benchmarks.parts import (
    Row,
    add_part_options,
    reopen_rows,
    run_part,
    show_faulty,
    show_without_output,
    take_signals,
)
from benchmarks.replay import ReplayExecutor
from ortune.errors import OrtuneError
from ortune.knobs import DEFAULT, Config
from ortune.measure.open import start_comparison
from ortune.model import ModelInfo, read_model
from ortune.record.files import path_of_trials, read_record, read_trials, write_record
from ortune.record.journal import path_of_journal, scan_journal
from ortune.record.schema import Record
from ortune.tuning.job import SearchSettings, run_search
from ortune.tuning.outcome import Outcome
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate
from ortune.worker.executor import launch_reference
from ortune.workload import InputOptions, make_feed

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "models" / "tiny_cnn.onnx"

BUDGET_S = 3.0
LONGEST_S = 6.0
EARLY = 0.2
"""Budget of a search that is hit. Of this share, a search is hit at any time after its start, up to the given one. The
others are hit within the budget after their first block."""

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
TARGETS = ("search", "worker", "both")

END_S = 2.0
"""Time after the end of a search in which its processes must end."""

LIMIT_S = 600.0
"""Time after which a search counts as hanging. A baseline that hangs while it is loaded costs two minutes."""

EXPECTED = {"c.json", "c.trials.jsonl.gz", "c.before.json", "c.before.trials.jsonl.gz"}
"""Files that are there after a search."""

FAILING = 0.2
"""Share of launches that fail."""

LANDSCAPE = "shufflenet"
REPLAY_BUDGET_S = 60.0
CLOSE = math.log(1.03)
"""Distance to the best candidate, as a log-ratio, within which a winner is the right one."""

START = (
    "import sys\n"
    "from ortune.interrupts import end_at_once\n"
    "end_at_once()\n"
    "import ortune.tuning.prepare as prepare\n"
    f"prepare.WORKER_COMMAND = (sys.executable, '-P', {str(Path(__file__).parent / 'chaos_worker.py')!r})\n"
    "from ortune.__main__ import main\n"
    "main()"
)
"""Program that runs ortune with the workers of this benchmark. Like ortune, it handles signals before all else."""


def count_blocks(journal: bytes) -> int:
    """Return how many blocks a journal contains."""
    return scan_journal(io.BytesIO(journal)).n_blocks


class Folder:
    """The folder of one search, with its files, its temporary files, and the log of its workers."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.temporary = path / "tmp"
        self.outputs = path / "out"
        self.log = path / "blocks"
        self.record = self.outputs / "c.json"
        journal = path_of_journal(self.record)
        assert journal
        self.journal = journal
        for folder in (self.temporary, self.outputs):
            folder.mkdir()

    def start(self, *options: str, failing: float = 0.0) -> subprocess.Popen[str]:
        """Start a search."""
        command = [sys.executable, "-P", "-c", START, "search", str(MODEL), "-o", str(self.record), *options]
        environment = {
            **os.environ,
            "TMPDIR": str(self.temporary),
            "ORTUNE_HISTORY": "off",
            "CHAOS_LOG": str(self.log),
            "CHAOS_FAILING": str(failing),
            "CHAOS_RUN": self.name,
        }
        with (self.path / "output").open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, text=True
            )

    def processes(self) -> list[psutil.Process]:
        """Return all processes of this search that are left."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("CHAOS_RUN") == self.name and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def workers(self) -> list[psutil.Process]:
        """Return its workers."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if any("chaos_worker" in word for word in process.cmdline()[:4]) and "-c" not in process.cmdline():
                    found.append(process)
        return found

    def n_measured(self) -> int:
        """Return how many blocks its workers have measured."""
        return self.log.read_text().count("block") if self.log.exists() else 0

    def n_kept(self) -> int:
        """Return how many blocks are in its journal."""
        return count_blocks(self.journal.read_bytes()) if self.journal.exists() else 0

    def wait_for_end(self, process: subprocess.Popen[str]) -> list[str]:
        """Wait until the search and all of its processes have ended. Return those that are left after two seconds."""
        process.wait(LIMIT_S)
        end_s = time.monotonic() + END_S
        while (left := self.processes()) and time.monotonic() < end_s:
            time.sleep(0.02)
        names = []
        for leftover in left:
            with contextlib.suppress(psutil.Error):
                names.append(" ".join(leftover.cmdline())[-60:])
                leftover.kill()
        return names


@contextlib.contextmanager
def make_folder(name: str) -> Iterator[Folder]:
    """Make a folder, and remove it in the end."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as path:
        yield Folder(Path(path), f"{os.getpid()}-{name}")


def read_output(path: Path) -> tuple[Record | None, str]:
    """Return the record in a file with its trials, or None if there is no file, and what is wrong with it."""
    if not path.exists():
        return None, ""
    try:
        record = read_record(path)
        read_trials(path)
    except OrtuneError as error:
        return None, f"invalid output: {error}"
    return record, ""


def find_lost_record(folder: Folder, earlier: dict[str, bytes], *, killed: bool) -> str:
    """Return what is wrong with the record of an earlier search; empty if it is intact."""
    kept = folder.record.with_name("c.before.json")
    places = [folder.record] if killed else [folder.record, kept]
    for place in places:
        files = (place, path_of_trials(place))
        if all(file.exists() and file.read_bytes() == data for file, data in zip(files, earlier.values(), strict=True)):
            return ""
    return "the earlier record is not intact"


def hit(folder: Folder, process: subprocess.Popen[str], target: str, number: signal.Signals, rng: random.Random) -> str:
    """Send a signal, and return what was hit; empty if it had ended."""
    hits = []
    if target != "search" and (workers := folder.workers()):
        with contextlib.suppress(psutil.Error):
            rng.choice(workers).send_signal(number)
            hits.append("worker")
    if target != "worker" and process.poll() is None:
        process.send_signal(number)
        hits.append("search")
    return " and ".join(hits)


def kill_search(seed: int, earlier: dict[str, bytes]) -> Row:
    """Hit one search, go on with it, and return what happened. `earlier` holds the files of an earlier search."""
    rng = random.Random(seed)
    target, number = TARGETS[seed % 3], SIGNALS[seed // 3 % 4]
    has_earlier, has_load = rng.random() < 0.5, rng.random() < 0.25
    is_early = rng.random() < EARLY
    moment_s = rng.uniform(0.0, LONGEST_S if is_early else BUDGET_S)
    options = ["--budget", f"{BUDGET_S}s", "--only", "intra_op_num_threads,session.intra_op.allow_spinning"]
    options += ["--beside", "sleep 1000"] if has_load else []
    faults: list[str] = []
    with make_folder(str(seed)) as folder:
        if has_earlier:
            for name, data in earlier.items():
                (folder.outputs / name).write_bytes(data)
        process = folder.start(*options)
        while not is_early and not folder.n_kept() and process.poll() is None:
            time.sleep(0.01)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment_s)
        was_hit = hit(folder, process, target, number, rng)
        try:
            left = folder.wait_for_end(process)
        except subprocess.TimeoutExpired:
            process.kill()
            left = ["the search hangs", *folder.wait_for_end(process)]
        faults += [f"left: {name}" for name in left]
        is_search_hit = "search" in was_hit
        n_kept, n_measured = folder.n_kept(), folder.n_measured()
        record, fault = read_output(folder.record)
        faults += [fault] if fault else []
        is_new = record is not None and not (has_earlier and record.search.started == earlier_started(earlier))
        is_done = is_new and record is not None and not folder.journal.exists() and not record.search.interrupted
        if has_earlier and not is_done:
            lost = find_lost_record(folder, earlier, killed=is_search_hit and number == signal.SIGKILL)
            faults += [lost] if lost else []
        if not is_search_hit and not is_done:
            faults.append(f"a search that was not hit ended with {process.returncode}")
        if "Traceback" in (folder.path / "output").read_text(errors="replace"):
            faults.append("a traceback")
        if not is_done:
            # A block that a worker had measured may not have arrived.
            if not 0 <= n_measured - n_kept <= 1:
                faults.append(f"{n_measured} blocks were measured and {n_kept} are kept")
            faults += go_on(folder, options, n_kept)
        row = {"kind": "kills", "seed": seed, "target": target, "signal": number.name, "hit": was_hit}
        row |= {"moment_s": round(moment_s, 2), "code": process.returncode, "n_kept": n_kept, "is_done": is_done}
        row |= {"interrupted": bool(record and record.search.interrupted), "has_load": has_load, "faults": faults}
        if faults:
            row["output"] = (folder.path / "output").read_text(errors="replace")[-2000:]
    return row


def go_on(folder: Folder, options: Sequence[str], n_kept: int) -> list[str]:
    """Go on with a search that was hit, and return what is wrong."""
    faults = []
    prefix, link = b"", folder.path / "journal"
    if n_kept:
        content = folder.journal.read_bytes()
        prefix = content[: scan_journal(io.BytesIO(content)).n_bytes]
        # Another name of the file, which the search removes in the end.
        link.hardlink_to(folder.journal)
    folder.log.unlink(missing_ok=True)
    process = folder.start(*options, "--resume")
    try:
        faults += [f"left after going on: {name}" for name in folder.wait_for_end(process)]
    except subprocess.TimeoutExpired:
        process.kill()
        return ["the search hangs when it goes on"]
    record, fault = read_output(folder.record)
    faults += [fault] if fault else []
    if process.returncode not in {0, 3} or record is None:
        faults.append(f"going on ended with {process.returncode}")
    elif record.search.interrupted or record.search.n_resumes != bool(n_kept):
        faults.append(f"the record was resumed {record.search.n_resumes} times")
    if n_kept:
        content = link.read_bytes()
        n_added = count_blocks(content) - n_kept
        if not content.startswith(prefix):
            faults.append("the first lines of the journal changed")
        if n_added != folder.n_measured():
            faults.append(f"{folder.n_measured()} blocks were measured to add {n_added}")
    files = [
        path.name for path in (*folder.outputs.iterdir(), *folder.temporary.iterdir()) if path.name not in EXPECTED
    ]
    return faults + [f"left: {name}" for name in files]


def make_earlier() -> dict[str, bytes]:
    """Return the files of a search that proves something, by name."""
    with make_folder("earlier") as folder:
        process = folder.start("--budget", "8s", "--only", "graph_optimization_level")
        process.wait(LIMIT_S)
        record, _ = read_output(folder.record)
        if record is None:
            raise SystemExit((folder.path / "output").read_text())
        # On a busy host, a short search proves nothing. For what happens to its files, what it says is enough.
        evidence = msgspec.structs.replace(record.evidence, verdict="faster")
        proven = msgspec.structs.replace(record, evidence=evidence)
        assert proven.is_proven
        write_record(proven, folder.record, path_of_trials(folder.record).read_bytes())
        return {path.name: path.read_bytes() for path in (folder.record, path_of_trials(folder.record))}


def earlier_started(earlier: dict[str, bytes]) -> str:
    """Return when the earlier search began."""
    return str(json.loads(next(iter(earlier.values())))["search"]["started"])


class ChaoticExecutor:
    """An executor of which a share of the launches fails.

    Args:
        inner: Launches candidates on a simulated clock.
        failing: Share of the launches that fail.
        seed: Random seed.
    """

    def __init__(self, inner: ReplayExecutor, failing: float, seed: int) -> None:
        self.inner = inner
        self.runtime = inner.runtime
        self.failing = failing
        self.rng = random.Random(seed)
        self.n_failed = 0

    def now_s(self) -> float:
        """Return the simulated time in seconds."""
        return self.inner.now_s()

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Launch candidates. Those that fail do so now, or in one of their next blocks."""
        answers: list[LiveCandidate | Failure] = []
        for answer in self.inner.launch(configs, deadline_s=deadline_s, independent=independent):
            if isinstance(answer, Failure) or self.rng.random() >= self.failing:
                answers.append(answer)
                continue
            self.n_failed += 1
            n_blocks = self.rng.choice((0, 1, 2, 5))
            dying = DyingCandidate(self, answer, n_blocks)
            answers.append(dying if n_blocks else self.make_failure("load", deadline_s / len(configs)))
        return answers

    def make_failure(self, stage: str, deadline_s: float) -> Failure:
        """Return a failure in a random way. One that hangs takes its time."""
        way = self.rng.choice(WAYS)
        if way in {"hang", "half a message"}:
            self.inner.spend(deadline_s)
            return Failure(kind="timeout", stage=stage, message=f"no reply within {deadline_s:.0f} s")
        if way == "out of memory":
            return Failure(kind="out_of_memory", stage=stage, message="MemoryError")
        return Failure(kind="exit" if way in {"exit", "garbage"} else "crash", stage=stage, message=way)


class DyingCandidate:
    """A candidate whose process fails in one of its blocks."""

    def __init__(self, executor: ChaoticExecutor, live: LiveCandidate, n_blocks: int) -> None:
        self.config = live.config
        self.session_info = live.session_info
        self._executor = executor
        self._live = live
        self._n_left = n_blocks

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure a block, or fail."""
        self._n_left -= 1
        return self._live.measure(plan) if self._n_left else self._executor.make_failure("measure", plan.deadline_s)

    def close(self) -> None:
        """Close the candidate."""
        self._live.close()


def search_landscape(landscape: Landscape, model: ModelInfo, failing: float, seed: int) -> Outcome:
    """Run a search on a landscape.

    Raises:
        OrtuneError: It cannot even begin.
    """
    executor = ChaoticExecutor(ReplayExecutor(landscape, seed=seed), failing, seed)
    first = launch_reference(executor, model, make_feed(model, InputOptions()), DEFAULT, 60.0)
    typed: Executor = executor
    opened = start_comparison(typed, first, landscape.goal, first_launch_s=0.5, seed=seed, start_s=executor.now_s())
    return run_search(landscape.first_space, opened, SearchSettings(budget_s=REPLAY_BUDGET_S))


def fail_launches(seed: int) -> Row:
    """Run a search on a landscape with and without launches that fail, and return what was found."""
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    landscape = next(loaded for path in recorded_paths() if (loaded := load_landscape(path)).name == LANDSCAPE)
    model = read_model(MODEL)
    best = float(min(cost for cost in landscape.log_costs if not math.isnan(cost)))
    row: Row = {"kind": "launches", "seed": seed, "faults": []}
    for name, failing in (("failing", FAILING), ("undisturbed", 0.0)):
        try:
            with threadpool_limits(limits=1, user_api="blas"):
                outcome = search_landscape(landscape, model, failing, seed)
        except OrtuneError as error:
            row[name] = {"error": str(error)}
            continue
        regret = float(landscape.log_costs[landscape.space.numbers[outcome.config.key]]) - best
        row[name] = {
            "verdict": outcome.evidence.verdict,
            "right": outcome.evidence.verdict == "faster" and regret <= CLOSE,
            "regret": round(math.expm1(regret), 4),
            "n_relaunched": outcome.evidence.noise.n_relaunched,
            "fault": outcome.fault.message if outcome.fault else "",
        }
    if "error" in row["failing"]:
        row["faults"].append("no record")
    return row


def fail_workers(seed: int) -> Row:
    """Run a search with workers that fail, and return what is wrong."""
    with make_folder(f"workers-{seed}") as folder:
        process = folder.start("--budget", "20s", "--only", "graph_optimization_level", failing=FAILING)
        left: list[str] = []
        try:
            left = folder.wait_for_end(process)
        except subprocess.TimeoutExpired:
            process.kill()
            left = ["the search hangs"]
        record, fault = read_output(folder.record)
        faults = [*left, *([fault] if fault else [])]
        if record is None:
            faults.append(f"no record, exit code {process.returncode}")
        output = (folder.path / "output").read_text(errors="replace")
        if "Traceback" in output:
            faults.append("a traceback")
        row: Row = {"kind": "workers", "seed": seed, "code": process.returncode, "faults": faults}
        if record:
            row |= {"verdict": record.evidence.verdict, "n_relaunched": record.evidence.noise.n_relaunched}
        if faults:
            row["output"] = output[-2000:]
    return row


def report(rows: Sequence[Row]) -> bool:
    """Print all results, and return whether all of them are as they must be."""
    faulty = [row for row in rows if row["faults"]]
    if kills := [row for row in rows if row["kind"] == "kills"]:
        hits = Counter((row["hit"] or "nothing", row["signal"]) for row in kills)
        resumed = [row for row in kills if not row["is_done"] and row["n_kept"]]
        print(f"{len(kills)} searches were hit at a random moment")
        for (target, number), count in sorted(hits.items()):
            print(f"  {target:<18} {number:<8} {count}")
        print(f"  ended as planned: {sum(row['is_done'] for row in kills)}")
        print(f"  went on with {sum(row['n_kept'] for row in resumed)} blocks: {len(resumed)}")
        print(f"  had no block yet: {len(kills) - len(resumed) - sum(row['is_done'] for row in kills)}")
        print(f"  wrote the best so far: {sum(row['interrupted'] for row in kills)}")
        print(f"  with a background load: {sum(row['has_load'] for row in kills)}")
        print(f"  with a fault: {sum(bool(row['faults']) for row in kills)}")
    n_right = n_launches = 0
    if launches := [row for row in rows if row["kind"] == "launches"]:
        n_launches = len(launches)
        print(f"{n_launches} searches on {LANDSCAPE}, {REPLAY_BUDGET_S:.0f} s each")
        for name in ("failing", "undisturbed"):
            found = [row[name] for row in launches]
            right = sum(case.get("right", False) for case in found)
            print(
                f"  {name}: right winner {right}, records {sum('error' not in case for case in found)}, ended early "
                f"{sum(bool(case.get('fault')) for case in found)}, workers launched again "
                f"{sum(case.get('n_relaunched', 0) for case in found)}"
            )
            n_right = right if name == "failing" else n_right
    if workers := [row for row in rows if row["kind"] == "workers"]:
        verdicts = Counter(row.get("verdict", "no record") for row in workers)
        print(f"{len(workers)} searches with workers that fail: {dict(verdicts)}")
        print(f"  workers launched again: {sum(row.get('n_relaunched', 0) for row in workers)}")
        print(f"  with a fault: {sum(bool(row['faults']) for row in workers)}")
    show_faulty(rows)
    return not faulty and n_right >= 0.95 * n_launches


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", nargs="?", choices=("kills", "launches", "workers"))
    parser.add_argument("--searches", type=int)
    add_part_options(parser)
    options = parser.parse_args()
    if options.report:
        return not report(reopen_rows(options.report))
    take_signals()
    if not options.kind:
        parser.error("name what to run, or pass --report")
    n_searches = options.searches or {"kills": 200, "launches": 100, "workers": 20}[options.kind]
    earlier = make_earlier() if options.kind == "kills" else {}
    run = {"kills": lambda seed: kill_search(seed, earlier), "launches": fail_launches, "workers": fail_workers}
    rows = map(run[options.kind], range(options.first, options.first + n_searches))
    return not report(run_part(rows, options.json, show_without_output))


if __name__ == "__main__":
    sys.exit(main())
