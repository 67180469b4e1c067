"""`ortune space`: show what a search would try, and why."""

from __future__ import annotations

from ortune.cli.command import Values, command
from ortune.cli.output import print_json
from ortune.errors import InputsError
from ortune.options import make_request
from ortune.requests import JsonOptions, SpaceRequest


@command(SpaceRequest, JsonOptions, has_steps=True)
def space(values: Values, output: JsonOptions) -> None:
    """Show what a search of MODEL would try on this host, and why, and check that the model runs on its inputs."""
    from ortune.console.warnings import warn_missing_runtime, warn_unchecked_inputs
    from ortune.console.widgets import make_console, show_warning
    from ortune.host import read_host
    from ortune.knobs import build_space
    from ortune.knobs.build import fixed_options
    from ortune.model import read_model
    from ortune.tuning.prepare import make_space_options
    from ortune.worker.graphs import merge_same_programs
    from ortune.worker.installed import is_installed
    from ortune.worker.providers import choose_providers
    from ortune.worker.working_inputs import check_inputs
    from ortune.workload import make_feed

    request = make_request(SpaceRequest, values, "cli")
    info = read_model(request.model)
    choice = choose_providers(request.provider, fixed_options(request.fix))
    feed = make_feed(info, request.input_options)
    failure, fault = None, None
    if is_installed():
        try:
            failure = check_inputs(info, feed)
        except InputsError as error:
            fault = error
    else:
        show_warning(make_console(stderr=True), warn_missing_runtime())
    listed = build_space(read_host(), info, make_space_options(request, choice))
    found = merge_same_programs(listed, [info]) if is_installed() else listed
    if output.json:
        data = {
            "dimensions": found.dimensions,
            "rules": found.rules,
            "skipped": found.skipped,
            "faults": choice.faults,
            "twins": {twin.variant.label: twin.same_as.label for twin in found.twins},
            "candidates": found.candidates,
        }
        print_json(data, enc_hook=sorted)
    else:
        from ortune.console.space import show_space

        show_space(make_console(), found, listed, choice.faults, feed)
    if failure:
        show_warning(make_console(stderr=True), warn_unchecked_inputs(failure))
    if fault:
        raise fault
