"""Plans: of one model, and of several on one host."""

from __future__ import annotations

import functools
import io
import zlib
from typing import TYPE_CHECKING

from tests.fuzz.mutation import mutate_bytes
from tests.fuzz.target import Target, attempt

if TYPE_CHECKING:
    from ortune.planning.pick import PickedDeployment

WORDS = (b'"cpus":[[0]]', b'"cpus":[[]]', b"99999999999999999999", b"-1", b"null", b"1e308", b'"processes":64')


@functools.cache
def plan_seeds() -> tuple[bytes, ...]:
    from ortune.planning.files import encode_plan
    from tests import test_colocation, test_planning

    return (encode_plan(test_planning.make_example()), encode_plan(test_colocation.make_example()))


def run_plan(data: bytes) -> None:
    """Read a plan, show it, and write its deployments for a system."""
    from ortune.console.host_plan import show_host_plan
    from ortune.console.plan import show_plan
    from ortune.console.safe_console import SafeConsole
    from ortune.export import render
    from ortune.planning.colocation.files import decode_host_plan
    from ortune.planning.colocation.pick import pick_models
    from ortune.planning.files import decode_plan
    from ortune.planning.pick import pick_deployment
    from tests.plans import SERVERS

    number = zlib.crc32(data)
    console = SafeConsole(file=io.StringIO(), width=60 + number % 60)

    def write(picked: PickedDeployment) -> None:
        attempt(render, SERVERS[number % len(SERVERS)], picked.record, "m.onnx", "plan.json", None, picked)

    if (plan := attempt(decode_plan, data)) is not None:
        show_plan(console, plan, None)
        write(pick_deployment(plan, 1 + number % len(plan.rows)))
    if (host_plan := attempt(decode_host_plan, data)) is not None:
        show_host_plan(console, host_plan, None)
        for picked in pick_models(host_plan, 1 + number % len(host_plan.rows)):
            write(picked)


PLANS = Target(run_plan, plan_seeds, lambda data, random: mutate_bytes(data, random, WORDS, plan_seeds()))
