"""Prepares the search of a program: runs it once under observation, reads its models, and builds the search space."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortune import __version__
from ortune.apply.exec import find_program
from ortune.apply.placeholders import PORT_PLACEHOLDER
from ortune.errors import HostError, OrtuneError, ProgramError, UsageError
from ortune.host import Host, read_host
from ortune.host.allocators import find_allocators
from ortune.knobs import DEFAULT, KNOBS, Config, SpaceOptions
from ortune.knobs.config import CPU
from ortune.knobs.knob import Value
from ortune.knobs.legal import find_faults
from ortune.model import ModelInfo, compute_digest, read_model
from ortune.model.identity import ModelIdentity
from ortune.model.info import ModelFile
from ortune.program.gate import CallLog
from ortune.program.http_load import check_url, is_port_only
from ortune.program.launcher import LaunchedProgram, Launcher
from ortune.program.metric import parse_metric
from ortune.program.observation import (
    ObservedModel,
    ObservedProcess,
    Reading,
    group_sessions,
    read_processes,
    sum_models,
)
from ortune.program.process import SUPERVISOR_ENDED, ProgramProcess
from ortune.program.runner import FEW_CALLS, FIRST_RUN_DEADLINE_S, SHORTEST_STAY_NS
from ortune.program.server import LoadGenerator, Server
from ortune.program.space import (
    NOT_OFFERED,
    OF_SESSIONS,
    ProgramModel,
    ProgramSpace,
    build_program_space,
    is_default,
    resolve,
)
from ortune.program.task import ProgramTask, can_encode, parse_call
from ortune.record.files import check_record_writable
from ortune.replaceable import replaceable
from ortune.requests import ProgramSearchRequest
from ortune.sanitize import printable
from ortune.steps import enter_step
from ortune.times import read_clock_s
from ortune.tuning.resume import find_unfinished
from ortune.worker import Failure, Runtime
from ortune.worker.attempts import MAX_FIRST_FAILURES
from ortune.worker.graphs import is_of_graph, merge_same_programs
from ortune.worker.installed import find_installed_version
from ortune.worker.owned_folder import OwnedFolder
from ortune.workload import Goal
from ortune.workload.program import MeasureKind, ProgramRun, digest_command

HEADER_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
"""Name of a header field.

Source: `token` in RFC 9110, section 5.6.2."""

LOST_WAIT_S = 1.0
"""How long a program that fails may take to end because its supervisor was ended."""

OBSERVE_POLL_S = 0.05

REPORT_S = 3.0
"""Maximum time to wait until a process has written what it did: after a call, four times a second at most."""

LONGEST_SETTLE_S = 20.0
"""Maximum time of the first requests to a server until it is seen that it calls a session."""

OBSERVE_SHARE = 0.05
LEAST_OBSERVE_S = 1.0
MOST_OBSERVE_S = 20.0
USUAL_OBSERVE_S = 5.0
"""Share of the budget for which a program that does not end is observed, once its calls have begun, its bounds, and the
time without a budget."""

LONGEST_ROUND = 3
"""The requests of a server go on until all bodies were sent, for at most so many times that long."""


class PreparedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the search of a program needs before it starts.

    Attributes:
        request: The options of the search.
        task: The program, and what is measured of it.
        server: How the program is loaded if it is a server; None if it is not.
        n_processes: Number of its processes that create sessions.
        keeps_running: Whether calls are measured in a program that stays alive.
        run_s: Time that a run takes; None if the program did not end by itself while it was observed.
        spent_s: Time that preparation took: running the program once, and reading its models.
        models: Its models, that with most of the time first.
        identities: Path, digest and files of each model.
        space: The search space.
        goal: Load, objectives and limits.
        host: The host.
        runtime: The software that the program runs.
        warnings: What to know before the search.
        n_kept_blocks: Number of blocks that an earlier process measured, if this search goes on with them.
    """

    request: ProgramSearchRequest
    task: ProgramTask
    server: Server | None
    n_processes: int
    keeps_running: bool
    models: tuple[ProgramModel, ...]
    identities: tuple[ModelIdentity, ...]
    space: ProgramSpace
    goal: Goal
    host: Host
    runtime: Runtime
    run_s: float | None = None
    spent_s: float = 0.0
    warnings: tuple[str, ...] = ()
    n_kept_blocks: int = 0

    @property
    def shares(self) -> dict[str, float]:
        """Share of the time of each model, by its digest."""
        return {identity.digest: model.share for model, identity in zip(self.models, self.identities, strict=True)}

    def describe_run(self) -> ProgramRun:
        """Return the program and what is measured of it, as records hold them."""
        kind: MeasureKind = "server" if self.server else "run"
        if self.task.call or self.task.metric:
            kind = "call" if self.task.call else "metric"
        return ProgramRun(
            program=printable(Path(self.task.command[0]).name),
            sha256=digest_command(self.task.command),
            kind=kind,
            call=self.task.call,
            complete_runs=not self.keeps_running if self.task.call else None,
            metric=self.task.metric,
            maximize=self.task.maximize,
            url=self.server.url.partition("?")[0] if self.server else "",
            n_processes=self.n_processes,
            concurrent_calls=max((model.most_concurrent for model in self.models), default=0),
        )


