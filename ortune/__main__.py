"""Where the command starts, as `ortune` and as `python -m ortune`."""

import sys

from ortune.interrupts import end_at_once


def main() -> None:
    """Run the command line."""
    end_at_once()
    arguments = sys.argv[1:]
    if arguments[:1] == ["apply"] and "--" in arguments:
        run_program(arguments)
    from ortune.cli import main as run

    run()


def run_program(arguments: list[str]) -> None:
    """Become another program, in which records are in force."""
    from ortune.apply.command import launch
    from ortune.errors import ExitCode, OrtuneError, print_trust_warnings

    print_trust_warnings()
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
