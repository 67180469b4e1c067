"""genai_config.json of onnxruntime-genai: session and run options of one part of the model.

Source: src/config.cpp and src/models/session_options.cpp of onnxruntime-genai (commit a0c04eb).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ortune.errors import UsageError
from ortune.export.literals import LEVELS_WITHOUT_LAYOUT, format_json
from ortune.export.provider_names import BY_NAME
from ortune.export.target import Job, Target
from ortune.file_kinds import is_record
from ortune.knobs.config import CPU
from ortune.limited import read_limited

OPTIONS = (
    "intra_op_num_threads",
    "inter_op_num_threads",
    "log_severity_level",
    "log_verbosity_level",
    "enable_cpu_mem_arena",
    "enable_mem_pattern",
)

DEFAULT_THREADS = {"intra_op_num_threads": 0}
"""ONNX Runtime's default. Without the option, onnxruntime-genai sets half of the CPUs, at most 16
(`CreateSessionOptionsFromConfig` in src/models/model.cpp)."""

MOST_GENAI_CONFIG_BYTES = 1 << 20
"""Largest size of a genai_config.json that is read."""

PROVIDERS = {
    **BY_NAME,
    "CUDAExecutionProvider": "cuda",
    "NvTensorRTRTXExecutionProvider": "NvTensorRtRtx",
    "AMDGPUExecutionProvider": "AMDGPU",
}
"""Names that onnxruntime-genai knows, and those that it passes on to ONNX Runtime. It rejects any other name."""

PARTS = ("decoder", "encoder", "embedding", "vision", "speech")
"""Parts of a model that have their own session options."""


def write(job: Job) -> str:
    """Return the document: the existing one with the settings added, or a new one that holds only them.

    In an existing document, the settings go to the part with the model's file name, otherwise to the decoder.

    Raises:
        UsageError: The existing document cannot be read.
    """
    document = _read_document(job.output)
    parts = _open_object(document, "model", job.output)
    file_name = Path(job.model).name
    names = [name for name in PARTS if isinstance(parts.get(name), dict) and parts[name].get("filename") == file_name]
    part = _open_object(parts, names[0] if names else "decoder", job.output)
    existing = _open_object(part, "session_options", job.output)
    theirs = _read_providers(existing, job.output)
    # The search did not try other options, so they stay.
    tried = job.record.tried
    kept = {key: value for key, value in existing.items() if key not in {*tried.session_options, *tried.session_config}}
    own = _take_session_options(job)
    part["session_options"] = {**DEFAULT_THREADS, **kept, **own, "provider_options": _merge_providers(job, theirs)}
    if run_entries := job.pending.take_run_entries():
        part["run_options"] = {**_open_object(part, "run_options", job.output), **run_entries}
    return format_json(document)


def _open_object(parent: dict[str, Any], name: str, path: Path | None) -> dict[str, Any]:
    """Return an object of the document, and create it if it is not there.

    Raises:
        UsageError: The value of this name is not an object.
    """
    if parent.get(name) is None:
        parent[name] = {}
    found = parent[name]
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {name} is not an object.", "Name a genai_config.json.", option="output")
    return found


def _take_session_options(job: Job) -> dict[str, Any]:
    pending = job.pending
    options: dict[str, Any] = {}
    for name in OPTIONS:
        if (value := pending.take_option(name)) is not None:
            options[name] = value
    level = pending.take_option("graph_optimization_level")
    if level in LEVELS_WITHOUT_LAYOUT:
        options["graph_optimization_level"] = level
    elif level is not None:
        pending.put_back("graph_optimization_level", "onnxruntime-genai does not have this level")
    for name, text in pending.take_entries().items():
        if "." in name:
            options[name] = text
        else:
            # onnxruntime-genai has keys of its own, such as a library to load. None has a dot.
            pending.put_back(name, "onnxruntime-genai could take it for an option of its own")
    return options


def _read_providers(options: dict[str, Any], path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the options of each provider of the existing document, by its name there.

    Raises:
        UsageError: It has another form.
    """
    entries = options.get("provider_options") or []
    names: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        if entry is entries or not isinstance(entry, dict) or not all(isinstance(own, dict) for own in entry.values()):
            raise UsageError(
                f"{path}: provider_options is not a list of objects that hold the options of a provider.",
                "Name a genai_config.json.",
                option="output",
            )
        for name, own in entry.items():
            found.setdefault(names.setdefault(_normalize(name), name), {}).update(own)
    return found


def _merge_providers(job: Job, theirs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the value of `provider_options`.

    As in a program under `ortune apply`, the providers of the config come first, and an option that it does not set
    keeps its value. Providers that the search tried but that are not in the config are removed. All others are kept.
    """
    pending = job.pending
    names = {_normalize(name): name for name in theirs}
    merged: dict[str, dict[str, Any]] = {}
    for provider, own in pending.take_providers():
        if provider in PROVIDERS:
            name = names.pop(_normalize(provider), PROVIDERS[provider])
            merged[name] = {**theirs.get(name, {}), **own}
        elif provider != CPU:
            pending.put_back_provider(provider, "onnxruntime-genai does not have this provider")
    tried = {_normalize(provider) for provider in job.record.tried.providers}
    stay = {name: theirs[name] for key, name in names.items() if key not in tried}
    active = [name for name in stay if _normalize(name) != "cpu"]
    if active and not merged:
        pending.report(
            "providers", "cpu", f"the file has {', '.join(active)}, which the search did not try, so it is kept"
        )
    return [{name: own} for name, own in {**merged, **stay}.items()]


def _normalize(name: str) -> str:
    """Return the name of a provider as onnxruntime-genai compares it: in lower case, without its ending."""
    return name.lower().removesuffix("executionprovider")


def _read_document(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    try:
        content = read_limited(path, MOST_GENAI_CONFIG_BYTES)
        document = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: this file exists, and is not JSON: {error}.", "Name a genai_config.json.", option="output"
        ) from None
    if not isinstance(document, dict) or is_record(content):
        raise UsageError(f"{path}: this is not a genai_config.json.", "Name another file.", option="output")
    return document


TARGET = Target(
    name="genai",
    summary="genai_config.json of onnxruntime-genai, new or added to an existing one",
    write=write,
    comment="",
    merges=True,
)