def prepare_program(request: ProgramSearchRequest) -> PreparedProgram:
    """Run the program once under observation, read its models, and make the search space.

    Raises:
        OrtuneError: An option is not valid, the program does not work, or the host cannot be read.
    """
    if sys.platform == "win32":  # pragma: no cover
        raise UsageError("Programs cannot be tuned on Windows.", "Tune their models: ortune search MODEL.")
    begin_s = read_clock_s()
    if request.output is not None:
        check_record_writable(request.output)
    unfinished = find_unfinished(request)
    task = make_task(request)
    server = make_server(request, task)
    host = read_host()
    goal = request.goal.on_host(throttled=host.limits.throttled)
    enter_step(f"running {Path(task.command[0]).name} once, to see its sessions")
    observed = observe_program(task, server, find_observe_s(request.budget))
    processes = observed.reading.processes
    enter_step("reading its models")
    models, identities, warnings = describe_models(processes)
    if unfinished and request.resume:
        models, identities = restore_shares(models, identities, unfinished.shares)
    if not models:
        raise ProgramError(explain_no_session(observed.reading), "`ortune inspect -- COMMAND` shows what it does.")
    version = (
        next((process.onnxruntime for process in processes if process.onnxruntime), "") or find_installed_version()
    )
    options = SpaceOptions(
        figures=goal.figures,
        clients=goal.load.clients,
        has_rate=goal.load.rate_per_s is not None,
        tune=request.tune,
        fix=request.fix,
        only=request.only,
        approximate=request.allow_approximate,
        allocators=tuple(find_allocators()),
        onnxruntime=version,
    )
    listed = build_program_space(
        host,
        models,
        options,
        libraries=tuple(dict.fromkeys(name for process in processes for name in process.libraries)),
        own_workers=task.own_workers,
    )
    infos = [model.info for model in models if model.info]
    space = listed
    varied = {name for model in models for name in model.varied}
    providers = {name for process in processes for session in process.sessions for name in session.providers}
    # Sessions whose settings are not all known, and other providers, have graphs that are not known either.
    if len(infos) == len(models) and providers <= {CPU} and not any(map(is_of_graph, varied)):
        space = merge_same_programs(listed, infos, lambda config, number: resolve(config, models[number]))
    return PreparedProgram(
        request=request,
        task=task,
        server=server,
        n_processes=sum(bool(process.sessions) for process in processes),
        keeps_running=observed.keeps_running,
        run_s=observed.run_s,
        spent_s=read_clock_s() - begin_s,
        models=models,
        identities=identities,
        space=space,
        goal=goal,
        host=host,
        runtime=Runtime(
            onnxruntime=version,
            providers=tuple(
                dict.fromkeys(
                    name for process in processes for session in process.sessions for name in session.providers
                )
            ),
            python=platform.python_version(),
            ortune=__version__,
        ),
        warnings=warnings,
        n_kept_blocks=unfinished.n_blocks if unfinished and request.resume else 0,
    )


