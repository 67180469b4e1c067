"""`ortune apply CONFIG --verify ... -- COMMAND`: measure whether the recorded gain of a program holds on this host."""

from __future__ import annotations

import sys
from pathlib import Path

from ortune.cli.after_dashes import check_single_config
from ortune.cli.apply import exit_with_answer
from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import OrtuneError
from ortune.options import make_request
from ortune.requests import ProgramVerifyOptions, ProgramVerifyRequest

VERIFY_USAGE = "ortune apply tuned.json --verify -- python app.py"


@command(ProgramVerifyRequest, ProgramVerifyOptions, optional=frozenset({"config", "command"}), has_steps=True)
def verify_program(values: Values, options: ProgramVerifyOptions) -> None:
    """Compare a program as it is with the program under the settings of CONFIG, as the search of the program did.

    What is measured is in the records. What they do not hold must be given again, such as the files of requests.
    """
    from ortune.console.progress import ComparisonProgress
    from ortune.console.tuned import show_tuned
    from ortune.console.verify import show_verification
    from ortune.console.widgets import make_console
    from ortune.program.tuned import has_change, prepare_tuned, read_program_records
    from ortune.program.verify import NOTHING_TO_VERIFY, replace_records
    from ortune.program.verify import verify_program as run
    from ortune.record.files import check_unchanged, check_writable

    check_single_config(values.get("command", ()), sys.argv, VERIFY_USAGE)
    request = make_request(ProgramVerifyRequest, values, "cli")
    console = make_console(stderr=options.json)
    path = Path(request.config) if options.update else None
    records = read_program_records(request)
    if path is not None:
        check_unchanged(path, records, trust=request.trust)
        check_writable(path, "update")
    verification = NOTHING_TO_VERIFY
    if has_change(records):
        tuned = prepare_tuned(records, request)
        if not options.quiet:
            show_tuned(console, tuned)
        with ComparisonProgress(console, quiet=options.quiet) as progress:
            verification = run(tuned, progress, budget_s=request.budget)
    fault: OrtuneError | None = None
    if path is not None and verification.records:
        try:
            replace_records(path, records, verification.records, trust=request.trust)
        except OrtuneError as error:
            fault = error
    if options.json:
        print_json(verification)
    if not options.quiet:
        written = None if path is None or fault else str(path)
        show_verification(console, verification, written, is_added=bool(verification.records))
    if fault:
        raise fault
    exit_with_answer(verification.answer)
