"""A config's settings, ticked off one by one as a target writes them. What is left at the end is what it cannot say."""

from __future__ import annotations

from ortune.knobs.config import OF_BOTH, Config, ThreadPool, alias_of

Value = int | bool | str


class PendingSettings:
    """The settings of a config that are still to be written.

    Every `take_...` gives a setting and ticks it off, so that none can be dropped in silence.

    Args:
        config: The config.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._left: dict[str, Value] = {name: value for name, value in config.settings.items() if name != "providers"}
        self._providers_left = not config.provider.startswith("CPU")
        self._reasons: dict[str, str] = {}

    def take_option(self, name: str) -> Value | None:
        """Take an attribute of SessionOptions; None where it has ONNX Runtime's default."""
        self._left.pop(name, None)
        return self.config.session_options.get(name)

    def take_options(self) -> dict[str, Value]:
        """Take all attributes of SessionOptions."""
        return {name: value for name in self.config.session_options if (value := self.take_option(name)) is not None}

    def take_entry(self, name: str) -> str | None:
        """Take a session configuration entry; None where there is none."""
        self._left.pop(name, None)
        return self.config.session_config.get(name)

    def take_entries(self) -> dict[str, str]:
        """Take all session configuration entries."""
        return {name: text for name in self.config.session_config if (text := self.take_entry(name)) is not None}

    def take_run_options(self) -> dict[str, Value]:
        """Take all attributes of RunOptions."""
        for name in self.config.run_options:
            self._left.pop(f"run.{name}" if name in OF_BOTH else name, None)
        return dict(self.config.run_options)

    def take_run_entries(self) -> dict[str, str]:
        """Take all run configuration entries."""
        for name in self.config.run_config:
            self._left.pop(name, None)
        return dict(self.config.run_config)

    def take_run_entry(self, name: str) -> str | None:
        """Take a run configuration entry; None where there is none."""
        self._left.pop(name, None)
        return self.config.run_config.get(name)

    def take_providers(self) -> tuple[tuple[str, dict[str, str]], ...]:
        """Take the execution providers and all their options."""
        self._providers_left = False
        for name, options in self.config.providers:
            for option in options:
                self._left.pop(f"{alias_of(name)}.{option}", None)
        return self.config.providers

    def take_provider_names(self) -> tuple[str, ...]:
        """Take the execution providers without their options."""
        self._providers_left = False
        return tuple(name for name, _ in self.config.providers)

    def take_environment(self) -> dict[str, str]:
        """Take all environment variables."""
        for name in self.config.environment:
            self._left.pop(name, None)
        return dict(self.config.environment)

    def take_global_pool(self) -> ThreadPool | None:
        """Take the pool that all sessions share; None where each has its own."""
        self._left.pop("global_thread_pool", None)
        return self.config.global_thread_pool

    def take_io_binding(self) -> bool:
        """Take whether calls go through IO binding."""
        self._left.pop("io_binding", None)
        return self.config.io_binding

    def take_sessions(self) -> tuple[dict[str, str], ...]:
        """Take the entries that differ from session to session."""
        for number, entries in enumerate(self.config.per_session, 1):
            for name in entries:
                self._left.pop(f"{name} of session {number}", None)
        return self.config.per_session

    def explain(self, name: str, reason: str) -> None:
        """Say why a setting, if it is left, cannot be written."""
        self._reasons[name] = reason

    def leave(self, name: str, value: Value, reason: str = "") -> None:
        """Put a setting back that was taken and turned out to be beyond the target."""
        self._left[name] = value
        if reason:
            self._reasons[name] = reason

    def leave_provider(self, name: str, reason: str) -> None:
        """Put an execution provider back with its options: the target does not have it."""
        known = self._left.get("providers")
        self.leave("providers", f"{known},{alias_of(name)}" if known else alias_of(name), reason)
        for option, value in dict(self.config.providers).get(name, {}).items():
            self.leave(f"{alias_of(name)}.{option}", value)

    @property
    def lost(self) -> tuple[str, ...]:
        """What was not written, a line each."""
        lines = [f"providers={','.join(alias_of(name) for name, _ in self.config.providers)}"] * self._providers_left
        for name, value in self._left.items():
            reason = self._reasons.get(name, "")
            lines.append(f"{name}={value}" + (f" ({reason})" if reason else ""))
        return tuple(lines)
