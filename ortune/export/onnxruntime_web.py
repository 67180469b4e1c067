"""JavaScript code for onnxruntime-web, which runs ONNX Runtime as WebAssembly in browsers.

All its sessions share one pool of threads, whose size is a flag of the package. Settings of pools are not read from
sessions.

Source: js/web/lib/wasm/session-options.ts and onnxruntime/wasm/api.cc of onnxruntime.
"""

from __future__ import annotations

from typing import Any

from ortune.export.comments import make_comment
from ortune.export.javascript import KEYS, VALUES, nest_entries
from ortune.export.literals import JAVASCRIPT, LOGGING_LEVELS, format_json
from ortune.export.target import Job, Target
from ortune.knobs import ids
from ortune.knobs.canonical import OF_SPINNING, OF_WORKERS
from ortune.knobs.config import CPU

ONNXRUNTIME_WEB_NAME = "onnxruntime-web"

OF_POOL = (ids.INTRA_OP_NUM_THREADS, ids.INTER_OP_NUM_THREADS, ids.EXECUTION_MODE)

OPTIONS = {name: key for name, key in KEYS.items() if name not in OF_POOL} | {
    "log_verbosity_level": "logVerbosityLevel"
}
"""Options of sessions, each with its name in JavaScript."""

LEVELS_OF_LOG = ("log_severity_level", "log_verbosity_level")

OF_POOLS = (*OF_WORKERS, *OF_SPINNING, ids.INTER_OP_ALLOW_SPINNING, ids.FORCE_SPINNING_STOP)
"""Configuration entries that have no effect on a pool that sessions share."""

SHARED = "the sessions of onnxruntime-web share one pool, which does not have this setting"
ONE_THREAD = "onnxruntime-web has one inter-op thread"

PROVIDERS: dict[str, tuple[str, tuple[str, ...]]] = {
    CPU: ("wasm", ()),
    "WebGpuExecutionProvider": (
        "webgpu",
        (
            "preferredLayout",
            "validationMode",
            "storageBufferCacheMode",
            "uniformBufferCacheMode",
            "queryResolveBufferCacheMode",
            "defaultBufferCacheMode",
        ),
    ),
    "WebNNExecutionProvider": ("webnn", ("deviceType", "powerPreference")),
}
"""Providers, each with its name in JavaScript and the options that it takes there."""

NATIVE = "// The settings were measured with native ONNX Runtime. Measure again in the browser."

ISOLATION = """\
// Threads require a page that is isolated from other origins. Send it with two headers:
//     Cross-Origin-Opener-Policy: same-origin
//     Cross-Origin-Embedder-Policy: require-corp
// Without them, onnxruntime-web runs with one thread."""


def write(job: Job) -> str:
    """Return an ES module that exports a function, which creates the session."""
    pending = job.pending
    for name in (*pending.config.environment, ids.ALLOCATOR):
        pending.explain(name, "a page has no environment variables")
    threads = _take_threads(job)
    options = _take_session_options(job)
    build = "wasm" if options["executionProviders"] == ["wasm"] else "webgpu"
    lines = [NATIVE, *(ISOLATION.split("\n") if threads != 1 else [])]
    lines += [f'import * as ort from "onnxruntime-web/{build}";', ""]
    if threads:
        lines += [
            "// Before the first session, for all sessions of the page.",
            f"ort.env.wasm.numThreads = {threads};",
            "",
        ]
    lines += [
        f"const options = {format_json(options)};",
        "",
        "export async function createSession() {",
        f"  return ort.InferenceSession.create({JAVASCRIPT.quote(job.model)}, options);",
        "}",
    ]
    for number, entries in enumerate(pending.take_session_entries(), 1):
        for name, value in entries.items():
            if name in OF_POOLS:
                pending.put_back(f"{name} of session {number}", SHARED)
            else:
                pair = f"{JAVASCRIPT.quote(name)}: {JAVASCRIPT.quote(value)}"
                lines.append(make_comment("//", f"For session {number} only, in options.extra: {pair}"))
    run_entries = pending.take_run_entries()
    if run_entries.pop(ids.ARENA_SHRINKAGE, None) is not None:
        # With this entry, all calls would fail, whether or not the session enables the arena.
        pending.put_back(ids.ARENA_SHRINKAGE, "WebAssembly has no memory arena")
    if run_entries:
        extra = format_json({"extra": nest_entries(run_entries, ONNXRUNTIME_WEB_NAME)})
        lines += ["", f"export const runOptions = {extra};  // pass it to session.run(feeds, runOptions)"]
    return "\n".join(lines)


def _take_threads(job: Job) -> int:
    """Return the number of threads, including the caller; 0 for the default of onnxruntime-web."""
    pending = job.pending
    pending.explain(ids.INTER_OP_NUM_THREADS, ONE_THREAD)
    # With one inter-op thread, ORT_PARALLEL would only turn off the memory pattern.
    pending.explain(ids.EXECUTION_MODE, ONE_THREAD)
    pool = pending.take_global_pool()
    if pool is None:
        return int(pending.take_option(ids.INTRA_OP_NUM_THREADS) or 0)
    if pool.inter_op_num_threads != 1:
        pending.put_back(ids.GLOBAL_THREAD_POOL, ONE_THREAD)
    return pool.intra_op_num_threads


def _take_session_options(job: Job) -> dict[str, Any]:
    """Return the options of `InferenceSession.create`, as JSON values."""
    pending = job.pending
    options: dict[str, Any] = {}
    for name, key in OPTIONS.items():
        value = pending.take_option(name)
        if value is None and name == ids.ENABLE_MEM_PATTERN:
            value = True  # the default of ONNX Runtime, but not that of onnxruntime-web
        if name in LEVELS_OF_LOG and value not in (None, *LOGGING_LEVELS):
            pending.put_back(name, f"{ONNXRUNTIME_WEB_NAME} does not have this level")
        elif value is not None:
            options[key] = VALUES.get(value, value) if isinstance(value, str) else value
    providers: list[Any] = []
    for provider, own in pending.take_providers():
        if provider not in PROVIDERS:
            pending.put_back_provider(provider, f"{ONNXRUNTIME_WEB_NAME} does not have this provider")
            continue
        name, supported = PROVIDERS[provider]
        pending.put_back_provider_options(
            provider, f"{ONNXRUNTIME_WEB_NAME} does not have this option of the provider", supported=supported
        )
        taken = {option: value for option, value in own.items() if option in supported}
        providers.append({"name": name, **taken} if taken else name)
    options["executionProviders"] = providers
    entries = pending.take_entries()
    for name in [name for name in entries if name in OF_POOLS]:
        pending.put_back(name, SHARED)
        del entries[name]
    if entries:
        options["extra"] = nest_entries(entries, ONNXRUNTIME_WEB_NAME)
    return options


TARGET = Target(
    name="onnxruntime-web", summary="JavaScript code for onnxruntime-web in browsers", write=write, comment="//"
)
