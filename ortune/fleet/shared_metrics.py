"""Metrics of canaries in a storage: those that `ortune fleet send` copies there from the folders of hosts.

Programs write files, and never to a database: they need no driver and no password, and do not wait for a network. The
processes of one config share a study. Each process is an attribute of it, which the host of the process alone writes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ortune.apply.inside.canary import name_process
from ortune.fleet.canary_metrics import Metrics, ProcessMetrics, read_metrics
from ortune.fleet.proofs import KIND, open_studies
from ortune.storage import Location, SharedStudy
from ortune.storage.schema import encode

METRICS_OF_CANARIES = "metrics of canaries"
"""Entry of the identity of a study that holds no search."""

PROCESS_PREFIX = "process:"
"""Prefix of the attributes that hold processes."""


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent.

    Attributes:
        n_processes: Number of processes whose metrics were sent, because they were new or had changed.
        n_known: Number of those that the storage had already.
        faults: What could not be read or sent, each as a sentence.
    """

    n_processes: int
    n_known: int
    faults: tuple[str, ...] = ()


class MetricsSender:
    """Sends the metrics of a folder to a storage.

    Args:
        folder: The folder.
        location: The storage.
    """

    def __init__(self, folder: Path, location: Location) -> None:
        self._folder = folder
        self._location = location
        self._studies: dict[str, SharedStudy] = {}
        self._sent: dict[str, int] = {}

    def send(self) -> Sent:
        """Send what is new since the last time.

        Raises:
            UsageError: The folder cannot be read, or a driver is not installed.
            StorageError: The storage does not answer. What was not sent will be sent the next time.
        """
        metrics = read_metrics(self._folder)
        faults = list(metrics.faults)
        n_sent = 0
        for process in metrics.processes:
            name = name_process(process.host, process.pid, process.start_ns)
            study = self._open(process.config)
            if self._sent.get(name) == process.written_ns:
                continue
            try:
                text = encode(process)
            except ValueError:
                faults.append(f"The metrics of process {process.pid} are too large for a storage.")
                continue
            study.write_text(f"{PROCESS_PREFIX}{name}", text)
            self._sent[name] = process.written_ns
            n_sent += 1
        return Sent(n_processes=n_sent, n_known=len(metrics.processes) - n_sent, faults=tuple(faults))

    def _open(self, config: str) -> SharedStudy:
        """Return the study of a config. What it holds already is not sent again."""
        study = self._studies.get(config)
        if study is None:
            study = SharedStudy(self._location, {KIND: METRICS_OF_CANARIES, "config": config, "model_name": "canary"})
            for name, known in study.read_all(PROCESS_PREFIX, ProcessMetrics).items():
                self._sent[name] = known.written_ns
            self._studies[config] = study
        return study


def read_shared_metrics(location: Location) -> Metrics:
    """Return the metrics of all processes in a storage. Those that are malformed are left out.

    Raises:
        UsageError: A driver is not installed.
        StorageError: The storage does not answer.
    """
    processes = [
        process
        for study in open_studies(location)
        if study.identity.get(KIND) == METRICS_OF_CANARIES
        for name, process in study.read_all(PROCESS_PREFIX, ProcessMetrics).items()
        if process.config == study.identity.get("config")
        and name == name_process(process.host, process.pid, process.start_ns)
    ]
    return Metrics(processes=tuple(sorted(processes, key=lambda process: process.start_ns)))