def describe_models(
    processes: Sequence[ObservedProcess],
) -> tuple[tuple[ProgramModel, ...], tuple[ModelIdentity, ...], tuple[str, ...]]:
    """Return the models of a program, their identities, and what could not be read of them.

    Models that are never called are left out.
    """
    observed = [model for model in sum_models(group_sessions(processes), 0) if model.n_calls and model.sha256]
    models, identities, warnings = [], [], []
    for model in observed:
        info, fault = read_info(model)
        files = info.files if info else (ModelFile(name=model.name, size_bytes=model.size_bytes, sha256=model.sha256),)
        if fault:
            warnings.append(fault)
        common, varied = compare_options(model.options)
        if varied:
            names = ", ".join(sorted(varied))
            warnings.append(
                f"{model.name}: its sessions differ in {names}. A candidate that sets it sets it in all of them"
            )
        models.append(
            ProgramModel(
                name=model.name,
                info=info,
                own=make_own_config(common),
                varied=varied,
                share=model.share,
                n_sessions=-(-model.n_sessions // max(model.n_processes, 1)),
                shapes=model.shapes,
                most_concurrent=model.most_concurrent,
            )
        )
        identities.append(ModelIdentity(path=model.path or model.name, digest=compute_digest(files), files=files))
    return tuple(models), tuple(identities), tuple(warnings)


def restore_shares(
    models: Sequence[ProgramModel], identities: Sequence[ModelIdentity], shares: Mapping[str, float]
) -> tuple[tuple[ProgramModel, ...], tuple[ModelIdentity, ...]]:
    """Return models and identities with the shares and in the order that they had when a search began.

    Both differ from run to run, and what is tried depends on them. If the models are others, nothing is changed.

    Args:
        models: The models.
        identities: Their identities.
        shares: The share of each, by its digest.
    """
    found = {identity.digest: (model, identity) for model, identity in zip(models, identities, strict=True)}
    if found.keys() != shares.keys():
        return tuple(models), tuple(identities)
    return (
        tuple(msgspec.structs.replace(found[digest][0], share=share) for digest, share in shares.items()),
        tuple(found[digest][1] for digest in shares),
    )


def read_info(model: ObservedModel) -> tuple[ModelInfo | None, str]:
    """Return what is in the file of a model, or None and why it cannot be read."""
    if not model.path:
        return None, f"{model.name}: the program passes it as bytes, so its graph is not known"
    try:
        return read_model(model.path), ""
    except OrtuneError as error:
        return None, f"{model.name}: its graph is not known: {error.message}"


def compare_options(
    options: Sequence[Mapping[str, Value | float]],
) -> tuple[dict[str, Value | float], dict[str, tuple[Value | float, ...]]]:
    """Return the options that all sessions of a model have, and the settings in which they differ, with their values.

    A session that sets ONNX Runtime's default does not differ from one that sets nothing.

    Args:
        options: The different options of its sessions.
    """
    common: dict[str, Value | float] = {}
    varied: dict[str, tuple[Value | float, ...]] = {}
    for name in sorted({name for settings in options for name in settings}):
        default = KNOBS[name].default if name in KNOBS else ""
        values = sorted({json.dumps(settings.get(name, default)) for settings in options})
        if len(values) == 1:
            common[name] = json.loads(values[0])
        elif is_setting_of_sessions(name):
            varied[name] = tuple(map(json.loads, values))
    return common, varied


def is_setting_of_sessions(name: str) -> bool:
    """Return whether a search can change an option of a session, as far as its name says."""
    if name not in KNOBS or name in NOT_OFFERED:
        return False
    knob = KNOBS[name]
    return knob.where in OF_SESSIONS and not (knob.unsafe or knob.not_tunable)


def make_own_config(options: Mapping[str, Value | float]) -> Config:
    """Return what the program sets for the sessions of a model, given their common options.

    What a record must not have is left out, such as names of files. Sessions keep it.
    """
    config = DEFAULT
    for name, value in options.items():
        if is_setting_of_sessions(name) and not isinstance(value, float) and not is_default(name, value):
            changed = config.with_setting(KNOBS[name].where, name, value)
            if not any(find_faults(changed)):
                config = changed
    return config


def explain_no_session(reading: Reading) -> str:
    """Return why there is nothing to tune in a program."""
    if reading.faults:
        return f"The program could not be observed: {reading.faults[0]}"
    if not reading.n_python:
        return "The program runs no Python, so ortune cannot see or change its sessions."
    if not reading.processes:
        return "The program did not import onnxruntime."
    if not any(process.sessions for process in reading.processes):
        return "The program imported onnxruntime, but created no session."
    return "The program created sessions, but did not call them."


def make_task(request: ProgramSearchRequest) -> ProgramTask:
    """Return the program, and what is measured of it.

    Raises:
        UsageError: An option is not valid, or there is no such program.
    """
    find_program(request.command)
    if request.stdin is not None and not request.stdin.is_file():
        raise UsageError(f"{request.stdin}: is not a file.", option="stdin")
    for path in request.body:
        if not Path(path).is_file():
            raise UsageError(f"{path}: is not a file.", option="body")
    if request.check_command is not None:
        check_words(request.check_command)
    return ProgramTask(
        command=request.command,
        stdin=Path(os.devnull) if request.stdin is None else request.stdin.absolute(),
        call=parse_call(request.call) if request.call is not None else "",
        metric=parse_metric(request.metric) if request.metric is not None else "",
        maximize=request.maximize,
        check=request.check_command or "",
        ignore_outputs=request.ignore_outputs,
    )


def check_words(command: str) -> None:
    """Check that a command can be divided into words.

    Raises:
        UsageError: It has none, or a quotation is not closed.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        message = f"{printable(command)}: {str(error).lower()}."
        raise UsageError(message, "Quote it as in a shell.", option="check_command") from None
    if not words:
        raise UsageError("The command that checks the output is empty.", option="check_command")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"{printable(command)}: there is no program {printable(words[0])}.",
            "Give a program on the PATH. To use operators of a shell, run one: sh -c '...'.",
            option="check_command",
        )


def make_server(request: ProgramSearchRequest, task: ProgramTask) -> Server | None:
    """Return how a server is loaded; None if the program is not one.

    Raises:
        UsageError: An option is not valid.
    """
    if request.url is None:
        if task.has_port:
            raise UsageError("{port} in COMMAND needs a URL of requests.", "Add {url=http://127.0.0.1:{port}/}.")
        return None
    check_url(request.url)
    if request.health is not None:
        check_url(request.health, option="health")
    if task.has_port and not is_port_only(request.url):
        raise UsageError(
            f"{request.url}: does not contain {{port}}, but COMMAND does.",
            "Write it in the URL, too.",
            option="url",
        )
    if PORT_PLACEHOLDER in request.url and not task.has_port:
        raise UsageError(
            f"{request.url}: contains {{port}}, but COMMAND does not.",
            "Write it where COMMAND names the port of the server, or the number of the port in the URL.",
            option="url",
        )
    headers = []
    for text in request.header:
        name, separator, value = text.partition(":")
        if not separator or not name.strip():
            raise UsageError(f"{text}: is not a header field.", "Write 'Content-Type: image/png'.", option="header")
        if not text.isprintable() or not can_encode(text, "latin-1"):
            message = f"{printable(name)}: has a control character, or one that is not in Latin-1."
            raise UsageError(message, "Header fields of HTTP cannot have it.", option="header")
        if not re.fullmatch(HEADER_NAME, name.strip()):
            message = f"{name.strip()}: is not the name of a header field."
            raise UsageError(message, "It may have letters from A to Z, digits, and marks such as -.", option="header")
        headers.append((name.strip(), value.strip()))
    bodies = tuple(Path(path) for path in request.body)
    return Server(
        url=request.url,
        bodies=bodies,
        first_body=bodies[0].read_bytes() if bodies else None,
        headers=tuple(headers),
        health_url=request.health or "",
        has_port=task.has_port,
    )


def find_observe_s(budget_s: float | None) -> float:
    """Return for how long a program that does not end is observed, once its calls have begun."""
    share_s = USUAL_OBSERVE_S if budget_s is None else OBSERVE_SHARE * budget_s
    return min(max(share_s, LEAST_OBSERVE_S), MOST_OBSERVE_S)


class ObservedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the program as it is.

    Attributes:
        reading: What its processes wrote.
        keeps_running: Whether calls of the function that is timed can be measured while the program runs.
        run_s: Time that the program took until it ended; None if it did not end by itself.
    """

    reading: Reading
    keeps_running: bool = False
    run_s: float | None = None


@replaceable
def observe_program(task: ProgramTask, server: Server | None, observe_s: float) -> ObservedRun:
    """Run the program once as it is, and launch it again if its supervisor ends.

    A server gets requests for some time, and is then ended.

    Args:
        task: The program.
        server: How it is loaded if it is a server; None if it is not.
        observe_s: Time for which calls or requests are observed in a program that does not end before. Models that are
            loaded later, and other shapes, are not seen.

    Raises:
        HostError: Its supervisor is ended again and again.
        ProgramError: The program fails, or does not do what is to be measured.
    """
    for _ in range(MAX_FIRST_FAILURES):
        with OwnedFolder() as folder, closing(ProgramProcess()) as process:
            try:
                return _observe(process, folder, task, server, observe_s)
            except ProgramError:
                # Requests to a server fail before its end is seen.
                ended = process.wait(LOST_WAIT_S)
                if not (ended and ended.is_lost):
                    raise
    raise HostError(
        f"The program cannot be observed: {SUPERVISOR_ENDED}, {MAX_FIRST_FAILURES} times.",
        "Check what ends processes on this host.",
    )


def _observe(
    process: ProgramProcess, folder: OwnedFolder, task: ProgramTask, server: Server | None, observe_s: float
) -> ObservedRun:
    launcher = Launcher(task, (), "", folder, os.environ)
    port = server.choose_port() if server else 0
    run = launcher.start(process, DEFAULT, port=port, observe=True)
    if isinstance(run, Failure):
        raise ProgramError(f"{run.message[0].upper()}{run.message[1:]}.")
    if server:
        _request_some(process, run, server, port, folder, observe_s)
    elif task.call:
        _wait_for_calls(process, run, task, observe_s)
    else:
        process.wait(FIRST_RUN_DEADLINE_S)
    run_s = process.ended.wall_ns / 1e9 if process.ended else None
    if process.ended is None:
        process.end()
    elif process.ended.status:
        failure = run.explain_end(process.ended, "measure")
        raise ProgramError(
            f"{Path(task.command[0]).name} fails: {failure.message}.",
            "Run the command without ortune. Its stdin is empty unless {stdin=FILE} names a file.",
        )
    calls = CallLog(run.folder).read()
    keeps_running = bool(task.call) and can_measure_inside(calls, has_ended=run_s is not None)
    if run_s is None and not server and not keeps_running:
        raise explain_endless(task, len(calls))
    return ObservedRun(reading=read_processes(run.folder), keeps_running=keeps_running, run_s=run_s)


def explain_endless(task: ProgramTask, n_calls: int) -> ProgramError:
    """Return the error of a program that should be run to completion, and does not end.

    Args:
        task: The program.
        n_calls: Number of calls of the function that is timed.
    """
    message = f"{Path(task.command[0]).name} did not end within {FIRST_RUN_DEADLINE_S:g} s"
    if task.call:
        message = f"{message}, and made fewer than {FEW_CALLS} calls of {task.call}: {n_calls}."
        return ProgramError(message, f"Let it end, or make at least {FEW_CALLS} calls.")
    return ProgramError(
        f"{message}.",
        "If it is a server, name {url=http://127.0.0.1:8000/}. If it does not end, name "
        "{call=package.module:function}, whose calls are then measured.",
    )


def can_measure_inside(calls: NDArray[np.int64], *, has_ended: bool) -> bool:
    """Return whether calls of a function can be measured while the program runs.

    Args:
        calls: Start and end of its calls in ns, of shape (calls, 2).
        has_ended: Whether the program has ended, and ortune did not end it.
    """
    return len(calls) >= FEW_CALLS and not (has_ended and calls[:, 1].max() - calls[:, 0].min() < SHORTEST_STAY_NS)


def has_calls(run: LaunchedProgram) -> bool:
    """Return whether a process has written that it called a session."""
    return any(session.n_calls for process in read_processes(run.folder).processes for session in process.sessions)


def has_report(run: LaunchedProgram, seen_s: float) -> bool:
    """Return whether a process has written what it did until a time, or has had enough time for that.

    A process that is ended from outside writes nothing more.

    Args:
        run: The run.
        seen_s: The time, in seconds since 1970.
    """
    times_s = [0.0]
    for path in run.folder.glob("process-*.json"):
        with contextlib.suppress(OSError):
            times_s.append(path.stat().st_mtime)
    return max(times_s) > seen_s or time.time() > seen_s + REPORT_S


def _wait_for_calls(process: ProgramProcess, run: LaunchedProgram, task: ProgramTask, observe_s: float) -> None:
    """Wait until the program has ended, or has made enough calls of the function to be measured while it is alive.

    Then it goes on for some time, as it may load models later, or call them with other shapes.

    Raises:
        ProgramError: It made no call.
    """
    log = CallLog(run.folder)
    end_s = time.monotonic() + FIRST_RUN_DEADLINE_S
    while process.wait(OBSERVE_POLL_S) is None and time.monotonic() < end_s:
        if log.count_new() >= FEW_CALLS and has_calls(run):
            process.wait(observe_s)
            seen_s = time.time()
            while process.wait(OBSERVE_POLL_S) is None and not has_report(run, seen_s):
                pass
            return
    if not log.count_new() and not (process.ended and process.ended.status):
        raise ProgramError(
            f"The program made no call of {task.call}.",
            "Check the name: the module as the program imports it, or __main__ for the script itself.",
        )


def _request_some(
    process: ProgramProcess, run: LaunchedProgram, server: Server, port: int, folder: OwnedFolder, observe_s: float
) -> None:
    """Wait until the server is up, and make requests with all bodies in turn for some time.

    Raises:
        ProgramError: It does not come up, or answers with an error.
    """
    n_bodies = max(len(server.bodies), 1)
    failure = server.wait_until_up(port, run.find_early_end, FIRST_RUN_DEADLINE_S)
    if failure is None:
        with closing(LoadGenerator(server, folder.path / "requests.log", (), 0, None)) as load:
            n_requests, is_settled, start_s, seen_s = 0, False, 0.0, math.inf
            while failure is None:
                answer = load.fetch(n_requests % n_bodies) if n_requests else load.open(port, process.supervisor_pid)
                failure = answer if isinstance(answer, Failure) else None
                if not n_requests:  # the load generator has started
                    start_s = time.monotonic()
                n_requests += 1
                taken_s = time.monotonic() - start_s
                # Processes write what was observed from time to time, after a call.
                is_settled = is_settled or has_calls(run) or taken_s > LONGEST_SETTLE_S
                has_sent_all = n_requests >= n_bodies or taken_s > LONGEST_ROUND * observe_s
                if is_settled and has_sent_all and taken_s > observe_s:
                    seen_s = min(seen_s, time.time())
                    if has_report(run, seen_s):
                        break
    if failure:
        raise ProgramError(f"The server does not work: {failure.message}.", "Check {url} and {health}.")
