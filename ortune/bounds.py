"""Largest numbers that options accept and that records and plans hold.

Options are declared without imports of what they describe, so that `ortune --help` is quick. The bounds are here for
both.
"""

MOST_CLIENTS = 1024
"""Concurrent callers of a process."""

MOST_SESSIONS = 64
"""Sessions of a model in a process."""

MOST_PROCESSES = 64
"""Processes of a model."""

MOST_MODELS = 64
"""Models of a plan."""

MOST_ITEMS = 65_536
"""Items in a call."""

MOST_TOLERANCE = 0.1
"""Relative and absolute tolerance of outputs. With both, a value may be off by a fifth of the largest one. With 0.5 for
both, outputs that are all zero would pass.

Source: twice what `APPROXIMATE_TOLERANCE` allows, and six times the loosest default of a library that compares such
outputs, 1.6e-2 for bfloat16 in https://docs.pytorch.org/docs/stable/testing.html.
"""
