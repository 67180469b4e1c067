"""Reads plans for several models on one host. `ortune.planning.files` writes them."""

from __future__ import annotations

from pathlib import Path

from ortune.planning.colocation.result import HOST_PLAN_SCHEMA, HostPlan
from ortune.planning.files import MOST_PLAN_BYTES, decode_document
from ortune.record.check import check_configs
from ortune.record.files import name_of_input, read_content

HOST_PLAN_HINT = "Create one: ortune plan MODEL=RATE MODEL=RATE -o FILE."


def read_host_plan(path: str | Path, *, trust: bool = False) -> HostPlan:
    """Read a plan for several models. Nothing in it is executed, and its settings must be those that ortune knows.

    Args:
        path: Path of the file; `-` for stdin.
        trust: Whether the plan may name files, libraries and other environment variables, as for records.

    Raises:
        RecordError: There is no such file, or it is not a plan for several models that this version can read.
    """
    return decode_host_plan(
        read_content(path, MOST_PLAN_BYTES, "a plan", HOST_PLAN_HINT), name_of_input(path), trust=trust
    )


def decode_host_plan(data: bytes, name: str = "the text", *, trust: bool = False) -> HostPlan:
    """Return the plan that a text holds; see `read_host_plan`."""
    plan = decode_document(data, name, HostPlan, HOST_PLAN_SCHEMA, HOST_PLAN_HINT)
    check_configs(plan, name, trust=trust)
    return plan
