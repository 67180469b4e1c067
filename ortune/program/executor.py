"""Launches candidates as programs: each is a tree of processes, suspended except while it is measured."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ortune.interrupts import uninterrupted
from ortune.knobs import Config
from ortune.program.candidates import CallCandidate, RunCandidate, ServerCandidate
from ortune.program.process import ProgramProcess
from ortune.program.runner import LEAST_RUN_DEADLINE_S, PAUSE_SHARE, RUN_DEADLINE_FACTOR, ProgramRunner
from ortune.replaceable import replaceable
from ortune.worker import Failure, LiveCandidate


class ProgramExecutor(ProgramRunner):
    """Launches a program with the settings of candidates. When it is closed, all programs end."""

    def now_s(self) -> float:
        """Return the time of a monotonic clock, in seconds."""
        return time.monotonic()

    @property
    def keeps_alive(self) -> bool:
        """Whether candidates stay alive between blocks. The others are run to completion in each block."""
        return self._server is not None or self._keeps_running

    def launch(
        self, configs: Sequence[Config], *, deadline_s: float, independent: bool = True
    ) -> list[LiveCandidate | Failure]:
        """Launch candidates one after the other, as the start of a program uses all CPUs.

        The first config that is ever launched must be the baseline.
        """
        self._base = self._base or configs[0]
        return [self._launch(config, deadline_s) for config in configs]

    def _launch(self, config: Config, deadline_s: float) -> LiveCandidate | Failure:
        if not self.keeps_alive:
            if self.outputs.n_ended:
                return RunCandidate(self, config)
            # It is not measured. Times that it prints differ from those of the next run, and are not compared.
            pause_after_s = None if self._run_s is None else PAUSE_SHARE * self._run_s
            result = self.run(config, min(deadline_s, self.run_deadline_s), pause_after_s=pause_after_s)
            if isinstance(result, Failure):
                return result
            wall_s = result.ended.wall_ns / 1e9
            self.run_deadline_s = max(LEAST_RUN_DEADLINE_S, RUN_DEADLINE_FACTOR * wall_s)
            return RunCandidate(self, config)
        with uninterrupted():
            process = ProgramProcess()
            live = (
                ServerCandidate(self, config, process, self._server)
                if self._server
                else CallCandidate(self, config, process)
            )
            self.live.add(live)
        failure = live.start(deadline_s)
        if failure:
            live.check_files()
            live.close()
        return failure or live


open_program_executor = replaceable(ProgramExecutor)
"""Returns a `ProgramExecutor`, or what a simulated host has instead."""
