"""`ortune apply`: use records in a program, in code or in the files of other systems, or check them on this host."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import ExitCode, OrtuneError, UsageError
from ortune.options import make_request
from ortune.requests import ApplyRequest, VerifyRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ortune.fleet.proofs import OpenClaim
    from ortune.measure.judge import Answer
    from ortune.record.schema import Record
    from ortune.record.select import Sourced, Wanted


@command(ApplyRequest, has_steps=True)
def apply(values: Values) -> None:
    """Use CONFIG: run a command with it (ortune apply CONFIG -- COMMAND), write it for another system, or verify it.

    Without an option, the config is checked on this host, and the Python code that applies it is printed.
    """
    from ortune.worker.installed import require_runtime

    request = make_request(ApplyRequest, values, "cli")
    if request.list:
        show_targets(json=request.json)
        return
    configs, model = split_files(list(request.files))
    check_combination(request)
    if not request.to:
        require_runtime()
    from ortune.record.select import Wanted

    elsewhere = bool(request.to)
    wanted = Wanted(load=request.given_load, pick=request.pick, any_host=request.any_host, elsewhere=elsewhere)
    config = find_config(request, configs, model, wanted)
    if request.to:
        from ortune.export.selection import list_selection

        selection = list_selection(config, wanted, trust=request.trust, cache_dir=request.cache_dir)
        export(config, model, request.to, None if request.output == "-" else request.output, selection)
    elif request.warm:
        warm_here(request, config, model)
    elif request.verify:
        verify_here(request, config.record, model, Path(config.path) if request.update else None)
    else:
        check_here(request, config, model)


def check_combination(request: ApplyRequest) -> None:
    """Check that the options go together.

    Raises:
        UsageError: They do not.
    """
    for name in ("keep_explicit", "any_model", "explain", "explain_json", "canary", "metrics"):
        if getattr(request, name) != getattr(ApplyRequest, name):
            raise UsageError(
                "needs a command.", "Put it after --: ortune apply tuned.json -- python app.py.", option=name
            )
    if request.to and request.verify:
        raise UsageError(f"{request.to}: cannot be combined with {{verify}}.", "Verify first, then write.", option="to")
    if request.to and request.json:
        raise UsageError(f"{request.to}: cannot be combined with {{json}}.", "Leave one of them out.", option="to")
    if request.output and not request.to:
        raise UsageError(
            f"{request.output}: there is nothing to write without {{to=TARGET}}.",
            "ortune apply --list shows the targets.",
            option="output",
        )
    if request.update and not request.verify:
        raise UsageError(
            "needs {verify}: without a measurement, there is nothing to add.",
            "Leave it out, or verify.",
            option="update",
        )
    if request.storage and not request.verify:
        raise UsageError(
            "needs {verify}: without a measurement, there is nothing to share.",
            "Leave it out, or verify.",
            option="storage",
        )
    if request.sustained and not request.verify:
        raise UsageError(
            "needs {verify}: without it, nothing is measured.", "Leave it out, or verify.", option="sustained"
        )
    check_cache_options(request)
    for name in ("budget", "beside"):
        value = getattr(request, name)
        if value is not None and not request.verify:
            raise UsageError(
                f"{value}: nothing is measured without {{verify}}.", "Leave it out, or verify.", option=name
            )


def check_cache_options(request: ApplyRequest) -> None:
    """Check that the options for the cache of compiled models can be combined with the others.

    Raises:
        UsageError: They do not.
    """
    for name in ("to", "verify"):
        if request.warm and getattr(request, name):
            raise UsageError(f"cannot be combined with {{{name}}}.", "Run one after the other.", option="warm")
    if request.warm and request.cache_dir is None:
        raise UsageError("needs a folder.", "Write: ortune apply tuned.json --warm --cache-dir FOLDER.", option="warm")
    if request.verify and request.cache_dir is not None:
        raise UsageError(
            f"{request.cache_dir}: cannot be combined with {{verify}}, which compiles the model again.",
            "Leave it out.",
            option="cache_dir",
        )


def split_files(files: list[str]) -> tuple[list[str], str | None]:
    """Return the records and the model, which comes last and is not a JSON file.

    Raises:
        UsageError: There is no record.
    """
    if not files:
        raise UsageError("There is no CONFIG.", "Pass a record that a search wrote: ortune apply tuned.json.")
    for name in files[1:]:
        if not Path(name).exists() and shutil.which(name):
            raise UsageError(f"{name} is a command.", f"Put it after --: ortune apply {files[0]} -- {name} ...")
    models = [name for name in files if Path(name).suffix.lower() in {".onnx", ".ort"}]
    if len(files) == 2 and models == files[:1]:
        raise UsageError(
            f"{files[0]} is a model: CONFIG and MODEL are swapped.", f"Write: ortune apply {files[1]} {files[0]}"
        )
    if len(models) > 1:
        raise UsageError(f"{' and '.join(models)} are models, and there is no CONFIG.", "Pass a record and its model.")
    if len(files) > 1 and files[-1] != "-" and Path(files[-1]).suffix.lower() != ".json":
        return files[:-1], files[-1]
    if Path(files[-1]).suffix.lower() in {".onnx", ".ort"}:
        raise UsageError(f"{files[-1]} is a model, and there is no CONFIG.", f"Write: ortune apply CONFIG {files[-1]}.")
    return files, None


def find_config(request: ApplyRequest, configs: list[str], model: str | None, wanted: Wanted) -> Sourced:
    """Return the record for this model, host and load, or the nearest one: one of a search, or that of a deployment.

    Raises:
        RecordError: No record is for the model, there are records for several models and none is named, or one was made
            with a program and must be verified with it.
        UsageError: A plan is to be verified.
    """
    from ortune.apply.verify import check_alone
    from ortune.planning.read import find_deployment, read_configs, select_config, use_cache_dir

    records = read_configs(configs, trust=request.trust, pick=request.pick)
    if request.verify:
        for sourced in records:
            check_alone(sourced.record)
            if find_deployment(sourced):
                raise UsageError(
                    f"{sourced.source} is a plan, and only records can be verified.",
                    "Plan again, with `ortune plan`.",
                    option="verify",
                )
    # The path may be that on another host, where the exported config will be used.
    present = model if model is not None and Path(model).is_file() else None
    if model is not None and present is None:
        records = tuple(sourced for sourced in records if sourced.record.model.path == model) or records
    found = select_config(records, wanted, present)
    return found if request.verify else use_cache_dir(found, request.cache_dir)


def check_here(request: ApplyRequest, config: Sourced, model: str | None) -> None:
    """Create and run the session, and show the effective settings and the code."""
    from ortune.apply.check import run_once
    from ortune.export import render
    from ortune.planning.read import find_deployment

    record = config.record
    picked = find_deployment(config)
    path = model or record.model.path
    run = run_once(record, path, request.inputs)
    snippet = render("python", record, path, config.path or "a record", picked=picked).text
    if request.json:
        planned = {"deployment": picked.row} if picked else {}
        print_json({"fits": run.fits, "config": record.config, **planned, "run": run, "snippet": snippet})
    elif not request.quiet:
        from ortune.console.apply import show_apply
        from ortune.console.widgets import make_console

        show_apply(make_console(), record, run, snippet, picked)
    if not (run.works if request.any_host else run.fits):
        raise typer.Exit(ExitCode.FAILED)


def warm_here(request: ApplyRequest, config: Sourced, model: str | None) -> None:
    """Fill the cache of compiled models, and show what it saves."""
    from ortune.apply.warm import warm

    assert request.cache_dir is not None
    warmed = warm(config.record, model or config.record.model.path, request.cache_dir, request.inputs)
    if request.json:
        print_json(warmed)
    elif not request.quiet:
        from ortune.console.apply import show_warm
        from ortune.console.widgets import make_console

        show_warm(make_console(), warmed, request.cache_dir)
    if not warmed.works or (warmed.mismatches and not request.any_host):
        raise typer.Exit(ExitCode.FAILED)


def export(config: Sourced, model: str | None, target: str, output: str | None, selection: Sequence[str] = ()) -> None:
    """Write the config for another system, and report the settings that it cannot express."""
    from ortune.console.apply import show_export
    from ortune.console.widgets import make_console
    from ortune.export import export as write
    from ortune.planning.read import find_deployment

    done = write(
        target,
        config.record,
        model or config.record.model.path,
        config.path,
        None if output is None else Path(output),
        find_deployment(config),
        selection,
    )
    if output is None:
        sys.stdout.buffer.write(done.text.encode())  # code is UTF-8, whatever the terminal is
    show_export(make_console(stderr=True), done, output)


def verify_here(request: ApplyRequest, record: Record, model: str | None, path: Path | None = None) -> None:
    """Repeat the comparison with the default on this host, and report whether the recorded gain holds.

    Args:
        request: The options.
        record: The record.
        model: Path of the model, or None for the recorded one.
        path: The record's file, to which the result is added; None to leave it as it is.
    """
    from ortune.apply.verify import prepare_verification, verify
    from ortune.console.progress import ComparisonProgress
    from ortune.console.verify import show_plan, show_verification
    from ortune.console.widgets import make_console
    from ortune.record.files import check_unchanged, check_writable, write_record
    from ortune.record.rounding import round_record
    from ortune.times import read_time

    console = make_console(stderr=request.json)
    if path is not None:
        check_single(path, record, trust=request.trust)
        check_writable(path, "update")
    verify_request = VerifyRequest(
        config=record,
        model=model,
        inputs=request.inputs,
        beside=request.beside,
        sustained=request.sustained,
        seed=request.seed,
    )
    setup = prepare_verification(record, verify_request)
    claim = open_shared(request, record)
    if not request.quiet:
        show_plan(console, record, setup)
    started = read_time()
    with ComparisonProgress(console, quiet=request.quiet) as progress:
        verification = verify(record, setup, progress, budget_s=request.budget)
    fault: OrtuneError | None = None

    def update(before: Record, after: Record | None) -> None:
        nonlocal fault
        if path is None or after is None or fault:
            return
        try:
            check_unchanged(path, (before,), trust=request.trust, alone=True)
            write_record(round_record(after), path)
        except OrtuneError as error:
            fault = error

    measured = verification.record
    update(record, measured)
    if claim is not None:
        from ortune.fleet.verify import share_verification

        # The storage may not answer for long. What was measured is in the record by then.
        verification = share_verification(claim, record, verification, started)
        if verification.record != measured:
            update(round_record(measured) if measured else record, verification.record)
    if request.json:
        print_json(verification)
    if not request.quiet:
        written = None if path is None or fault else str(path)
        show_verification(console, verification, written, is_added=verification.record is not None)
    if fault:
        raise fault
    exit_with_answer(verification.answer)


def open_shared(request: ApplyRequest, record: Record) -> OpenClaim | None:
    """Return the place of a record's proofs in the storage that an option or the environment names; None without one.

    It is opened before anything is measured, so that a mistake costs no time.

    Raises:
        UsageError: The location is not legal, or a driver is not installed.
        StorageError: The storage does not answer.
    """
    from ortune.storage.location import find_location

    location = find_location(request.storage)
    if location is None:
        return None
    from ortune.fleet.proofs import open_claim

    return open_claim(location, record)


def exit_with_answer(answer: Answer) -> None:
    """Exit with the code of a verification."""
    codes = {"does_not_hold": ExitCode.FAILED, "inconclusive": ExitCode.INCONCLUSIVE}
    if answer in codes:
        raise typer.Exit(codes[answer])


def check_single(path: Path, record: Record, *, trust: bool) -> None:
    """Check that a file holds this record alone, so that it can be written again.

    Raises:
        UsageError: It is a bundle or no file, or one point of a Pareto front was picked.
    """
    from ortune.record.files import read_records

    if not path.is_file():
        raise UsageError(f"{path}: is not a file.", "Pass the record as a file.", option="update")
    if read_records(path, trust=trust) != (record,):
        raise UsageError(
            f"{path}: only a file with a single record can be updated, and all of the record must be verified.",
            "Verify without {update}.",
            option="update",
        )


def show_targets(*, json: bool) -> None:
    """Print the targets of --to."""
    from ortune.export import list_targets

    listed = list_targets()
    if json:
        print_json(listed)
        return
    from ortune.console.apply import show_target_list
    from ortune.console.widgets import make_console

    show_target_list(make_console(), listed)
