"""Writes a config as code that needs no ortune."""

from __future__ import annotations

from ortune.knobs import Config
from ortune.measure.session import ENUMS


def python_snippet(config: Config, model: str) -> str:
    """Return Python code that creates the session."""
    lines = [f"# start with {name}={value} in the environment" for name, value in config.environment.items()]
    lines += ["import onnxruntime as ort", "", "options = ort.SessionOptions()"]
    for name, value in config.session_options.items():
        text = f"ort.{ENUMS[name]}.{value}" if name in ENUMS else repr(value)
        lines.append(f"options.{name} = {text}")
    lines += [f'options.add_session_config_entry("{name}", "{value}")' for name, value in config.session_config.items()]
    providers = ", ".join(f'("{name}", {options!r})' if options else f'"{name}"' for name, options in config.providers)
    lines.append(f'session = ort.InferenceSession("{model}", options, providers=[{providers}])')
    if config.run_config:
        lines.append("run_options = ort.RunOptions()  # pass it to session.run(..., run_options)")
        lines += [f'run_options.add_run_config_entry("{name}", "{value}")' for name, value in config.run_config.items()]
    return "\n".join(lines)
