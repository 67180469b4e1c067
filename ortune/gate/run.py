"""`ortune gate`, in order: make the gates, set each one up, play it, and put several to one verdict."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from ortune.apply.verify import HELD_SHARE, recorded_inputs
from ortune.compare.block_plan import block_plan
from ortune.compare.block_runner import BlockRunner
from ortune.compare.calibrate import calibrate
from ortune.compare.open import MEMORY_SHARE, describe_model, describe_workload, usual_tolerance
from ortune.compare.paired_run import PairedStats
from ortune.compare.results import Noise
from ortune.errors import MeasureError, OrtuneError, UsageError
from ortune.gate.decision import CONFIDENCE, FEWEST_LAUNCHES, FEWEST_PAIRS, holm, strict_confidence
from ortune.gate.results import USUAL_SLOWDOWN, Decision, GateError, GateRequest, GateResult, Observe, Side, SideResult
from ortune.gate.sequential_test import BASE, HEAD, SequentialResult, SequentialTest, pairs_for, play
from ortune.gate.sides import Named, check_inputs, check_outputs, make_side, open_sides, read_side
from ortune.host import Host, HostClass, read_host
from ortune.model import ModelInfo, read_model
from ortune.record.schema import Record
from ortune.record.select import check_model
from ortune.worker import Runtime
from ortune.worker.background_load import BackgroundLoad
from ortune.worker.executor import FIRST_LOAD_DEADLINE_S
from ortune.workload import Feed, Goal, InputOptions, Load, Objective, Tolerance, make_feed, make_goal

LARGEST_SLOWDOWN = 10.0

LEAST_LOAD_S = 20.0
"""Time that creating a session may take even where --max-time is shorter."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says about a gate, before its files are read.

    Attributes:
        name: As it is reported.
        base: Base as it was written; with no head, the config whose gain is gated.
        head: Head as it was written, or None.
        base_python: The Python that runs base, or None for this one.
        head_python: The Python that runs head, or None for this one.
        slowdowns: As they were written: `3%`, `memory=5%`.
        load: How calls arrive; None for the record's, or else one caller.
        objective: What is gated first; None for the record's, or else for what suits the load.
        limits: What head must keep to; none for those of the record.
        also: Further objectives that are gated.
        max_time_s: Wall time after which it ends.
        inputs: What is fed; None for what the record was measured with, or else for what suits the model.
        tolerance: How far outputs may lie apart, or None for what suits the model.
        same_outputs: Whether outputs are compared.
        beside: A command that runs beside it, or None.
        busy: Whether to decide although others use the CPUs.
        seed: Seed of everything that is drawn.
    """

    name: str = "gate"
    base: str
    head: str | None = None
    base_python: str | None = None
    head_python: str | None = None
    slowdowns: tuple[str, ...] = ()
    load: Load | None = None
    objective: str | None = None
    limits: tuple[str, ...] = ()
    also: tuple[Objective, ...] = ()
    max_time_s: float
    inputs: InputOptions | None = None
    tolerance: Tolerance | None = None
    same_outputs: bool = True
    beside: str | None = None
    busy: bool = False
    seed: int = 0


def make_request(wish: Wish) -> GateRequest:
    """Read what a gate names.

    Raises:
        OrtuneError: Something that was given does not make sense.
    """
    if not wish.max_time_s > 0:
        raise UsageError(f"--max-time {wish.max_time_s:g}s: a gate needs time.", "Give it 3m.")
    base = read_side(wish.base)
    head = base if wish.head is None else read_side(wish.head)
    record = head.record or base.record
    goal = _goal_of(wish, record)
    # The gain of a config is that in its first objective; others may have been traded for it.
    gated = goal.objectives if wish.head is not None else goal.objectives[:1]
    goal = msgspec.structs.replace(goal, objectives=tuple(dict.fromkeys((*gated, *wish.also))))
    slowdowns = parse_slowdowns(wish.slowdowns, goal)
    if wish.head is None:
        sides, slowdowns = _sides_of_gain(wish, base, goal, slowdowns)
    else:
        sides = (
            make_side(wish.base, base, wish.base_python, "--base-python"),
            make_side(wish.head, head, wish.head_python, "--head-python"),
        )
    own_inputs = wish.inputs or (recorded_inputs(record, None, sides[0].model) if record else InputOptions())
    return GateRequest(
        name=wish.name,
        base=sides[0],
        head=sides[1],
        goal=goal,
        slowdowns=slowdowns,
        max_time_s=wish.max_time_s,
        inputs=own_inputs,
        tolerance=wish.tolerance or (record.workload.tolerance if record else None),
        same_outputs=wish.same_outputs,
        beside=wish.beside,
        busy=wish.busy,
        seed=wish.seed,
    )


def _goal_of(wish: Wish, record: Record | None) -> Goal:
    """Return load, objectives and limits: what the user does not say is the record's, as far as that fits."""
    workload = record.workload if record else None
    load = wish.load or (workload.load if workload else Load())
    goal = make_goal(load, wish.objective, None, wish.limits)
    if workload and load == workload.load and wish.objective is None:
        goal = msgspec.structs.replace(goal, objectives=record.objectives if record else workload.objectives)
    if workload and not wish.limits:
        goal = msgspec.structs.replace(goal, limits=workload.limits)
    return goal


