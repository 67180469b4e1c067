"""`ortune gate CONFIG ... -- COMMAND`: keep the gain of a program from getting lost, in CI."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ortune.cli.after_dashes import check_single_config
from ortune.cli.command import Values, command
from ortune.cli.gate import check_outputs, run_and_report
from ortune.options import make_request
from ortune.requests import GateReportOptions, ProgramGateRequest

if TYPE_CHECKING:
    from ortune.gates.results import GateError, GateResult

GATE_USAGE = "ortune gate tuned.json -- python app.py"


@command(ProgramGateRequest, GateReportOptions, optional=frozenset({"config", "command"}), has_steps=True)
def gate_program(values: Values, reports: GateReportOptions) -> None:
    """Compare a program as it is with the program under the settings of CONFIG, until it is decided if its gain holds.

    What is measured is in the records. What they do not hold must be given again, such as the files of requests.
    """
    check_single_config(values.get("command", ()), sys.argv, GATE_USAGE)
    check_outputs(reports)
    request = make_request(ProgramGateRequest, values, "cli")
    run_and_report(lambda done: run(request, reports), request.name, reports)


def run(request: ProgramGateRequest, reports: GateReportOptions) -> tuple[GateResult | GateError, ...]:
    """Run the gate and show its progress.

    Raises:
        OrtuneError: It could not be measured.
    """
    from ortune.console.gate import GateDisplay
    from ortune.console.widgets import make_console
    from ortune.gates.programs import prepare_program_gate
    from ortune.gates.run import run_gate

    display = GateDisplay(make_console(stderr=reports.take_stdout), quiet=reports.quiet, explain=reports.explain)
    gate, tuned = prepare_program_gate(request)
    with display.watch(gate, tuned) as observe:
        result = run_gate(gate, observe, setup=tuned)
    display.show(result)
    return (result,)
