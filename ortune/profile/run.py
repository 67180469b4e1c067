"""`ortune profile`, in order: read the model and the record, trace each config, break the traces down."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ortune.errors import ModelError, UsageError
from ortune.knobs import DEFAULT, Config
from ortune.model import ModelInfo, compute_digest, read_model
from ortune.profile.profiler import TraceRequest, trace
from ortune.profile.trace import Breakdown, break_down, read_trace, split_runs
from ortune.record.files import check_digest
from ortune.record.schema import Record
from ortune.worker import Failure
from ortune.workload import Feed, InputData, InputOptions, make_feed
from ortune.workload.inputs import explain_failure

USUAL_S = 3.0

MOST_NODE_EVENTS = 200_000
"""Calls of nodes that a trace may hold: about 100 MB, which viewers still open. ONNX Runtime drops those after a
million."""

MOST_RUNS = 2000

TRACE_NAMES = ("default.json", "tuned.json")

TRACE_HEAD = b'"cat"'
"""Stands near the beginning of every trace."""


class ProfileRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks for.

    Attributes:
        model: Path of the ONNX file.
        record: Whose config is set beside the default, or None.
        runs: Runs of each config, or None for about three seconds.
        folder: Where the traces go, or None for a folder named after the model.
        inputs: What the user says about inputs.
    """

    model: str
    record: Record | None = None
    runs: int | None = None
    folder: Path | None = None
    inputs: InputOptions = InputOptions()


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One config: its trace, and what it tells; or why there is none."""

    name: str
    config: Config
    trace: str | None = None
    breakdown: Breakdown | None = None
    failure: Failure | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The default, and the record's config where there is one."""

    model: str
    inputs: dict[str, InputData]
    sides: tuple[Side, ...]


def profile(order: ProfileRequest) -> Profile:
    """Trace the default, and the record's config, one after the other.

    Raises:
        OrtuneError: Something that the user gave does not make sense, or the model does not run.
    """
    if order.runs is not None and order.runs < 1:
        raise UsageError(f"--runs {order.runs}: at least one run must be profiled.")
    model = read_model(order.model)
    if order.record is not None:
        check_digest(order.record, model.path, compute_digest(model.files))
    feed = make_feed(model, choose_inputs(order))
    if feed.n_cases > 1:
        raise UsageError(
            "--dim with several sizes: a profile is of one size.", "Profile them one by one, each with its own -o."
        )
    folder = order.folder or Path(f"{Path(order.model).stem}.profile")
    configs = [("default", DEFAULT)]
    if order.record is not None:
        configs.append(("tuned", order.record.config))
    with prepare_folder(folder) as scratch:
        feed_path = scratch / "feed.npz"
        feed.save(feed_path)
        sides = [make_side(order, model, feed, scratch, name, config) for name, config in configs]
        for side in sides:
            if side.trace is not None:
                Path(side.trace).replace(folder / f"{side.name}.json")
        for name in {"default", "tuned"} - {side.name for side in sides if side.trace}:
            (folder / f"{name}.json").unlink(missing_ok=True)  # an earlier profile's
    kept = (
        msgspec.structs.replace(side, trace=str(folder / f"{side.name}.json")) if side.trace else side for side in sides
    )
    return Profile(model=order.model, inputs=feed.describe(), sides=tuple(kept))


def choose_inputs(order: ProfileRequest) -> InputOptions:
    """Return what is said about inputs: by the user, else by the record."""
    given = order.inputs
    if order.record is None or given.dims or given.shapes or given.data:
        return given
    shapes = {name: data.shapes[0] for name, data in order.record.workload.inputs.items()}
    return InputOptions(shapes=shapes, seed=order.record.search.seed)


@contextlib.contextmanager
def prepare_folder(folder: Path) -> Iterator[Path]:
    """Make the folder for the traces, and yield a folder inside it that goes away.

    It must be new, empty, or hold nothing but the traces of an earlier profile, which are replaced.

    Raises:
        UsageError: It holds something else, or cannot be written.
    """
    hint = "Name another folder with -o."
    is_new = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        for path in sorted(folder.iterdir()):
            if not _is_trace(path):
                raise UsageError(
                    f"{folder} holds {path.name}, which no profile of ortune's wrote.",
                    "Name a new or an empty folder with -o.",
                )
        scratch = tempfile.TemporaryDirectory(dir=folder, prefix=".ortune-")
    except FileNotFoundError:
        raise UsageError(f"Cannot make {folder}: there is no folder {folder.parent}.", hint) from None
    except FileExistsError:
        raise UsageError(f"Cannot make the folder {folder}: there is a file of that name.", hint) from None
    except OSError as error:
        raise UsageError(f"Cannot write to {folder}: {error.strerror}.", hint) from None
    try:
        with scratch as name:
            yield Path(name)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # there may be traces in it by now
                folder.rmdir()
        raise


def _is_trace(path: Path) -> bool:
    if path.name not in TRACE_NAMES or not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(200)
    return head.lstrip().startswith(b"[") and TRACE_HEAD in head


def make_side(order: ProfileRequest, model: ModelInfo, feed: Feed, scratch: Path, name: str, config: Config) -> Side:
    """Trace one config and break the trace down.

    Raises:
        ModelError: The default does not load.
        InputsError: The default does not run on these inputs.
        MeasureError: The trace is of no use.
    """
    traced = trace(
        TraceRequest(
            model_path=model.path,
            config=config,
            feed_path=str(scratch / "feed.npz"),
            trace_prefix=str(scratch / name),
            runs=order.runs,
            duration_s=USUAL_S,
            most_runs=max(min(MOST_NODE_EVENTS // max(model.traits.n_nodes, 1), MOST_RUNS), 1),
        )
    )
    if isinstance(traced, Failure):
        if config is not DEFAULT:
            return Side(name=name, config=config, failure=traced)
        if traced.stage == "check" and traced.kind == "exception":
            raise explain_failure(model, feed, traced.message)
        raise ModelError(
            f"ONNX Runtime cannot load {model.path} ({traced.kind.replace('_', ' ')}): {traced.message}",
            f"Find out why: ortune doctor {order.model}.",
        )
    path = Path(traced.trace_path)
    runs = split_runs(read_trace(path))[traced.n_warm_ups :]
    return Side(name=name, config=config, trace=str(path), breakdown=break_down(runs))
