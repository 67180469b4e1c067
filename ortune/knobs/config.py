"""A config: ONNX Runtime settings in the form that is written to a record and applied."""

from __future__ import annotations

from typing import Any

import msgspec

Provider = tuple[str, dict[str, str]]
"""An execution provider's name and its options."""

CPU_PROVIDER: Provider = ("CPUExecutionProvider", {})


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that differ from ONNX Runtime's default.

    Attributes:
        session_options: Attributes of SessionOptions; enums by name ("ORT_PARALLEL").
        session_config: Entries for `SessionOptions.add_session_config_entry`.
        run_config: Entries for `RunOptions.add_run_config_entry`.
        providers: Execution providers in order of priority, each with its options.
        environment: Environment variables to be set before the process starts.
    """

    session_options: dict[str, int | bool | str] = {}
    session_config: dict[str, str] = {}
    run_config: dict[str, str] = {}
    providers: tuple[Provider, ...] = (CPU_PROVIDER,)
    environment: dict[str, str] = {}

    @property
    def key(self) -> str:
        """A text that is equal for equal configs, whatever the order of their entries."""
        return msgspec.json.encode(self, order="deterministic").decode()

    @property
    def settings(self) -> dict[str, int | bool | str]:
        """All settings but the providers, by name."""
        return {**self.session_options, **self.session_config, **self.run_config, **self.environment}

    @property
    def is_default(self) -> bool:
        """Whether this is ONNX Runtime's default on the CPU."""
        return self == DEFAULT

    def with_setting(self, where: str, name: str, value: int | bool | str) -> Config:
        """Return a copy with one more setting; `where` is the field that it goes to."""
        entries: dict[str, Any] = {**getattr(self, where), name: value}
        return msgspec.structs.replace(self, **{where: entries})


DEFAULT = Config()
"""ONNX Runtime's default on the CPU."""
