"""Write the generated parts of the documentation: `python -m docs.generate`.

record.schema.json  the JSON Schema of a record, from the code
record.md           its example, and the tables of all fields
"""

from __future__ import annotations

import json
from pathlib import Path

from docs.record_page import render
from ortune.record.json_schema import json_schema

HERE = Path(__file__).parent


def main() -> None:
    """Write the files."""
    (HERE / "record.schema.json").write_text(json.dumps(json_schema(), indent=2) + "\n")
    page = HERE / "record.md"
    page.write_text(render(page.read_text()))


if __name__ == "__main__":
    main()
