"""Time the calls of one function of a program.

The function is replaced as soon as its module has been imported. Its calls are appended to `calls-<pid>.bin`: for each
call that is not made by another one, the start and the end as little-endian integers of 64 bits, in nanoseconds of
`time.perf_counter_ns`. On Linux, that clock is the same for all processes.

What the first calls return is appended to `returned-<pid>.jsonl` after the end of the call was noted, before the next
one may begin; see `ortune.apply.inside.returned`.

A reference to the function that the module made before it was imported completely, such as the handler that a decorator
registers, still leads to the original function.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import json
import os
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path
from typing import Any

from ortune.apply.inside.explain import write_stderr
from ortune.apply.inside.gate import CallGate, open_gate
from ortune.apply.inside.returned import describe_returned

MAIN = "__main__"

MAIN_NAMES = (MAIN, "__mp_main__")
"""Names of the module that a program runs; the second in processes that multiprocessing spawns."""

CALL = struct.Struct("<qq")
"""A call: its start and its end."""

MOST_RETURNED = 100_000
"""Longest description of a result that is written."""

_is_inside = contextvars.ContextVar("ortune_is_inside", default=False)


class CallTimer:
    """Replaces a function, and times its calls.

    Args:
        plan: See `ortune.apply.inside.finder.Plan`.
        observer: The observer of this process; see `ortune.apply.inside.observer`. None if it is not observed.

    Attributes:
        module: Name of the module that defines the function.
        is_found: Whether the function was replaced.
    """

    def __init__(self, plan: dict[str, Any], observer: Any = None) -> None:
        self._name = str(plan["call"])
        module, _, path = self._name.partition(":")
        self.module = MAIN if is_main(module) else module
        self._path = path.split(".")
        self._folder = Path(plan["log"])
        self._observer = observer
        self._gate: CallGate | None = open_gate(plan.get("gate"))
        self._most_returned = int(plan.get("returned") or 0)
        self._lock = threading.RLock()
        self._file: int | None = None
        self._n_calls = 0
        self._gave_up = False
        self.is_found = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin_again)

    def _begin_again(self) -> None:
        self._lock = threading.RLock()
        self._n_calls = 0
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._gate is not None:
            self._gate.begin_again()

    def describe(self) -> dict[str, Any]:
        """Return what is known as JSON types."""
        return {"name": self._name, "found": self.is_found, "n_calls": self._n_calls}

    def watch_main(self) -> None:
        """Replace the function as soon as the module that the program runs has defined it.

        Each line of the module's own code is traced until then: a function that is defined in one line may be called in
        the next.
        """

        def trace_call(frame: Any, event: str, argument: Any) -> Any:
            is_main_code = frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") in MAIN_NAMES
            return trace_line if is_main_code else None

        def trace_line(frame: Any, event: str, argument: Any) -> Any:
            found = self._replace_in(frame.f_globals)
            if (found or event == "return") and sys.gettrace() is trace_call:
                sys.settrace(None)
            return None if found else trace_line

        sys.settrace(trace_call)

    def patch(self, module: Any) -> None:
        """Replace the function in a module that has been imported."""
        if not self._replace_in(vars(module)):
            write_stderr(f"ortune: {module.__name__} has no function {'.'.join(self._path)}.\n")
            self._write_observed()

    def _replace_in(self, names: dict[str, Any]) -> bool:
        """Replace the function. Return whether it is there."""
        *owners, last = self._path
        try:
            if not owners:
                function = names[last]
                names[last] = self._wrap(function)
            else:
                owner = names[owners[0]]
                for attribute in owners[1:]:
                    owner = getattr(owner, attribute)
                function = inspect.getattr_static(owner, last)
                setattr(owner, last, self._wrap(function))
        except (KeyError, AttributeError, TypeError):
            return False
        self.is_found = True
        self._write_observed()
        return True

    def _write_observed(self) -> None:
        if self._observer is not None:
            self._observer.write()

    def _wrap(self, function: Any) -> Any:
        """Return a function that times the calls of another one.

        Raises:
            TypeError: It cannot be called.
        """
        if isinstance(function, (staticmethod, classmethod)):
            return type(function)(self._wrap(function.__func__))
        if not callable(function) or isinstance(function, type):
            raise TypeError
        if inspect.isasyncgenfunction(function):
            wrap = self._wrap_async_generator
        elif inspect.iscoroutinefunction(function):
            wrap = self._wrap_coroutine
        elif inspect.isgeneratorfunction(function):
            wrap = self._wrap_generator
        else:
            wrap = self._wrap_function
        return functools.update_wrapper(wrap(function), function)

    def _wrap_function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_inside.get():
                return function(*args, **kwargs)
            start_ns = self._begin()
            _is_inside.set(True)
            result: Any = None
            try:
                result = function(*args, **kwargs)
                return result
            finally:
                _is_inside.set(False)
                self._end(start_ns, result)

        return call

    def _wrap_coroutine(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if _is_inside.get():
                return await function(*args, **kwargs)
            start_ns = await self._begin_async()
            _is_inside.set(True)
            result: Any = None
            try:
                result = await function(*args, **kwargs)
                return result
            finally:
                _is_inside.set(False)
                self._end(start_ns, result)

        return call

    def _wrap_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            if _is_inside.get():
                return (yield from function(*args, **kwargs))
            start_ns = self._begin()
            try:
                return (yield from _Inside(function(*args, **kwargs)))
            finally:
                self._end(start_ns)

        return call

    def _wrap_async_generator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            is_outermost = not _is_inside.get()
            start_ns = await self._begin_async() if is_outermost else 0
            generator = function(*args, **kwargs)
            sent: Any = None
            thrown: BaseException | None = None
            try:
                while True:
                    _is_inside.set(True)
                    try:
                        item = await (generator.asend(sent) if thrown is None else generator.athrow(thrown))
                    except StopAsyncIteration:
                        return
                    finally:
                        _is_inside.set(not is_outermost)
                    sent = thrown = None
                    try:
                        sent = yield item
                    except GeneratorExit:
                        raise
                    except BaseException as error:  # noqa: BLE001  (the program's generator gets it)
                        thrown = error
            finally:
                try:
                    await generator.aclose()
                finally:
                    if is_outermost:
                        self._end(start_ns)

        return call

    def _begin(self) -> int:
        """Wait until calls may begin. Return the start of this one."""
        if self._gate is not None:
            try:
                self._gate.enter()
            except OSError:  # ortune has ended, and the program continues
                self._gate = None
        return time.perf_counter_ns()

    async def _begin_async(self) -> int:
        if self._gate is not None:
            try:
                await self._gate.enter_async()
            except OSError:
                self._gate = None
        return time.perf_counter_ns()

    def _end(self, start_ns: int, result: Any = None) -> None:
        """Append a call to the file, and what it returned if it is one of the first ones, and let others pass."""
        end_ns = time.perf_counter_ns()
        try:
            with self._lock:
                if self._file is None:
                    path = self._folder / f"calls-{os.getpid()}.bin"
                    self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                os.write(self._file, CALL.pack(start_ns, end_ns))
                self._n_calls += 1
                if self._n_calls <= self._most_returned:
                    self._write_returned(start_ns, end_ns, result)
            if self._observer is not None and end_ns >= self._observer.next_write_ns:
                self._observer.write()
        except OSError as error:
            self._give_up(error)
        finally:
            if self._gate is not None:
                with contextlib.suppress(OSError):
                    self._gate.leave()

    def _write_returned(self, start_ns: int, end_ns: int, result: Any) -> None:
        """Append what a call returned to the file. The caller holds the lock."""
        text = describe_returned(result)
        if text is not None and len(text) > MOST_RETURNED:
            text = None
        line = json.dumps({"start_ns": start_ns, "end_ns": end_ns, "text": text}).encode() + b"\n"
        with (self._folder / f"returned-{os.getpid()}.jsonl").open("ab", buffering=0) as file:
            file.write(line)

    def _give_up(self, error: OSError) -> None:
        """Report once that calls cannot be written. If the folder is gone, ortune has ended: the program continues."""
        if not self._gave_up:
            self._gave_up = True
            if not isinstance(error, FileNotFoundError):
                write_stderr(f"ortune: calls cannot be written ({error}).\n")


class _Inside:
    """A generator whose body runs inside a call. The code that it yields to does not."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def __iter__(self) -> _Inside:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume the generator with a value."""
        _is_inside.set(True)
        try:
            return self._generator.send(value)
        finally:
            _is_inside.set(False)

    def throw(self, *error: Any) -> Any:
        """Resume the generator with an exception."""
        _is_inside.set(True)
        try:
            return self._generator.throw(*error)
        finally:
            _is_inside.set(False)

    def close(self) -> None:
        """Close the generator."""
        _is_inside.set(True)
        try:
            self._generator.close()
        finally:
            _is_inside.set(False)


def is_main(module: str) -> bool:
    """Return whether a module is the one that this process runs, also as `python -m MODULE`."""
    if module == MAIN:
        return True
    arguments = iter(sys.orig_argv[1:])
    for argument in arguments:
        if argument in ("-X", "-W"):
            next(arguments, None)
        elif argument.startswith("-m"):
            return (argument[2:] or next(arguments, "")) in (module, module.removesuffix(f".{MAIN}"))
        elif not argument.startswith("-") or argument == "-c":
            break
    return False
