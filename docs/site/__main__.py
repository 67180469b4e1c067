"""Build the documentation site in build/site: `python -m docs.site`. Broken links and warnings are errors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from docs.site.build import build
from docs.site.check import check

OUTPUT = Path("build/site")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"folder of the site (default: {OUTPUT})")
    output = parser.parse_args().output
    build(output)
    faults = check(output)
    for fault in faults:
        sys.stderr.write(f"{fault}\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
