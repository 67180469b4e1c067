"""A log of the changes that a program makes to the options that it passes to onnxruntime.

SessionOptions and RunOptions cannot be copied and cannot list their configuration entries. The log makes both possible.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

CHANGES = ("add_", "register_", "set_", "clear_")
"""Prefixes of the methods that change SessionOptions or RunOptions."""

CANCELS = "set_load_cancellation_flag"
"""Method of SessionOptions that a program calls while a session is being created."""

ADDS_PROVIDER = ("add_provider", "add_provider_for_devices")
"""Methods of SessionOptions that add an execution provider."""

ADDS_ENTRY = ("add_session_config_entry", "add_run_config_entry")
"""Methods that add a configuration entry."""


class OptionsLog:
    """Log of the methods called and attributes set on all objects of a class, from their creation.

    Args:
        kind: SessionOptions or RunOptions. Its methods and attributes are replaced.

    Attributes:
        kind: The class.
        properties: Names of the attributes that can be set.
        called: Names of the methods that were called on any object.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        own = {name: value for name, value in vars(kind).items() if isinstance(value, property) and value.fset}
        self.properties = tuple(own)
        self._methods: dict[str, Callable[..., Any]] = {}
        self._calls: Any = weakref.WeakKeyDictionary()
        self._set: Any = weakref.WeakKeyDictionary()
        self._copies: Any = weakref.WeakKeyDictionary()
        self.called: set[str] = set()
        for name in dir(kind):
            if name.startswith(CHANGES):
                self._methods[name] = getattr(kind, name)
                setattr(kind, name, self._log_calls(name, self._methods[name]))
        for name, value in own.items():
            setattr(kind, name, property(value.fget, self._log_assignments(name, value.fset), doc=value.__doc__))
        initialize = kind.__init__

        @functools.wraps(initialize)
        def init(options: Any, *args: Any, **kwargs: Any) -> None:
            initialize(options, *args, **kwargs)
            self._calls[options], self._set[options] = [], set()

        kind.__init__ = init

    def _log_calls(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(options: Any, *args: Any, **kwargs: Any) -> Any:
            result = method(options, *args, **kwargs)
            self.called.add(name)
            if options in self._calls:
                self._calls[options].append((name, args, kwargs))
                if name == CANCELS:
                    for copy in list(self._copies.get(options, ())):
                        method(copy, *args, **kwargs)
            return result

        return call

    def _log_assignments(self, name: str, fset: Any) -> Callable[[Any, Any], None]:
        def assign(options: Any, value: Any) -> None:
            fset(options, value)
            if options in self._set:
                self._set[options].add(name)
                if name == "terminate":  # another thread sets it during a call
                    for copy in list(self._copies.get(options, ())):
                        fset(copy, value)

        return assign

    def is_complete(self, options: Any) -> bool:
        """Return whether these options were created after the log began, so that the log contains all their changes."""
        return options in self._calls

    def attributes_of(self, options: Any) -> set[str]:
        """Return the names of the attributes that were set."""
        return set(self._set.get(options, ()))

    def entries_of(self, options: Any) -> dict[str, str]:
        """Return the configuration entries that were added."""
        return dict(filter(None, (entry_of(method, args) for method, args, _ in self._calls.get(options, []))))

    def methods_of(self, options: Any) -> list[str]:
        """Return the names of the other methods that were called."""
        calls = self._calls.get(options, ())
        return list(dict.fromkeys(method for method, args, _ in calls if entry_of(method, args) is None))

    def calls_of(self, options: Any) -> list[tuple[str, tuple[Any, ...], dict[str, Any]]]:
        """Return the methods that were called, each with its arguments."""
        return list(self._calls.get(options, ()))

    def add_entry(self, options: Any, name: str, text: str) -> None:
        """Add a configuration entry without logging it."""
        add = next(self._methods[method] for method in ADDS_ENTRY if method in self._methods)
        add(options, name, text)

    def copy(self, options: Any, *, with_providers: bool = True) -> Any:
        """Return new options to which the same methods were applied, except those that add configuration entries.

        Args:
            options: The options.
            with_providers: Whether to apply those that add execution providers.
        """
        fresh = self.kind()
        for method, args, kwargs in list(self._calls[options]):
            if entry_of(method, args) is None and (with_providers or method not in ADDS_PROVIDER):
                self._methods[method](fresh, *args, **kwargs)
        self._copies.setdefault(options, weakref.WeakSet()).add(fresh)
        return fresh


def entry_of(method: str, args: tuple[Any, ...]) -> tuple[str, str] | None:
    """Return the key and value of a call that adds a configuration entry; None for other calls."""
    if method not in ADDS_ENTRY:
        return None
    return (str(args[0]), str(args[1]))  # pybind accepts them only by position


def read_entry(options: Any, name: str) -> str:
    """Return a configuration entry of SessionOptions; empty if it is not set."""
    try:
        return str(options.get_session_config_entry(name))
    except (AttributeError, RuntimeError):
        return ""
