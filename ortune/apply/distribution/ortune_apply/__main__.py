"""Where the command starts, as `ortune-apply` and as `python -m ortune_apply`."""

from __future__ import annotations

import sys

from ortune.apply.command import launch, make_parser
from ortune.errors import ExitCode, OrtuneError, spell_as_flag
from ortune.interrupts import end_at_once
from ortune.naming import COMMAND, DISTRIBUTION
from ortune.sanitize import printable_log


def main() -> None:
    """Run the command line."""
    end_at_once()
    arguments = sys.argv[1:]
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if not arguments or {"-h", "--help"} & set(own):
        sys.stdout.write(make_parser().format_help())
        sys.exit(ExitCode.DONE if arguments else ExitCode.ERROR)
    if "--version" in own:
        from importlib.metadata import version

        sys.stdout.write(f"{COMMAND} {version(DISTRIBUTION)}\n")
        return
    try:
        launch(arguments)
    except OrtuneError as error:
        message, hint = error.render(spell_as_flag)
        sys.stderr.write(printable_log(f"error: {message}\n{hint}\n" if hint else f"error: {message}\n"))
        sys.exit(ExitCode.ERROR)
    except Exception:  # noqa: BLE001  (a fault of ortune's own: Python would end with 1, which programs use)
        import traceback

        sys.stderr.write(printable_log(traceback.format_exc()))
        sys.exit(ExitCode.ERROR)


if __name__ == "__main__":
    main()
