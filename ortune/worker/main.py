"""The worker: a process of its own for one candidate. It creates the session, checks it, and measures blocks.

Started by the parent as `python -m ortune.worker.main HANDLE`. It answers one request at a time, and ends when
the pipe is closed. Between requests the parent suspends it.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ortune.errors import OrtuneError
from ortune.knobs.affinity import AFFINITIES, parse_affinity
from ortune.knobs.config import CPU, Config, alias_of
from ortune.worker import cpu, protocol
from ortune.worker.gpu import GpuReader
from ortune.worker.prctl import PR_SET_PDEATHSIG, prctl
from ortune.worker.session import CUDA_BASED
from ortune.worker.values import BlockPlan, Failure, Loaded, Memory, PoolThread, Runtime

MOST_CHECKED = 8
"""Samples whose outputs are compared, beside the first of each case."""

LD_PRELOAD = "LD_PRELOAD"

PINNING_S = 1.0
"""Time that the threads of a pool have to pin themselves."""


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends, even while it is suspended."""
    if sys.platform == "linux":  # there is no SIGKILL on Windows
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(limit_bytes: int) -> None:
    """Make allocations beyond the limit fail, so that a candidate that eats memory fails instead of the host."""
    if sys.platform == "win32":  # pragma: no cover
        return
    import resource

    # RLIMIT_DATA counts private writable memory; RLIMIT_AS would count reserved addresses too.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


class Reading(NamedTuple):
    """CPU times so far: of the usable CPUs (None where it is not told), of this process, of the background_load."""

    busy_ns: int | None
    process_ns: int
    neighbour_ns: int


