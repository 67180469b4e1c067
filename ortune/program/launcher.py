"""Starts a program with a candidate's settings, each time with files of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ortune.apply import exec as program_exec
from ortune.apply.placeholders import fill_command
from ortune.apply.plan import make_hook_plan, make_rule
from ortune.knobs import CPU, Config
from ortune.knobs.environment import variables_of
from ortune.model.info import ModelFile
from ortune.program.gate import GateControl
from ortune.program.process import SUPERVISOR_ENDED, Ended, ProgramProcess
from ortune.program.task import ProgramTask, make_environment
from ortune.program_options import ProgramRequest
from ortune.record.schema import Tried
from ortune.sanitize import printable
from ortune.worker import Failure
from ortune.worker.exit_status import count_oom_kills, explain_exit
from ortune.worker.owned_folder import OwnedFolder

MAX_OUTPUT_BYTES = 64 << 20
"""Output of one run that is read. A program that prints more cannot be compared."""

RETURNED_CALLS = 8
"""The first calls of each run are noted with what they returned. Describing it takes CPU time."""


class TunedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the program, whose sessions get a candidate's settings.

    Attributes:
        name: Its name in candidates.
        path: Path of the ONNX file.
        files: Its files, as records hold them.
    """

    name: str
    path: str
    files: tuple[ModelFile, ...]


class LaunchedProgram:
    """One start of a program.

    Attributes:
        process: The process.
        folder: Folder with its output, and with what is observed in it.
        port: Its TCP port; 0 if it takes none.
        gate: The gate of the calls that are timed, or None.
    """

    def __init__(self, process: ProgramProcess, folder: Path, port: int) -> None:
        self.process = process
        self.folder = folder
        self.port = port
        self.gate: GateControl | None = None
        self._n_oom_kills = count_oom_kills()

    @property
    def stdout(self) -> Path:
        """File with its stdout."""
        return self.folder / "stdout"

    @property
    def stderr(self) -> Path:
        """File with its stderr."""
        return self.folder / "stderr"

    def read_output(self) -> bytes | None:
        """Return its stdout; None if it is too long to be compared."""
        if self.stdout.stat().st_size > MAX_OUTPUT_BYTES:
            return None
        return self.stdout.read_bytes()

    def explain_end(self, ended: Ended, stage: str) -> Failure:
        """Return the end of the program as a failure."""
        if ended.is_lost:
            return Failure(kind="crash", stage=stage, message=SUPERVISOR_ENDED)
        return explain_exit(ended.status, self.stderr, stage, n_oom_kills=self._n_oom_kills)

    def find_early_end(self) -> Failure | None:
        """Return why a server ended before it answered; None if it still runs."""
        ended = self.process.wait(0)
        if ended is None:
            return None
        if ended.status:
            return self.explain_end(ended, "load")
        return Failure(kind="exit", stage="load", message="it exited with status 0 before it answered")

    def remove(self) -> None:
        """Remove its files."""
        if self.gate:
            self.gate.remove()
        shutil.rmtree(self.folder, ignore_errors=True)


class Launcher:
    """Starts a program with the settings of candidates.

    Args:
        task: The program.
        models: Its models.
        onnxruntime: Version of its onnxruntime.
        folder: Folder for files.
        inherited: Environment of this process.
    """

    def __init__(
        self,
        task: ProgramTask,
        models: Sequence[TunedModel],
        onnxruntime: str,
        folder: OwnedFolder,
        inherited: Mapping[str, str],
    ) -> None:
        self._task = task
        self._models = models
        self._onnxruntime = onnxruntime
        self._folder = folder
        self._inherited = dict(inherited)
        self._n_runs = 0

    def start(
        self, process: ProgramProcess, config: Config, *, port: int = 0, gate: bool = False, observe: bool = False
    ) -> LaunchedProgram | Failure:
        """Start the program with a candidate's settings.

        Args:
            process: What starts it.
            config: The settings, as changes of those of the program itself.
            port: TCP port, if the program takes one.
            gate: Whether the calls of the function pass a gate.
            observe: Whether it is seen what the program does with its sessions, which takes CPU time.
        """
        self._n_runs += 1
        folder = self._folder.path / f"run-{self._n_runs:06}"
        folder.mkdir()
        run = LaunchedProgram(process, folder, port)
        run.gate = GateControl(folder) if gate else None
        plan = self.write_hook_plan(config, folder, gate=gate, observe=observe)
        own = make_environment(self._inherited)
        environment = program_exec.make_environment(plan, variables_of(config, own), own)
        command = fill_command(self._task.command, workers=config.workers, port=port)
        try:
            process.start(command, environment, stdout=run.stdout, stderr=run.stderr, stdin=self._task.stdin)
        except OSError as error:
            run.remove()
            message = f"cannot start {printable(command[0])}: {printable(error.strerror or str(error))}"
            return Failure(kind="exit", stage="start", message=message)
        return run

    def write_hook_plan(self, config: Config, folder: Path, *, gate: bool, observe: bool = False) -> str:
        """Return the plan that the hook follows inside the program, as text."""
        plan = make_hook_plan((), ProgramRequest(quiet=True), "")
        if self.changes_sessions(config):
            plan["rules"] = [self._make_rule(model, config) for model in self._models]
        plan |= {
            "observe": os.fspath(folder) if observe else None,
            "log": os.fspath(folder),
            "call": self._task.call or None,
            "returned": RETURNED_CALLS if self._task.call and not observe and self._task.compares_values else 0,
            "gate": os.fspath(folder) if gate else None,
        }
        return json.dumps(plan, separators=(",", ":"))

    def changes_sessions(self, config: Config) -> bool:
        """Return whether a candidate changes settings of sessions, and not only the environment of the program."""
        return not msgspec.structs.replace(config, environment={}, allocator="", workers=0).is_default

    def _make_rule(self, model: TunedModel, config: Config) -> dict[str, Any]:
        own = config.of_model(model.name)
        return make_rule(
            "this candidate",
            model.path,
            model.files,
            own,
            Tried.of(own),
            onnxruntime=self._onnxruntime,
            own_providers=own.provider == CPU,
        )
