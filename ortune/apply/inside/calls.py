"""Wrap the methods of InferenceSession that run the model: to add run options, and to watch calls.

Methods are wrapped once for all sessions. Sessions that have neither take the short way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

RUN_METHODS = ("run", "run_async", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector")
"""Methods of InferenceSession that take RunOptions."""

RUN_SETTINGS = "_ortune_run_settings"
"""Attribute of sessions whose calls get run options."""

WATCH = "_ortune_watch"
"""Attribute of sessions whose calls are watched: an object with `is_done`, `begin` and `end`; see `SessionWatch` of
`ortune.apply.inside.observer` and `FitCheck` of `ortune.apply.inside.fit`."""

FEED = "_ortune_feed"
"""Attribute of bindings with their inputs by name."""

FEED_NAMES = ("input_feed", "input_dict_ort_values")
"""Parameters with the inputs by name."""

BINDING = "iobinding"


def wrap_runs(kind: Any) -> None:
    """Let the calls of sessions get run options, and be watched.

    Args:
        kind: InferenceSession.
    """
    for name in RUN_METHODS:
        method = getattr(kind, name, None)
        if method is None:
            continue
        names = list(inspect.signature(method).parameters)[1:]
        wrap = _wrap_async if "callback" in names else _wrap
        setattr(kind, name, functools.update_wrapper(wrap(name, method, names), method))


def _wrap(name: str, method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    add_options = _make_adder(names)
    read_feed = _make_reader(names)

    def call(session: Any, *args: Any, **kwargs: Any) -> Any:
        settings = getattr(session, RUN_SETTINGS, None)
        if settings is not None:
            args, kwargs = add_options(settings, args, kwargs)
        watch = getattr(session, WATCH, None)
        if watch is None or watch.is_done:
            return method(session, *args, **kwargs)
        start_ns = watch.begin()
        try:
            result = method(session, *args, **kwargs)
        except BaseException:
            watch.end(start_ns, name, None, failed=True)
            raise
        watch.end(start_ns, name, read_feed(args, kwargs))
        return result

    return call


def _wrap_async(name: str, method: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    add_options = _make_adder(names)
    read_feed = _make_reader(names)
    index = names.index("callback")

    def call(session: Any, *args: Any, **kwargs: Any) -> Any:
        settings = getattr(session, RUN_SETTINGS, None)
        if settings is not None:
            args, kwargs = add_options(settings, args, kwargs)
        watch = getattr(session, WATCH, None)
        callback = args[index] if len(args) > index else kwargs.get("callback")
        if watch is None or watch.is_done or not callable(callback):
            return method(session, *args, **kwargs)
        feed = read_feed(args, kwargs)
        start_ns = watch.begin()

        def end(results: Any, user_data: Any, error: str) -> Any:
            watch.end(start_ns, name, feed, failed=bool(error))
            return callback(results, user_data, error)

        if len(args) > index:
            args = (*args[:index], end, *args[index + 1 :])
        else:
            kwargs = {**kwargs, "callback": end}
        try:
            return method(session, *args, **kwargs)
        except BaseException:
            watch.end(start_ns, name, None, failed=True)
            raise

    return call


def _make_adder(names: list[str]) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return a function that merges run options into the arguments of a method."""
    index = names.index("run_options") if "run_options" in names else None

    def add(settings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if index is None:
            return args, kwargs
        if len(args) > index:
            return (*args[:index], settings.merge(args[index]), *args[index + 1 :]), kwargs
        return args, {**kwargs, "run_options": settings.merge(kwargs.get("run_options"))}

    return add


def _make_reader(names: list[str]) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """Return a function that returns the inputs by name, given the arguments of a method; None if it cannot."""
    parameter = next((name for name in names if name in (*FEED_NAMES, BINDING)), None)
    if parameter is None:
        return lambda args, kwargs: None
    index = names.index(parameter)

    def read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value = args[index] if len(args) > index else kwargs.get(parameter)
        value = getattr(value, FEED, None) if parameter == BINDING else value
        return value if isinstance(value, dict) else None

    return read
