"""Run the command line with `python -m ortune`."""

from ortune.cli import main

if __name__ == "__main__":
    main()
