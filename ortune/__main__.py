"""Where the command starts, as `ortune` and as `python -m ortune`."""

from ortune.interrupts import end_at_once


def main() -> None:
    """Run the command line."""
    end_at_once()
    from ortune.cli import main as run

    run()


if __name__ == "__main__":
    main()
