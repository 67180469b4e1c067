"""A worker like the real one, except that some settings make a candidate fail."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from ortune.knobs import DEFAULT
from ortune.knobs.config import alias_of
from ortune.worker import SessionInfo
from ortune.worker.candidate_session import CandidateSession
from ortune.worker.main import main


class FaultySession(CandidateSession):
    def load(self) -> SessionInfo:
        if self.request.config.provider in {"TensorrtExecutionProvider", "QNNExecutionProvider"}:
            return self.pretend_to_build()
        level = self.request.config.session_options.get("graph_optimization_level")
        if level == "ORT_DISABLE_ALL":
            os.kill(os.getpid(), signal.SIGSEGV)
        if level == "ORT_ENABLE_BASIC":
            time.sleep(3600)
        if level == "ORT_ENABLE_EXTENDED":
            sys.exit(7)
        if level == "ORT_ENABLE_LAYOUT":
            blocks = []
            while True:
                blocks.append(bytearray(50_000_000))
        session_info = super().load()
        self.break_calls(self.request.config.session_config.get("session.dynamic_block_base"))
        return session_info

    def pretend_to_build(self) -> SessionInfo:
        """Pretend to be a provider that compiles models, but run on the CPU.

        At level 1, it does not use what it compiled before.
        """
        config = self.request.config
        options = dict(config.providers)[config.provider]
        if config.provider == "QNNExecutionProvider":
            time.sleep(2)
        if options.get("trt_builder_optimization_level") == "5":
            time.sleep(3600)
        if options.get("trt_builder_optimization_level") == "0":
            raise RuntimeError("CUDA failure 2: out of memory ; GPU=0")
        engine = Path(options.get("trt_engine_cache_path", self.request.reference_path + ".folder")) / "model.engine"
        engine.parent.mkdir(exist_ok=True)
        if not engine.exists() or options.get("trt_builder_optimization_level") == "1":
            engine.unlink(missing_ok=True)
            engine.write_text(f"compiled by {os.getpid()} at {time.time_ns()}")
        self.request = msgspec.structs.replace(self.request, config=DEFAULT)
        session_info = super().load()
        self.request = msgspec.structs.replace(self.request, config=config)
        # Like kernels with a race condition: the first calls are right.
        n_right = {"2": 3, "4": 200}.get(options.get("trt_builder_optimization_level", ""))
        if n_right is not None:
            self.call = self.return_other_outputs_after(n_right)
        settings = {f"{alias_of(config.provider)}.{name}": value for name, value in options.items()}
        providers = tuple(name for name, _ in config.providers)
        return msgspec.structs.replace(session_info, providers=providers, settings=settings)

    def return_other_outputs_after(self, n_right: int) -> Callable[[Any], Any]:
        """Return a call whose outputs are wrong after this number of calls."""
        call, numbers = self.call, itertools.count()

        def return_outputs(sample: Any) -> Any:
            is_right = next(numbers) < n_right
            return [output if is_right else output + 1 for output in call(sample)]

        return return_outputs

    def break_calls(self, base: str | None) -> None:
        call = self.call

        def print_garbage(sample: Any) -> Any:
            os.write(1, b"\x00\xff garbage \x93 on stdout\n" * 50)
            return call(sample)

        def return_other_outputs(sample: Any) -> Any:
            return [output + 1 for output in call(sample)]

        calls = 0

        def die_later(sample: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > 20:
                os._exit(9)
            return call(sample)

        self.call = {"2": print_garbage, "4": return_other_outputs, "8": die_later}.get(base or "", call)


if __name__ == "__main__":
    main(FaultySession)
