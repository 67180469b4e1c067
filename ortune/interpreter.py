"""How ortune starts Python: no module comes from the folder that ortune runs in.

That folder may be a download or the checkout of a pull request. `python -m` and `python -c` look for modules there
first, so that a file `json.py` would run instead of the module. All commands that start Python begin with `PYTHON`, or
execute code that begins with `LEAVE_FOLDER`.
"""

from __future__ import annotations

import sys

SAFE_PATH = "-P"
"""Option that leaves the working folder out of Python's path. Python has it since version 3.11, which ortune needs."""

PYTHON = (sys.executable, SAFE_PATH)
"""Start of each command that runs this Python."""

LEAVE_FOLDER = "import sys; sys.path[:] = filter(None, sys.path)\n"
"""Start of the code of `python -c` where Python may be older, and not know the option. `sys` is no file."""
