"""Gates on the gain of a program: base is the program as it is, and head is the program under its records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

import msgspec

from ortune.errors import MeasureError, ProgramError, UsageError
from ortune.gates.prepare import MIN_LOAD_DEADLINE_S, N_SIDES, parse_slowdowns, replaces_gain, require_gain
from ortune.gates.results import Gate, GateSide
from ortune.gates.sides import OpenSides
from ortune.knobs import Config
from ortune.measure.block_runner import BlockRunner
from ortune.program.executor import ProgramExecutor
from ortune.program.outputs import is_unjudged, make_check_error
from ortune.program.search import open_program
from ortune.program.tuned import TunedProgram, has_change, name_program, prepare_tuned, read_program_records
from ortune.record.files import name_of_input
from ortune.record.schema import Record
from ortune.requests import ProgramGateRequest
from ortune.worker import Failure
from ortune.worker.executor import BASELINE_LOAD_DEADLINE_S
from ortune.workload import FIGURES, Goal, Objective

OUTPUT_CHECK_SHARE = 0.25
"""Share of the budget for running a program to its end, to compare what it prints."""


def prepare_program_gate(request: ProgramGateRequest) -> tuple[Gate, TunedProgram]:
    """Read the records, take from them what is measured, and run the program once.

    Raises:
        OrtuneError: An option is not valid, the records do not fit together, or the program does not work.
    """
    records = read_program_records(request)
    source = "the record" if isinstance(request.config, Record) else name_of_input(request.config)
    if not has_change(records):
        raise UsageError(
            f"{source} leaves the program as it is, so there is no gain to gate.", "Search again, or gate a model."
        )
    record = records[0]
    goal, slowdowns = choose_goal(record, request)
    tuned = prepare_tuned(records, request)
    program = name_program(request.command)
    base = GateSide(text=f"{program} as it is", model="", config=tuned.base)
    head = GateSide(text=f"{program} with {source}", model="", config=tuned.config, record=source)
    gate = Gate(
        name=request.name,
        base=base,
        head=head,
        goal=goal,
        slowdowns=slowdowns,
        budget_s=request.budget,
        same_outputs=not request.ignore_outputs,
        beside=request.beside,
        busy=request.busy,
        seed=request.seed,
    )
    return gate, msgspec.structs.replace(tuned, program=msgspec.structs.replace(tuned.program, goal=goal))


def choose_goal(record: Record, request: ProgramGateRequest) -> tuple[Goal, dict[Objective, float]]:
    """Return what is measured, and the allowed slowdown by objective.

    Raises:
        UsageError: A slowdown or a further objective is not valid.
    """
    for name in request.also:
        if FIGURES[name].only_of == "models":
            raise UsageError(f"{name}: programs create their sessions themselves.", option="also")
    workload = record.workload
    goal = Goal(
        load=workload.load,
        objectives=tuple(dict.fromkeys((record.objectives[0], *request.also))),
        limits=request.limit or workload.limits,
    )
    slowdowns = parse_slowdowns(request.max_slowdown, goal)
    if not replaces_gain(request.max_slowdown, goal.objective):
        slowdowns = require_gain(slowdowns, goal, record)
    return goal, slowdowns


@contextlib.contextmanager
def open_programs(gate: Gate, tuned: TunedProgram) -> Iterator[OpenSides]:
    """Launch the program as it is and under its records.

    Raises:
        OrtuneError: It does not work, or its output differs under the records.
    """
    program = tuned.program
    with open_program(program, n_sides=N_SIDES) as opened:
        executor = cast("ProgramExecutor", opened.executors[0])
        opened.runner.load_deadline_s = min(max(gate.budget_s, MIN_LOAD_DEADLINE_S), BASELINE_LOAD_DEADLINE_S)
        check_s = OUTPUT_CHECK_SHARE * gate.budget_s
        check_tuned(gate.head.text, gate.head.config, opened.runner, executor, check_s=check_s)
        identity = program.identities[0]
        yield OpenSides(
            opened=opened,
            executors=(executor, executor),
            models=(identity, identity),
            runtimes=(program.runtime, program.runtime),
            workload=msgspec.structs.replace(
                tuned.record.workload,
                objectives=gate.goal.objectives,
                limits=gate.goal.limits,
                program=program.describe_run(),
            ),
            host=program.host,
        )


def check_tuned(text: str, config: Config, runner: BlockRunner, executor: ProgramExecutor, *, check_s: float) -> None:
    """Run the program under its records, to check that it works and that its output is the same.

    Args:
        text: Its name in messages.
        config: What the records change.
        runner: Launches it, again if it ends suddenly.
        executor: Its executor.
        check_s: Time for running it to its end, if it is measured while it stays alive.

    Raises:
        MeasureError: Its output differs.
        ProgramError: It does not work.
    """
    (answer,) = runner.launch([config], executor)
    failure = answer if isinstance(answer, Failure) else None
    if not isinstance(answer, Failure):
        answer.close()
        if executor.keeps_alive:
            failure = executor.check_finalist(config, check_s)
        else:
            result = executor.run_steadily(config, executor.run_deadline_s)
            failure = result if isinstance(result, Failure) else None
    if failure is None:
        return
    if is_unjudged(executor.task, failure):
        raise make_check_error(text, failure)
    if failure.kind == "wrong_output":
        raise MeasureError(
            f"The output of {text} differs from that of the program as it is: {failure.message}",
            "Name a command that checks it with {check_command}, or leave the comparison out with {ignore_outputs}.",
        )
    raise ProgramError(
        f"{text} does not work ({failure.title}): {failure.message}.",
        "Tune the program again: ortune search -- COMMAND.",
    )
