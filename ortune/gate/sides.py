"""The sides of a gate: read from the command line, checked against each other, made live as processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

import ortune
from ortune.errors import InputsError, MeasureError, ModelError, UsageError
from ortune.gate.results import Side
from ortune.gate.sequential_test import HEAD
from ortune.knobs import DEFAULT, Config
from ortune.model import ModelInfo
from ortune.record.schema import Record
from ortune.record.select import Wanted, read_sourced, select_record
from ortune.worker import Failure, LiveCandidate
from ortune.worker.executor import WORKER_COMMAND, ProcessExecutor, launch_reference
from ortune.workload import Feed, Tolerance

PROBE = """
import importlib, json, sys
found = {"version": sys.version_info[:2]}
for name in ("msgspec", "numpy", "onnxruntime"):
    try:
        found[name] = getattr(importlib.import_module(name), "__version__", "")
    except Exception as error:
        found[name + "_fault"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"""

PROBE_DEADLINE_S = 120.0

DEFAULT_WORD = "default"
"""Stands for ONNX Runtime's default behind the `@`."""


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """What a side's text names: the model, and the record if there is one."""

    model: str
    record: Record | None = None
    source: str = ""


def read_side(text: str) -> Named:
    """Read `model.onnx`, `config.json` or `model.onnx@config.json`.

    The config of a record may be tried on another model than its own: that is one of the things that gates are for.

    Raises:
        UsageError: There is no such file.
        RecordError: The config is no record.
    """
    path, at, config = text.rpartition("@")
    if at and (config == DEFAULT_WORD or Path(config).suffix == ".json"):
        model = path
    elif Path(text).suffix == ".json":
        model, config = "", text
    else:
        model, config = text, DEFAULT_WORD
    record, source = (None, "") if config == DEFAULT_WORD else _read_config(config, model)
    model = model or (record.model.path if record else "")
    if Path(model).is_dir():
        raise UsageError(f"{text}: {model} is a folder.", "Name the model: MODEL.onnx, or MODEL.onnx@CONFIG.json.")
    if not Path(model).is_file():
        whose = f" {config} is for it;" if not path and record else ""
        raise UsageError(
            f"{text}: there is no file {model}.{whose}", "Name the model: MODEL.onnx, or MODEL.onnx@CONFIG.json."
        )
    return Named(model=model, record=record, source=source)


def _read_config(path: str, model: str) -> tuple[Record, str]:
    """Return the record of a file; of a bundle for several models, the one for the model."""
    records = read_sourced([path])
    has_several_models = len({each.record.model.digest for each in records}) > 1
    choice = select_record(records, Wanted(any_host=True), model if model and has_several_models else None)
    return choice.record, choice.source


def make_side(text: str, named: Named, python: str | None, option: str, config: Config | None = None) -> Side:
    """Return a side.

    Args:
        text: As the user wrote it.
        named: What that names.
        python: The Python that is to run it, or None for this one.
        option: Which option named it.
        config: Its settings, where they are not the record's.

    Raises:
        UsageError: The Python cannot run it.
    """
    if python is not None:
        check_python(python, option)
    if config is None:
        config = named.record.config if named.record else DEFAULT
    return Side(text=text, model=named.model, config=config, record=named.source, python=python)


def check_python(python: str, option: str) -> None:
    """Check that a Python has what a worker needs.

    Raises:
        UsageError: It does not run, is too old, or lacks a package.
    """
    program = shutil.which(python)
    if program is None:
        raise UsageError(f"{option} {python}: there is no such program.", "Name the Python of the environment.")
    try:
        done = subprocess.run(
            [program, "-c", PROBE], capture_output=True, text=True, timeout=PROBE_DEADLINE_S, check=False
        )
        found = json.loads(done.stdout)
        version = tuple(found["version"])
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError):
        raise UsageError(f"{option} {python}: this is no Python.", "Name the Python of the environment.") from None
    if version < (3, 11):
        raise UsageError(f"{option} {python}: it is Python {version[0]}.{version[1]}.", "3.11 is needed, or later.")
    for name in ("onnxruntime", "numpy", "msgspec"):
        if name not in found:
            fault = found[f"{name}_fault"]
            raise UsageError(f"{option} {python}: it has no {name} ({fault}).", f"{python} -m pip install {name}")


def check_outputs(base: ModelInfo, head: ModelInfo, base_text: str, head_text: str) -> None:
    """Check that both models give outputs of the same names.

    Raises:
        MeasureError: They do not.
    """
    ours, theirs = ([each.name for each in model.outputs] for model in (base, head))
    if ours != theirs:
        raise MeasureError(
            f"The outputs differ: {base_text} gives {', '.join(ours)}; {head_text} gives {', '.join(theirs)}.",
            "Compare speeds alone with --ignore-outputs, if that is meant to be.",
        )