class Candidate:
    """The session of one candidate, and what is fed to it."""

    def __init__(self, request: protocol.Load) -> None:
        self.request = request
        self.usable = frozenset(request.usable)
        self.call: Callable[[dict[str, Any]], list[Any]]
        self.pool: frozenset[int] = frozenset()
        self.memory: Memory | None = None
        self.gpu = open_gpu(request.config)

    def load(self) -> Loaded:
        """Create the session and run it.

        Raises:
            Exception: Whatever onnxruntime raises.
        """
        from ortune.worker.calls import make_call
        from ortune.worker.outputs import load_outputs
        from ortune.worker.session import count_nodes, make_session, set_global_thread_pool
        from ortune.workload.inputs import load_feed

        request, config = self.request, self.request.config
        self.samples, self.cases = load_feed(Path(request.feed_path))
        import onnxruntime  # noqa: F401  (so that importing it does not count as creating the session)

        before = cpu.thread_ids()
        start = time.perf_counter_ns()
        set_global_thread_pool(config)
        sessions = [
            make_session(request.model_path, config.of_session(number), record_assignment=config.provider != CPU)
            for number in range(request.n_sessions)
        ]
        load_ns = (time.perf_counter_ns() - start) // request.n_sessions
        self.pool = cpu.thread_ids() - before
        threads = read_pool(self.pool, config, request.n_sessions)
        session = sessions[0]
        reference = None
        if config.io_binding and not request.is_reference:
            reference = load_outputs(Path(request.reference_path))[0]
        self.call = make_call(sessions, config, reference)
        self.names = [output.name for output in session.get_outputs()]
        return Loaded(
            load_ns=load_ns,
            providers=tuple(session.get_providers()),
            nodes=count_nodes(session) if config.provider != CPU else {},
            threads=threads,
            settings=read_settings(session, config),
            preloaded=read_preloaded(config),
        )

    def check(self, loaded: Loaded) -> Loaded | Failure:
        """Compare the outputs with the default's, or write them down as the reference."""
        import msgspec

        from ortune.worker.calls import to_arrays
        from ortune.worker.outputs import compare_outputs, describe_outputs, load_outputs, save_outputs

        fault = find_unapplied(self.request.config, loaded, self.request.n_sessions)
        if fault:
            return Failure(kind="not_applied", stage="load", message=fault)
        samples = [self.samples[position] for position in choose_checked(self.cases)]
        outputs = [to_arrays(self.call(sample)) for sample in samples]
        # Threads of the default pin themselves when they first run, which nobody waits for: now they have run.
        loaded = msgspec.structs.replace(loaded, threads=cpu.read_threads(self.pool))
        path = Path(self.request.reference_path)
        if self.request.is_reference:
            save_outputs(path, outputs)
            reference, outputs = outputs, [to_arrays(self.call(sample)) for sample in samples]
        else:
            reference = load_outputs(path)
        described = describe_outputs(self.names, outputs[0])
        worst, deterministic = 0.0, True
        if len(reference[0]) != len(self.names):
            message = f"it gives {len(self.names)} outputs instead of {len(reference[0])}"
            return Failure(kind="wrong_output", stage="check", message=message)
        for expected, actual in zip(reference, outputs, strict=True):
            wanted, found = describe_outputs(self.names, expected), describe_outputs(self.names, actual)
            if found != wanted:
                name = next(name for name in wanted if found[name] != wanted[name])
                message = f"output {name} is {found[name]} instead of {wanted[name]}"
                return Failure(kind="wrong_output", stage="check", message=message)
            if not self.request.compare_values:
                continue
            difference = compare_outputs(self.names, expected, actual, self.request.tolerance, self.request.quanta)
            if difference.fault and not self.request.is_reference:
                return Failure(kind="wrong_output", stage="check", message=difference.fault)
            worst = max(worst, difference.max_error)
            deterministic = deterministic and not difference.fault
        if not self.request.compare_values:
            return msgspec.structs.replace(loaded, outputs=described)
        return msgspec.structs.replace(loaded, outputs=described, max_error=worst, deterministic=deterministic)

    def read(self, is_start: bool) -> Reading:
        """Return the CPU times so far; reading itself takes some, which lies outside of the window."""
        if is_start:
            neighbour_ns = self.read_neighbour()
            busy_ns = cpu.busy_ns(self.usable)
            return Reading(busy_ns, time.process_time_ns(), neighbour_ns)
        process_ns = time.process_time_ns()
        busy_ns = cpu.busy_ns(self.usable)
        return Reading(busy_ns, process_ns, self.read_neighbour())

    def read_neighbour(self) -> int:
        """Return the background_load's CPU time so far, 0 without one."""
        background_load = self.request.background_load
        return cpu.tree_ns(background_load) if background_load is not None else 0

    def measure(self, plan: BlockPlan) -> protocol.BlockReply:
        """Measure one block, after its lead-in.

        Raises:
            Exception: Whatever onnxruntime raises.
        """
        import numpy as np

        from ortune.worker.load import generate

        window = generate(self.call, self.samples, plan, self.read)
        before, after = window.before, window.after
        cpu_ns = after.process_ns - before.process_ns
        share, contended = None, False
        if before.busy_ns is not None and after.busy_ns is not None:
            foreign_ns = after.busy_ns - before.busy_ns - cpu_ns - (after.neighbour_ns - before.neighbour_ns)
            share, contended = cpu.foreign_share(foreign_ns, window.wall_ns, len(self.usable))
        memory = self.memory or cpu.read_memory()
        creations = None
        if plan.creations_ns:
            # A second session beside the first would count as memory of the candidate in all later blocks.
            self.memory = memory
            creations = np.asarray(self.create_again(plan.creations_ns), dtype="<i8").tobytes()
        one_case = len(set(self.cases)) == 1
        return protocol.BlockReply(
            samples=window.latencies_ns.astype("<i8").tobytes(),
            cases=None if one_case else np.asarray(self.cases, dtype="<i8")[window.positions].tobytes(),
            n_calls=window.n_calls,
            wall_ns=window.wall_ns,
            lead_in_ns=window.lead_in_ns,
            service_ns=window.service_ns,
            cpu_ns=cpu_ns,
            cpu_between_ns=window.cpu_between_ns,
            creations=creations,
            memory=memory,
            foreign_share=share,
            contended=contended,
            gpu=self.gpu.read() if self.gpu else None,
        )

    def create_again(self, duration_ns: int) -> list[int]:
        """Create sessions for that long, at least two, and return how long each took."""
        from ortune.worker.session import make_session

        durations: list[int] = []
        begin = time.perf_counter_ns()
        while len(durations) < 2 or time.perf_counter_ns() - begin < duration_ns:
            start = time.perf_counter_ns()
            session = make_session(self.request.model_path, self.request.config)
            durations.append(time.perf_counter_ns() - start)
            del session
        return durations


