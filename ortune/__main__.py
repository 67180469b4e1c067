"""Where the command starts, as `ortune` and as `python -m ortune`."""

import sys

from ortune.interrupts import end_at_once
from ortune.streams import open_closed_streams, show_what_fits

LEAST_MEMORY_BYTES = 256 << 20
"""Memory below which libraries may not load, on a host with two CPUs; they need more with more CPUs."""


def main() -> None:
    """Run the command line."""
    end_at_once()
    arguments = sys.argv[1:]
    if arguments[:1] == ["apply"] and "--" in arguments and "--verify" not in arguments[: arguments.index("--")]:
        run_program(arguments)
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        show_what_fits(stream)
    check_memory_limits()
    from ortune.console.spinner import show_start

    with show_start(arguments):
        from ortune.cli import main as run

    run()


def check_memory_limits() -> None:
    """Exit with a message if the memory of this process is limited to less than its libraries take.

    This is checked first because OpenBLAS ends the process with status 1 when it finds too little memory, or hangs.
    """
    try:
        import resource
    except ImportError:  # pragma: no cover  (Windows)
        return
    for flag, kind in (("-v", resource.RLIMIT_AS), ("-d", resource.RLIMIT_DATA)):
        limit_bytes = resource.getrlimit(kind)[0]
        if limit_bytes != resource.RLIM_INFINITY and limit_bytes < LEAST_MEMORY_BYTES:
            sys.stderr.write(
                f"error: ulimit {flag} {limit_bytes >> 10}: {limit_bytes >> 20} MiB of memory is too little to start "
                f"ortune.\nRaise the limit to {LEAST_MEMORY_BYTES >> 20} MiB or more.\n"
            )
            sys.exit(2)


def run_program(arguments: list[str]) -> None:
    """Become another program, in which records are in force."""
    from ortune.apply.command import launch
    from ortune.errors import ExitCode, OrtuneError, print_record_warnings

    print_record_warnings()
    try:
        launch(arguments[1:])
    except OrtuneError as error:
        from ortune.cli import show_error

        show_error(error)
        sys.exit(ExitCode.ERROR)
    except Exception:  # noqa: BLE001  (a fault of ortune's own: Python would end with 1, which is an answer here)
        from ortune.cli import show_traceback

        show_traceback()
        sys.exit(ExitCode.ERROR)


if __name__ == "__main__":
    main()