def _sides_of_gain(
    wish: Wish, named: Named, goal: Goal, slowdowns: dict[Objective, float]
) -> tuple[tuple[Side, Side], dict[Objective, float]]:
    """Return the sides of a gate on one config: what it was compared with, and itself, which must be better.

    Raises:
        UsageError: There is one model and nothing to compare it with.
        RecordError: The config is for another model.
    """
    record = named.record
    if record is None:
        raise UsageError(
            f"{wish.base}: a gate has two sides.",
            "Write BASE and HEAD; or a single CONFIG.json, to gate its gain over ONNX Runtime's default.",
        )
    check_model(record, named.model)
    base = record.base
    if record.config == base:
        raise UsageError(
            f"{wish.base} recommends ONNX Runtime's default: there is no gain to gate.", "Gate a model: BASE HEAD."
        )
    recorded = record.gain
    workload = record.workload
    if not wish.slowdowns and (goal.load, goal.objective) != (workload.load, record.objectives[0]):
        raise UsageError(
            f"{wish.base}: its gain was recorded in {record.objectives[0]} for {workload.load}; nothing is known of "
            f"{goal.objective} for {goal.load}.",
            "Leave these options out, or say with --max-slowdown how much worse than the default it may be.",
        )
    if recorded and recorded.estimate > 1 and not wish.slowdowns:
        slowdowns = {**slowdowns, goal.objective: recorded.estimate**-HELD_SHARE - 1}
    if wish.base_python and wish.head_python and wish.base_python != wish.head_python:
        raise UsageError(
            "--base-python and --head-python: the gain of one config is gated in one Python.", "Name one of them."
        )
    python, option = wish.head_python or wish.base_python, "--head-python"
    return (
        make_side(f"{named.model}@default", named, python, option, base),
        make_side(wish.base, named, python, option),
    ), slowdowns


