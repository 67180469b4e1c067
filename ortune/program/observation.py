"""What was seen of a program, and the reading of the files that its processes wrote.

`ortune.apply.inside.observer` writes these files inside the program. The program can write anything, so they are not
trusted: sizes and numbers are limited, and a file that is malformed is left out, with a message.

**Shares.** For each process, the time from the start of the first call of any session to the end of the last one is
divided into calls of sessions, creation of sessions, and the rest, in which no call was in progress: pre- and post-
processing, and waiting. Time before the first call (start of Python, imports, models) and after the last one is not
part of it. The share of a model is the time of its calls, divided by the sum of the time of all calls and of the rest,
over all processes. With one thread and one process, that is its share of the time that passes. Calls that overlap, in
threads or in processes, each count in full: shares then say which calls the threads of the program are in, not how
much time could be saved. A server that waits for requests is outside of ONNX Runtime meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ortune.apply.inside.observer import OBSERVATION_FORMAT, PIDS_FILE
from ortune.errors import ModelError
from ortune.limited import TooLargeError, read_limited
from ortune.model import hash_file

MOST_OBSERVATION_BYTES = 16 << 20
"""Largest size of the file of one process. 256 sessions with 256 combinations of shapes have less."""

MOST_TOTAL_OBSERVATION_BYTES = 128 << 20
MOST_OBSERVED_PROCESSES = 4096
MOST_PIDS_BYTES = 1 << 20

Number = Annotated[int, Meta(ge=0, le=1 << 62)]
Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(max_length=1000)]
Digest = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]
SampleName = Annotated[str, Meta(pattern=r"^[0-9]{1,10}-[0-9]{1,18}\.npz$")]
Priority = Annotated[float, Meta(ge=0, le=1)]


class SeenInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An input of a call.

    Attributes:
        name: Its name.
        dtype: Its type, as records name it; empty if it is not known.
        shape: Its shape; None if it is not known.
    """

    name: Name
    dtype: Name
    shape: Annotated[tuple[Number, ...], Meta(max_length=64)] | None


class SeenShapes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A combination of input shapes.

    Attributes:
        inputs: The inputs.
        count: Number of calls with it.
    """

    inputs: Annotated[tuple[SeenInput, ...], Meta(max_length=10_000)]
    count: Number


class SampleEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call whose inputs were saved; see `ortune.apply.inside.samples.Entry`."""

    priority: Priority
    offset_ns: Number
    n_bytes: Number
    file: SampleName


