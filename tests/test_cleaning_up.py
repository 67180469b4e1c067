"""What killed processes leave: temporary folders, suspended workers; and clocks that jump."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
import pytest

from ortune import Config, MeasureError, read_record
from ortune.doctor.optimized_graph import OptimizeRequest, optimize_in_child
from ortune.export import export
from ortune.measure.block_runner import MAX_JUMPS_IN_A_ROW, BlockRunner
from ortune.profile.run import prepare_folder
from ortune.record.files import check_writable, write_atomically
from ortune.record.leftovers import remove_leftovers
from ortune.worker import Block, BlockPlan, Failure
from ortune.worker.clocks import Clocks
from ortune.worker.devices import LIST_DEVICES
from ortune.worker.owned_folder import MAX_START_S, OwnedFolder, remove_abandoned_folders
from ortune.worker.runtime import READ_RUNTIME, RUNTIME_PROBE, find_provider_fault, read_installed_runtime
from ortune.worker.watchdog import Watchdog
from tests.conftest import TINY_CNN
from tests.records import ONE_THREAD, make_local_record, write
from tests.simulated import SimulatedExecutor, SimulatedLive
from tests.test_background_load import is_alive
from tests.test_worker import make_executor

posix = pytest.mark.skipif(sys.platform == "win32", reason="signals and links")

PLAN = BlockPlan(duration_ns=10**7, lead_in_ns=0, min_calls=3, deadline_s=9.0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def make_abandoned(folder: Path, parent: Path | None = None) -> Path:
    """Return a folder whose owner was killed."""
    where = f"pathlib.Path({str(parent)!r})" if parent else ""
    code = "from ortune.worker.owned_folder import OwnedFolder as F; import os, pathlib; "
    code += f"f = F({where}); print(f.path); "
    code += "(f.path / 'feed.npz').write_bytes(bytes(9)); os.sys.stdout.flush(); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    path = Path(done.stdout.strip())
    assert path.parent == folder and (path / "feed.npz").exists()
    return path


class TestFolders:
    def test_it_names_its_owner_and_is_removed(self, folder: Path) -> None:
        with OwnedFolder() as owned:
            assert owned.path.name.startswith(f"ortune-{os.getpid()}-")
            assert remove_abandoned_folders() == []
            assert owned.path.is_dir()
        assert list(folder.iterdir()) == []
        owned.remove()

    @posix
    def test_the_next_run_removes_those_of_killed_owners(self, folder: Path) -> None:
        path = make_abandoned(folder)
        with OwnedFolder() as owned:
            assert remove_abandoned_folders() == [path]
            assert list(folder.iterdir()) == [owned.path]

    @posix
    def test_what_is_not_known_to_be_abandoned_stays(self, folder: Path) -> None:
        target = make_abandoned(folder)
        target = target.rename(folder / "kept")
        (folder / "ortune-1-the_link").symlink_to(target)
        (folder / "ortune-1-the_file").touch()
        (folder / "ortune-mine").mkdir()
        (folder / "ortune-1-just_new").mkdir()  # its owner is about to lock it
        (folder / "ortune-1-half_new").mkdir()
        (folder / "ortune-1-half_new" / "owner.new").touch()
        assert remove_abandoned_folders() == []
        old = [folder / "ortune-1-half_new", folder / "ortune-1-just_new"]
        for path in old:
            os.utime(path, (time.time() - 2 * MAX_START_S,) * 2)
        assert remove_abandoned_folders() == old
        assert (target / "feed.npz").exists()

    @posix
    @pytest.mark.parametrize(
        "name", ["ortune-2026-10-01", "ortune-0.1-src", "ortune-2-models", "ortune-2-my_files", ".ortune-2-my_files"]
    )
    @pytest.mark.parametrize("file", ["tuned.json", "owner", "owner.new/tuned.json"])
    def test_folders_of_the_user_stay(self, folder: Path, name: str, file: str) -> None:
        path = folder / name / file
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        if file == "owner.new/tuned.json":
            (folder / name / "notes").touch()
        os.utime(folder / name, (time.time() - 2 * MAX_START_S,) * 2)
        assert remove_abandoned_folders() == remove_abandoned_folders(folder) == []
        assert path.read_text() == "mine"

    @pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="needs root")
    def test_folders_of_others_stay(self, folder: Path) -> None:
        path = make_abandoned(folder)
        os.chown(path, 12345, 12345)
        assert remove_abandoned_folders() == []
        assert path.exists()

    @posix
    def test_those_in_folders_of_users_are_hidden(self, tmp_path: Path) -> None:
        path = make_abandoned(tmp_path, parent=tmp_path)
        assert path.name.startswith(".ortune-")
        assert remove_abandoned_folders(tmp_path) == [path]

    @posix
    def test_a_profile_that_was_killed_does_not_keep_the_next_one_from_its_folder(self, tmp_path: Path) -> None:
        left = make_abandoned(tmp_path, parent=tmp_path)
        with prepare_folder(tmp_path) as scratch:
            assert not left.exists()
            assert list(tmp_path.iterdir()) == [scratch]

    @posix
    def test_the_next_export_removes_that_of_a_killed_one(self, tmp_path: Path) -> None:
        left = make_abandoned(tmp_path, parent=tmp_path)
        record = write(make_local_record(TINY_CNN, ONE_THREAD), tmp_path / "tuned.json")
        export("ort", read_record(record), str(TINY_CNN), str(record), tmp_path / "m.ort")
        assert not left.exists()
        assert {path.name for path in tmp_path.iterdir()} == {"tuned.json", "m.ort"}

    def test_where_there_are_no_locks_nothing_is_removed(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = make_abandoned(folder)
        monkeypatch.setattr("ortune.worker.owned_folder.try_to_lock", lambda descriptor: None)
        assert remove_abandoned_folders() == []
        assert path.exists()


@posix
class TestLeftovers:
    def make(self, folder: Path, name: str, age_s: float = 60.0) -> Path:
        path = folder / name
        path.write_text("half of a rec")
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    def test_those_of_killed_processes_are_removed(self, tmp_path: Path) -> None:
        record = tmp_path / "a [1].json"
        left = self.make(tmp_path, ".a [1].json.ortune-ab_c1234")
        others = [
            self.make(tmp_path, name)
            for name in (
                ".a [1].json.swp",
                ".a [1].json.20260101",
                ".b.json.ortune-abcd1234",
                ".a [1].json.ortune-ab_c12345",
            )
        ]
        others.append(self.make(tmp_path, ".a [1].json.ortune-fresh123", age_s=0.0))
        assert remove_leftovers(record) == [left]
        assert all(other.exists() for other in others)

    def test_one_that_is_being_written_stays(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        sync = os.fsync
        removed: list[Path] = []

        def sync_slowly(descriptor: int) -> None:
            (path,) = tmp_path.iterdir()
            os.utime(path, (0, 0))
            code = f"from pathlib import Path; from ortune.record.leftovers import *; remove_leftovers({record!r})"
            subprocess.run([sys.executable, "-c", code.replace("PosixPath", "Path")], check=True)
            removed.extend(remove_leftovers(record))
            sync(descriptor)

        record = tmp_path / "a.json"
        monkeypatch.setattr(os, "fsync", sync_slowly)
        write_atomically(record, b"whole")
        assert removed == []
        assert record.read_bytes() == b"whole"

    def test_the_next_check_of_the_file_removes_them(self, tmp_path: Path) -> None:
        left = self.make(tmp_path, ".a.json.ortune-ab_c1234")
        check_writable(tmp_path / "a.json")
        assert not left.exists()

    def test_there_is_no_folder(self, tmp_path: Path) -> None:
        assert remove_leftovers(tmp_path / "none" / "a.json") == []


@posix
class TestWatchdog:
    def test_workers_of_a_killed_parent_end_although_they_are_suspended(self) -> None:
        code = (
            "import os, subprocess, sys, time\n"
            "from ortune.worker.watchdog import Watchdog\n"
            "dog = Watchdog(is_needed=True)\n"
            "workers = [subprocess.Popen(['sleep', '600']) for _ in range(3)]\n"
            "for worker in workers: dog.add(worker.pid); worker.send_signal(19)\n"
            "dog.remove(workers[0].pid); workers[0].kill(); workers[0].wait()\n"
            "print(*(worker.pid for worker in workers), flush=True)\n"
            "time.sleep(600)"
        )
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout
            try:
                pids = [int(word) for word in parent.stdout.readline().split()]
                end_s = time.monotonic() + 20
                # A signal is delivered when the process next runs.
                while psutil.Process(pids[1]).status() != psutil.STATUS_STOPPED:
                    assert time.monotonic() < end_s
                    time.sleep(0.02)
            finally:
                parent.kill()
        for pid in pids:
            end_s = time.monotonic() + 20
            while is_alive(pid):
                assert time.monotonic() < end_s
                time.sleep(0.02)

    def test_it_ends_with_its_parent_and_may_be_killed(self) -> None:
        dog = Watchdog(is_needed=True)
        assert dog._process
        dog._process.kill()
        dog._process.wait()
        dog.add(1)
        dog.close()
        dog.close()

    def test_it_is_not_started_where_the_kernel_does_it(self) -> None:
        dog = Watchdog(is_needed=False)
        dog.add(1)
        dog.remove(1)
        dog.close()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@posix
@pytest.mark.parametrize("given", [None, "0"])
def test_onnxruntime_leaves_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    """It sends usage data since version 1.29, and leaves files in two folders, except where it detects CI."""
    home = folder / "home"
    home.mkdir()
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(home))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    if given:
        monkeypatch.setenv("ORT_DISABLE_TELEMETRY", given)  # whoever sets it decides, but nothing stays in TMPDIR
    with make_executor() as executor:
        (live,) = executor.launch([Config()], deadline_s=60)
        assert not isinstance(live, Failure)
        assert psutil.Process(live.pid).environ()["ORT_DISABLE_TELEMETRY"] == (given or "1")  # type: ignore[attr-defined]
    if not given:
        assert read_installed_runtime()
        assert find_provider_fault(Config()) == ""
    with OwnedFolder() as owned:
        request = OptimizeRequest(model_path=str(TINY_CNN), model_bytes=1000, folder=str(owned.path))
        assert not isinstance(optimize_in_child(request), Failure)
    assert given or not list(home.iterdir())
    assert [path for path in folder.iterdir() if path != home] == []


def test_the_reader_of_a_model_ends_with_its_parent(tmp_path: Path) -> None:
    """A large model takes many seconds to read. A parent that is killed cannot end the process that reads it."""
    if sys.platform != "linux":
        pytest.skip("this system has no death signal")
    model = tmp_path / "endless.onnx"
    os.mkfifo(model)
    code = (
        "import sys; import ortune.model.child as child; from ortune.model import ModelInfo; "
        "child.check_file = lambda path: None; "
        f"child.read_in_child('ortune.model.inspect', {str(model)!r}, ModelInfo)"
    )
    parent = subprocess.Popen([sys.executable, "-P", "-c", code], stderr=subprocess.DEVNULL)
    try:
        # Opening the pipe for writing waits until the reader has opened it.
        with model.open("wb"):
            (reader,) = psutil.Process(parent.pid).children()
            parent.kill()
            parent.wait()
            psutil.wait_procs([reader], timeout=30)
            assert not reader.is_running() or reader.status() == psutil.STATUS_ZOMBIE
    finally:
        parent.kill()


def test_a_worker_whose_parent_ended_before_it_could_ask_for_a_signal_ends() -> None:
    code = "from ortune.prctl import die_with_parent; die_with_parent(); print('lives')"
    for parent, output in ((os.getpid(), "lives\n"), (1, "")):
        environment = {**os.environ, "ORTUNE_PARENT": str(parent)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout == output


@pytest.mark.skipif(sys.platform != "linux", reason="this system has no death signal")
@pytest.mark.parametrize("code", [READ_RUNTIME, RUNTIME_PROBE, LIST_DEVICES])
def test_the_readers_of_the_runtime_end_with_their_parent(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "none", "{}"],
        env={**os.environ, "ORTUNE_PARENT": "1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


class TestClocks:
    @pytest.mark.parametrize(
        ("spent_s", "boot_s", "wall_s", "jump_s"),
        [
            (1.0, 1.0, 1.0, 0.0),
            (1.0, 1.0, 1.04, 0.0),  # read one after the other
            (100.0, 100.0, 100.05, 0.0),  # slewed by time synchronization
            (1.0, 3601.0, 3601.0, 3600.0),  # the host slept
            (1.0, None, 3601.0, 3600.0),
            (1.0, 1.0, -7199.0, -7200.0),  # its time was set
            (1.0, 1.0, 1.5, 0.5),
        ],
    )
    def test_jumps_are_noticed(self, spent_s: float, boot_s: float | None, wall_s: float, jump_s: float) -> None:
        before = Clocks(monotonic_s=5.0, boot_s=None if boot_s is None else 7.0, wall_s=9e9)
        after = Clocks(5.0 + spent_s, None if boot_s is None else 7.0 + boot_s, 9e9 + wall_s)
        assert after.find_jump_s(before) == pytest.approx(jump_s)

    def test_clocks_of_this_host_agree(self) -> None:
        before = Clocks.read()
        assert Clocks.read().find_jump_s(before) == 0

    @pytest.mark.parametrize("n_jumps", [1, MAX_JUMPS_IN_A_ROW - 1, MAX_JUMPS_IN_A_ROW])
    def test_a_block_with_a_jump_is_thrown_away(self, n_jumps: int) -> None:
        executor = SimulatedExecutor(lambda config: 1e6)
        (live,) = executor.launch([Config()], deadline_s=1)
        assert isinstance(live, SimulatedLive)
        runner = BlockRunner(executor, np.random.default_rng(0))
        measure = live.measure
        blocks: list[Block] = []

        def jump(plan: BlockPlan) -> Block | Failure:
            block = measure(plan)
            assert isinstance(block, Block)
            blocks.append(msgspec.structs.replace(block, clock_jump_s=60.0 if len(blocks) < n_jumps else 0.0))
            return blocks[-1]

        live.measure = jump  # type: ignore[method-assign]
        if n_jumps == MAX_JUMPS_IN_A_ROW:
            with pytest.raises(MeasureError, match=r"disagree in every block, the last time by \+60 s"):
                runner.keep_alive(live, executor).measure(PLAN)
            return
        assert runner.keep_alive(live, executor).measure(PLAN) is blocks[-1]
        assert len(blocks) == n_jumps + 1
        noise = runner.describe_noise(contended=False)
        assert (noise.n_jumps, noise.n_blocks) == (n_jumps, 1)
