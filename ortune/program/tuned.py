"""A program under the settings of its records: what `ortune apply --verify` and `ortune gate` compare."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ortune.errors import ProgramError, RecordError, UsageError
from ortune.knobs import DEFAULT, KNOBS, Config, describe
from ortune.knobs.config import ModelSettings
from ortune.knobs.knob import Value
from ortune.model.identity import ModelIdentity
from ortune.program.prepare import PreparedProgram, prepare_program
from ortune.program.space import OF_SESSIONS, ProgramModel
from ortune.record.schema import Record
from ortune.record.select import Sourced, Wanted, read_sourced, select_per_model
from ortune.requests import ProgramGateRequest, ProgramSearchRequest, ProgramVerifyRequest, RecordedProgramOptions
from ortune.workload.program import ProgramRun, digest_command

AS_IT_IS = "program as it is"
"""Name of the baseline."""


V = TypeVar("V")


class TunedProgram(msgspec.Struct, frozen=True, kw_only=True):
    """A program that was run once under observation, and the records of its models.

    Attributes:
        records: The records, one for each model, all of the same search.
        program: The program with those of its models that have a record.
        config: What the records change of the program.
        base: What the baseline of the records changes of it: the settings that all candidates of the search had.
        notes: What differs from the program that was tuned, as sentences.
    """

    records: tuple[Record, ...]
    program: PreparedProgram
    config: Config
    base: Config = DEFAULT
    notes: tuple[str, ...] = ()

    @property
    def record(self) -> Record:
        """The first record. Workload and evidence are the same in all."""
        return self.records[0]


def read_program_records(request: RecordedProgramOptions) -> tuple[Record, ...]:
    """Read the records of a program, and select one for each model.

    Raises:
        RecordError: There are none, they are not for a program, or they are not of one search.
    """
    config = request.config
    read = read_sourced([config if isinstance(config, Record) else Path(config)], trust=request.trust)
    for sourced in read:
        if sourced.record.workload.program is None:
            raise RecordError(
                f"{sourced.source}: the record of {sourced.record.model.path} was not made with a program.",
                "Leave the command out to measure the model alone, or tune the program: ortune search -- COMMAND.",
            )
    programs = {
        (run.program, run.sha256, run.kind): run for sourced in read if (run := sourced.record.workload.program)
    }
    if len(programs) > 1:
        raise RecordError(
            f"{read[0].path} has records of different programs: {describe_programs(list(programs.values()))}.",
            "Pass a file with the records of one program.",
        )
    # Those for another class of host are measured, too. The result says how this host differs.
    choices = select_per_model(read, Wanted(load=request.given_load, any_host=True))
    check_same_search(choices)
    return tuple(choice.record for choice in choices)


def describe_programs(runs: Sequence[ProgramRun]) -> str:
    """Return what distinguishes programs: their names or, if these are the same, also their commands and measures."""
    if len({run.program for run in runs}) == len(runs):
        return ", ".join(run.program for run in runs)
    return ", ".join(f"{run.program} (command {run.sha256[:8]}, {run.kind})" for run in runs)


def check_same_search(choices: Sequence[Sourced]) -> None:
    """Check that records were proven together: the gain of a program is that of all of its settings.

    Raises:
        RecordError: They were not.
    """
    first = choices[0].record
    for choice in choices[1:]:
        record = choice.record
        if (record.search.started, record.objectives, record.evidence.speedup) != (
            first.search.started,
            first.objectives,
            first.evidence.speedup,
        ):
            raise RecordError(
                f"{choices[0].source} and {choice.source} are of different searches, so the gain of both together is "
                "not known.",
                "Pass the bundle that one search wrote.",
            )


def has_change(records: Sequence[Record]) -> bool:
    """Return whether records change anything of their program."""
    return any(record.config != record.base for record in records)


def prepare_tuned(records: Sequence[Record], request: RecordedProgramOptions) -> TunedProgram:
    """Run the program once under observation, and find out what the records change of it.

    Args:
        records: The records, one for each model.
        request: The command, and what a record does not hold.

    Raises:
        OrtuneError: An option does not fit the records, the program does not work, or it does not call their models.
    """
    prepared = prepare_program(make_search_request(records[0], request))
    run = records[0].workload.program
    if run and run.complete_runs is not None:
        # How it was measured decides what its throughput and CPU time mean.
        prepared = msgspec.structs.replace(prepared, keeps_running=not run.complete_runs)
    pairs = [(record, find_place(record, prepared)) for record in records]
    places = [place for _, place in pairs]
    program = msgspec.structs.replace(
        prepared,
        models=tuple(prepared.models[place] for place in places),
        identities=tuple(prepared.identities[place] for place in places),
    )
    base = find_base(records, program.models)
    program = msgspec.structs.replace(program, space=msgspec.structs.replace(program.space, base=base))
    notes = find_differences(records, prepared, program)
    if base != DEFAULT:
        notes.append(f"As in the search, the program as it is has these settings: {describe(base)}.")
    return TunedProgram(
        records=tuple(records),
        program=program,
        config=merge_configs(records, program.models),
        base=base,
        notes=tuple(notes),
    )


def make_search_request(record: Record, request: RecordedProgramOptions) -> ProgramSearchRequest:
    """Return the search that measures what the record's search measured.

    Raises:
        UsageError: An option is missing, or is not for what the record measured.
    """
    workload, run = record.workload, record.workload.program
    assert run
    load = workload.load
    is_server = run.kind == "server"
    if request.url is not None and not is_server:
        raise UsageError(f"{request.url}: the record is not for a server.", "Leave it out.", option="url")
    if request.url is not None and request.url.partition("?")[0] != run.url:
        raise UsageError(
            f"{request.url}: the record is for {run.url}.", "Only its query may be given again.", option="url"
        )
    return ProgramSearchRequest(
        command=request.command,
        call=run.call or None,
        metric=run.metric or None,
        maximize=run.maximize,
        url=(request.url or run.url) if is_server else None,
        body=request.body,
        header=request.header,
        health=request.health,
        stdin=request.stdin,
        check_command=request.check_command,
        ignore_outputs=request.ignore_outputs,
        clients=load.clients if is_server else None,
        rate=load.rate_per_s,
        arrivals=load.arrivals,
        objective=None if run.metric else record.objectives[0],
        limit=workload.limits,
        beside=request.beside,
        budget=request.budget if isinstance(request, ProgramVerifyRequest | ProgramGateRequest) else None,
        seed=request.seed,
    )


def find_place(record: Record, program: PreparedProgram) -> int:
    """Return the place of a record's model among the models of a program.

    Raises:
        ProgramError: The program does not call it.
    """
    for place, identity in enumerate(program.identities):
        if is_same_model(identity, record.model):
            return place
    names = ", ".join(model.name for model in program.models)
    raise ProgramError(
        f"The program does not call {record.model.path}, which a record is for. It calls {names}.",
        "Check the command. If the program has changed, tune it again: ortune search -- COMMAND.",
    )


def is_same_model(one: ModelIdentity, other: ModelIdentity) -> bool:
    """Return whether the ONNX files of two models have the same content."""
    if one.files and other.files:
        return one.files[0].sha256 == other.files[0].sha256
    return one.digest == other.digest


def merge_configs(records: Sequence[Record], models: Sequence[ProgramModel]) -> Config:
    """Return the settings of all records as one candidate: what they change of the program.

    Args:
        records: A record for each model.
        models: The models as the program creates their sessions.

    Raises:
        RecordError: The records need different settings of the process.
    """
    own = [settings_of(record, model) for record, model in zip(records, models, strict=True)]
    return _merge(records, [record.config for record in records], models, own)


def find_base(records: Sequence[Record], models: Sequence[ProgramModel]) -> Config:
    """Return what the baseline of the records changes of the program: what `fix` set, in all sessions and processes.

    The recorded gain is relative to it. See `merge_configs`.
    """
    own = []
    for record, model in zip(records, models, strict=True):
        fields: dict[str, dict[str, Value]] = {}
        for field in OF_SESSIONS:
            before, now = getattr(record.base, field), getattr(model.own, field)
            tried = record.tried.session_options if field == "session_options" else record.tried.session_config
            # What was fixed at ONNX Runtime's default is not in the record.
            fixed = now.keys() | (model.varied.keys() - getattr(record.config, field).keys())
            restored = {
                name: KNOBS[name].default
                for name in sorted(fixed - before.keys())
                if name in tried and name in KNOBS and KNOBS[name].default != ""
            }
            fields[field] = {**restored, **{name: value for name, value in before.items() if now.get(name) != value}}
        own.append(msgspec.structs.replace(ModelSettings(), **fields))
    return _merge(records, [record.base for record in records], models, own)


def _merge(
    records: Sequence[Record], configs: Sequence[Config], models: Sequence[ProgramModel], own: Sequence[ModelSettings]
) -> Config:
    """Return configs of several models as one candidate.

    Settings that all models have in common are those of the candidate, the others are those of its models.

    Args:
        records: A record for each model.
        configs: The config of each, of which the settings of the process are used.
        models: The models.
        own: The settings of the sessions of each model.

    Raises:
        RecordError: The configs have different settings of the process.
    """
    shared = msgspec.structs.replace(configs[0], session_options={}, session_config={})
    for record, config in zip(records[1:], configs[1:], strict=True):
        if msgspec.structs.replace(config, session_options={}, session_config={}) != shared:
            raise RecordError(
                f"The records of {records[0].model.path} and {record.model.path} need different settings of the "
                "process.",
                "Pass the bundle that one search wrote.",
            )
    common: dict[str, Any] = {}
    for field in OF_SESSIONS:
        first = getattr(own[0], field)
        common[field] = {
            name: value
            for name, value in first.items()
            if all(name in getattr(settings, field) and getattr(settings, field)[name] == value for settings in own)
        }
    rest = {}
    for model, settings in zip(models, own, strict=True):
        fields = {field: without(getattr(settings, field), common[field]) for field in OF_SESSIONS}
        rest[model.name] = msgspec.structs.replace(settings, **fields)
    return msgspec.structs.replace(
        shared, **common, models={name: settings for name, settings in rest.items() if settings != ModelSettings()}
    )


def without(entries: Mapping[str, V], others: Container[str]) -> dict[str, V]:
    """Return entries without those of others."""
    return {name: value for name, value in entries.items() if name not in others}


def settings_of(record: Record, model: ProgramModel) -> ModelSettings:
    """Return the settings of one model under its record, as `ortune apply` sets them.

    What the search tried and the record leaves out gets ONNX Runtime's default, also where the program sets another
    value.
    """
    fields: dict[str, dict[str, Value]] = {}
    for field in OF_SESSIONS:
        own: Mapping[str, Value] = getattr(record.config, field)
        tried = record.tried.session_options if field == "session_options" else record.tried.session_config
        set_before = {*getattr(record.base, field), *({*getattr(model.own, field), *model.varied} & {*tried})}
        restored = {
            name: KNOBS[name].default
            for name in sorted(set_before - own.keys())
            if name in KNOBS and KNOBS[name].default != ""
        }
        fields[field] = {**restored, **own}
    return msgspec.structs.replace(ModelSettings(), **fields)


def find_differences(records: Sequence[Record], prepared: PreparedProgram, program: PreparedProgram) -> list[str]:
    """Return how the program differs from that of the records, as sentences.

    Args:
        records: The records.
        prepared: The program with all of its models.
        program: The program with those that have a record, in the order of the records.
    """
    run, here = records[0].workload.program, prepared.describe_run()
    assert run
    notes = []
    if digest_command(prepared.task.command) != run.sha256:
        what = f"It was {run.program}." if run.program != here.program else "Its arguments were different."
        notes.append(f"The records were made with another command. {what}")
    if here.n_processes != run.n_processes:
        notes.append(
            f"{here.n_processes} processes create sessions. When the program was tuned, it was {run.n_processes}."
        )
    for record, model in zip(records, program.models, strict=True):
        if any(getattr(model.own, field).keys() - getattr(record.base, field).keys() for field in OF_SESSIONS):
            notes.append(
                f"The program itself sets other options for {model.name} than when it was tuned, so the comparison has "
                "another baseline."
            )
    known = {model.name for model in program.models}
    notes += [f"There is no record for {model.name}." for model in prepared.models if model.name not in known]
    return notes


def name_program(command: Sequence[str]) -> str:
    """Return the name of a program: that of its file, with the script that it runs.

    Other arguments are left out, as they may be passwords.
    """
    name = Path(command[0]).name
    if len(command) > 1 and not command[1].startswith("-") and Path(command[1]).is_file():
        return f"{name} {Path(command[1]).name}"
    return name