def check_inputs(base: ModelInfo, head: ModelInfo, base_text: str, head_text: str) -> None:
    """Check that both models take the same inputs.

    Raises:
        InputsError: They do not.
    """
    ours, theirs = ({each.name: each.dtype for each in model.inputs} for model in (base, head))
    if ours != theirs:
        shown = " and ".join(
            f"{text} takes {', '.join(f'{name} ({dtype})' for name, dtype in each.items()) or 'nothing'}"
            for text, each in ((base_text, ours), (head_text, theirs))
        )
        raise InputsError(f"The inputs differ: {shown}.", "Both must take the same data to be compared.")
    shapes = {each.name: each for each in head.inputs}
    for one in base.inputs:
        other = shapes[one.name]
        if one.shape is not None and other.shape is not None and len(one.shape) != len(other.shape):
            raise InputsError(
                f"The shapes of {one.name} differ: {len(one.shape)} dimensions in {base_text}, "
                f"{len(other.shape)} in {head_text}.",
                "Both must take the same data to be compared.",
            )


class ProcessSides:
    """Makes base, head and the second copy of base live, as worker processes.

    Attributes:
        base: Makes base and its copy live.
        head: Makes head live.
        load_deadline_s: Time that creating a session may take.
    """

    def __init__(
        self, base: ProcessExecutor, head: ProcessExecutor, configs: tuple[Config, Config], load_deadline_s: float
    ) -> None:
        self.base = base
        self.head = head
        self._configs = configs
        self.load_deadline_s = load_deadline_s

    def launch(self, position: int) -> LiveCandidate | Failure:
        """Make one of the three live."""
        executor, config = (self.head, self._configs[1]) if position == HEAD else (self.base, self._configs[0])
        (answer,) = executor.launch([config], deadline_s=self.load_deadline_s)
        return answer

    def now_s(self) -> float:
        """Return the time on the monotonic clock, in seconds."""
        return self.base.now_s()


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides, once they have run for the first time.

    Attributes:
        sides: Make them live.
        first: Base's first session.
        max_error: How far head's outputs lie from base's, or None where they were not compared.
    """

    sides: ProcessSides
    first: LiveCandidate
    max_error: float | None


@contextlib.contextmanager
def open_sides(
    base: Side,
    head: Side,
    models: tuple[ModelInfo, ModelInfo],
    feed: Feed,
    tolerance: Tolerance,
    *,
    usable: tuple[int, ...],
    background_load: int | None,
    memory_limit_bytes: int | None,
    n_sessions: int,
    same_outputs: bool,
    deadline_s: float,
    commands: tuple[tuple[str, ...] | None, tuple[str, ...] | None] = (None, None),
) -> Iterator[Opened]:
    """Yield both sides, after each has created a session and run once, and their outputs have been compared.

    Args:
        base: The one side.
        head: The other.
        models: What is known of both models.
        feed: What is fed to both.
        tolerance: How far outputs may lie apart.
        usable: CPUs that may be used.
        background_load: Process id of the background_load, or None.
        memory_limit_bytes: Private memory that one worker may take, or None.
        n_sessions: Sessions side by side.
        same_outputs: Whether outputs are compared.
        deadline_s: Time in which each must have created its first session.
        commands: What starts a worker, where it is not ortune's own.

    Raises:
        ModelError: A model cannot be loaded.
        MeasureError: Outputs differ.
        InputsError: A model does not run on these inputs.
    """
    with contextlib.ExitStack() as stack:
        executors: list[ProcessExecutor] = []
        for side, model, command in zip((base, head), models, commands, strict=True):
            program, environment = _worker_of(side, stack)
            reference = executors[0].reference if executors and same_outputs else None
            executors.append(
                stack.enter_context(
                    ProcessExecutor(
                        model,
                        feed,
                        tolerance,
                        usable=usable,
                        background_load=background_load,
                        memory_limit_bytes=memory_limit_bytes,
                        n_sessions=n_sessions,
                        command=command or program,
                        environment=environment,
                        reference=reference,
                    )
                )
            )
            if side is base:
                first = launch_reference(executors[0], model, feed, side.config, deadline_s)
        sides = ProcessSides(executors[0], executors[1], (base.config, head.config), deadline_s)
        answer = sides.launch(HEAD)
        if isinstance(answer, Failure):
            first.close()
            raise _head_fault(head, answer)
        max_error = answer.session_info.max_error if same_outputs else None
        answer.close()
        yield Opened(sides=sides, first=first, max_error=max_error)


def _worker_of(side: Side, stack: contextlib.ExitStack) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return what starts a worker of a side, and its environment: another Python need not have ortune."""
    if side.python is None:
        return WORKER_COMMAND, {}
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ortune-"))
    # By itself, so that nothing else of this environment is found there.
    Path(folder, "ortune").symlink_to(Path(ortune.__file__).parent, target_is_directory=True)
    program = shutil.which(side.python) or side.python
    path = os.environ.get("PYTHONPATH")
    return (program, *WORKER_COMMAND[1:]), {"PYTHONPATH": folder + (os.pathsep + path if path else "")}


def _head_fault(head: Side, failure: Failure) -> MeasureError | ModelError:
    if failure.kind == "wrong_output":
        return MeasureError(
            f"The outputs of {head.text} differ from base's: {failure.message}",
            "Allow more with --rtol and --atol, or compare speeds alone with --ignore-outputs.",
        )
    if failure.kind == "timeout":
        return MeasureError(
            f"Creating the session of {head.text} took too long ({failure.message}).", "Give it a larger --max-time."
        )
    what = "run" if failure.stage == "check" else "load"
    return ModelError(
        f"ONNX Runtime cannot {what} {head.text} ({failure.kind.replace('_', ' ')}): {failure.message}",
        "Check that it loads by itself, and that it takes the inputs of base.",
    )