def open_gpu(config: Config) -> GpuReader | None:
    """Return what reads the GPU that a config uses, or None where it uses none."""
    if config.provider not in CUDA_BASED:
        return None
    return GpuReader(int(dict(config.providers)[config.provider].get("device_id", "0")))


def choose_checked(cases: list[int]) -> list[int]:
    """Return the positions of the samples whose outputs are compared: the first of each case, and some in between."""
    firsts = {cases.index(case) for case in set(cases)}
    step = -(-len(cases) // MOST_CHECKED)
    return sorted(firsts | set(range(0, len(cases), step)))


def read_settings(session: Any, config: Config) -> dict[str, int | bool | str]:
    """Return a config's settings as the session has them, by the id of their knob; enums by name."""
    options = session.get_session_options()
    settings: dict[str, int | bool | str] = {}
    for name in config.session_options:
        value = getattr(options, name)
        settings[name] = getattr(value, "name", value)
    for name in config.session_config:
        settings[name] = options.get_session_config_entry(name)
    found = session.get_provider_options()
    for provider, wanted in config.providers:
        # A provider may keep an option to itself; what it shows is compared.
        shown = {name: str(value) for name, value in found.get(provider, {}).items()}
        settings |= {f"{alias_of(provider)}.{name}": shown[name] for name in wanted if name in shown}
    return settings


def read_preloaded(config: Config) -> tuple[str, ...]:
    """Return which of the libraries that the config preloads are mapped into this process."""
    wanted = [Path(path) for path in re.split("[ :]+", config.environment.get(LD_PRELOAD, "")) if path]
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return ()
    # A link is mapped by what it leads to.
    return tuple(str(path) for path in wanted if str(path.resolve()) in mapped)


def read_pool(ids: frozenset[int], config: Config, n_sessions: int) -> tuple[PoolThread, ...]:
    """Return where the threads of a session may run.

    Each pins itself when it first runs, which may be after the session is there: they are waited for.
    """
    end_s = time.monotonic() + PINNING_S
    threads = cpu.read_threads(ids)
    while find_unpinned(config, threads, n_sessions) and time.monotonic() < end_s:
        time.sleep(0.005)
        threads = cpu.read_threads(ids)
    return threads


def find_unpinned(config: Config, threads: tuple[PoolThread, ...], n_sessions: int) -> str:
    """Return which groups of CPUs have no thread pinned to them, for people; empty when all have, or none can be told.

    A pinning that the kernel refuses is only logged, and the thread runs anywhere.
    """
    sessions = [config.of_session(number).session_config for number in range(n_sessions)]
    affinities = [entries[AFFINITIES] for entries in sessions if entries.get(AFFINITIES)]
    if not affinities or not threads:
        return ""
    groups = sorted(group for affinity in affinities for group in parse_affinity(affinity))
    found = sorted(thread.cpus for thread in threads)
    if all(group in found for group in groups):
        return ""
    return f"workers were to be pinned to CPUs {groups}, counted from 0, but may run on {found}"


def find_unapplied(config: Config, loaded: Loaded, n_sessions: int = 1) -> str:
    """Return what did not take effect, for people; empty when all did, as far as can be told."""
    wanted = config.settings
    for name, value in loaded.settings.items():
        if not is_same(value, wanted[name]):
            return f"{name} is {value!r} after {wanted[name]!r} was set"
    missing = [name for name, _ in config.providers if name not in loaded.providers]
    if missing:
        return f"the session runs without {', '.join(missing)}"
    if loaded.nodes and not loaded.nodes.get(config.provider):
        others = ", ".join(f"{count} on {name}" for name, count in loaded.nodes.items())
        return f"{config.provider} took none of the nodes: {others}"
    if config.environment.get(LD_PRELOAD) and sys.platform == "linux" and not loaded.preloaded:
        return f"{config.environment[LD_PRELOAD]} is not in the process, though {LD_PRELOAD} names it"
    return find_unpinned(config, loaded.threads, n_sessions)


def is_same(found: int | bool | str, wanted: int | bool | str) -> bool:
    """Return whether a value that was read back is the one that was set; providers spell booleans in their own way."""
    booleans = {"true": "1", "false": "0"}
    one, other = (booleans.get(str(value).lower(), str(value).lower()) for value in (found, wanted))
    return one == other


def read_runtime() -> Runtime:
    """Return the versions of what this worker runs."""
    import platform

    import onnxruntime

    from ortune import __version__

    return Runtime(
        onnxruntime=onnxruntime.__version__,
        providers=tuple(onnxruntime.get_available_providers()),
        python=platform.python_version(),
        ortune=__version__,
    )


def failure_of(error: BaseException, stage: str) -> Failure:
    """Return an exception as a value."""
    # Of ortune's own errors, the hint is for the user of a command, who did not choose this candidate.
    message = error.message if isinstance(error, OrtuneError) else f"{error}".strip() or type(error).__name__
    starved = isinstance(error, MemoryError) or re.search(
        r"bad_alloc|bad allocation|out of memory|failed to allocate|cannot allocate memory|EAGAIN",
        message,
        re.IGNORECASE,
    )
    if isinstance(error, SystemExit):
        return Failure(kind="exit", stage=stage, message=f"the process wanted to exit with status {error.code}")
    return Failure(kind="out_of_memory" if starved else "exception", stage=stage, message=message)


def serve(connection: Any, make: Callable[[protocol.Load], Candidate] = Candidate) -> None:
    """Answer requests until the pipe is closed."""
    candidate: Candidate | None = None
    while True:
        try:
            request = protocol.decode_request(connection.recv_bytes())
        except EOFError:
            return
        stage = "measure"
        try:
            reply: protocol.Reply
            if isinstance(request, protocol.Load):
                stage = "load"
                if request.memory_limit_bytes is not None:
                    limit_memory(request.memory_limit_bytes)
                candidate = make(request)
                loaded = candidate.load()
                stage = "check"
                answer = candidate.check(loaded)
                if isinstance(answer, Failure):
                    reply = protocol.FailureReply(answer)
                else:
                    reply = protocol.LoadedReply(answer, read_runtime())
                    # Collections at odd moments would be measured; what is alive now stays alive.
                    gc.collect()
                    gc.freeze()
                    gc.disable()
            else:
                if candidate is None:
                    raise RuntimeError("nothing is loaded")
                reply = candidate.measure(request.plan)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever it is, it is the candidate's failure)
            reply = protocol.FailureReply(failure_of(error, stage))
        connection.send_bytes(protocol.encode(reply))


def main(make: Callable[[protocol.Load], Candidate] = Candidate) -> None:
    """Serve the parent whose pipe the last argument names."""
    die_with_parent()
    # Ctrl-C is the parent's affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        serve(protocol.connect(sys.argv[-1]), make)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        sys.stdout.flush()
        # Without the interpreter's own way out: destructors of a broken session must not hang.
        os._exit(0)


if __name__ == "__main__":
    main()
