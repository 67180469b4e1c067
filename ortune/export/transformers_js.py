"""JavaScript code for Transformers.js, which runs onnxruntime-node in Node.js, and onnxruntime-web in browsers.

Source: src/pipelines.js, src/models/session.js and src/backends/onnx.js of
https://github.com/huggingface/transformers.js.
"""

from __future__ import annotations

from pathlib import Path

from ortune.export.comments import make_comment
from ortune.export.javascript import PROVIDERS, take_session_options
from ortune.export.literals import JAVASCRIPT, format_json
from ortune.export.onnxruntime_web import ISOLATION
from ortune.export.target import Job, Target
from ortune.knobs import ids
from ortune.knobs.config import CPU

TRANSFORMERS_JS_NAME = "Transformers.js"

DEVICES = ("cuda", "dml", "coreml", "webgpu")
"""Providers that are also names of devices. Without one, Transformers.js uses the CPU: `cpu` in Node.js, `wasm` in
browsers."""

DTYPES = {
    "_quantized": "q8",
    "_fp16": "fp16",
    "_int8": "int8",
    "_uint8": "uint8",
    "_q4": "q4",
    "_q2": "q2",
    "_q1": "q1",
    "_q4f16": "q4f16",
    "_q2f16": "q2f16",
    "_q1f16": "q1f16",
    "_bnb4": "bnb4",
}
"""Types of weights by the suffix of the model's file name. Without such a suffix, it is `fp32`."""

PIPELINE = """\
export async function createPipeline() {{
  // The task, and the name of the model or its folder.
  return pipeline("feature-extraction", "MODEL", {{
{options}
  }});
}}"""


def write(job: Job) -> str:
    """Return an ES module that exports a function, which creates a pipeline."""
    pending = job.pending
    lines = job.environment_comments("//")
    pool = pending.config.global_thread_pool
    threads = (
        pool.intra_op_num_threads if pool else int(pending.config.session_options.get(ids.INTRA_OP_NUM_THREADS, 0))
    )
    pending.explain(ids.GLOBAL_THREAD_POOL, "onnxruntime-node does not have it; in browsers, all sessions share a pool")
    options = take_session_options(job, TRANSFORMERS_JS_NAME)
    providers = [option if isinstance(option, str) else option["name"] for option in options["executionProviders"]]
    if providers == [PROVIDERS[CPU]]:
        del options["executionProviders"]  # it has another name in browsers
    stem = Path(job.model).stem
    arguments = {"dtype": next((dtype for end, dtype in DTYPES.items() if stem.endswith(end)), "fp32")}
    if device := next((name for name in providers if name in DEVICES), ""):
        arguments["device"] = device
    lines += [
        f'import {{ {"env, " if threads else ""}pipeline }} from "@huggingface/transformers";',
        "",
        f"const session_options = {format_json(options)};",
        "",
    ]
    if threads:
        lines += [
            "// In browsers, this is the pool that all sessions share. The thread settings in session_options are for",
            "// Node.js only.",
            *(ISOLATION.split("\n") if threads > 1 else []),
            f"env.backends.onnx.wasm.numThreads = {threads};",
            "",
        ]
    lines.append(make_comment("//", f"The dtype is that of {Path(job.model).name}."))
    texts = [f"    {name}: {JAVASCRIPT.quote(value)}," for name, value in arguments.items()]
    lines.append(PIPELINE.format(options="\n".join([*texts, "    session_options,"])))
    lines += job.session_comments("//", JAVASCRIPT, "only, in session_options.extra: {name}: {value}")
    return "\n".join(lines)


TARGET = Target(
    name="transformers-js", summary="JavaScript code for Transformers.js (pipeline)", write=write, comment="//"
)
