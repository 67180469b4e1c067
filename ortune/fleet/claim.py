"""What identifies the claim of a record, whatever evidence is added to it later."""

from __future__ import annotations

import hashlib

import msgspec

from ortune.record.gpus import list_recorded_gpus
from ortune.record.schema import Record


def digest_claim(record: Record) -> str:
    """Return a SHA-256 of what a record claims: config, baseline, model, workload, class of host, GPUs and version."""
    workload = record.workload
    claim = {
        "config": record.config.key,
        "base": record.base.key,
        "model": record.model.digest,
        "load": workload.load,
        "objectives": workload.objectives,
        "limits": workload.limits,
        "inputs": sorted((name, data.dtype, data.shapes) for name, data in workload.inputs.items()),
        "host": record.host.id,
        "background_load": workload.background_load,
        "gpus": list_recorded_gpus(record),
        "onnxruntime": record.runtime.onnxruntime,
    }
    return hashlib.sha256(msgspec.json.encode(claim, order="deterministic")).hexdigest()
