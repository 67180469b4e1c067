"""Metrics of canaries in a storage: what `ortune fleet send` copies there, and `ortune fleet compare` reads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ortune import UsageError
from ortune.fleet.canary_metrics import ProcessMetrics, read_metrics
from ortune.fleet.compare import compare_arms
from ortune.fleet.proofs import KIND
from ortune.fleet.shared_metrics import METRICS_OF_CANARIES, PROCESS_PREFIX, MetricsSender, read_shared_metrics
from ortune.fleet.status import read_status
from ortune.storage import Location, SharedStudy, StorageError, parse_location
from tests.conftest import run_ortune
from tests.metrics import make_metrics, make_model, make_rollout, write_metrics


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return parse_location(str(tmp_path / "fleet.journal"), "storage")


def split_hosts(tmp_path: Path) -> list[Path]:
    """Write the metrics of a rollout on two hosts into a folder for each."""
    rollout = make_rollout()
    return [
        write_metrics(tmp_path / host, *(process for process in rollout if process["host"] == host))
        for host in ("a", "b")
    ]


class TestSender:
    def test_the_comparison_is_that_of_the_files(self, location: Location, tmp_path: Path) -> None:
        for folder in split_hosts(tmp_path):
            sent = MetricsSender(folder, location).send()
            assert (sent.n_processes, sent.n_known, sent.faults) == (6, 0, ())
        folder = write_metrics(tmp_path / "all", *make_rollout())
        shared = compare_arms(read_shared_metrics(location))
        assert shared == compare_arms(read_metrics(folder))
        assert shared.verdict == "better"

    def test_only_what_is_new_is_sent(self, location: Location, tmp_path: Path) -> None:
        folder = write_metrics(tmp_path / "a", make_metrics(1), make_metrics(2))
        sender = MetricsSender(folder, location)
        assert (sender.send().n_processes, sender.send().n_processes) == (2, 0)
        later = make_metrics(2, written_ns=1_000_000_020_000_000_000, models=[make_model([1_000_000] * 7)])
        write_metrics(folder, later, make_metrics(3))
        sent = sender.send()
        assert (sent.n_processes, sent.n_known) == (2, 1)
        assert MetricsSender(folder, location).send().n_processes == 0
        assert [process.n_calls for process in read_shared_metrics(location).processes] == [1000, 7, 1000]

    def test_each_config_has_its_own_study(self, location: Location, tmp_path: Path) -> None:
        folder = write_metrics(tmp_path / "a", make_metrics(1), make_metrics(2, config="ba9876543210"))
        MetricsSender(folder, location).send()
        with pytest.raises(UsageError, match="several configs"):
            compare_arms(read_shared_metrics(location))
        assert read_status(location) == []

    def test_files_that_cannot_be_read_are_named(self, location: Location, tmp_path: Path) -> None:
        folder = write_metrics(tmp_path / "a", make_metrics(1), make_metrics(2, share=7))
        sent = MetricsSender(folder, location).send()
        assert sent.n_processes == 1
        assert len(sent.faults) == 1
        assert "cannot be read" in sent.faults[0]

    def test_metrics_that_a_storage_cannot_keep(self, location: Location, tmp_path: Path) -> None:
        # No two counts are alike, so that they cannot be compressed.
        large = [make_model([1_000_000], name="n" * 200) for number in range(16)]
        for number, model in enumerate(large):
            counts = {str(bucket): (bucket * 7919 + number * 1049) % 9973 for bucket in range(700, 2600)}
            n_calls = sum(counts.values())
            total_ns = sum(int(count * 1.01 ** (int(bucket) + 0.5)) for bucket, count in counts.items())
            model.update(buckets=counts, n_calls=n_calls, total_ns=total_ns)
        folder = write_metrics(tmp_path / "a", make_metrics(1, models=large), make_metrics(2))
        sent = MetricsSender(folder, location).send()
        assert (sent.n_processes, sent.faults) == (1, ("The metrics of process 1 are too large for a storage.",))

    def test_a_storage_that_was_away_gets_them_later(
        self, location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = write_metrics(tmp_path / "a", *(make_metrics(number) for number in range(1, 5)))
        sender = MetricsSender(folder, location)
        written: list[str] = []
        write_text = SharedStudy.write_text

        def fail_at_third(study: SharedStudy, name: str, text: str) -> None:
            if len(written) == 2:
                raise StorageError("nothing listens there.")
            written.append(name)
            write_text(study, name, text)

        monkeypatch.setattr(SharedStudy, "write_text", fail_at_third)
        with pytest.raises(StorageError):
            sender.send()
        monkeypatch.undo()
        assert sender.send().n_processes == 2
        assert len(read_shared_metrics(location).processes) == 4


class TestReading:
    def test_what_others_wrote_is_checked(self, location: Location, tmp_path: Path) -> None:
        folder = write_metrics(tmp_path / "a", make_metrics(1))
        MetricsSender(folder, location).send()
        study = SharedStudy(location, {KIND: METRICS_OF_CANARIES, "config": "0123456789ab", "model_name": "canary"})
        (name,) = study.read_all(PROCESS_PREFIX, ProcessMetrics)
        valid = json.dumps(make_metrics(1))
        study.write_text(f"{PROCESS_PREFIX}another", valid)  # under a name that is not that of the process
        study.write_text(f"{PROCESS_PREFIX}{name}x", "{")
        study.write_text(f"{PROCESS_PREFIX}{name}y", json.dumps(make_metrics(1, cpu_ns=-1)))
        assert [process.pid for process in read_shared_metrics(location).processes] == [1]

    def test_nothing_there(self, location: Location) -> None:
        with pytest.raises(UsageError, match="no metrics"):
            compare_arms(read_shared_metrics(location))


class TestCommand:
    def test_two_hosts(self, tmp_path: Path) -> None:
        storage = str(tmp_path / "fleet.journal")
        for folder in split_hosts(tmp_path):
            done = run_ortune("fleet", "send", folder, "--storage", storage, cwd=tmp_path)
            assert (done.returncode, done.stdout) == (0, "")
            assert "6 processes sent to" in " ".join(done.stderr.split())
        compared = run_ortune("fleet", "compare", "--storage", storage, cwd=tmp_path)
        assert compared.returncode == 0, compared.stderr
        assert "better" in compared.stdout

    @pytest.mark.parametrize(
        ("words", "text"),
        [
            (("compare",), "No metrics are given"),
            (("compare", "metrics", "--storage", "fleet.journal"), "both a folder and a storage"),
            (("compare", "--storage", "fleet.journal"), "There are no metrics"),
            (("send", "metrics"), "No storage is given"),
            (("send", "missing", "--storage", "fleet.journal"), "missing: cannot be read"),
            (("send", "metrics", "--storage", "fleet.journal", "--every", "never"), "never"),
        ],
    )
    def test_mistakes(self, words: tuple[str, ...], text: str, tmp_path: Path) -> None:
        write_metrics(tmp_path / "metrics", make_metrics(1))
        done = run_ortune("fleet", *words, cwd=tmp_path)
        assert done.returncode == 2
        assert text in " ".join(done.stderr.split())
        assert "Traceback" not in done.stderr

    @pytest.mark.skipif(sys.platform == "win32", reason="needs SIGTERM")
    def test_again_and_again_until_it_is_ended(self, location: Location, tmp_path: Path) -> None:
        folder = write_metrics(tmp_path / "a", make_metrics(1))
        command = [sys.executable, "-m", "ortune", "fleet", "send", str(folder), "--every", "600s"]
        with subprocess.Popen([*command, "--storage", location.url], stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr
            assert "1 process sent" in process.stderr.readline()
            # What is written between two times is sent when the command ends.
            write_metrics(folder, make_metrics(2))
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert "1 process sent" in process.stderr.read()
            assert process.wait(60) == 0
        assert len(read_shared_metrics(location).processes) == 2
