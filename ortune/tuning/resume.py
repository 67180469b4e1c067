"""Keeps what a search measures, and lets it go on after an interrupt without measuring anything twice.

A search is deterministic, given its random seed, the answers of its executor and the executor's clock. All of these are
in its journal (`ortune.record.journal`). To go on, the search runs again from its begin, and gets the answers of the
journal until there are none left. From then on, candidates are launched and measured.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ortune import __version__
from ortune.errors import MeasureError, OrtuneError, UsageError
from ortune.host import HostClass
from ortune.host.host_class import PROPERTY_NAMES, format_property
from ortune.knobs import Config, SearchSpace
from ortune.knobs.config import CUDA_BASED
from ortune.record.journal import (
    Begin,
    Checked,
    Content,
    Journal,
    Launched,
    LaunchResult,
    Measured,
    Resume,
    pack_block,
    path_of_journal,
    read_unfinished,
)
from ortune.requests import ProgramSearchRequest, SearchRequest
from ortune.times import stamp
from ortune.worker import Block, BlockPlan, Executor, Failure, LiveCandidate, Runtime, SessionInfo
from ortune.worker.gpu import list_gpus
from ortune.worker.installed import find_installed_version
from ortune.worker.plugins import find_plugin_versions
from ortune.workload import Feed, Workload

LIBRARIES = ("numpy", "optuna", "scipy")
"""Libraries that the decisions of a search depend on."""

Resumable = SearchRequest | ProgramSearchRequest
"""The options of a search that has a journal."""

OneEvent = TypeVar("OneEvent", Launched, Measured, Checked)


class Unfinished(msgspec.Struct, frozen=True, kw_only=True):
    """A search that did not finish.

    Attributes:
        id: Identifier of its study.
        n_blocks: Number of its blocks that are kept.
        shares: Of a program: see `ortune.record.journal.Begin`.
    """

    id: str
    n_blocks: int
    shares: dict[str, float] = {}


def find_unfinished(request: Resumable) -> Unfinished | None:
    """Return the search that the request resumes or replaces; None if there is none.

    Raises:
        UsageError: There is an unfinished search, and the request does not say what to do with it. Or it is running,
            or what the request says is not possible.
    """
    path = path_of_journal(request.output) if request.output is not None else None
    if path is None:
        if request.resume:
            raise UsageError(
                "only a search that writes its record to a file can go on.", "Pass {output=FILE}.", option="resume"
            )
        return None
    found = read_unfinished(path)
    if found is None or found.begin is None or not found.n_blocks:
        return None
    check_choice(request, path, found)
    return Unfinished(id=found.begin.id, n_blocks=found.n_blocks, shares=found.begin.shares)


def check_choice(request: Resumable, path: Path, found: Content) -> None:
    """Check that the request says what to do with a search that did not finish.

    Raises:
        UsageError: It does not.
    """
    if found.begin is None or not found.n_blocks or request.resume or request.restart:
        return
    blocks = "1 block" if found.n_blocks == 1 else f"{found.n_blocks} blocks"
    raise UsageError(
        f"{path}: the search that began at {found.begin.started} did not finish. {blocks} of it are kept.",
        "Continue it with {resume}, or start over with {restart}.",
    )


def make_begin(
    identity: Mapping[str, str],
    *,
    free_bytes: int | None,
    hints: Sequence[Config] = (),
    suggested: Sequence[Config] = (),
    shares: Mapping[str, float] | None = None,
    spent_s: float = 0.0,
) -> Begin:
    """Return what a search begins with.

    Args:
        identity: What must be the same to go on.
        free_bytes: Memory that is free.
        hints: The best configs of earlier searches.
        suggested: The config that `ortune suggest` suggests.
        shares: Of a program: the share of the time of each model, by its digest.
        spent_s: Part of the budget that was spent so far, in seconds.
    """
    return Begin(
        id=uuid.uuid4().hex,
        pid=os.getpid(),
        started=stamp(),
        identity=dict(identity),
        hints=tuple(hints),
        suggested=tuple(suggested),
        free_bytes=free_bytes,
        shares=dict(shares or {}),
        spent_s=spent_s,
    )


def open_journal(request: Resumable, begin: Begin) -> Journal | None:
    """Open the journal of a search; None if its record does not go to a file.

    Args:
        request: The options of the search.
        begin: What it begins with, if it is not resumed.

    Raises:
        UsageError: Another search writes it, it cannot be written, or what it is for differs.
    """
    path = path_of_journal(request.output) if request.output is not None else None
    if path is None:
        find_unfinished(request)
        return None

    def check(found: Content) -> None:
        check_choice(request, path, found)
        if request.resume and found.begin and found.n_blocks:
            check_identity(path, found.begin.identity, begin.identity)

    resume = Resume(pid=begin.pid, started=begin.started) if request.resume else None
    return Journal(path, begin, resume, check)


def describe_identity(
    request: SearchRequest, *, model: str, host: HostClass, workload: Workload, feed: Feed, space: SearchSpace
) -> dict[str, str]:
    """Return all that the measurements and the decisions of a search depend on, as text by name.

    Args:
        request: Its options.
        model: Digest of the model.
        host: Class of the host.
        workload: What is measured.
        feed: Its input data.
        space: The search space.
    """
    return encode_identity(
        {
            "model": model,
            **{name: getattr(workload, name) for name in workload.__struct_fields__},
            "data": digest_feed(feed),
            "strategy": request.strategy,
            "onnxruntime": find_installed_version(),
            "worker": request.worker_command,
            **describe_decisions(request, host, space),
        }
    )


def describe_decisions(request: Resumable, host: HostClass, space: SearchSpace) -> dict[str, object]:
    """Return what the decisions of any search depend on, by name: host, space, options and software.

    Args:
        request: Its options.
        host: Class of the host.
        space: The search space.
    """
    dimensions = [[dimension.name, *dimension.labels] for dimension in space.dimensions]
    configs = [candidate.config for candidate in space.candidates]
    keys = [config.key for config in configs]
    versions = find_plugin_versions()
    uses_gpu = any(config.provider in CUDA_BASED for config in (space.base, *configs))
    return {
        **{name: format_property(field, getattr(host, field)) for field, name in PROPERTY_NAMES.items()},
        "space": f"{len(keys)} candidates, {digest_value([dimensions, keys])}",
        "base": space.base.key,
        "budget": request.budget,
        "trials": request.trials,
        "until": request.until,
        "seed": request.seed,
        "ortune": __version__,
        "Python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in LIBRARIES},
        **{plugin.package: versions.get(plugin.package, "not installed") for plugin in space.plugins.values()},
        **({"GPU": ", ".join(list_gpus()[0]) or "unknown"} if uses_gpu else {}),
    }


def encode_identity(described: Mapping[str, object]) -> dict[str, str]:
    """Return values as text."""
    return {
        name: value if isinstance(value, str) else encode_value(value).decode() for name, value in described.items()
    }


def encode_value(value: object) -> bytes:
    """Return a value as JSON. Words of a command line may hold bytes that are not UTF-8."""
    try:
        return msgspec.json.encode(value, order="deterministic")
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value, order="deterministic"), sort_keys=True).encode()


def digest_value(value: object) -> str:
    """Return a short digest of a value."""
    return hashlib.sha256(encode_value(value)).hexdigest()[:16]


def digest_feed(feed: Feed) -> str:
    """Return a digest of all input data: the user may have changed a file."""
    digest = hashlib.sha256()
    for sample in feed.samples:
        for name, tensor in sorted(sample.items()):
            array = tensor.array
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode(errors="surrogatepass"))
            digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def check_identity(path: Path, then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Check that nothing changed since a search began.

    Raises:
        UsageError: Something did. The message lists it.
    """
    names = [name for name in dict.fromkeys((*then, *now)) if then.get(name) != now.get(name)]
    if names:
        raise UsageError(
            f"{path}: this search cannot go on, because something changed since it began:",
            "Restore that, or start over with {restart}.",
            details=[f"{name}: {then.get(name, 'unknown')} then, {now.get(name, 'unknown')} now" for name in names],
        )


