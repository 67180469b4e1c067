"""The steps of `ortune profile`: read the model, trace each config, break the traces down."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path

import msgspec

from ortune.errors import ModelError, UsageError
from ortune.knobs import DEFAULT, Config
from ortune.model import ModelInfo, read_model
from ortune.profile.record_trace import TraceRequest, record_in_child
from ortune.profile.trace import Breakdown, break_down, read_trace, split_runs
from ortune.record.files import place_file
from ortune.record.schema import Record
from ortune.record.select import Wanted, read_sourced, select_record
from ortune.requests import ProfileRequest
from ortune.worker import Failure
from ortune.worker.installed import require_runtime
from ortune.worker.owned_folder import OwnedFolder, remove_abandoned_folders
from ortune.worker.working_inputs import explain_failed_run
from ortune.workload import Feed, InputData, InputOptions, make_feed
from ortune.workload.batching import list_batches
from ortune.workload.workload import list_cases

DURATION_S = 3.0
"""Time to run each config for, if the number of runs is not given."""

MAX_NODE_EVENTS = 200_000
"""Node events in a trace: about 100 MB, which viewers can still open. ONNX Runtime drops events after a million."""

MAX_RUNS = 2000

DEFAULT_NAME, TUNED_NAME = "default", "tuned"

FEED_FILE = "feed.npz"

TRACE_NAMES = (f"{DEFAULT_NAME}.json", f"{TUNED_NAME}.json")

TRACE_MARK = b'"cat"'
"""Occurs in the first event of every trace."""


class ConfigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The profile of one config: its trace and its breakdown, or why there are none."""

    name: str
    config: Config
    trace: str | None = None
    breakdown: Breakdown | None = None
    failure: Failure | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The profiles of the default and, if there is a record, of its config.

    `n_sizes` is the number of sizes that the record has, of which the first is profiled.
    """

    model: str
    inputs: dict[str, InputData]
    configs: tuple[ConfigProfile, ...]
    n_sizes: int = 1


def profile(request: ProfileRequest) -> Profile:
    """Trace the default, then the record's config.

    Raises:
        UsageError: An option is not valid, or the folder cannot be used.
        RecordError: The record is for another model.
        ModelError: The file is not a model that ONNX Runtime can load.
        InputsError: The model does not run on the inputs.
        MeasureError: The trace cannot be read.
    """
    require_runtime()
    model = read_model(request.model)
    record = read_config(request.config, model, trust=request.trust)
    # A call has as many items as the record's, each of them a sample.
    batches = list_batches(record.config.batch) if record else ()
    feed = make_feed(model, choose_inputs(request, record), batches)
    if feed.n_cases > 1:
        sizes = "; ".join(f"{name}={','.join(map(str, sizes))}" for name, sizes in request.dim.items())
        raise UsageError(
            f"{sizes}: a profile covers one size.",
            "Profile one size at a time, each with its own {output=FOLDER}.",
            option="dim",
        )
    folder = request.output or Path(f"{Path(request.model).stem}.profile")
    configs = {DEFAULT_NAME: DEFAULT}
    if record is not None:
        # Both make the same calls. A replayed graph shows no operators.
        configs[DEFAULT_NAME] = msgspec.structs.replace(DEFAULT, batch=record.config.batch)
        configs[TUNED_NAME] = record.config.without_captures()
    profiles: list[ConfigProfile] = []
    with prepare_folder(folder) as scratch:
        feed.save(scratch / FEED_FILE)
        for name, config in configs.items():
            profiles.append(profile_config(name, config, model, feed, request.runs, scratch))
        for index, found in enumerate(profiles):
            path = folder / f"{found.name}.json"
            if found.trace is not None:
                place_file(Path(found.trace), path)
                profiles[index] = msgspec.structs.replace(found, trace=str(path))
        for name in {DEFAULT_NAME, TUNED_NAME} - {found.name for found in profiles if found.trace}:
            (folder / f"{name}.json").unlink(missing_ok=True)  # a trace of an earlier profile
    return Profile(
        model=request.model,
        inputs=feed.describe(),
        configs=tuple(profiles),
        n_sizes=count_sizes(record) if record and request.given_inputs is None else 1,
    )


def read_config(config: Record | str | PathLike[str] | None, model: ModelInfo, *, trust: bool = False) -> Record | None:
    """Return the record for a model, from a record or the path of one.

    Raises:
        RecordError: There is none for this model.
    """
    if config is None:
        return None
    given = config if isinstance(config, Record) else fspath(config)
    return select_record(read_sourced([given], trust=trust), Wanted(any_host=True), model.path).record


def choose_inputs(request: ProfileRequest, record: Record | None) -> InputOptions:
    """Return the inputs that the user asks for, else those of the record: the first of several sizes."""
    if record is None or request.given_inputs is not None:
        return request.input_options
    shapes = {name: data.shapes[0] for name, data in record.workload.inputs.items()}
    return InputOptions(shapes=shapes, seed=record.search.seed if request.seed is None else request.seed)


def count_sizes(record: Record) -> int:
    """Return for how many sizes of its inputs a record is."""
    cases = list_cases({name: data.shapes for name, data in record.workload.inputs.items()})
    return len({tuple(case.values()) for case in cases})


@contextlib.contextmanager
def prepare_folder(folder: Path) -> Iterator[Path]:
    """Create the folder for the traces, and yield a temporary folder inside it.

    The folder must be new, empty, or contain only the traces of an earlier profile, which are replaced.

    Raises:
        UsageError: The folder contains other files, or cannot be written.
    """
    hint = "Choose another folder with {output=FOLDER}."
    is_new = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        remove_abandoned_folders(folder)
        for path in sorted(folder.iterdir()):
            if not _is_trace(path):
                raise UsageError(
                    f"{folder} contains {path.name}, which was not written by ortune profile.",
                    "Choose a new or an empty folder with {output=FOLDER}.",
                )
        scratch = OwnedFolder(folder)
    except FileNotFoundError:
        raise UsageError(f"Cannot create {folder}: there is no folder {folder.parent}.", hint) from None
    except FileExistsError:
        raise UsageError(f"Cannot create the folder {folder}: there is a file of that name.", hint) from None
    except OSError as error:
        raise UsageError(f"Cannot write to {folder}: {error.strerror}.", hint) from None
    try:
        with scratch:
            yield scratch.path
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # it may contain traces by now
                folder.rmdir()
        raise


def _is_trace(path: Path) -> bool:
    if path.name not in TRACE_NAMES or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(200)
    return head.lstrip().startswith(b"[") and TRACE_MARK in head


def profile_config(
    name: str, config: Config, model: ModelInfo, feed: Feed, runs: int | None, scratch: Path
) -> ConfigProfile:
    """Trace one config and break the trace down.

    Args:
        name: Name of the config.
        config: The settings.
        model: The model.
        feed: The inputs, which `scratch` contains as a file.
        runs: Runs after the warm-up, or None for about three seconds.
        scratch: Folder to write the trace to.

    Raises:
        ModelError: The default does not load.
        InputsError: The default does not run on these inputs.
        MeasureError: The trace cannot be read.
    """
    recorded = record_in_child(
        TraceRequest(
            model_path=model.path,
            config=config,
            feed_path=str(scratch / FEED_FILE),
            trace_prefix=str(scratch / name),
            n_runs=runs,
            duration_s=DURATION_S,
            max_runs=max(min(MAX_NODE_EVENTS // max(model.traits.n_nodes, 1), MAX_RUNS), 1),
        )
    )
    if isinstance(recorded, Failure):
        if name != DEFAULT_NAME:
            return ConfigProfile(name=name, config=config, failure=recorded)
        if recorded.stage == "check" and recorded.kind == "exception":
            raise explain_failed_run(model, feed, recorded.message)
        raise ModelError(
            f"ONNX Runtime cannot load {model.path} ({recorded.title}): {recorded.message}",
            f"Find the cause: ortune doctor {model.path}.",
        )
    path = Path(recorded.path)
    runs_after_warm_up = split_runs(read_trace(path))[recorded.n_warm_ups :]
    return ConfigProfile(name=name, config=config, trace=str(path), breakdown=break_down(runs_after_warm_up))
