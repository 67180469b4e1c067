"""`ortune apply --canary SHARE --metrics FOLDER -- COMMAND`: the split, and what processes write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortune import Config, UsageError
from ortune.apply.canary import plan_canary
from ortune.apply.inside.canary import CANARY, CONTROL, choose_arm
from ortune.apply.plan import choose_for, read_for
from ortune.fleet.canary_metrics import ProcessMetrics, read_metrics
from ortune.options import make_request, parse_share
from ortune.program_options import ProgramRequest
from tests.applying import PROGRAM, run, sessions, write_tuned
from tests.conftest import TINY_CNN, run_ortune
from tests.records import make_record, write

CALLING = Path(__file__).parent / "programs" / "canary.py"

PATH = f"import sys; sys.path.insert(0, {str(CALLING.parent)!r})"
"""What code needs that runs the text of that program."""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    return write_tuned(tmp_path)


def run_canaries(
    tuned: Path, folder: Path, way: str, share: str = "50%"
) -> tuple[list[ProcessMetrics], dict[int, str], subprocess.CompletedProcess[str]]:
    """Return the metrics, the threads that each process has printed, and the process of the command."""
    done = run(
        sys.executable,
        CALLING,
        TINY_CNN,
        way,
        record=tuned,
        options=("-q", "--canary", share, "--metrics", str(folder)),
    )
    metrics = read_metrics(folder)
    assert metrics.faults == ()
    threads = {int(pid): n for pid, n in (line.split() for line in done.stdout.splitlines())}
    return list(metrics.processes), threads, done


def check_split(processes: list[ProcessMetrics], threads: dict[int, str]) -> None:
    """Check that the sessions of each process are those of its arm, and that the arm follows from the process."""
    for process in processes:
        assert process.arm == choose_arm(process.host, process.decided_pid, process.decided_ns, process.share)
        assert threads[process.pid] == ("1" if process.arm == CANARY else "2")
        (model,) = process.models
        assert (model.n_tuned > 0) == (process.arm == CANARY)


class TestSplit:
    def test_the_share(self) -> None:
        for share in (0.1, 0.5):
            arms = [choose_arm("host", 1000 + n // 10, n, share) for n in range(4000)]
            assert arms.count(CANARY) / len(arms) == pytest.approx(share, abs=0.03)
        assert {choose_arm("host", n, 0, 0.0) for n in range(100)} == {CONTROL}
        assert {choose_arm("host", n, 0, 1.0) for n in range(100)} == {CANARY}

    def test_a_process_stays_a_canary_when_the_share_grows(self) -> None:
        for n in range(300):
            if choose_arm("host", n, n, 0.1) == CANARY:
                assert choose_arm("host", n, n, 0.3) == CANARY

    @pytest.mark.parametrize(("value", "share"), [("10%", 0.1), ("0.25", 0.25), (0.5, 0.5), ("100%", 1.0), ("0%", 0.0)])
    def test_shares(self, value: object, share: float) -> None:
        assert parse_share(value) == pytest.approx(share)

    @pytest.mark.parametrize("value", ["10", "101%", "-1%", "some", "%", 2, True, "nan"])
    def test_what_is_no_share(self, value: object) -> None:
        with pytest.raises(UsageError):
            parse_share(value)


@pytest.fixture
def light_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program `CALLING` have sessions that take next to no CPU time."""
    monkeypatch.setenv("LIGHT_SESSIONS", "1")


