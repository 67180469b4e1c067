"""Run a program once under observation, and sum up what was seen."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ortune.apply.exec import find_program, make_environment
from ortune.apply.plan import encode_plan, make_hook_plan
from ortune.program.observation import Observation, SavedInputs, group_sessions, name_models, read_processes, sum_models
from ortune.program.run import EndedRun, run_to_end
from ortune.program.samples import MOST_SAVED_BYTES, merge_samples, prepare_folder, remove_unsorted
from ortune.program_options import ProgramRequest
from ortune.requests import InspectRequest
from ortune.worker.owned_folder import OwnedFolder

INSPECT_USAGE = "Write: ortune inspect -- python app.py."


def inspect_program(request: InspectRequest, *, stdout_to_stderr: bool = False) -> Observation:
    """Run a program once, and return what was seen of its sessions.

    Args:
        request: The program, and what to save.
        stdout_to_stderr: Whether what it prints to stdout goes to stderr.

    Raises:
        UsageError: There is no such program, or the folder for inputs cannot be used.
    """
    program = find_program(request.command, INSPECT_USAGE)
    folder = request.save_inputs
    unsorted = None if folder is None else prepare_folder(folder)
    try:
        with OwnedFolder() as owned:
            observed = owned.path / "observed"
            observed.mkdir()
            plan = make_observing_plan(observed, unsorted, request.max_samples)
            environment = make_environment(encode_plan(plan), {}, os.environ)
            run = run_to_end(program, request.command, environment, stdout_to_stderr=stdout_to_stderr)
            return summarize(observed, run, request)
    finally:
        if folder is not None:
            remove_unsorted(folder)


def make_observing_plan(observed: Path, unsorted: Path | None, max_samples: int) -> dict[str, Any]:
    """Return a plan that changes no sessions; see `ortune.apply.inside.finder.Plan`.

    Args:
        observed: Folder for what is seen.
        unsorted: Folder for inputs, or None.
        max_samples: Number of inputs that are saved for each session.
    """
    plan = {**make_hook_plan((), ProgramRequest(quiet=True), ""), "observe": os.fspath(observed.absolute())}
    if unsorted is not None:
        plan["save_inputs"] = {
            "folder": os.fspath(unsorted),
            "max_samples": max_samples,
            "max_bytes": MOST_SAVED_BYTES,
        }
    return plan


def summarize(observed: Path, run: EndedRun, request: InspectRequest) -> Observation:
    """Return what was seen of a program that has ended.

    Args:
        observed: Folder with the files of its processes.
        run: How it ended.
        request: The program, and what to save.
    """
    reading = read_processes(observed)
    groups = group_sessions(reading.processes)
    names = name_models({key: group[0][1] for key, group in groups.items()})
    outside_ns = sum(process.outside_ns for process in reading.processes)
    models = sum_models(groups, outside_ns)
    total_ns = outside_ns + sum(model.total_ns for model in models)
    starts = [process.first_call_ns for process in reading.processes if process.first_call_ns]
    saved: tuple[SavedInputs, ...] = ()
    if request.save_inputs is not None:
        saved = merge_samples(request.save_inputs, groups, names, request.max_samples)
    return Observation(
        command=request.command,
        status=run.status,
        interrupted=run.interrupted,
        wall_ns=run.wall_ns,
        n_python=reading.n_python,
        models=models,
        outside_ns=outside_ns,
        outside_share=outside_ns / total_ns if total_ns else 0.0,
        start_ns=sum(starts) // len(starts) if starts else 0,
        processes=reading.processes,
        saved=saved,
        faults=reading.faults,
    )


def explain_lack(observation: Observation) -> tuple[str, str] | None:
    """Return why nothing was observed, and what to do; None if calls of sessions were.

    Args:
        observation: What was seen.
    """
    name = observation.command[0]
    if observation.n_calls:
        return None
    if not observation.n_python:
        return (
            f"{name} runs no Python that can be observed.",
            "Programs are observed that use ONNX Runtime through its Python package. Python must not be started with "
            "-I, -E or -S.",
        )
    versions = {process.onnxruntime for process in observation.processes if process.onnxruntime}
    if not versions:
        return f"{name} does not import onnxruntime.", "Pass a command that runs a model."
    n_sessions = sum(model.n_sessions for model in observation.models)
    if not n_sessions:
        return f"{name} imports onnxruntime, but creates no session.", "Pass a command that runs a model."
    sessions = "1 session, but does not call it" if n_sessions == 1 else f"{n_sessions} sessions, but calls none"
    return f"{name} creates {sessions}.", "Pass a command that runs the models, such as one that processes a file."