def raise_fault(cause: OrtuneError | None, unfinished: Path | None, unwritten: UsageError | None) -> None:
    """Raise the error that ended a search, if one did, with how to go on.

    Args:
        cause: The error, or None.
        unfinished: Path of the journal, if what was measured is kept; else None.
        unwritten: Why the record could not be written either, and where it is instead; None if it was written.

    Raises:
        OrtuneError: The error.
    """
    if cause is None:
        return
    if unwritten:
        cause.details = (*cause.details, unwritten.message, unwritten.hint, *unwritten.details)
    if unfinished:
        cause.details = (*cause.details, f"What was measured is kept in {unfinished}.")
        cause.hint = f"{cause.hint} To go on, repeat the command with {{resume}}.".strip()
    raise cause


class JournaledExecutor:
    """Keeps all launches and blocks of an executor in a journal, and answers from the journal what is in it.

    Its clock shows the time of the last event. What a search does between two events therefore does not depend on how
    long it takes, and the search can be repeated exactly.

    Args:
        inner: Launches candidates.
        launch_reference: Launches the baseline by `inner` for the first time, and returns the software of its worker.
            Called before anything else is launched, if the journal holds the first launch already.
        journal: The journal. Events that it holds are answered first.

    Attributes:
        runtime: The software of the workers.
    """

    runtime: Runtime

    def __init__(self, inner: Executor, launch_reference: Callable[[], Runtime], journal: Journal) -> None:
        self._inner = inner
        self._journal = journal
        self._launch_reference = launch_reference
        self._events = journal.read_earlier()
        self._n_launches = 0
        self._has_reference = False
        self._time_s = 0.0
        self._offset_s: float | None = None

    def now_s(self) -> float:
        """Return the time of the last event, in seconds since the begin of the search, without interruptions."""
        return self._time_s

    @property
    def path(self) -> Path:
        """Path of the journal."""
        return self._journal.path

    def add(self, event: Measured) -> None:
        """Add a block to the journal."""
        self._journal.append(event)
        self.advance(event.at_s)

    def advance(self, at_s: float) -> None:
        """Set the clock to the time of an event. It never runs backwards, whatever a file says."""
        self._time_s = max(self._time_s, at_s)

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Launch candidates, or return what the journal says about their launch."""
        number, keys = self._n_launches, tuple(config.key for config in configs)
        event = self.next_event(Launched)
        lives: list[LiveCandidate | None] = [None] * len(configs)
        if event is None:
            self._go_live()
            launched = self._inner.launch(configs, deadline_s=deadline_s, independent=independent)
            lives = [None if isinstance(answer, Failure) else answer for answer in launched]
            works = any(lives)
            event = Launched(
                configs=keys,
                answers=tuple(
                    LaunchResult(failure=answer)
                    if isinstance(answer, Failure)
                    else LaunchResult(session_info=answer.session_info)
                    for answer in launched
                ),
                runtime=self._inner.runtime if works else None,
                at_s=self.read_clock(),
            )
            self._journal.append(event)
        elif event.configs != keys:
            raise _diverged(self._journal.path)
        self._n_launches += 1
        self.advance(event.at_s)
        if event.runtime is not None:
            self.runtime = event.runtime
            self._has_reference = True
        return [
            answer.failure or JournaledCandidate(self, config, number, position, answer.session_info, deadline_s, live)  # type: ignore[arg-type]
            for position, (config, answer, live) in enumerate(zip(configs, event.answers, lives, strict=True))
        ]

    def check_finalist(
        self, config: Config, left_s: float, check: Callable[[Config, float], Failure | None]
    ) -> Failure | None:
        """Run the program of a finalist to its end, or return what the journal says about that.

        Args:
            config: The finalist.
            left_s: Time that this may take.
            check: Does it; see `ortune.measure.open.OpenComparison`.
        """
        event = self.next_event(Checked)
        if event is None:
            self._go_live()
            failure = check(config, left_s)
            event = Checked(config=config.key, failure=failure, at_s=self.read_clock())
            self._journal.append(event)
        elif event.config != config.key:
            raise _diverged(self._journal.path)
        self.advance(event.at_s)
        return event.failure

    def launch_again(self, candidate: JournaledCandidate) -> LiveCandidate | Failure:
        """Launch a candidate that was live when the search was interrupted."""
        self._go_live()
        (live,) = self._inner.launch([candidate.config], deadline_s=candidate.deadline_s)
        if not isinstance(live, Failure):
            candidate.live = live
        return live

    def next_event(self, kind: type[OneEvent]) -> OneEvent | None:
        """Return the next event of the journal; None if there is none left."""
        event = next(self._events, None)
        if event is None:
            return None
        if not isinstance(event, kind):
            raise _diverged(self._journal.path)
        return event

    def _go_live(self) -> None:
        """Begin to measure: start the clock, after launching the reference again if the search had one."""
        if self._offset_s is not None:
            return
        if self._has_reference:
            runtime = self._launch_reference()
            if runtime != self.runtime:
                then, now = (
                    {name: str(getattr(reference, name)) for name in reference.__struct_fields__}
                    for reference in (self.runtime, runtime)
                )
                check_identity(self._journal.path, then, now)
        self._offset_s = self._time_s - self._inner.now_s()

    def read_clock(self) -> float:
        """Return the time, now that something is measured."""
        assert self._offset_s is not None
        return self._offset_s + self._inner.now_s()


class JournaledCandidate:
    """A candidate whose blocks are kept in a journal.

    Attributes:
        config: Its config.
        launch: Number of its launch.
        position: Its position in the launch.
        session_info: Facts about the session that the journal holds.
        deadline_s: Time that its launch may take.
        live: Its process; None as long as the journal has its blocks.
    """

    def __init__(
        self,
        executor: JournaledExecutor,
        config: Config,
        launch: int,
        position: int,
        session_info: SessionInfo,
        deadline_s: float,
        live: LiveCandidate | None,
    ) -> None:
        self._executor = executor
        self.config = config
        self.launch = launch
        self.position = position
        self.session_info = session_info
        self.deadline_s = deadline_s
        self.live = live

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Measure a block, or return what is in the journal."""
        executor = self._executor
        event = executor.next_event(Measured)
        if event is None:
            live = self.live or executor.launch_again(self)
            answer = live if isinstance(live, Failure) else live.measure(plan)
            executor.add(
                Measured(
                    launch=self.launch,
                    position=self.position,
                    plan=plan,
                    block=None if isinstance(answer, Failure) else pack_block(answer),
                    failure=answer if isinstance(answer, Failure) else None,
                    at_s=executor.read_clock(),
                )
            )
            return answer
        if (event.launch, event.position, event.plan) != (self.launch, self.position, plan):
            raise _diverged(executor.path)
        executor.advance(event.at_s)
        try:
            return event.unpack()
        except ValueError as error:
            raise UsageError(f"{executor.path} is damaged: {error}.", "Start over with {restart}.") from None

    def close(self) -> None:
        """End its process."""
        if self.live:
            self.live.close()


def _diverged(path: Path) -> MeasureError:
    return MeasureError(
        f"{path}: this search cannot go on, because it decides differently from how it did before.",
        "Start over with {restart}.",
    )