class TestPrograms:
    @pytest.mark.parametrize(("share", "arm"), [("100%", CANARY), ("0%", CONTROL)])
    def test_one_process(self, share: str, arm: str, tuned: Path, tmp_path: Path) -> None:
        (process,), threads, done = run_canaries(tuned, tmp_path / "new" / "metrics", "failing", share)
        assert (done.returncode, done.stderr.count("ortune")) == (0, 0), done.stderr
        check_split([process], threads)
        assert process.arm == arm
        (model,) = process.models
        assert (model.name, model.n_calls, model.n_failed) == (TINY_CNN.name, 30, 3)
        assert 0 < model.total_ns <= process.wall_ns
        assert process.cpu_ns > 0
        assert process.host_class
        (path,) = (tmp_path / "new" / "metrics").iterdir()
        assert path.read_text().count("\n") == 1

    @needs_fork
    @pytest.mark.usefixtures("light_sessions")
    def test_forked_workers_decide_for_themselves(self, tuned: Path, tmp_path: Path) -> None:
        """Until both arms were seen: the split is random."""
        folder = tmp_path / "metrics"
        seen: dict[int, str] = {}
        for n_runs in range(1, 20):
            processes, threads, done = run_canaries(tuned, folder, "forks")
            assert done.returncode == 0, done.stderr
            seen |= threads
            assert len(processes) == len(seen) == 6 * n_runs
            if len({process.arm for process in processes}) == 2:
                break
        check_split(processes, seen)
        assert len({process.arm for process in processes}) == 2

    @needs_fork
    @pytest.mark.usefixtures("light_sessions")
    def test_children_with_a_session_of_their_parent_stay_in_its_arm(self, tuned: Path, tmp_path: Path) -> None:
        processes, _, done = run_canaries(tuned, tmp_path / "metrics", "inherits")
        assert done.returncode == 0, done.stderr
        parent, *children = processes
        assert len(children) == 3
        assert {process.unit for process in processes} == {parent.unit}
        assert {process.arm for process in processes} == {parent.arm}
        assert [process.n_calls for process in processes] == [30, 40, 40, 40]

    @pytest.mark.usefixtures("light_sessions")
    def test_calls_in_threads_are_all_counted(self, tuned: Path, tmp_path: Path) -> None:
        (process,), _, _ = run_canaries(tuned, tmp_path / "metrics", "threads")
        assert process.n_calls == 2000

    @pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
    @pytest.mark.usefixtures("light_sessions")
    def test_a_process_that_ends_by_a_signal_of_its_own(self, tuned: Path, tmp_path: Path) -> None:
        (process,), _, done = run_canaries(tuned, tmp_path / "metrics", "terminated")
        assert done.returncode == -15
        assert process.n_calls == 30

    @pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
    @pytest.mark.usefixtures("light_sessions")
    def test_a_process_that_is_killed_has_written_before(self, tuned: Path, tmp_path: Path) -> None:
        (process,), _, done = run_canaries(tuned, tmp_path / "metrics", "killed")
        assert done.returncode == -9
        assert process.n_calls > 0

    @pytest.mark.usefixtures("light_sessions")
    def test_a_folder_that_is_gone_does_not_stop_the_program(self, tuned: Path, tmp_path: Path) -> None:
        folder = tmp_path / "metrics"
        code = f"import os, sys; os.rmdir({str(folder)!r}); {PATH}; exec(open({str(CALLING)!r}).read())"
        done = run(
            sys.executable,
            "-c",
            code,
            TINY_CNN,
            "once",
            record=tuned,
            options=("-q", "--canary", "0%", "--metrics", str(folder)),
        )
        assert done.returncode == 0
        assert done.stdout.split()[1] == "2"
        assert done.stderr.count("metrics cannot be written") == 1

    def test_without_metrics(self, tuned: Path) -> None:
        for share, n_threads in (("100%", 1), ("0%", 0)):
            (session,) = sessions("by_path", record=tuned, options=("-q", "--canary", share))
            assert session["intra"] == n_threads

    @pytest.mark.usefixtures("light_sessions")
    def test_from_the_environment(self, tuned: Path, tmp_path: Path) -> None:
        start = f"from ortune.apply.environment import start; start(); {PATH}; exec(open({str(CALLING)!r}).read())"
        for share, n_threads in (("0%", "2"), ("100%", "1")):
            variables = {"ORTUNE_CONFIG": str(tuned), "ORTUNE_CANARY": share, "ORTUNE_METRICS": str(tmp_path / share)}
            done = run(sys.executable, "-P", "-c", start, TINY_CNN, "once", environment=variables)
            assert done.stdout.split()[1:] == [n_threads], done.stderr
            assert len(read_metrics(tmp_path / share).processes) == 1

    @pytest.mark.usefixtures("light_sessions")
    def test_from_python(self, tuned: Path, tmp_path: Path) -> None:
        folder = tmp_path / "m"
        start = f"import ortune; ortune.install({str(tuned)!r}, canary='0%', metrics={str(folder)!r})"
        code = f"{start}; {PATH}; exec(open({str(CALLING)!r}).read())"
        done = run(sys.executable, "-P", "-c", code, TINY_CNN, "once")
        assert done.stdout.split()[1:] == ["2"], done.stderr
        assert len(read_metrics(folder).processes) == 1

    def test_what_is_printed_before_the_program_starts(self, tuned: Path, tmp_path: Path) -> None:
        done = run(
            sys.executable,
            "-c",
            "pass",
            record=tuned,
            options=("--canary", "10%", "--metrics", str(tmp_path / "m")),
        )
        assert "10% of the processes are canaries, which use config " in done.stderr
        assert f"metrics are written to {tmp_path / 'm'}" in done.stderr

    def test_an_explanation_names_the_arm(self, tuned: Path) -> None:
        done = run(sys.executable, PROGRAM, TINY_CNN, "by_path", record=tuned, options=("--explain", "--canary", "0%"))
        assert "this process is in the control arm" in done.stderr
        assert "no session got tuned options" not in done.stderr


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            (("tuned.json", "--canary", "10"), "must be a share from 0 to 1"),
            (("tuned.json", "--metrics", "m"), "--metrics needs --canary"),
            (("--explain", "--canary", "10%"), "--canary needs a CONFIG"),
            (("tuned.json", "--canary", "10%", "--metrics", "postgresql://host/db"), "is not a folder"),
            (("tuned.json", "--canary", "10%", "--metrics", "tuned.json"), "cannot be created"),
        ],
    )
    def test_mistakes(self, options: tuple[str, ...], text: str, tuned: Path) -> None:
        done = run_ortune("apply", *options, "--", sys.executable, "-c", "pass", cwd=tuned.parent)
        assert done.returncode == 2
        assert text in " ".join(done.stderr.split())
        assert not (tuned.parent / "postgresql:").exists()

    @pytest.mark.parametrize("share", ["10%", "0%"])
    def test_a_command_is_needed(self, share: str, tuned: Path) -> None:
        done = run_ortune("apply", "tuned.json", "--canary", share, cwd=tuned.parent)
        assert done.returncode == 2
        assert "--canary needs a command" in done.stderr

    def plan(self, path: Path, **values: object) -> dict[str, object] | None:
        request = make_request(ProgramRequest, {"canary": "10%", **values})
        records = read_for([path], request)
        return plan_canary(records, choose_for(records, request), request)

    def test_a_config_that_all_processes_would_get(self, tmp_path: Path) -> None:
        path = write(make_record(TINY_CNN, Config(environment={"OMP_NUM_THREADS": "1"})), tmp_path / "r.json")
        with pytest.raises(UsageError, match="needs OMP_NUM_THREADS, which all processes"):
            self.plan(path)
        assert self.plan(path, canary=None) is None

    def test_a_record_for_another_host_is_not_used_in_any_process(self, tmp_path: Path) -> None:
        config = Config(session_options={"intra_op_num_threads": 1})
        path = write(make_record(TINY_CNN, config, here=False), tmp_path / "r.json")
        assert self.plan(path) is None
        assert self.plan(path, any_host=True)

    def test_the_id_of_a_config(self, tmp_path: Path) -> None:
        paths = [
            write(make_record(TINY_CNN, Config(session_options={"intra_op_num_threads": n})), tmp_path / f"{n}.json")
            for n in (1, 2)
        ]
        one, other = ((self.plan(path) or {})["config"] for path in paths)
        assert one != other
        assert (self.plan(paths[0], canary="90%") or {})["config"] == one
        options: dict[str, object] = {
            "clients": 4,
            "rate": "50/s",
            "sessions": 2,
            "processes": 2,
            "keep_explicit": True,
            "any_host": True,
            "any_model": True,
            "cache_dir": tmp_path,
        }
        ids = {(self.plan(paths[0], **{name: value}) or {})["config"] for name, value in options.items()}
        assert len({one, other, *ids}) == 10
        assert self.plan(paths[0], cache_dir=tmp_path) == self.plan(paths[0], cache_dir=tmp_path / "other")
