"""Write the transcript into README.md: `python -m docs.transcript`."""

from __future__ import annotations

import argparse

from docs.transcript.render import README, record_search, render, replace


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--search", action="store_true", help="run the search again on this host, and record it")
    if parser.parse_args().search:
        record_search()
    README.write_text(replace(README.read_text(), render()))


if __name__ == "__main__":
    main()