def parse_slowdowns(texts: Sequence[str], goal: Goal) -> dict[Objective, float]:
    """Parse `3%`, `0.03` and `memory=5%`: how much worse head may be, by objective.

    Raises:
        UsageError: A text is no share, or names an objective that is not gated.
    """
    usual, own = USUAL_SLOWDOWN, {}
    for text in texts:
        name, equals, share = text.rpartition("=")
        try:
            value = float(share.removesuffix("%")) / (100 if share.endswith("%") else 1)
        except ValueError:
            value = math.nan
        if not 0 < value <= LARGEST_SLOWDOWN:
            raise UsageError(f"--max-slowdown {text}: this is no share above 0.", "Write it as 3%, or as memory=5%.")
        if not equals:
            usual = value
        elif name in goal.objectives:
            own[name] = value
        else:
            raise UsageError(
                f"--max-slowdown {text}: {name} is not gated; gated are {', '.join(goal.objectives)}.",
                f"Add --also {name}.",
            )
    return {name: own.get(name, usual) for name in goal.objectives}


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a gate hold.

    Attributes:
        models: Base's and head's.
        feed: What is fed to both.
    """

    models: tuple[ModelInfo, ModelInfo]
    feed: Feed


def read_gate(request: GateRequest) -> Reading:
    """Read both models, check that they can be compared, and make the inputs.

    Raises:
        OrtuneError: A model cannot be read, the two cannot be compared, or the inputs do not fit.
    """
    models = (read_model(request.base.model), read_model(request.head.model))
    check_inputs(*models, request.base.text, request.head.text)
    if request.same_outputs:
        check_outputs(*models, request.base.text, request.head.text)
    return Reading(models=models, feed=make_feed(models[0], request.inputs))


def run_gate(
    request: GateRequest,
    observe: Observe = lambda interim: None,
    *,
    reading: Reading | None = None,
    n_gates: int = 1,
    commands: tuple[tuple[str, ...] | None, tuple[str, ...] | None] = (None, None),
) -> GateResult:
    """Measure both sides until it is decided.

    Args:
        request: The gate.
        observe: Is told after each launch where it stands.
        reading: What its files hold, where they have been read.
        n_gates: Gates that are run together: the more, the surer each must be before it fails by itself.
        commands: What starts a worker of base and of head, where it is not ortune's own.

    Raises:
        OrtuneError: A side does not load or run, or the two cannot be compared.
    """
    begin = time.monotonic()
    reading = reading or read_gate(request)
    models, feed = reading.models, reading.feed
    tolerance = request.tolerance or usual_tolerance(models[0], approximate=False)
    host = read_host()
    free_bytes = host.limits.memory_bytes
    background_load = BackgroundLoad(request.beside) if request.beside is not None else None
    from threadpoolctl import threadpool_limits

    with (
        # Threads of NumPy's that wait for work spin for a while, and would be measured as foreign CPU use.
        threadpool_limits(limits=1, user_api="blas"),
        background_load or contextlib.nullcontext(),
        open_sides(
            request.base,
            request.head,
            models,
            feed,
            tolerance,
            usable=host.limits.usable,
            background_load=background_load.pid if background_load else None,
            memory_limit_bytes=int(MEMORY_SHARE * free_bytes) if free_bytes else None,
            n_sessions=request.goal.load.sessions,
            same_outputs=request.same_outputs,
            deadline_s=min(max(request.max_time_s, LEAST_LOAD_S), FIRST_LOAD_DEADLINE_S),
            commands=commands,
        ) as opened,
    ):
        sides = opened.sides
        start_s = sides.now_s() - (time.monotonic() - begin)
        rng = np.random.default_rng(request.seed)
        meter = BlockRunner(sides.base, rng, background_load.check if background_load else lambda: None)
        calibration = calibrate(
            meter, opened.first, request.goal, n_cases=feed.n_cases, quota=host.limits.quota is not None
        )
        if free_bytes and 3 * calibration.peak_bytes > MEMORY_SHARE * free_bytes:
            raise MeasureError(
                f"Three sessions take {3 * calibration.peak_bytes / 1e9:.1f} GB, and there are "
                f"{free_bytes / 1e9:.1f} GB of memory.",
                "Gate on a host with more of it.",
            )
        block = block_plan(calibration.pace)
        sides.load_deadline_s = min(sides.load_deadline_s, 60 + 20 * calibration.launch_s)
        round_s = 3 * (block.duration_ns + block.lead_in_ns) / 1e9
        contest = SequentialTest(
            goal=request.goal,
            allowed={name: 1 + share for name, share in request.slowdowns.items()},
            block=block,
            pairs_per_launch=pairs_for(3 * calibration.launch_s, round_s),
            start_s=start_s,
            end_s=start_s + request.max_time_s,
            busy=request.busy,
            confidence=strict_confidence(n_gates) if n_gates > 1 else CONFIDENCE,
            seed=request.seed,
        )
        played = play(sides, meter, contest, (request.base.config, request.head.config), observe)
        noise = meter.noise(contended=played.interim is not None and played.interim.contended, drift=None)
        runtimes = (sides.base.runtime, sides.head.runtime)
    return _result(request, played, models, feed, tolerance, host, noise, runtimes, opened.max_error, begin)


def _result(
    request: GateRequest,
    played: SequentialResult,
    models: tuple[ModelInfo, ModelInfo],
    feed: Feed,
    tolerance: Tolerance,
    host: Host,
    noise: Noise,
    runtimes: tuple[Runtime, Runtime],
    max_error: float | None,
    begin: float,
) -> GateResult:
    """Put everything that was found into one value."""
    interim, tally = played.interim, played.tally
    return GateResult(
        name=request.name,
        decision=played.decision,
        reason=played.reason,
        is_void=played.is_void,
        findings=interim.findings if interim else (),
        limits=interim.limits if interim else (),
        self_check=interim.self_check if interim else None,
        pairs=interim.pairs if interim else 0,
        launches=interim.launches if interim else played.launches,
        wall_s=time.monotonic() - begin,
        base=_side_result(request.base, models[0], runtimes[0], tally, BASE),
        head=_side_result(request.head, models[1], runtimes[1], tally, HEAD),
        max_error=max_error,
        noise=noise,
        workload=describe_workload(request.goal, feed, tolerance, request.beside),
        host=HostClass.of(host),
        blocks=played.blocks,
    )


def _side_result(
    side: Side, model: ModelInfo, runtime: Runtime, tally: PairedStats | None, position: int
) -> SideResult:
    return SideResult(
        text=side.text,
        model=describe_model(side.model, model),
        config=side.config,
        record=side.record,
        runtime=runtime,
        summary=tally.summary(position) if tally else None,
    )


def run_gates(
    wishes: Sequence[Wish], observe: Callable[[int], Observe], finished: Callable[[GateResult | GateError], None]
) -> tuple[GateResult | GateError, ...]:
    """Run several gates, and judge all of them with Holm's correction.

    Args:
        wishes: The gates, each with a name of its own.
        observe: Returns what is told where the gate of that number stands.
        finished: Is told how each ended by itself.
    """
    results: list[GateResult | GateError] = []
    for number, wish in enumerate(wishes):
        try:
            result: GateResult | GateError = run_gate(make_request(wish), observe(number), n_gates=len(wishes))
        except OrtuneError as error:
            result = GateError(name=wish.name, message=error.message, hint=error.hint)
        finished(result)
        results.append(result)
    return judge_together(results)


def judge_together(results: Sequence[GateResult | GateError]) -> tuple[GateResult | GateError, ...]:
    """Return the results of gates that ran together, with failures as Holm's correction has them."""
    done = [each for each in results if isinstance(each, GateResult)]
    if len(done) < 2:
        return tuple(results)
    eligible = {
        each.name: _smallest_p(each)
        for each in done
        if each.decision != "pass"
        and not each.is_void
        and each.launches >= FEWEST_LAUNCHES
        and each.pairs >= FEWEST_PAIRS
    }
    # Those that pass count among the tests, with nothing to reject.
    p_values = {each.name: eligible.get(each.name, 1.0) for each in done}
    failing = holm(p_values)
    judged: list[GateResult | GateError] = []
    for each in results:
        if isinstance(each, GateResult) and each.name in failing and each.decision == "inconclusive":
            each = msgspec.structs.replace(
                each, decision="fail", reason="worse by more than is allowed, by Holm's correction over all gates"
            )
        judged.append(each)
    return tuple(judged)


def _smallest_p(result: GateResult) -> float:
    return min(finding.p_value for finding in result.findings)


def exit_decision(results: Sequence[GateResult | GateError]) -> Decision | str:
    """Return what all gates together come to: "error", "fail", "inconclusive" or "pass"."""
    found = {"error" if isinstance(each, GateError) else each.decision for each in results}
    return next(each for each in ("fail", "error", "inconclusive", "pass") if each in found)
