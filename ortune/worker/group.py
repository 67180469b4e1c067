"""A candidate that runs in several processes at the same time, and the blocks that they measure together."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from multiprocessing.connection import wait

import msgspec
import numpy as np

from ortune.knobs.config import Config
from ortune.worker import protocol
from ortune.worker.block import Block, BlockPlan, GpuState, Memory
from ortune.worker.clocks import Clocks
from ortune.worker.failure import Failure
from ortune.worker.places import sum_places
from ortune.worker.process import TIMEOUTS, WorkerProcess
from ortune.worker.session_info import Runtime, SessionInfo


class WorkerGroup:
    """A candidate in several worker processes, which are resumed, measured, suspended and closed together.

    If one of them fails, all are closed.

    Args:
        workers: The processes, all loaded and suspended.
    """

    def __init__(self, workers: Sequence[WorkerProcess]) -> None:
        self.workers = tuple(workers)
        self._failed: Failure | None = None

    @property
    def config(self) -> Config:
        """The config of the candidate."""
        return self.workers[0].config

    @property
    def session_info(self) -> SessionInfo:
        """Facts about the session of the first process; times and differences of outputs are the largest of all."""
        infos = [worker.session_info for worker in self.workers]
        errors = [info.max_error for info in infos if info.max_error is not None]
        return msgspec.structs.replace(
            infos[0],
            load_ns=max(info.load_ns for info in infos),
            max_error=max(errors) if errors else None,
            deterministic=all(info.deterministic for info in infos),
        )

    @property
    def runtime(self) -> Runtime:
        """Versions of the software that the processes run."""
        return self.workers[0].runtime

    def measure(self, plan: BlockPlan) -> Block | Failure:
        """Resume all processes, measure one block in all of them at the same time, and suspend them."""
        if self._failed:
            return self._failed
        before = Clocks.read()
        blocks = measure_together([(worker, plan) for worker in self.workers])
        if isinstance(blocks, Failure):
            return self._fail(blocks)
        return msgspec.structs.replace(merge_blocks(blocks), clock_jump_s=Clocks.read().find_jump_s(before))

    def close(self) -> None:
        """Kill all processes, and wait for their end. It may be called more than once."""
        for worker in self.workers:
            worker.close()

    def _fail(self, failure: Failure) -> Failure:
        self._failed = name_group(failure, len(self.workers))
        self.close()
        return self._failed


def measure_together(plans: Sequence[tuple[WorkerProcess, BlockPlan]]) -> list[Block] | Failure:
    """Resume worker processes, measure a block in each of them at the same time, and suspend them.

    The windows of all blocks are the same, so the plans must agree on everything but the load. Whoever calls this
    closes the processes after a failure.

    Args:
        plans: The processes, and how each is measured. Their load is that of all processes of their candidate.
    """
    workers = [worker for worker, _ in plans]
    replies = _ask_all(plans)
    if isinstance(replies, Failure):
        return replies
    for worker in workers:
        worker.suspend()
    blocks = []
    for worker, reply in zip(workers, replies, strict=True):
        block = worker.read_block(reply)
        if isinstance(block, Failure):
            return block
        blocks.append(block)
    return blocks


def _ask_all(plans: Sequence[tuple[WorkerProcess, BlockPlan]]) -> list[protocol.Reply] | Failure:
    """Let all processes measure a block, and return their replies. This process sleeps in the meantime.

    The processes exchange numbers through this process: what they agree on ends one step and begins the next.
    """
    workers = [worker for worker, _ in plans]
    deadline_s = max(plan.deadline_s for _, plan in plans)
    end_s = time.monotonic() + deadline_s
    for worker in workers:
        if failure := worker.resume():
            return failure
    ids = tuple(worker.pid for worker in workers)
    for number, (worker, plan) in enumerate(plans):
        worker.send(protocol.MeasureRequest(plan=plan, group=ids, number=number))
    while True:
        replies = _receive_all(workers, end_s, deadline_s)
        if isinstance(replies, Failure):
            return replies
        values = tuple(reply.value for reply in replies if isinstance(reply, protocol.ExchangeReply))
        if not values:
            return replies
        if len(values) < len(replies):
            return workers[0].refuse("measure", "the processes of the group are at different steps")
        for worker in workers:
            worker.send(protocol.ExchangeRequest(values))


def _receive_all(workers: Sequence[WorkerProcess], end_s: float, deadline_s: float) -> list[protocol.Reply] | Failure:
    """Return one message of each process, as soon as all of them have sent one."""
    found: dict[WorkerProcess, protocol.Reply] = {}
    while missing := [worker for worker in workers if worker not in found]:
        left_s = max(end_s - time.monotonic(), 0.0)
        ready = wait([worker.pipe for worker in missing], left_s)
        if not ready:
            return Failure(kind="timeout", stage="measure", message=TIMEOUTS["measure"].format(f"{deadline_s:.0f}"))
        for worker in missing:
            if worker.pipe in ready:
                reply = worker.receive(max(left_s, 0.1), "measure", deadline_s)
                if isinstance(reply, Failure):
                    return reply
                found[worker] = reply
    return [found[worker] for worker in workers]


def name_group(failure: Failure, n_processes: int) -> Failure:
    """Return the failure of one process as that of its group."""
    return msgspec.structs.replace(failure, message=f"one of {n_processes} processes: {failure.message}")


def merge_blocks(blocks: Sequence[Block]) -> Block:
    """Return the block of a group, given those of its processes over the same window.

    Calls, CPU time and memory are sums. Latencies are those of all calls. The first process has measured what processes
    outside of the group used.
    """
    first = blocks[0]
    wall_ns = round(sum(block.wall_ns for block in blocks) / len(blocks))
    # Where requests arrive at a rate, the windows may differ by part of a call.
    scales = [wall_ns / block.wall_ns for block in blocks]
    n_made = [len(block.samples_ns) for block in blocks]
    between = [block.cpu_between_ns for block in blocks if block.cpu_between_ns is not None]
    cases = [block.cases for block in blocks if block.cases is not None]
    service_ns, service_sd_ns = merge_services(blocks)
    frequencies = [block.frequency_hz for block in blocks if block.frequency_hz is not None]
    creations = [block.creations_ns for block in blocks if block.creations_ns is not None]
    return Block(
        samples_ns=np.concatenate([block.samples_ns for block in blocks]),
        cases=np.concatenate(cases) if cases else None,
        processes=np.repeat(np.arange(len(blocks)), n_made),
        n_calls=sum(block.n_calls * scale for block, scale in zip(blocks, scales, strict=True)),
        batch=first.batch,
        wall_ns=wall_ns,
        lead_in_ns=max(block.lead_in_ns for block in blocks),
        service_ns=service_ns,
        service_sd_ns=service_sd_ns,
        cpu_ns=round(sum(block.cpu_ns * scale for block, scale in zip(blocks, scales, strict=True))),
        cpu_between_ns=float(np.average(between, weights=n_made)) if between else None,
        creations_ns=np.concatenate(creations) if creations else None,
        memory=Memory(
            steady_bytes=sum(block.memory.steady_bytes for block in blocks),
            peak_bytes=sum(block.memory.peak_bytes for block in blocks),
        ),
        foreign_share=first.foreign_share,
        contended=first.contended,
        gpu=merge_gpu_states([block.gpu for block in blocks if block.gpu]),
        output_error=max((block.output_error for block in blocks if block.output_error is not None), default=None),
        output_fault=next((block.output_fault for block in blocks if block.output_fault), ""),
        places=sum_places(block.places for block in blocks),
        frequency_hz=float(np.mean(frequencies)) if frequencies else None,
    )


def merge_services(blocks: Sequence[Block]) -> tuple[float, float]:
    """Return the mean duration of all calls, and their standard deviation, given those of some blocks."""
    n_made = [len(block.samples_ns) for block in blocks]
    means = np.array([block.service_ns for block in blocks])
    mean = float(np.average(means, weights=n_made))
    squares = [block.service_sd_ns**2 for block in blocks] + (means - mean) ** 2
    return mean, math.sqrt(float(np.average(squares, weights=n_made)))


def merge_gpu_states(states: Sequence[GpuState]) -> GpuState | None:
    """Return the GPU as the processes of a group saw it: what they use together, and what was free before any of them.

    Returns:
        None if there is no state.
    """
    if not states:
        return None
    used = [state.used_bytes for state in states if state.used_bytes is not None]
    free = [state.free_bytes for state in states if state.free_bytes is not None]
    before = [state.free_before_bytes for state in states if state.free_before_bytes is not None]
    return msgspec.structs.replace(
        states[-1],
        used_bytes=sum(used) if len(used) == len(states) else None,
        slowdowns=tuple(dict.fromkeys(name for state in states for name in state.slowdowns)),
        free_bytes=min(free, default=None),
        free_before_bytes=max(before, default=None),
    )
