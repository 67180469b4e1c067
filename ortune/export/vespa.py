"""services.xml of Vespa: an embedder, and the evaluation of models in containers.

Source: config-model/src/main/resources/schema of https://github.com/vespa-engine/vespa, and
https://docs.vespa.ai/en/reference/rag/embedding.html
"""

from __future__ import annotations

from ortune.export.checks import NUMBER
from ortune.export.target import Job, Target
from ortune.knobs import ids
from ortune.knobs.config import CPU, CUDA

MODES = {"ORT_SEQUENTIAL": "sequential", "ORT_PARALLEL": "parallel"}

NO_GPU = "-1"

DOCUMENT = """\
<!-- Copy the part that you use. MODEL is a file of your application. -->
<container id="default" version="1.0">
  <component id="embedder" type="hugging-face-embedder">
    <transformer-model path="MODEL.onnx"/>
    <tokenizer-model path="tokenizer.json"/>
    <onnx-execution-mode>{mode}</onnx-execution-mode>
    <onnx-interop-threads>{inter}</onnx-interop-threads>
    <onnx-intraop-threads>{intra}</onnx-intraop-threads>
    <onnx-gpu-device>{device}</onnx-gpu-device>
  </component>
  <model-evaluation>
    <onnx>
      <models>
        <model name="MODEL">
          <execution-mode>{mode}</execution-mode>
          <interop-threads>{inter}</interop-threads>
          <intraop-threads>{intra}</intraop-threads>
        </model>
      </models>
    </onnx>
  </model-evaluation>
</container>"""


def write(job: Job) -> str:
    """Return the part of the file."""
    pending, n_cores = job.pending, job.record.host.n_usable_cores
    if pending.config.session_options.get(ids.GRAPH_OPTIMIZATION_LEVEL) == "ORT_ENABLE_ALL":
        pending.take_option(ids.GRAPH_OPTIMIZATION_LEVEL)
    pending.explain(ids.GRAPH_OPTIMIZATION_LEVEL, "Vespa always uses ORT_ENABLE_ALL")
    mode = str(pending.take_option(ids.EXECUTION_MODE) or "ORT_SEQUENTIAL")
    intra, inter = (pending.take_option(name) for name in (ids.INTRA_OP_NUM_THREADS, ids.INTER_OP_NUM_THREADS))
    # The defaults of Vespa are a quarter of the CPUs, and one inter-op thread. Write the count that 0 stands for.
    return DOCUMENT.format(
        mode=MODES[mode],
        intra=intra or n_cores,
        inter=inter or (n_cores if mode == "ORT_PARALLEL" else 1),
        device=_take_device(job),
    )


def _take_device(job: Job) -> str:
    """Return the number of the GPU. By default, Vespa uses a GPU if there is one."""
    pending, device = job.pending, NO_GPU
    for name, options in pending.take_providers():
        if name == CUDA:
            device = options.get("device_id", "0")
            supported = {"device_id"}
            if not NUMBER.fullmatch(device):
                device, supported = "0", set()
            reason = "Vespa takes only the device id of this provider"
            pending.put_back_provider_options(name, reason, supported=supported)
        elif name != CPU:
            pending.put_back_provider(name, "Vespa does not have this provider")
    return device


TARGET = Target(
    name="vespa", summary="services.xml of Vespa: embedders and model evaluation", write=write, comment="<!--"
)