class Samples(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The calls of a session whose inputs were saved; see `ortune.apply.inside.samples.Reservoir`."""

    threshold: Priority
    entries: Annotated[tuple[SampleEntry, ...], Meta(max_length=10_000)]
    n_left_out: Number


class ObservedSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A session of one process.

    Attributes:
        model: The model, as the program names it, or its number of bytes.
        path: Absolute path of its file; empty if the model was passed as bytes.
        package: Folder below site-packages that contains the file; empty if there is none.
        size_bytes: Size of the file, without external data.
        sha256: SHA-256 of the file; empty if the file is too large to be hashed by the program.
        requested: Execution providers that the program requests.
        providers: Execution providers that the session has.
        options: Attributes and entries of SessionOptions that the program sets, as configs name them.
        other_methods: Other methods of SessionOptions that it calls.
        record: The record whose options the session has; empty if it has the program's own.
        reason: Why it has the program's own, if there are records.
        n_threads: Number of threads that its creation started.
        inherited: Whether it was created before the process was forked.
        created_ns: When its creation began, from the start of the process.
        create_ns: Time that its creation took.
        n_sessions: Number of sessions that are described together. Only the sessions beyond the 256th are.
        n_calls: Number of calls of each method.
        n_failed: Number of calls that raised an exception.
        total_ns: Time of all calls.
        first_ns: Time of the first call.
        most_concurrent: Largest number of calls in progress at a time.
        shapes: The most frequent combinations of input shapes, the most frequent one first.
        n_other_shapes: Number of calls with other combinations.
        samples: Calls whose inputs were saved.
    """

    model: Text
    path: Text
    package: Text
    size_bytes: Number
    sha256: Digest
    requested: Annotated[tuple[Name, ...], Meta(max_length=64)]
    providers: Annotated[tuple[Name, ...], Meta(max_length=64)]
    options: Annotated[dict[Name, bool | int | float | Text], Meta(max_length=64)]
    other_methods: Annotated[tuple[Name, ...], Meta(max_length=64)]
    record: Text
    reason: Text
    n_threads: Number
    inherited: bool
    created_ns: Number
    create_ns: Number
    n_sessions: Number
    n_calls: Annotated[dict[Name, Number], Meta(max_length=64)]
    n_failed: Number
    total_ns: Number
    first_ns: Number
    most_concurrent: Number
    shapes: Annotated[tuple[SeenShapes, ...], Meta(max_length=256)]
    n_other_shapes: Number
    samples: Samples | None = None


class ObservedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function whose calls were timed; see `ortune.apply.inside.call_timer`.

    Attributes:
        name: Its name, as `package.module:function`.
        found: Whether the process has it.
        n_calls: Number of its calls.
    """

    name: Text
    found: bool
    n_calls: Number


class ObservedProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process of a program, in which Python ran.

    Attributes:
        format: Version of the file.
        pid: Its id.
        ppid: Id of its parent.
        argv: Its arguments.
        onnxruntime: Version of onnxruntime; empty if the process did not import it.
        start_ns: When it started, in ns since 1970.
        wall_ns: Time from its start to the last write of the file.
        cpu_ns: CPU time.
        observing_ns: Time that observing took since the first call.
        busy_ns: Time with at least one call in progress.
        first_call_ns: When the first call of a session began, from the start of the process; 0 without calls.
        last_call_ns: When the last one ended.
        peak_threads: Largest number of threads that was seen.
        libraries: Libraries with thread pools that it has loaded.
        function: The function whose calls were timed, or None.
        sessions: Its sessions, in the order of their creation.
        n_sessions_left_out: Number of sessions that are not described.
    """

    format: Annotated[int, Meta(ge=OBSERVATION_FORMAT, le=OBSERVATION_FORMAT)]
    pid: Number
    ppid: Number
    argv: Annotated[tuple[Text, ...], Meta(max_length=64)]
    onnxruntime: Name
    start_ns: Number
    wall_ns: Number
    cpu_ns: Number
    observing_ns: Number
    busy_ns: Number
    first_call_ns: Number
    last_call_ns: Number
    peak_threads: Number
    libraries: Annotated[tuple[Name, ...], Meta(max_length=64)]
    function: ObservedFunction | None
    sessions: Annotated[tuple[ObservedSession, ...], Meta(max_length=256)]
    n_sessions_left_out: Number

    @property
    def outside_ns(self) -> int:
        """Time between the first and the last call in which no call was in progress and no session was created."""
        created = (session.create_ns for session in self.sessions if session.created_ns >= self.first_call_ns)
        used_ns = self.busy_ns + self.observing_ns + sum(created)
        return max(self.last_call_ns - self.first_call_ns - used_ns, 0)


class ObservedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model, with its sessions in all processes.

    Attributes:
        name: File name; with its folder, or a number, where several models have the same.
        path: Absolute path of its file; empty if the program passes bytes.
        package: Package that contains the file, or empty.
        size_bytes: Size of the file.
        sha256: SHA-256 of the file; empty if it could not be read.
        n_sessions: Number of its sessions.
        n_processes: Number of processes with its sessions.
        n_calls: Number of their calls.
        n_failed: Number of calls that raised an exception.
        total_ns: Time of all calls.
        share: Share of the time; see the docstring of this module.
        create_ns: Time that the creation of all sessions took.
        n_threads: Number of threads that the creation of each session started, without repetitions.
        most_concurrent: Largest number of calls of a session in progress at a time.
        requested: Execution providers that the program requests, without repetitions.
        providers: Execution providers that the sessions have, without repetitions.
        options: Options that the program sets, without repetitions.
        other_methods: Other methods of SessionOptions that it calls.
        records: Records whose options sessions have.
        reasons: Why sessions have the program's own options, if there are records.
        shapes: The most frequent combinations of input shapes, the most frequent one first.
        n_other_shapes: Number of calls with other combinations.
    """

    name: str
    path: str
    package: str
    size_bytes: int
    sha256: str
    n_sessions: int
    n_processes: int
    n_calls: int
    n_failed: int
    total_ns: int
    share: float
    create_ns: int
    n_threads: tuple[int, ...]
    most_concurrent: int
    requested: tuple[tuple[str, ...], ...]
    providers: tuple[tuple[str, ...], ...]
    options: tuple[dict[str, bool | int | float | str], ...]
    other_methods: tuple[str, ...]
    records: tuple[str, ...]
    reasons: tuple[str, ...]
    shapes: tuple[SeenShapes, ...]
    n_other_shapes: int

    @property
    def mean_ns(self) -> float:
        """Mean time of a call; 0 without calls."""
        return self.total_ns / self.n_calls if self.n_calls else 0.0


class SavedInputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a model that were saved.

    Attributes:
        model: Name of the model.
        folder: Folder with the files.
        n_samples: Number of calls whose inputs it holds.
        n_bytes: Size of the inputs.
        n_left_out: Number of calls whose inputs could not be saved.
    """

    model: str
    folder: str
    n_samples: int
    n_bytes: int
    n_left_out: int


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one run of a program.

    Attributes:
        command: The program and its arguments.
        status: Its exit status; the negative number of the signal that ended it.
        interrupted: Whether the user interrupted it.
        wall_ns: Time from its start to its end.
        n_python: Number of its processes in which Python ran.
        models: Its models, that with most of the time first.
        outside_ns: Time outside of sessions; see the docstring of this module.
        outside_share: Its share.
        start_ns: Mean time from the start of a process to its first call.
        processes: Its processes that imported onnxruntime.
        saved: Inputs that were saved.
        faults: Files that could not be read, each as a sentence.
    """

    command: tuple[str, ...]
    status: int
    interrupted: bool = False
    wall_ns: int
    n_python: int
    models: tuple[ObservedModel, ...]
    outside_ns: int
    outside_share: float
    start_ns: int
    processes: tuple[ObservedProcess, ...]
    saved: tuple[SavedInputs, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def n_calls(self) -> int:
        """Number of calls of all sessions."""
        return sum(model.n_calls for model in self.models)

    @property
    def libraries(self) -> tuple[str, ...]:
        """Libraries with thread pools, in any process."""
        return tuple(dict.fromkeys(name for process in self.processes for name in process.libraries))

    @property
    def peak_threads(self) -> int:
        """Largest number of threads of one process."""
        return max((process.peak_threads for process in self.processes), default=0)


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one run.

    Attributes:
        processes: The processes, in the order in which they started.
        n_python: Number of processes in which Python ran.
        faults: Files that could not be read, each as a sentence.
    """

    processes: tuple[ObservedProcess, ...]
    n_python: int
    faults: tuple[str, ...]


def read_processes(folder: Path) -> Reading:
    """Read the files that the processes of a program wrote."""
    processes: list[ObservedProcess] = []
    faults: list[str] = []
    left_bytes = MOST_TOTAL_OBSERVATION_BYTES
    paths = sorted(path for path in folder.glob("process-*.json") if re.fullmatch(r"process-[0-9]{1,10}", path.stem))
    for path in paths[:MOST_OBSERVED_PROCESSES]:
        try:
            data = read_limited(path, min(MOST_OBSERVATION_BYTES, left_bytes), only_regular=True)
            left_bytes -= len(data)
            processes.append(msgspec.json.decode(data, type=ObservedProcess))
        except OSError as error:
            faults.append(f"{path.name} cannot be read: {error.strerror}.")
        except (TooLargeError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            faults.append(f"{path.name} cannot be read: {error}.")
    if len(paths) > MOST_OBSERVED_PROCESSES:
        faults.append(f"Only {MOST_OBSERVED_PROCESSES} of {len(paths)} processes were read.")
    started = sorted(processes, key=lambda process: process.start_ns)
    return Reading(processes=tuple(started), n_python=_count_pids(folder), faults=tuple(faults))


def _count_pids(folder: Path) -> int:
    try:
        return len(set(read_limited(folder / PIDS_FILE, MOST_PIDS_BYTES, only_regular=True).split()))
    except (OSError, TooLargeError):
        return 0


Session = tuple[ObservedProcess, ObservedSession]


def group_sessions(processes: Iterable[ObservedProcess]) -> dict[str, list[Session]]:
    """Return the sessions of each model, with their processes. The SHA-256 of the file distinguishes models."""
    digests: dict[tuple[str, int], str] = {}
    groups: dict[str, list[Session]] = {}
    for process in processes:
        for session in process.sessions:
            digest = session.sha256
            if not digest and session.path:
                key = (session.path, session.size_bytes)
                if key not in digests:
                    digests[key] = _hash_large(*key)
                digest = digests[key]
            known = msgspec.structs.replace(session, sha256=digest)
            groups.setdefault(digest or session.path or session.model, []).append((process, known))
    return groups


def _hash_large(path: str, size_bytes: int) -> str:
    """Return the SHA-256 of a file that the program did not hash; empty if it is not there or has changed."""
    try:
        if not Path(path).is_file() or Path(path).stat().st_size != size_bytes:
            return ""
        return hash_file(Path(path).parent, Path(path).name).sha256
    except (OSError, ValueError, ModelError):
        return ""


def sum_models(groups: Mapping[str, list[Session]], outside_ns: int) -> tuple[ObservedModel, ...]:
    """Return the models with their shares, that with most of the time first.

    Args:
        groups: The sessions of each model.
        outside_ns: Time outside of sessions.
    """
    total_ns = outside_ns + sum(session.total_ns for group in groups.values() for _, session in group)
    names = name_models({key: group[0][1] for key, group in groups.items()})
    models = [_sum_model(names[key], group, total_ns) for key, group in groups.items()]
    return tuple(sorted(models, key=lambda model: -model.total_ns))


def name_models(models: Mapping[str, ObservedSession]) -> dict[str, str]:
    """Return a name for each model: its file name, with its folder or a number where several have the same."""
    names = {key: Path(session.path).name or f"model of {session.model}" for key, session in models.items()}
    for key in [key for key, name in names.items() if list(names.values()).count(name) > 1]:
        path = Path(models[key].path)
        names[key] = f"{path.parent.name}/{path.name}" if path.name else names[key]
    seen: dict[str, int] = {}
    for key, name in names.items():
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names[key] = f"{name} ({seen[name]})"
    return names


def _sum_model(name: str, group: list[Session], total_ns: int) -> ObservedModel:
    sessions = [session for _, session in group]
    created = [session for session in sessions if not session.inherited] or sessions
    first = sessions[0]
    own_ns = sum(session.total_ns for session in sessions)
    counts: dict[tuple[SeenInput, ...], int] = {}
    for session in sessions:
        for seen in session.shapes:
            counts[seen.inputs] = counts.get(seen.inputs, 0) + seen.count
    shapes = [SeenShapes(inputs=inputs, count=count) for inputs, count in counts.items()]
    options = list(dict.fromkeys(msgspec.json.encode(session.options) for session in created))
    decode = msgspec.json.Decoder(dict[str, bool | int | float | str]).decode
    return ObservedModel(
        name=name,
        path=first.path,
        package=first.package,
        size_bytes=first.size_bytes,
        sha256=first.sha256,
        n_sessions=sum(session.n_sessions for session in created),
        n_processes=len({process.pid for process, _ in group}),
        n_calls=sum(sum(session.n_calls.values()) for session in sessions),
        n_failed=sum(session.n_failed for session in sessions),
        total_ns=own_ns,
        share=own_ns / total_ns if total_ns else 0.0,
        create_ns=sum(session.create_ns for session in created),
        n_threads=tuple(sorted({session.n_threads for session in created})),
        most_concurrent=max(session.most_concurrent for session in sessions),
        requested=tuple(dict.fromkeys(session.requested for session in created)),
        providers=tuple(dict.fromkeys(session.providers for session in created)),
        options=tuple(decode(encoded) for encoded in options),
        other_methods=tuple(dict.fromkeys(method for session in created for method in session.other_methods)),
        records=tuple(dict.fromkeys(session.record for session in created if session.record)),
        reasons=tuple(dict.fromkeys(session.reason for session in created if session.reason)),
        shapes=tuple(sorted(shapes, key=lambda seen: -seen.count)),
        n_other_shapes=sum(session.n_other_shapes for session in sessions),
    )
